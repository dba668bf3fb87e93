//! Packets and reason codes as text.

use mainstem_mqtt::ReasonCode;
use mainstem_mqtt::packet::Packet;

/// A reason code as text: `not authorized (0x87)`.
pub(crate) fn reason_text(reason: ReasonCode) -> String {
    let mut words = String::new();
    let name = format!("{reason:?}").replace("QoS", "Qos");
    for c in name.chars() {
        if c.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(c.to_ascii_lowercase());
    }
    format!("{} ({:#04x})", words.replace("qos", "QoS").replace("qo s", "QoS"), reason as u8)
}

/// A packet as one line, for `--debug`.
pub(crate) fn packet_line(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Connect(p) => format!(
            "CONNECT version {} id {:?} clean start {} keep alive {}",
            p.version as u8, p.client_id, p.clean_start, p.keep_alive
        ),
        Packet::ConnAck(p) => {
            let assigned = p.assigned_client_id.map(|id| format!(" assigned id {id:?}")).unwrap_or_default();
            format!("CONNACK {} session present {}{assigned}", reason_text(p.reason), p.session_present)
        }
        Packet::Publish(p) => format!(
            "PUBLISH id {} topic {:?} QoS {} retain {} duplicate {} payload {} bytes",
            p.packet_id,
            p.topic,
            p.qos as u8,
            p.retain,
            p.dup,
            p.payload.len()
        ),
        Packet::PubAck(p) => format!("PUBACK id {} {}", p.packet_id, reason_text(p.reason)),
        Packet::PubRec(p) => format!("PUBREC id {} {}", p.packet_id, reason_text(p.reason)),
        Packet::PubRel(p) => format!("PUBREL id {} {}", p.packet_id, reason_text(p.reason)),
        Packet::PubComp(p) => format!("PUBCOMP id {} {}", p.packet_id, reason_text(p.reason)),
        Packet::Subscribe(p) => {
            let filters: Vec<&str> = p.filters.iter().map(|filter| filter.filter).collect();
            format!("SUBSCRIBE id {} {filters:?}", p.packet_id)
        }
        Packet::SubAck(p) => format!("SUBACK id {} codes {:02x?}", p.packet_id, p.reasons),
        Packet::Unsubscribe(p) => {
            format!("UNSUBSCRIBE id {} {:?}", p.packet_id, p.filters.iter().collect::<Vec<_>>())
        }
        Packet::UnsubAck(p) => format!("UNSUBACK id {} codes {:02x?}", p.packet_id, p.reasons),
        Packet::PingReq => "PINGREQ".into(),
        Packet::PingResp => "PINGRESP".into(),
        Packet::Disconnect(p) => format!("DISCONNECT {}", reason_text(p.reason)),
        Packet::Auth(p) => format!("AUTH {}", reason_text(p.reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_reason_codes() {
        let words = [ReasonCode::NotAuthorized, ReasonCode::QoSNotSupported, ReasonCode::GrantedQoS1];
        assert_eq!(
            words.map(reason_text),
            ["not authorized (0x87)", "QoS not supported (0x9b)", "granted QoS1 (0x01)"]
        );
    }
}
