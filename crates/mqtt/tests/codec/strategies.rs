//! Proptest strategies for every packet that MQTT 5 can represent. Borrowed data is leaked, a few megabytes per test
//! run.

use std::fmt::Debug;

use mainstem_mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, MessageProperties, Packet, PacketType, Publish, QoS, ReasonCode,
    RetainHandling, SubAck, Subscribe, SubscribeFilter, SubscribeFilters, SubscribeOptions, SubscriptionIds,
    Unsubscribe, UnsubscribeFilters, UserProperties, Version, Will,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

/// Generates any packet in any form that MQTT 5 allows.
pub(crate) fn packet() -> impl Strategy<Value = Packet<'static>> {
    prop_oneof![
        connect().prop_map(Packet::Connect),
        connack().prop_map(Packet::ConnAck),
        publish().prop_map(Packet::Publish),
        ack(PacketType::PubAck).prop_map(Packet::PubAck),
        ack(PacketType::PubRec).prop_map(Packet::PubRec),
        ack(PacketType::PubRel).prop_map(Packet::PubRel),
        ack(PacketType::PubComp).prop_map(Packet::PubComp),
        subscribe().prop_map(Packet::Subscribe),
        suback(PacketType::SubAck).prop_map(Packet::SubAck),
        unsubscribe().prop_map(Packet::Unsubscribe),
        suback(PacketType::UnsubAck).prop_map(Packet::UnsubAck),
        Just(Packet::PingReq),
        Just(Packet::PingResp),
        disconnect().prop_map(Packet::Disconnect),
        auth().prop_map(Packet::Auth),
    ]
}

/// Generates any PUBLISH.
pub(crate) fn publish() -> impl Strategy<Value = Publish<'static>> {
    (
        any::<(bool, bool)>(),
        qos(),
        topic(),
        packet_id(),
        of(1..=u16::MAX),
        leaked(vec(1..=268_435_455_u32, 0..3)),
        message_properties(),
        bytes(),
    )
        .prop_map(|((dup, retain), qos, topic, packet_id, topic_alias, ids, properties, payload)| {
            let has_id = qos != QoS::AtMostOnce;
            Publish {
                dup: dup && has_id,
                qos,
                retain,
                topic,
                packet_id: if has_id { packet_id } else { 0 },
                topic_alias,
                subscription_ids: SubscriptionIds::List(ids),
                properties,
                payload,
            }
        })
}

fn connect() -> impl Strategy<Value = Connect<'static>> {
    let version = select(&[Version::V3, Version::V4, Version::V5]);
    (
        (version, any::<bool>(), any::<u16>(), text(), of(will()), of(text()), of(bytes())),
        (of(any::<u32>()), of(1..=u16::MAX), of(1..=u32::MAX), of(any::<u16>())),
        (of(any::<bool>()), of(any::<bool>()), of(text()), bytes(), any::<bool>(), user_properties()),
    )
        .prop_map(|(body, limits, rest)| {
            let (version, clean_start, keep_alive, client_id, will, username, password) = body;
            let (session_expiry, receive_maximum, maximum_packet_size, topic_alias_maximum) = limits;
            let (response_information, problem_information, method, data, has_data, user_properties) = rest;
            Connect {
                version,
                clean_start,
                keep_alive,
                client_id,
                will,
                username,
                password: password.filter(|_| username.is_some() || version == Version::V5),
                session_expiry,
                receive_maximum,
                maximum_packet_size,
                topic_alias_maximum,
                request_response_information: response_information,
                request_problem_information: problem_information,
                authentication_method: method,
                authentication_data: (has_data && method.is_some()).then_some(data),
                user_properties,
            }
        })
}

fn will() -> impl Strategy<Value = Will<'static>> {
    (qos(), any::<bool>(), topic(), bytes(), of(any::<u32>()), message_properties()).prop_map(
        |(qos, retain, topic, payload, delay_interval, properties)| Will {
            qos,
            retain,
            topic,
            payload,
            delay_interval,
            properties,
        },
    )
}

fn connack() -> impl Strategy<Value = ConnAck<'static>> {
    let maximum_qos = select(&[QoS::AtMostOnce, QoS::AtLeastOnce]);
    (
        (any::<bool>(), reason(PacketType::ConnAck), of(any::<u32>()), of(1..=u16::MAX), of(maximum_qos)),
        (of(1..=u32::MAX), of(text()), of(any::<u16>()), of(text()), of(any::<u16>())),
        (of(any::<bool>()), of(any::<bool>()), of(any::<bool>()), of(any::<bool>())),
        (of(text()), of(text()), of(text()), of(bytes()), user_properties()),
    )
        .prop_map(|(first, second, available, last)| {
            let (session_present, reason, session_expiry, receive_maximum, maximum_qos) = first;
            let (packet_size, assigned_client_id, alias_maximum, reason_string, server_keep_alive) = second;
            ConnAck {
                session_present: session_present && reason == ReasonCode::Success,
                reason,
                session_expiry,
                receive_maximum,
                maximum_qos,
                retain_available: available.0,
                maximum_packet_size: packet_size,
                assigned_client_id,
                topic_alias_maximum: alias_maximum,
                reason_string,
                wildcard_subscription_available: available.1,
                subscription_ids_available: available.2,
                shared_subscription_available: available.3,
                server_keep_alive,
                response_information: last.0,
                server_reference: last.1,
                authentication_method: last.2,
                authentication_data: last.3,
                user_properties: last.4,
            }
        })
}

fn ack(kind: PacketType) -> impl Strategy<Value = Ack<'static>> {
    (packet_id(), reason(kind), of(text()), user_properties()).prop_map(
        |(packet_id, reason, reason_string, user_properties)| Ack {
            packet_id,
            reason,
            reason_string,
            user_properties,
        },
    )
}

fn subscribe() -> impl Strategy<Value = Subscribe<'static>> {
    let filter = (filter(), options()).prop_map(|(filter, options)| SubscribeFilter { filter, options });
    (packet_id(), of(1..=268_435_455_u32), user_properties(), leaked(vec(filter, 1..5))).prop_map(
        |(packet_id, subscription_id, user_properties, filters)| Subscribe {
            packet_id,
            subscription_id,
            user_properties,
            filters: SubscribeFilters::List(filters),
        },
    )
}

fn options() -> impl Strategy<Value = SubscribeOptions> {
    let handling = [RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend];
    (qos(), any::<bool>(), any::<bool>(), select(handling.to_vec())).prop_map(
        |(qos, no_local, retain_as_published, retain_handling)| SubscribeOptions {
            qos,
            no_local,
            retain_as_published,
            retain_handling,
        },
    )
}

fn unsubscribe() -> impl Strategy<Value = Unsubscribe<'static>> {
    (packet_id(), user_properties(), leaked(vec(filter(), 1..5))).prop_map(
        |(packet_id, user_properties, filters)| Unsubscribe {
            packet_id,
            user_properties,
            filters: UnsubscribeFilters::List(filters),
        },
    )
}

fn suback(kind: PacketType) -> impl Strategy<Value = SubAck<'static>> {
    let reasons = leaked(vec(reason(kind).prop_map(|reason| reason as u8), 1..6));
    (packet_id(), of(text()), user_properties(), reasons).prop_map(
        |(packet_id, reason_string, user_properties, reasons)| SubAck {
            packet_id,
            reason_string,
            user_properties,
            reasons,
        },
    )
}

fn disconnect() -> impl Strategy<Value = Disconnect<'static>> {
    (reason(PacketType::Disconnect), of(any::<u32>()), of(text()), of(text()), user_properties()).prop_map(
        |(reason, session_expiry, reason_string, server_reference, user_properties)| Disconnect {
            reason,
            session_expiry,
            reason_string,
            server_reference,
            user_properties,
        },
    )
}

fn auth() -> impl Strategy<Value = Auth<'static>> {
    let full = (reason(PacketType::Auth), text(), of(bytes()), of(text()), user_properties()).prop_map(
        |(reason, method, authentication_data, reason_string, user_properties)| Auth {
            reason,
            authentication_method: Some(method),
            authentication_data,
            reason_string,
            user_properties,
        },
    );
    prop_oneof![4 => full, 1 => Just(Auth::default())]
}

fn message_properties() -> impl Strategy<Value = MessageProperties<'static>> {
    let all = (of(0..2_u8), of(any::<u32>()), of(text()), of(topic()), of(bytes()), user_properties())
        .prop_map(
            |(
                payload_format,
                message_expiry,
                content_type,
                response_topic,
                correlation_data,
                user_properties,
            )| {
                MessageProperties {
                    payload_format,
                    message_expiry,
                    content_type,
                    response_topic,
                    correlation_data,
                    user_properties,
                }
            },
        );
    prop_oneof![3 => all, 1 => Just(MessageProperties::default())]
}

fn user_properties() -> impl Strategy<Value = UserProperties<'static>> {
    leaked(vec((text(), text()), 0..4)).prop_map(UserProperties::Pairs)
}

/// Generates a reason code that is allowed in the packet type.
fn reason(kind: PacketType) -> impl Strategy<Value = ReasonCode> {
    let allowed = |reason: &ReasonCode| reason.is_allowed_in(kind);
    select((0..=u8::MAX).flat_map(ReasonCode::try_from).filter(allowed).collect::<Vec<_>>())
}

fn qos() -> impl Strategy<Value = QoS> {
    select(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn packet_id() -> impl Strategy<Value = u16> {
    1..=u16::MAX
}

/// Generates a string without U+0000, sometimes a long one.
fn text() -> impl Strategy<Value = &'static str> {
    let long = (100..300_usize).prop_map(|len| "x".repeat(len));
    prop_oneof![8 => "[^\0]{0,12}", 1 => long].prop_map(|text| &*text.leak())
}

fn topic() -> impl Strategy<Value = &'static str> {
    "[a-zé]{1,5}(/[a-z0-9]{0,4}){0,3}".prop_map(|topic| &*topic.leak())
}

fn filter() -> impl Strategy<Value = &'static str> {
    "([a-z]{1,4}/|[+]/){0,3}([a-z]{1,4}|[+]|#)".prop_map(|filter| &*filter.leak())
}

fn bytes() -> impl Strategy<Value = &'static [u8]> {
    leaked(vec(any::<u8>(), 0..40))
}

fn leaked<T: Debug + 'static>(list: impl Strategy<Value = Vec<T>>) -> impl Strategy<Value = &'static [T]> {
    list.prop_map(|list| &*list.leak())
}
