//! CONNECT (3.1).

use mainstem_mqtt::{Connect, MessageProperties, QoS, ReasonCode, UserProperties, Version, Will};

use super::{Vector, invalid, lenient, valid};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn vectors() -> Vec<Vector> {
    vec![
        valid(
            "connect 3.1",
            Version::V3,
            b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00<\x00\x01c",
            Connect { keep_alive: 60, ..Connect::new(Version::V3, "c") },
        ),
        valid(
            "connect 3.1.1",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x04\x02\x00<\x00\x01c",
            Connect { keep_alive: 60, ..Connect::new(Version::V4, "c") },
        ),
        valid(
            "connect 5",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x05\x02\x00<\x00\x00\x01c",
            Connect { keep_alive: 60, ..Connect::new(Version::V5, "c") },
        ),
        valid(
            "connect 3.1.1 empty client id",
            Version::V4,
            b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
            Connect::new(Version::V4, ""),
        ),
        valid(
            "connect 3.1.1 resumes",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x04\x00\xff\xff\x00\x01c",
            Connect { clean_start: false, keep_alive: 65_535, ..Connect::new(Version::V4, "c") },
        ),
        valid(
            "connect 3.1 with everything",
            Version::V3,
            b"\x10\x1c\x00\x06MQIsdp\x03\xf4\x00\x00\x00\x01c\x00\x01w\x00\x02\x00\xff\
                \x00\x01u\x00\x01\xff",
            Connect {
                clean_start: false,
                will: Some(Will {
                    qos: QoS::ExactlyOnce,
                    retain: true,
                    topic: "w",
                    payload: b"\x00\xff",
                    delay_interval: None,
                    properties: MessageProperties::default(),
                }),
                username: Some("u"),
                password: Some(b"\xff"),
                ..Connect::new(Version::V3, "c")
            },
        ),
        valid(
            "connect 3.1.1 with everything",
            Version::V4,
            b"\x10\x1a\x00\x04MQTT\x04\xf4\x00\x00\x00\x01c\x00\x01w\x00\x02\x00\xff\
                \x00\x01u\x00\x01\xff",
            Connect {
                clean_start: false,
                will: Some(Will {
                    qos: QoS::ExactlyOnce,
                    retain: true,
                    topic: "w",
                    payload: b"\x00\xff",
                    delay_interval: None,
                    properties: MessageProperties::default(),
                }),
                username: Some("u"),
                password: Some(b"\xff"),
                ..Connect::new(Version::V4, "c")
            },
        ),
        valid(
            "connect 5 password alone",
            Version::V5,
            b"\x10\x11\x00\x04MQTT\x05B\x00\x00\x00\x00\x01c\x00\x01p",
            Connect { password: Some(b"p"), ..Connect::new(Version::V5, "c") },
        ),
        valid(
            "connect 5 with everything",
            Version::V5,
            b"\x10e\x00\x04MQTT\x05\xee\x00\x00)\x11\xff\xff\xff\xff!\x00\x01'\x00\x00\
                \x04\x00\x22\x00\x0a\x19\x01\x17\x00\x15\x00\x01m\x16\x00\x01\x00&\x00\
                \x01k\x00\x01v&\x00\x01k\x00\x00\x00\x01c\x1f\x18\x00\x00\x00\x05\x01\
                \x01\x02\x00\x00\x00<\x03\x00\x01t\x08\x00\x01r\x09\x00\x01\x01&\x00\x01\
                a\x00\x01b\x00\x01w\x00\x03bye\x00\x01u\x00\x01p",
            Connect {
                will: Some(Will {
                    qos: QoS::AtLeastOnce,
                    retain: true,
                    topic: "w",
                    payload: b"bye",
                    delay_interval: Some(5),
                    properties: MessageProperties {
                        payload_format: Some(1),
                        message_expiry: Some(60),
                        content_type: Some("t"),
                        response_topic: Some("r"),
                        correlation_data: Some(b"\x01"),
                        user_properties: UserProperties::Pairs(&[("a", "b")]),
                    },
                }),
                username: Some("u"),
                password: Some(b"p"),
                session_expiry: Some(u32::MAX),
                receive_maximum: Some(1),
                maximum_packet_size: Some(1024),
                topic_alias_maximum: Some(10),
                request_response_information: Some(true),
                request_problem_information: Some(false),
                authentication_method: Some("m"),
                authentication_data: Some(b"\x00"),
                user_properties: UserProperties::Pairs(&[("k", "v"), ("k", "")]),
                ..Connect::new(Version::V5, "c")
            },
        ),
        lenient(
            "connect 5 user properties apart",
            Version::V5,
            b"\x10\x1f\x00\x04MQTT\x05\x02\x00\x00\x11&\x00\x01a\x00\x011!\x00\x09&\
                \x00\x01b\x00\x012\x00\x01c",
            Connect {
                receive_maximum: Some(9),
                user_properties: UserProperties::Pairs(&[("a", "1"), ("b", "2")]),
                ..Connect::new(Version::V5, "c")
            },
        ),
        lenient(
            "connect 3.1 user name left out",
            Version::V3,
            b"\x10\x0f\x00\x06MQIsdp\x03\xc2\x00\x00\x00\x01c",
            Connect::new(Version::V3, "c"),
        ),
        lenient(
            "connect 3.1 password left out",
            Version::V3,
            b"\x10\x12\x00\x06MQIsdp\x03\xc2\x00\x00\x00\x01c\x00\x01u",
            Connect { username: Some("u"), ..Connect::new(Version::V3, "c") },
        ),
        lenient(
            "connect 3.1 reserved flag",
            Version::V3,
            b"\x10\x0f\x00\x06MQIsdp\x03\x03\x00\x00\x00\x01c",
            Connect::new(Version::V3, "c"),
        ),
        lenient(
            "connect 3.1 will bits without will",
            Version::V3,
            b"\x10\x0f\x00\x06MQIsdp\x03:\x00\x00\x00\x01c",
            Connect::new(Version::V3, "c"),
        ),
        lenient(
            "connect 3.1.1 padded remaining length",
            Version::V4,
            b"\x10\x8d\x80\x00\x00\x04MQTT\x04\x02\x00\x00\x00\x01c",
            Connect::new(Version::V4, "c"),
        ),
        invalid(
            "connect 5 padded remaining length",
            Version::V5,
            b"\x10\x8e\x00\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.5-1",
        ),
        invalid(
            "connect with flags in the fixed header",
            Version::V4,
            b"\x11\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-2.1.3-1",
        ),
        invalid(
            "connect unknown name",
            Version::V4,
            b"\x10\x0d\x00\x04MQTX\x04\x02\x00\x00\x00\x01c",
            ReasonCode::UnsupportedProtocolVersion,
            "MQTT-3.1.2-1",
        ),
        invalid(
            "connect name in lower case",
            Version::V5,
            b"\x10\x0e\x00\x04mqtt\x05\x02\x00\x00\x00\x00\x01c",
            ReasonCode::UnsupportedProtocolVersion,
            "MQTT-3.1.2-1",
        ),
        invalid(
            "connect level 3 named MQTT",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x03\x02\x00\x00\x00\x01c",
            ReasonCode::UnsupportedProtocolVersion,
            "MQTT-3.1.2-1",
        ),
        invalid(
            "connect level 4 named MQIsdp",
            Version::V4,
            b"\x10\x0f\x00\x06MQIsdp\x04\x02\x00\x00\x00\x01c",
            ReasonCode::UnsupportedProtocolVersion,
            "MQTT-3.1.2-1",
        ),
        invalid(
            "connect level 6",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x01c",
            ReasonCode::UnsupportedProtocolVersion,
            "MQTT-3.1.2-2",
        ),
        invalid(
            "connect bridge bit",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x84\x02\x00\x00\x00\x01c",
            ReasonCode::UnsupportedProtocolVersion,
            "MQTT-3.1.2-2",
        ),
        invalid(
            "connect name not UTF-8",
            Version::V4,
            b"\x10\x0d\x00\x04MQT\xff\x04\x02\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "connect 3.1.1 reserved flag",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x04\x03\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-3",
        ),
        invalid(
            "connect 3.1.1 will QoS without will",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x04\x0a\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-11",
        ),
        invalid(
            "connect 3.1.1 will retain without will",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x04\x22\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-13",
        ),
        invalid(
            "connect 3.1.1 will QoS 3",
            Version::V4,
            b"\x10\x12\x00\x04MQTT\x04\x1e\x00\x00\x00\x01c\x00\x01w\x00\x00",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-12",
        ),
        invalid(
            "connect 3.1.1 client id with NUL",
            Version::V4,
            b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02c\x00",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-2",
        ),
        invalid(
            "connect 3.1.1 bytes at the end",
            Version::V4,
            b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x01c\x00",
            ReasonCode::MalformedPacket,
            "after the last field",
        ),
        invalid(
            "connect 3.1.1 user name missing",
            Version::V4,
            b"\x10\x0d\x00\x04MQTT\x04\x82\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 3.1.1 password missing",
            Version::V4,
            b"\x10\x10\x00\x04MQTT\x04\xc2\x00\x00\x00\x01c\x00\x01u",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 3.1.1 without client id",
            Version::V4,
            b"\x10\x0a\x00\x04MQTT\x04\x02\x00\x00",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 3.1.1 user name not UTF-8",
            Version::V4,
            b"\x10\x11\x00\x04MQTT\x04\x82\x00\x00\x00\x01c\x00\x02\xc3(",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "connect 3.1.1 will topic not UTF-8",
            Version::V4,
            b"\x10\x14\x00\x04MQTT\x04\x06\x00\x00\x00\x01c\x00\x03\xed\xa0\x80\x00\
                \x00",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "connect 5 reserved flag",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-3",
        ),
        invalid(
            "connect 5 will QoS without will",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x05\x0a\x00\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-11",
        ),
        invalid(
            "connect 5 will retain without will",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x05\x22\x00\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-13",
        ),
        invalid(
            "connect 5 will QoS 3",
            Version::V5,
            b"\x10\x14\x00\x04MQTT\x05\x1e\x00\x00\x00\x00\x01c\x00\x00\x01w\x00\x00",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-12",
        ),
        invalid(
            "connect 5 client id with NUL",
            Version::V5,
            b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02c\x00",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-2",
        ),
        invalid(
            "connect 5 bytes at the end",
            Version::V5,
            b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c\x00",
            ReasonCode::MalformedPacket,
            "after the last field",
        ),
        invalid(
            "connect 5 user name missing",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x05\x82\x00\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 5 password missing",
            Version::V5,
            b"\x10\x11\x00\x04MQTT\x05\xc2\x00\x00\x00\x00\x01c\x00\x01u",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 5 without client id",
            Version::V5,
            b"\x10\x0b\x00\x04MQTT\x05\x02\x00\x00\x00",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 5 user name not UTF-8",
            Version::V5,
            b"\x10\x12\x00\x04MQTT\x05\x82\x00\x00\x00\x00\x01c\x00\x02\xc3(",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "connect 5 will topic not UTF-8",
            Version::V5,
            b"\x10\x16\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x00\x00\x03\xed\xa0\
                \x80\x00\x00",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "connect 3.1 will QoS 3",
            Version::V3,
            b"\x10\x14\x00\x06MQIsdp\x03\x1e\x00\x00\x00\x01c\x00\x01w\x00\x00",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-12",
        ),
        invalid(
            "connect 3.1 password without user name",
            Version::V3,
            b"\x10\x12\x00\x06MQIsdp\x03B\x00\x00\x00\x01c\x00\x01p",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-22",
        ),
        invalid(
            "connect 3.1.1 password without user name",
            Version::V4,
            b"\x10\x10\x00\x04MQTT\x04B\x00\x00\x00\x01c\x00\x01p",
            ReasonCode::MalformedPacket,
            "MQTT-3.1.2-22",
        ),
        invalid(
            "connect 3.1 ends after name",
            Version::V3,
            b"\x10\x08\x00\x06MQIsdp",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid("connect empty", Version::V4, b"\x10\x00", ReasonCode::MalformedPacket, "inside a field"),
    ]
}
