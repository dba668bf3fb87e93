//! Packets of the clients, as bytes.

use mainstem_mqtt::{
    Ack, Connect, Disconnect, MessageProperties, Packet, Publish, QoS, ReasonCode, Subscribe,
    SubscribeFilter, SubscribeFilters, Unsubscribe, UnsubscribeFilters, UserProperties, Version, Will,
};

use crate::oracle::Message;
use crate::plan::{CLIENT_IDS, Connecting, MessageId, Op};

/// Content type and user properties of messages that have any; the content type names the message.
pub(crate) const USER_PROPERTIES: [(&str, &str); 2] = [("k", "v"), ("k", "w")];

/// A payload: the number of the message, a semicolon, and as much besides as it takes; or nothing, for a
/// message that clears what is retained.
pub(crate) fn payload(message: MessageId, known: &Message) -> Vec<u8> {
    let mut payload = if known.bytes == 0 { Vec::new() } else { format!("{message};").into_bytes() };
    payload.resize(known.bytes, b'x');
    payload
}

/// The number in a payload.
pub(crate) fn message_of(payload: &[u8]) -> Option<MessageId> {
    let digits = payload.split(|byte| *byte == b';').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn encode(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(version, &mut frame).expect("what a client says can be said");
    frame
}

fn properties<'a>(known: &Message, content_type: &'a str) -> MessageProperties<'a> {
    let mut properties = MessageProperties { message_expiry: known.expiry_s, ..MessageProperties::default() };
    if known.has_properties {
        properties.content_type = Some(content_type);
        properties.user_properties = UserProperties::Pairs(&USER_PROPERTIES);
    }
    properties
}

pub(crate) fn connect(connecting: &Connecting, messages: &[Message]) -> Vec<u8> {
    let five = connecting.version == Version::V5;
    let will = connecting.will.as_ref();
    let will_payload = will.map(|will| payload(will.message, &messages[will.message])).unwrap_or_default();
    let content_type = will.map(|will| will.message.to_string()).unwrap_or_default();
    let will = will.map(|will| Will {
        qos: will.qos,
        retain: will.retain,
        topic: messages[will.message].topic,
        payload: &will_payload,
        delay_interval: five.then_some(will.delay_s),
        properties: properties(&messages[will.message], &content_type),
    });
    let connect = Connect {
        clean_start: connecting.clean,
        keep_alive: connecting.keep_alive_s,
        session_expiry: connecting.expiry_s,
        receive_maximum: connecting.receive_maximum,
        maximum_packet_size: connecting.packet_max,
        topic_alias_maximum: connecting.alias_max,
        will,
        ..Connect::new(connecting.version, CLIENT_IDS[connecting.client])
    };
    encode(&connect.into(), connecting.version)
}

/// A PUBLISH; with an alias its topic may be left out.
pub(crate) fn publish(
    version: Version,
    message: MessageId,
    known: &Message,
    flags: (QoS, bool, bool),
    packet_id: u16,
    alias: Option<(u16, bool)>,
) -> Vec<u8> {
    let (qos, retain, dup) = flags;
    let payload = payload(message, known);
    let content_type = message.to_string();
    let publish = Publish {
        dup,
        qos,
        retain,
        topic: if alias.is_some_and(|(_, is_known)| is_known) { "" } else { known.topic },
        packet_id,
        topic_alias: alias.map(|(alias, _)| alias),
        properties: properties(known, &content_type),
        payload: &payload,
        ..Publish::default()
    };
    encode(&publish.into(), version)
}

/// Any other packet.
pub(crate) fn plain(version: Version, op: &Op) -> Vec<u8> {
    let ack = |packet_id: u16| Ack { packet_id, ..Ack::default() };
    let packet = match op {
        Op::PubAck(packet_id) => Packet::PubAck(ack(*packet_id)),
        Op::PubRec { packet_id, is_error: false } => Packet::PubRec(ack(*packet_id)),
        Op::PubRec { packet_id, is_error: true } => {
            Packet::PubRec(Ack { reason: ReasonCode::ImplementationSpecificError, ..ack(*packet_id) })
        }
        Op::PubRel(packet_id) => Packet::PubRel(ack(*packet_id)),
        Op::PubComp(packet_id) => Packet::PubComp(ack(*packet_id)),
        Op::Ping => Packet::PingReq,
        Op::Disconnect { with_will, expiry_s } => Packet::Disconnect(Disconnect {
            reason: if *with_will { ReasonCode::DisconnectWithWill } else { ReasonCode::Success },
            session_expiry: *expiry_s,
            ..Disconnect::default()
        }),
        Op::Subscribe { packet_id, id, filters } => {
            let filters: Vec<SubscribeFilter<'_>> = filters
                .iter()
                .map(|(filter, options)| SubscribeFilter { filter, options: *options })
                .collect();
            return encode(
                &Packet::Subscribe(Subscribe {
                    packet_id: *packet_id,
                    subscription_id: (*id != 0).then_some(*id),
                    user_properties: UserProperties::default(),
                    filters: SubscribeFilters::List(&filters),
                }),
                version,
            );
        }
        Op::Unsubscribe { packet_id, filters } => Packet::Unsubscribe(Unsubscribe {
            packet_id: *packet_id,
            user_properties: UserProperties::default(),
            filters: UnsubscribeFilters::List(filters),
        }),
        Op::Connect(_) | Op::Publish { .. } => unreachable!("encoded elsewhere"),
    };
    encode(&packet, version)
}
