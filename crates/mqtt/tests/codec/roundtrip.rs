//! Property tests: round trips of any packet in every version, and corrupted packets.

use mainstem_mqtt::{
    Ack, ConnAck, Connect, Disconnect, EncodeError, Header, MessageProperties, Packet, Publish, ReasonCode,
    SubAck, Subscribe, SubscribeFilter, SubscribeFilters, SubscribeOptions, SubscriptionIds, Unsubscribe,
    UserProperties, Version, Will, decode,
};
use proptest::prelude::*;

use crate::strategies::packet;
use crate::vectors;

proptest! {
    #[test]
    fn every_packet_survives_a_round_trip(packet in packet()) {
        for version in [Version::V3, Version::V4, Version::V5] {
            let mut out = Vec::new();
            let encoded = packet.encode(version, &mut out);
            if matches!(packet, Packet::Auth(_)) && version != Version::V5 {
                prop_assert_eq!(encoded, Err(EncodeError::NotInVersion));
                continue;
            }
            prop_assert_eq!(encoded, Ok(()));
            prop_assert_eq!(packet.encoded_len(version), out.len());
            let header = Header::parse(&out).expect("own header").expect("own header is complete");
            prop_assert_eq!(header.packet_len(), out.len());
            prop_assert_eq!(decode(version, &out), Ok(as_received(&packet, version)));
        }
    }

    /// Replaces one byte of a valid packet. If it still decodes, the result must be a valid packet.
    #[test]
    fn corrupted_packets_fail_or_decode_to_valid_packets(at in any::<prop::sample::Index>(), byte in any::<u8>(), case in any::<prop::sample::Index>()) {
        let vectors = vectors::all();
        let vector = case.get(&vectors);
        let mut frame = vector.bytes.to_vec();
        if let Some(slot) = frame.get_mut(at.index(vector.bytes.len().max(1))) {
            *slot = byte;
        }
        for version in [Version::V3, Version::V4, Version::V5] {
            let Ok(packet) = decode(version, &frame) else { continue };
            let mut out = Vec::new();
            prop_assert_eq!(packet.encode(version, &mut out), Ok(()));
            prop_assert_eq!(decode(version, &out), Ok(packet));
        }
    }
}

/// Returns `packet` as the peer decodes it on a connection of `version`.
fn as_received(packet: &Packet<'static>, version: Version) -> Packet<'static> {
    match packet {
        Packet::Connect(connect) if connect.version != Version::V5 => {
            connect_as_received_by_v3(connect).into()
        }
        Packet::Connect(_) => packet.clone(),
        _ if version == Version::V5 => packet.clone(),
        _ => as_received_by_v3(packet, version),
    }
}

/// Returns what 3.1 and 3.1.1 transmit of a packet other than CONNECT.
fn as_received_by_v3(packet: &Packet<'static>, version: Version) -> Packet<'static> {
    let id_only = |ack: &Ack<'static>| Ack { packet_id: ack.packet_id, ..Ack::default() };
    match packet {
        Packet::ConnAck(connack) => Packet::ConnAck(ConnAck {
            session_present: connack.session_present && version != Version::V3,
            reason: ReasonCode::from_connect_return_code(connack.reason.connect_return_code())
                .expect("return codes are 0 to 5"),
            ..ConnAck::default()
        }),
        Packet::Publish(publish) => Packet::Publish(Publish {
            topic_alias: None,
            subscription_ids: SubscriptionIds::default(),
            properties: MessageProperties::default(),
            ..publish.clone()
        }),
        Packet::PubAck(ack) => Packet::PubAck(id_only(ack)),
        Packet::PubRec(ack) => Packet::PubRec(id_only(ack)),
        Packet::PubRel(ack) => Packet::PubRel(id_only(ack)),
        Packet::PubComp(ack) => Packet::PubComp(id_only(ack)),
        Packet::Subscribe(subscribe) => {
            let qos_only = |filter: SubscribeFilter<'static>| SubscribeFilter {
                options: SubscribeOptions::qos(filter.options.qos),
                ..filter
            };
            let filters: Vec<_> = subscribe.filters.iter().map(qos_only).collect();
            Packet::Subscribe(Subscribe {
                packet_id: subscribe.packet_id,
                subscription_id: None,
                user_properties: UserProperties::default(),
                filters: SubscribeFilters::List(filters.leak()),
            })
        }
        Packet::SubAck(suback) => {
            let reasons: Vec<_> =
                suback.reasons.iter().map(|&code| if code < 3 { code } else { 0x80 }).collect();
            Packet::SubAck(SubAck {
                packet_id: suback.packet_id,
                reasons: reasons.leak(),
                ..SubAck::default()
            })
        }
        Packet::Unsubscribe(unsubscribe) => Packet::Unsubscribe(Unsubscribe {
            user_properties: UserProperties::default(),
            ..unsubscribe.clone()
        }),
        Packet::UnsubAck(unsuback) => {
            Packet::UnsubAck(SubAck { packet_id: unsuback.packet_id, ..SubAck::default() })
        }
        Packet::Disconnect(_) => Disconnect::default().into(),
        Packet::PingReq | Packet::PingResp | Packet::Connect(_) | Packet::Auth(_) => packet.clone(),
    }
}

/// Returns what 3.1 and 3.1.1 transmit of a CONNECT.
fn connect_as_received_by_v3(connect: &Connect<'static>) -> Connect<'static> {
    let will = connect.will.clone().map(|will| Will {
        delay_interval: None,
        properties: MessageProperties::default(),
        ..will
    });
    Connect {
        clean_start: connect.clean_start,
        keep_alive: connect.keep_alive,
        will,
        username: connect.username,
        password: connect.password,
        ..Connect::new(connect.version, connect.client_id)
    }
}
