//! A second opinion: the crate `mqtt-proto`, which shares no code with this one, reads what we write and
//! writes what we read. A packet goes through both codecs as bytes and must come back equal; where the two
//! disagree on what is a packet, the rule is named here.

use arbitrary::{Arbitrary, Unstructured};
use mainstem_mqtt::{MessageProperties, Packet, ReasonCode, Version, decode};
use mqtt_proto::{v3, v5};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::strategies::packet;

/// Rules that the other codec does not check: a piece of the text with which we refuse.
const NOT_THEIR_RULES: [&str; 10] = [
    "MQTT-3.3.1-2",  // DUP with QoS 0
    "3.9.3, 3.11.3", // no reason code
    "MQTT-3.1.2-22", // password without user name
    "MQTT-1.5.4-2",  // U+0000
    "3.3.2.1",       // empty topic
    "MQTT-3.2.2-6",  // session present in a refusal
    "3.15.2.2.2",    // AUTH without a method
    "3.1.2.11",      // data without a method, limits of 0
    "MQTT-3.3.2-8",  // Topic Alias 0
    "3.3.2.3.8",     // Subscription Identifier 0
];

proptest! {
    #[test]
    fn their_packets_come_back_from_us(seed in vec(any::<u8>(), 0..600)) {
        if let Some((theirs, bytes)) = v5_from(&seed)
            && let Some(back) = through_us(Version::V5, &bytes)
        {
            prop_assert_eq!(v5::Packet::decode(&back), Ok(Some(theirs)));
        }
        if let Some((theirs, bytes)) = v3_from(&seed)
            && let Some(back) = through_us(Version::V4, &bytes)
        {
            prop_assert_eq!(v3::Packet::decode(&back), Ok(Some(theirs)));
        }
    }

    #[test]
    fn our_packets_come_back_from_them(packet in packet()) {
        let is_v5 = !matches!(&packet, Packet::Connect(connect) if connect.version != Version::V5);
        if is_v5 && !they_refuse(&packet) {
            let back = through_v5(&bytes_of(&packet, Version::V5));
            prop_assert_eq!(decode(Version::V5, &back), Ok(packet.clone()));
        }
        if !they_refuse_in_3(&packet) {
            let bytes = bytes_of(&packet, Version::V4);
            let back = through_v3(&bytes);
            prop_assert_eq!(decode(Version::V4, &back), decode(Version::V4, &bytes));
        }
    }
}

/// A packet of theirs that survives their own codec, and its bytes.
fn v5_from(seed: &[u8]) -> Option<(v5::Packet, Vec<u8>)> {
    let packet = v5::Packet::arbitrary(&mut Unstructured::new(seed)).ok()?;
    let bytes = packet.encode().ok()?.as_ref().to_vec();
    (v5::Packet::decode(&bytes) == Ok(Some(packet.clone()))).then_some((packet, bytes))
}

/// The same for 3.1.1.
fn v3_from(seed: &[u8]) -> Option<(v3::Packet, Vec<u8>)> {
    let packet = v3::Packet::arbitrary(&mut Unstructured::new(seed)).ok()?;
    let bytes = packet.encode().ok()?.as_ref().to_vec();
    (v3::Packet::decode(&bytes) == Ok(Some(packet.clone()))).then_some((packet, bytes))
}

/// Their bytes decoded and encoded by us; `None` where we know a rule that they do not.
fn through_us(version: Version, bytes: &[u8]) -> Option<Vec<u8>> {
    match decode(version, bytes) {
        Ok(packet) => Some(bytes_of(&packet, version)),
        Err(error) => {
            assert!(NOT_THEIR_RULES.iter().any(|rule| error.what.contains(rule)), "{error}: {bytes:x?}");
            None
        }
    }
}

/// Our packets of MQTT 5 that they do not take: they keep one Subscription Identifier, look into payloads that
/// say they are UTF-8, and know no DISCONNECT with Bad authentication method (2.4).
fn they_refuse(packet: &Packet<'_>) -> bool {
    let not_utf8 = |properties: &MessageProperties<'_>, payload: &[u8]| {
        properties.payload_format == Some(1) && std::str::from_utf8(payload).is_err()
    };
    match packet {
        Packet::Publish(publish) => {
            publish.subscription_ids.iter().count() > 1 || not_utf8(&publish.properties, publish.payload)
        }
        Packet::Connect(connect) => {
            connect.will.as_ref().is_some_and(|will| not_utf8(&will.properties, will.payload))
        }
        Packet::Disconnect(disconnect) => disconnect.reason == ReasonCode::BadAuthenticationMethod,
        _ => false,
    }
}

/// Our packets that they do not take, or spoil, in 3.1.1: they write 3 for the failure code of a SUBACK.
fn they_refuse_in_3(packet: &Packet<'_>) -> bool {
    match packet {
        Packet::Connect(connect) => connect.version == Version::V5,
        Packet::SubAck(suback) => suback.reasons.iter().any(|&reason| reason >= 0x80),
        Packet::Auth(_) => true,
        _ => false,
    }
}

fn through_v5(bytes: &[u8]) -> Vec<u8> {
    let packet = v5::Packet::decode(bytes).expect("they refuse no such packet").expect("packet is whole");
    packet.encode().expect("they encode what they decoded").as_ref().to_vec()
}

fn through_v3(bytes: &[u8]) -> Vec<u8> {
    let packet = v3::Packet::decode(bytes).expect("they refuse no such packet").expect("packet is whole");
    packet.encode().expect("they encode what they decoded").as_ref().to_vec()
}

fn bytes_of(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    packet.encode(version, &mut out).expect("packet can be represented");
    out
}
