//! Differential test against the crate `mqtt-proto`, which shares no code with this one.
//!
//! A packet passes through both codecs as bytes and must come back equal. The rules on which the two disagree are
//! listed here.

use arbitrary::{Arbitrary, Unstructured};
use mainstem_mqtt::{MessageProperties, Packet, ReasonCode, Version, decode};
use mqtt_proto::{v3, v5};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::strategies::packet;

/// Rules that the other codec does not check, each as a part of our error text.
const UNCHECKED_BY_OTHER: [&str; 10] = [
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
    fn packets_of_the_other_codec_survive_ours(seed in vec(any::<u8>(), 0..600)) {
        if let Some((other, bytes)) = v5_from(&seed)
            && let Some(back) = through_our_codec(Version::V5, &bytes)
        {
            prop_assert_eq!(v5::Packet::decode(&back), Ok(Some(other)));
        }
        if let Some((other, bytes)) = v3_from(&seed)
            && let Some(back) = through_our_codec(Version::V4, &bytes)
        {
            prop_assert_eq!(v3::Packet::decode(&back), Ok(Some(other)));
        }
    }

    #[test]
    fn our_packets_survive_the_other_codec(packet in packet()) {
        let is_v5 = !matches!(&packet, Packet::Connect(connect) if connect.version != Version::V5);
        if is_v5 && !is_rejected_by_v5(&packet) {
            let back = through_v5(&bytes_of(&packet, Version::V5));
            prop_assert_eq!(decode(Version::V5, &back), Ok(packet.clone()));
        }
        if !is_rejected_by_v3(&packet) {
            let bytes = bytes_of(&packet, Version::V4);
            let back = through_v3(&bytes);
            prop_assert_eq!(decode(Version::V4, &back), decode(Version::V4, &bytes));
        }
    }
}

/// Generates a packet of the other codec that survives its own round trip, and its bytes.
fn v5_from(seed: &[u8]) -> Option<(v5::Packet, Vec<u8>)> {
    let packet = v5::Packet::arbitrary(&mut Unstructured::new(seed)).ok()?;
    let bytes = packet.encode().ok()?.as_ref().to_vec();
    (v5::Packet::decode(&bytes) == Ok(Some(packet.clone()))).then_some((packet, bytes))
}

/// Like [`v5_from`], for 3.1.1.
fn v3_from(seed: &[u8]) -> Option<(v3::Packet, Vec<u8>)> {
    let packet = v3::Packet::arbitrary(&mut Unstructured::new(seed)).ok()?;
    let bytes = packet.encode().ok()?.as_ref().to_vec();
    (v3::Packet::decode(&bytes) == Ok(Some(packet.clone()))).then_some((packet, bytes))
}

/// Decodes and encodes bytes of the other codec. Returns `None` if they violate a rule that it does not check.
fn through_our_codec(version: Version, bytes: &[u8]) -> Option<Vec<u8>> {
    match decode(version, bytes) {
        Ok(packet) => Some(bytes_of(&packet, version)),
        Err(error) => {
            assert!(UNCHECKED_BY_OTHER.iter().any(|rule| error.what.contains(rule)), "{error}: {bytes:x?}");
            None
        }
    }
}

/// Whether the other codec rejects or alters one of our MQTT 5 packets: it stores one Subscription Identifier,
/// validates payloads marked as UTF-8, and does not support DISCONNECT with Bad authentication method (2.4).
fn is_rejected_by_v5(packet: &Packet<'_>) -> bool {
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

/// Whether the other codec rejects or alters one of our 3.1.1 packets: it writes 3 as the failure code of a SUBACK.
fn is_rejected_by_v3(packet: &Packet<'_>) -> bool {
    match packet {
        Packet::Connect(connect) => connect.version == Version::V5,
        Packet::SubAck(suback) => suback.reasons.iter().any(|&reason| reason >= 0x80),
        Packet::Auth(_) => true,
        _ => false,
    }
}

fn through_v5(bytes: &[u8]) -> Vec<u8> {
    let packet = v5::Packet::decode(bytes)
        .expect("the other codec accepts the packet")
        .expect("the packet is complete");
    packet.encode().expect("the other codec encodes what it decoded").as_ref().to_vec()
}

fn through_v3(bytes: &[u8]) -> Vec<u8> {
    let packet = v3::Packet::decode(bytes)
        .expect("the other codec accepts the packet")
        .expect("the packet is complete");
    packet.encode().expect("the other codec encodes what it decoded").as_ref().to_vec()
}

fn bytes_of(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    packet.encode(version, &mut out).expect("packet can be represented");
    out
}
