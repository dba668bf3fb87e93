//! PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).

use mainstem_mqtt::{Ack, Packet, ReasonCode, UserProperties, Version};

use super::{Vector, invalid, lenient, valid};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn vectors() -> Vec<Vector> {
    vec![
        valid(
            "puback 3.1",
            Version::V3,
            b"@\x02\x01\x02",
            Packet::PubAck(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "puback 3.1.1",
            Version::V4,
            b"@\x02\x01\x02",
            Packet::PubAck(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "puback 5",
            Version::V5,
            b"@\x02\x01\x02",
            Packet::PubAck(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "puback 5 reason alone",
            Version::V5,
            b"@\x03\x00\x01\x10",
            Packet::PubAck(Ack { packet_id: 1, reason: ReasonCode::NoMatchingSubscribers, ..Ack::default() }),
        ),
        valid(
            "puback 5 with everything",
            Version::V5,
            b"@\x11\x00\x01\x10\x0d\x1f\x00\x03why&\x00\x01k\x00\x01v",
            Packet::PubAck(Ack {
                packet_id: 1,
                reason: ReasonCode::NoMatchingSubscribers,
                reason_string: Some("why"),
                user_properties: UserProperties::Pairs(&[("k", "v")]),
            }),
        ),
        invalid(
            "puback packet identifier 0",
            Version::V4,
            b"@\x02\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "puback 5 reason of another packet",
            Version::V5,
            b"@\x03\x00\x01\x8b",
            ReasonCode::ProtocolError,
            "2.4",
        ),
        invalid("puback 5 flags", Version::V5, b"B\x02\x00\x01", ReasonCode::MalformedPacket, "MQTT-2.1.3-1"),
        valid(
            "puback 5 success with a user property",
            Version::V5,
            b"@\x09\x00\x01\x00\x05&\x00\x00\x00\x00",
            Packet::PubAck(Ack {
                packet_id: 1,
                user_properties: UserProperties::Pairs(&[("", "")]),
                ..Ack::default()
            }),
        ),
        lenient(
            "puback 5 success spelt out",
            Version::V5,
            b"@\x03\x00\x01\x00",
            Packet::PubAck(Ack { packet_id: 1, ..Ack::default() }),
        ),
        lenient(
            "puback 5 empty property section",
            Version::V5,
            b"@\x04\x00\x01\x00\x00",
            Packet::PubAck(Ack { packet_id: 1, ..Ack::default() }),
        ),
        invalid("puback short", Version::V5, b"@\x01\x00", ReasonCode::MalformedPacket, "inside a field"),
        invalid("puback empty", Version::V4, b"@\x00", ReasonCode::MalformedPacket, "inside a field"),
        invalid(
            "puback 3.1.1 with a reason",
            Version::V4,
            b"@\x03\x00\x01\x00",
            ReasonCode::MalformedPacket,
            "after the packet identifier",
        ),
        invalid("puback 5 unknown reason", Version::V5, b"@\x03\x00\x01U", ReasonCode::ProtocolError, "2.4"),
        invalid(
            "puback 5 Reason String twice",
            Version::V5,
            b"@\x0c\x00\x01\x00\x08\x1f\x00\x01a\x1f\x00\x01a",
            ReasonCode::ProtocolError,
            "twice",
        ),
        invalid(
            "puback 5 Content Type",
            Version::V5,
            b"@\x08\x00\x01\x00\x04\x03\x00\x01a",
            ReasonCode::MalformedPacket,
            "2.2.2.2",
        ),
        invalid(
            "puback 5 bytes at the end",
            Version::V5,
            b"@\x05\x00\x01\x00\x00\x00",
            ReasonCode::MalformedPacket,
            "after the last field",
        ),
        invalid(
            "puback 3.1.1 flags",
            Version::V4,
            b"H\x02\x00\x01",
            ReasonCode::MalformedPacket,
            "MQTT-2.1.3-1",
        ),
        valid(
            "pubrec 3.1",
            Version::V3,
            b"P\x02\x01\x02",
            Packet::PubRec(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubrec 3.1.1",
            Version::V4,
            b"P\x02\x01\x02",
            Packet::PubRec(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubrec 5",
            Version::V5,
            b"P\x02\x01\x02",
            Packet::PubRec(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubrec 5 reason alone",
            Version::V5,
            b"P\x03\x00\x01\x97",
            Packet::PubRec(Ack { packet_id: 1, reason: ReasonCode::QuotaExceeded, ..Ack::default() }),
        ),
        valid(
            "pubrec 5 with everything",
            Version::V5,
            b"P\x11\x00\x01\x97\x0d\x1f\x00\x03why&\x00\x01k\x00\x01v",
            Packet::PubRec(Ack {
                packet_id: 1,
                reason: ReasonCode::QuotaExceeded,
                reason_string: Some("why"),
                user_properties: UserProperties::Pairs(&[("k", "v")]),
            }),
        ),
        invalid(
            "pubrec packet identifier 0",
            Version::V4,
            b"P\x02\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "pubrec 5 reason of another packet",
            Version::V5,
            b"P\x03\x00\x01\x8b",
            ReasonCode::ProtocolError,
            "2.4",
        ),
        invalid("pubrec 5 flags", Version::V5, b"R\x02\x00\x01", ReasonCode::MalformedPacket, "MQTT-2.1.3-1"),
        valid(
            "pubrel 3.1",
            Version::V3,
            b"b\x02\x01\x02",
            Packet::PubRel(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubrel 3.1.1",
            Version::V4,
            b"b\x02\x01\x02",
            Packet::PubRel(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubrel 5",
            Version::V5,
            b"b\x02\x01\x02",
            Packet::PubRel(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubrel 5 reason alone",
            Version::V5,
            b"b\x03\x00\x01\x92",
            Packet::PubRel(Ack {
                packet_id: 1,
                reason: ReasonCode::PacketIdentifierNotFound,
                ..Ack::default()
            }),
        ),
        valid(
            "pubrel 5 with everything",
            Version::V5,
            b"b\x11\x00\x01\x92\x0d\x1f\x00\x03why&\x00\x01k\x00\x01v",
            Packet::PubRel(Ack {
                packet_id: 1,
                reason: ReasonCode::PacketIdentifierNotFound,
                reason_string: Some("why"),
                user_properties: UserProperties::Pairs(&[("k", "v")]),
            }),
        ),
        invalid(
            "pubrel packet identifier 0",
            Version::V4,
            b"b\x02\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "pubrel 5 reason of another packet",
            Version::V5,
            b"b\x03\x00\x01\x8b",
            ReasonCode::ProtocolError,
            "2.4",
        ),
        invalid("pubrel 5 flags", Version::V5, b"`\x02\x00\x01", ReasonCode::MalformedPacket, "MQTT-2.1.3-1"),
        valid(
            "pubcomp 3.1",
            Version::V3,
            b"p\x02\x01\x02",
            Packet::PubComp(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubcomp 3.1.1",
            Version::V4,
            b"p\x02\x01\x02",
            Packet::PubComp(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubcomp 5",
            Version::V5,
            b"p\x02\x01\x02",
            Packet::PubComp(Ack { packet_id: 258, ..Ack::default() }),
        ),
        valid(
            "pubcomp 5 reason alone",
            Version::V5,
            b"p\x03\x00\x01\x92",
            Packet::PubComp(Ack {
                packet_id: 1,
                reason: ReasonCode::PacketIdentifierNotFound,
                ..Ack::default()
            }),
        ),
        valid(
            "pubcomp 5 with everything",
            Version::V5,
            b"p\x11\x00\x01\x92\x0d\x1f\x00\x03why&\x00\x01k\x00\x01v",
            Packet::PubComp(Ack {
                packet_id: 1,
                reason: ReasonCode::PacketIdentifierNotFound,
                reason_string: Some("why"),
                user_properties: UserProperties::Pairs(&[("k", "v")]),
            }),
        ),
        invalid(
            "pubcomp packet identifier 0",
            Version::V4,
            b"p\x02\x00\x00",
            ReasonCode::ProtocolError,
            "MQTT-2.2.1-3",
        ),
        invalid(
            "pubcomp 5 reason of another packet",
            Version::V5,
            b"p\x03\x00\x01\x8b",
            ReasonCode::ProtocolError,
            "2.4",
        ),
        invalid(
            "pubcomp 5 flags",
            Version::V5,
            b"r\x02\x00\x01",
            ReasonCode::MalformedPacket,
            "MQTT-2.1.3-1",
        ),
        lenient(
            "pubrel 3.1 DUP",
            Version::V3,
            b"j\x02\x00\x01",
            Packet::PubRel(Ack { packet_id: 1, ..Ack::default() }),
        ),
        invalid(
            "pubrel 3.1 QoS 0",
            Version::V3,
            b"`\x02\x00\x01",
            ReasonCode::MalformedPacket,
            "MQTT-2.1.3-1",
        ),
    ]
}
