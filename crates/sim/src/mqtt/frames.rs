//! Encodes the packets of clients, and maps a payload back to its message.

use mainstem_mqtt::{
    Ack, Connect, Disconnect, Header, MessageProperties, Packet, Publish, QoS, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties, Version, Will,
};

use super::oracle::{Message, MessageId};
use super::plan::Profile;

pub(crate) fn encode(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(version, &mut frame).expect("what a client says can be said");
    frame
}

/// The number and topic of a message, and padding that makes some messages large.
fn payload(id: MessageId, message: &Message) -> Vec<u8> {
    if message.is_clear {
        return Vec::new();
    }
    let mut payload = format!("{id};{};", message.topic).into_bytes();
    let len = if id.is_multiple_of(17) { 1500 } else { payload.len() + id % 7 };
    payload.resize(len, b'x');
    payload
}

/// Returns the message of a payload, or an error if nobody sent it.
pub(crate) fn message_of(payload: &[u8], topic: &str) -> Result<MessageId, String> {
    let bad = || format!("a payload on {topic} that nobody sent: {:?}", String::from_utf8_lossy(payload));
    let mut parts = payload.split(|byte| *byte == b';');
    let id =
        parts.next().and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).ok_or_else(bad)?;
    if parts.next() != Some(topic.as_bytes())
        || parts.next().is_none_or(|rest| rest.iter().any(|x| *x != b'x'))
    {
        return Err(bad());
    }
    Ok(id)
}

pub(crate) fn connect(
    profile: &Profile,
    id: &str,
    clean: bool,
    will: Option<(MessageId, &Message)>,
) -> Vec<u8> {
    let is_five = profile.version == Version::V5;
    let bytes = will.map(|(id, message)| payload(id, message)).unwrap_or_default();
    let will = will.map(|(_, message)| Will {
        qos: message.qos,
        retain: false,
        topic: &message.topic,
        payload: &bytes,
        delay_interval: is_five.then_some(profile.will_delay_s),
        properties: MessageProperties::default(),
    });
    let connect = Connect {
        clean_start: clean,
        session_expiry: is_five.then_some(profile.expiry_s),
        receive_maximum: is_five.then_some(profile.receive_maximum),
        will,
        ..Connect::new(profile.version, id)
    };
    encode(&Packet::Connect(connect), profile.version)
}

pub(crate) fn publish(
    version: Version,
    id: MessageId,
    message: &Message,
    packet_id: u16,
    dup: bool,
) -> Vec<u8> {
    let payload = payload(id, message);
    let properties = MessageProperties {
        message_expiry: message.expiry_s.filter(|_| version == Version::V5),
        ..MessageProperties::default()
    };
    let publish = Publish {
        dup,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id,
        properties,
        payload: &payload,
        ..Publish::default()
    };
    encode(&Packet::Publish(publish), version)
}

/// An acknowledgement without an error.
pub(crate) fn ack(kind: fn(Ack<'static>) -> Packet<'static>, version: Version, packet_id: u16) -> Vec<u8> {
    encode(&kind(Ack { packet_id, ..Ack::default() }), version)
}

pub(crate) fn subscribe(version: Version, packet_id: u16, filter: &str, qos: QoS) -> Vec<u8> {
    let filters = [SubscribeFilter { filter, options: SubscribeOptions::qos(qos) }];
    let subscribe = Subscribe {
        packet_id,
        subscription_id: None,
        user_properties: UserProperties::default(),
        filters: SubscribeFilters::List(&filters),
    };
    encode(&Packet::Subscribe(subscribe), version)
}

pub(crate) fn unsubscribe(version: Version, packet_id: u16, filter: &str) -> Vec<u8> {
    let unsubscribe = Unsubscribe {
        packet_id,
        user_properties: UserProperties::default(),
        filters: UnsubscribeFilters::List(&[filter]),
    };
    encode(&Packet::Unsubscribe(unsubscribe), version)
}

/// DISCONNECT. In MQTT 5 it may end the session.
pub(crate) fn disconnect(version: Version, ends_session: bool) -> Vec<u8> {
    let disconnect = Disconnect { session_expiry: ends_session.then_some(0), ..Disconnect::default() };
    encode(&Packet::Disconnect(disconnect), version)
}

/// Length of the packet at the front of `bytes`, if it is complete.
pub(crate) fn whole(bytes: &[u8]) -> Option<usize> {
    let header = Header::parse(bytes).ok()??;
    (bytes.len() >= header.packet_len()).then(|| header.packet_len())
}

/// The complete packets at the front of `bytes`.
pub(crate) fn split(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (frame, rest) = bytes.split_at(whole(bytes)?);
        bytes = rest;
        Some(frame)
    })
}

/// Describes a packet for a trace.
pub(crate) fn show(frame: &[u8]) -> String {
    let parsed = [Version::V5, Version::V4].map(|version| mainstem_mqtt::decode(version, frame));
    let text = match &parsed {
        [Ok(Packet::Publish(publish)), _] | [_, Ok(Packet::Publish(publish))] => {
            let payload = String::from_utf8_lossy(publish.payload);
            let dup = if publish.dup { " again" } else { "" };
            let retain = if publish.retain { " retained" } else { "" };
            let (qos, id) = (publish.qos as u8, publish.packet_id);
            return format!("PUBLISH {id} on {}, QoS {qos}{retain}{dup}: {payload:.20}", publish.topic);
        }
        [Ok(packet), _] | [_, Ok(packet)] => format!("{packet:?}"),
        _ => format!("{frame:?}"),
    };
    text.chars().take(200).collect()
}
