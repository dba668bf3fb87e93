//! Properties of CONNECT and of its will (3.1.2.11, 3.1.3.2).

use mainstem_mqtt::{ReasonCode, Version};

use super::{Vector, invalid};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn vectors() -> Vec<Vector> {
    vec![
        invalid(
            "connect 5 property length past the end",
            Version::V5,
            b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x7f\x00\x01c",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 5 property length cuts a property",
            Version::V5,
            b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x02!\x00\x01\x00\x01c",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 5 property length of five bytes",
            Version::V5,
            b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x80\x80\x80\x80\x01\x00\x01c",
            ReasonCode::MalformedPacket,
            "1.5.5",
        ),
        invalid(
            "connect 5 padded property length",
            Version::V5,
            b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x80\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.5-1",
        ),
        invalid(
            "connect 5 Session Expiry Interval twice",
            Version::V5,
            b"\x10\x18\x00\x04MQTT\x05\x02\x00\x00\x0a\x11\x00\x00\x00\x00\x11\x00\x00\
                \x00\x00\x00\x01c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Receive Maximum 0",
            Version::V5,
            b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x03!\x00\x00\x00\x01c",
            ReasonCode::ProtocolError,
            "3.1.2.11.3",
        ),
        invalid(
            "connect 5 Receive Maximum twice",
            Version::V5,
            b"\x10\x14\x00\x04MQTT\x05\x02\x00\x00\x06!\x00\x01!\x00\x01\x00\x01c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Maximum Packet Size 0",
            Version::V5,
            b"\x10\x13\x00\x04MQTT\x05\x02\x00\x00\x05'\x00\x00\x00\x00\x00\x01c",
            ReasonCode::ProtocolError,
            "3.1.2.11.4",
        ),
        invalid(
            "connect 5 Maximum Packet Size twice",
            Version::V5,
            b"\x10\x18\x00\x04MQTT\x05\x02\x00\x00\x0a'\x00\x00\x00\x01'\x00\x00\x00\
                \x01\x00\x01c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Topic Alias Maximum twice",
            Version::V5,
            b"\x10\x14\x00\x04MQTT\x05\x02\x00\x00\x06\x22\x00\x01\x22\x00\x01\x00\x01\
                c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Request Response Information 2",
            Version::V5,
            b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02\x19\x02\x00\x01c",
            ReasonCode::ProtocolError,
            "other than 0 and 1",
        ),
        invalid(
            "connect 5 Request Response Information twice",
            Version::V5,
            b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x04\x19\x01\x19\x00\x00\x01c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Request Problem Information 2",
            Version::V5,
            b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02\x17\x02\x00\x01c",
            ReasonCode::ProtocolError,
            "other than 0 and 1",
        ),
        invalid(
            "connect 5 Authentication Method twice",
            Version::V5,
            b"\x10\x16\x00\x04MQTT\x05\x02\x00\x00\x08\x15\x00\x01a\x15\x00\x01a\x00\
                \x01c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Authentication Data alone",
            Version::V5,
            b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x04\x16\x00\x01a\x00\x01c",
            ReasonCode::ProtocolError,
            "3.1.2.11.10",
        ),
        invalid(
            "connect 5 Authentication Data twice",
            Version::V5,
            b"\x10\x1a\x00\x04MQTT\x05\x02\x00\x00\x0c\x15\x00\x01a\x16\x00\x01a\x16\
                \x00\x01a\x00\x01c",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "connect 5 Will Delay outside the will",
            Version::V5,
            b"\x10\x13\x00\x04MQTT\x05\x02\x00\x00\x05\x18\x00\x00\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "connect 5 Topic Alias",
            Version::V5,
            b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x03#\x00\x01\x00\x01c",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "connect 5 unknown property",
            Version::V5,
            b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02~\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "connect 5 property 0",
            Version::V5,
            b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02\x00\x00\x00\x01c",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "connect 5 property identifier of two bytes",
            Version::V5,
            b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x04\xa1\x00\x00\x01\x00\x01c",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "connect 5 user property without value",
            Version::V5,
            b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x04&\x00\x01k\x00\x01c",
            ReasonCode::MalformedPacket,
            "inside a field",
        ),
        invalid(
            "connect 5 user property not UTF-8",
            Version::V5,
            b"\x10\x15\x00\x04MQTT\x05\x02\x00\x00\x07&\x00\x01\xff\x00\x01v\x00\x01c",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "will Delay Interval twice",
            Version::V5,
            b"\x10\x1e\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x0a\x18\x00\x00\x00\
                \x01\x18\x00\x00\x00\x01\x00\x01w\x00\x00",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "will Payload Format Indicator 2",
            Version::V5,
            b"\x10\x16\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x02\x01\x02\x00\x01w\
                \x00\x00",
            ReasonCode::ProtocolError,
            "other than 0 and 1",
        ),
        invalid(
            "will Message Expiry Interval twice",
            Version::V5,
            b"\x10\x1e\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x0a\x02\x00\x00\x00\
                \x01\x02\x00\x00\x00\x01\x00\x01w\x00\x00",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "will Content Type not UTF-8",
            Version::V5,
            b"\x10\x18\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x04\x03\x00\x01\x80\
                \x00\x01w\x00\x00",
            ReasonCode::MalformedPacket,
            "MQTT-1.5.4-1",
        ),
        invalid(
            "will Response Topic twice",
            Version::V5,
            b"\x10\x1c\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x08\x08\x00\x01a\x08\
                \x00\x01a\x00\x01w\x00\x00",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "will Correlation Data twice",
            Version::V5,
            b"\x10\x1c\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x08\x09\x00\x01a\x09\
                \x00\x01a\x00\x01w\x00\x00",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "will Topic Alias",
            Version::V5,
            b"\x10\x17\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x03#\x00\x01\x00\x01w\
                \x00\x00",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "will Subscription Identifier",
            Version::V5,
            b"\x10\x16\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x02\x0b\x01\x00\x01w\
                \x00\x00",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "will Session Expiry Interval",
            Version::V5,
            b"\x10\x19\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x05\x11\x00\x00\x00\
                \x01\x00\x01w\x00\x00",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
    ]
}
