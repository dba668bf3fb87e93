//! Packets of clients, as bytes, and the way back from a payload to its message.

use mainstem_mqtt::{
    Ack, Connect, Disconnect, Header, MessageProperties, Packet, Publish, QoS, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties, Version, Will,
};

use crate::ledger::{Message, MessageId};
use crate::plan::Profile;

fn encode(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(version, &mut frame).expect("what a client says can be said");
    frame
}

/// The number of a message and where it goes, and as much besides as it takes to make some larger than others.
fn payload(id: MessageId, message: &Message) -> Vec<u8> {
    if message.is_clear {
        return Vec::new();
    }
    let mut payload = format!("{id};{};", message.topic).into_bytes();
    let len = if id.is_multiple_of(17) { 1500 } else { payload.len() + id % 7 };
    payload.resize(len, b'x');
    payload
}

/// The message of a payload that came on `topic`; an error if it is not what was sent.
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

/// An acknowledgement that says that all is well.
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

/// DISCONNECT; in MQTT 5 it may end the session.
pub(crate) fn disconnect(version: Version, ends_session: bool) -> Vec<u8> {
    let disconnect = Disconnect { session_expiry: ends_session.then_some(0), ..Disconnect::default() };
    encode(&Packet::Disconnect(disconnect), version)
}

/// Length of the packet at the front of `bytes`, if it is there in full.
pub(crate) fn whole(bytes: &[u8]) -> Option<usize> {
    let header = Header::parse(bytes).ok()??;
    (bytes.len() >= header.packet_len()).then(|| header.packet_len())
}
