//! The contents of CONNACK (3.2): what the broker grants of what a CONNECT asks for, or why it refuses.
//!
//! MQTT 5 has a property for each limit that differs from what the client asked for or what the standard assumes; a
//! property that would say what the client knows already is left out. Clients of 3.x cannot be told, so they are
//! granted what they ask for where the difference would matter to them.

use mainstem_mqtt::{ConnAck, Connect, Packet, QoS, ReasonCode, Version};

use crate::config::MqttConfig;

/// What the broker grants of what a CONNECT asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    /// Seconds.
    pub(crate) keep_alive: u16,
    asked_expiry_s: u32,
    pub(crate) expiry_s: u32,
}

impl Granted {
    pub(crate) fn new(config: &MqttConfig, connect: &Connect<'_>) -> Self {
        let is_v5 = connect.version == Version::V5;
        let keep_alive = match (connect.keep_alive, config.keep_alive_s_max) {
            (asked, u16::MAX) => asked,
            // A client of 3.x cannot be told of another than its own.
            (asked, _) if !is_v5 => asked,
            (0, most) => most,
            (asked, most) => asked.min(most),
        };
        let asked_expiry_s = match (is_v5, connect.clean_start) {
            (true, _) => connect.session_expiry.unwrap_or(0),
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        let expiry_s = asked_expiry_s.min(config.session_expiry_s_max);
        Self { keep_alive, asked_expiry_s, expiry_s }
    }
}

/// The CONNACK of an accepted client.
pub(crate) fn accepted<'a>(
    config: &'a MqttConfig,
    connect: &Connect<'_>,
    granted: Granted,
    session_present: bool,
    client_id: &'a str,
) -> ConnAck<'a> {
    let Granted { keep_alive, asked_expiry_s, expiry_s } = granted;
    let response = config.response_information.as_str();
    let wants_response = connect.request_response_information == Some(true);
    ConnAck {
        session_present,
        session_expiry: (expiry_s != asked_expiry_s).then_some(expiry_s),
        receive_maximum: (config.receive_maximum != u16::MAX).then_some(config.receive_maximum),
        maximum_qos: (config.qos_max() < QoS::ExactlyOnce).then_some(config.qos_max()),
        retain_available: (!config.retain_available).then_some(false),
        maximum_packet_size: Some(config.max_packet_size_bytes),
        assigned_client_id: connect.client_id.is_empty().then_some(client_id),
        topic_alias_maximum: (config.topic_alias_maximum > 0).then_some(config.topic_alias_maximum),
        wildcard_subscription_available: (!config.wildcard_subscription_available).then_some(false),
        subscription_ids_available: (!config.subscription_ids_available).then_some(false),
        shared_subscription_available: (!config.shared_subscription_available).then_some(false),
        server_keep_alive: (keep_alive != connect.keep_alive).then_some(keep_alive),
        response_information: (wants_response && !response.is_empty()).then_some(response),
        ..ConnAck::default()
    }
}

/// The CONNACK of a refused client; `None` if it has no room for one. The explanation is left out if only that is too
/// long.
pub(crate) fn rejected(
    config: &MqttConfig,
    version: Version,
    packet_max: Option<u32>,
    reason: ReasonCode,
) -> Option<Packet<'_>> {
    let moved = matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved);
    let reference = &config.server_reference;
    let bare = ConnAck { reason, ..ConnAck::default() };
    let server_reference = (moved && !reference.is_empty()).then_some(reference.as_str());
    let room = packet_max.unwrap_or(u32::MAX) as usize;
    let full = Packet::ConnAck(ConnAck { server_reference, ..bare.clone() });
    [full, Packet::ConnAck(bare)].into_iter().find(|packet| packet.encoded_len(version) <= room)
}
