//! SUBACK and UNSUBACK (3.9, 3.11).

use mainstem_mqtt::{Packet, ReasonCode, SubAck, UserProperties, Version};

use super::{Vector, invalid, valid};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn vectors() -> Vec<Vector> {
    vec![
        valid(
            "suback 3.1",
            Version::V3,
            b"\x90\x06\x00\x0a\x00\x01\x02\x80",
            Packet::SubAck(SubAck { packet_id: 10, reasons: b"\x00\x01\x02\x80", ..SubAck::default() }),
        ),
        invalid(
            "suback 3.1 without reasons",
            Version::V3,
            b"\x90\x02\x00\x0a",
            ReasonCode::MalformedPacket,
            "3.9.3",
        ),
        invalid(
            "suback 3.1 packet identifier 0",
            Version::V3,
            b"\x90\x03\x00\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "suback 3.1 reserved reason",
            Version::V3,
            b"\x90\x04\x00\x0a\x00\x11",
            ReasonCode::ProtocolError,
            "MQTT-3.9.3-2",
        ),
        valid(
            "suback 3.1.1",
            Version::V4,
            b"\x90\x06\x00\x0a\x00\x01\x02\x80",
            Packet::SubAck(SubAck { packet_id: 10, reasons: b"\x00\x01\x02\x80", ..SubAck::default() }),
        ),
        invalid(
            "suback 3.1.1 without reasons",
            Version::V4,
            b"\x90\x02\x00\x0a",
            ReasonCode::MalformedPacket,
            "3.9.3",
        ),
        invalid(
            "suback 3.1.1 packet identifier 0",
            Version::V4,
            b"\x90\x03\x00\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "suback 3.1.1 reserved reason",
            Version::V4,
            b"\x90\x04\x00\x0a\x00\x11",
            ReasonCode::ProtocolError,
            "MQTT-3.9.3-2",
        ),
        valid(
            "suback 5",
            Version::V5,
            b"\x90\x07\x00\x0a\x00\x00\x01\x02\x80",
            Packet::SubAck(SubAck { packet_id: 10, reasons: b"\x00\x01\x02\x80", ..SubAck::default() }),
        ),
        invalid(
            "suback 5 without reasons",
            Version::V5,
            b"\x90\x03\x00\x0a\x00",
            ReasonCode::MalformedPacket,
            "3.9.3",
        ),
        invalid(
            "suback 5 packet identifier 0",
            Version::V5,
            b"\x90\x04\x00\x00\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "suback 5 reserved reason",
            Version::V5,
            b"\x90\x05\x00\x0a\x00\x00\x11",
            ReasonCode::ProtocolError,
            "MQTT-3.9.3-2",
        ),
        invalid(
            "suback 3.1.1 reason of MQTT 5",
            Version::V4,
            b"\x90\x03\x00\x0a\x87",
            ReasonCode::ProtocolError,
            "MQTT-3.9.3-2",
        ),
        invalid(
            "suback 5 unknown reason",
            Version::V5,
            b"\x90\x04\x00\x0a\x00`",
            ReasonCode::ProtocolError,
            "2.4",
        ),
        valid(
            "unsuback 3.1",
            Version::V3,
            b"\xb0\x02\x00\x0a",
            Packet::UnsubAck(SubAck { packet_id: 10, ..SubAck::default() }),
        ),
        valid(
            "unsuback 3.1.1",
            Version::V4,
            b"\xb0\x02\x00\x0a",
            Packet::UnsubAck(SubAck { packet_id: 10, ..SubAck::default() }),
        ),
        valid(
            "unsuback 5",
            Version::V5,
            b"\xb0\x05\x00\x0a\x00\x00\x11",
            Packet::UnsubAck(SubAck { packet_id: 10, reasons: b"\x00\x11", ..SubAck::default() }),
        ),
        valid(
            "unsuback 5 with everything",
            Version::V5,
            b"\xb0\x0f\x00\x0a\x0b\x1f\x00\x01r&\x00\x01k\x00\x01v\x87",
            Packet::UnsubAck(SubAck {
                packet_id: 10,
                reason_string: Some("r"),
                user_properties: UserProperties::Pairs(&[("k", "v")]),
                reasons: b"\x87",
            }),
        ),
        valid(
            "suback 5 with everything",
            Version::V5,
            b"\x90\x0f\x00\x0a\x0b\x1f\x00\x01r&\x00\x01k\x00\x01v\xa2",
            Packet::SubAck(SubAck {
                packet_id: 10,
                reason_string: Some("r"),
                user_properties: UserProperties::Pairs(&[("k", "v")]),
                reasons: b"\xa2",
            }),
        ),
        invalid(
            "unsuback 3.1.1 with reasons",
            Version::V4,
            b"\xb0\x03\x00\x0a\x00",
            ReasonCode::MalformedPacket,
            "after the last field",
        ),
        invalid(
            "unsuback 5 without reasons",
            Version::V5,
            b"\xb0\x03\x00\x0a\x00",
            ReasonCode::MalformedPacket,
            "3.11.3",
        ),
        invalid(
            "unsuback 5 granted QoS 1",
            Version::V5,
            b"\xb0\x04\x00\x0a\x00\x01",
            ReasonCode::ProtocolError,
            "MQTT-3.9.3-2",
        ),
        invalid(
            "suback 5 Subscription Identifier",
            Version::V5,
            b"\x90\x06\x00\x0a\x02\x0b\x01\x00",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
    ]
}
