//! Decodes arbitrary bytes as a packet of any MQTT version: decoding never panics, and a decoded packet encodes to an
//! equal packet of the predicted length, also through a template.
//!
//! Input: the protocol level (3 to 5, any other byte taken modulo 3), then the packet.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstem_mqtt::{Header, Packet, Publish, PublishTemplate, Version, connect_level, decode};

fuzz_target!(|input: &[u8]| {
    let Some((&level, frame)) = input.split_first() else { return };
    let version = match level % 3 {
        0 => Version::V3,
        1 => Version::V4,
        _ => Version::V5,
    };
    if let Ok(Some(header)) = Header::parse(frame) {
        assert!((2..=5).contains(&header.len) && header.remaining <= 268_435_455, "{header:?}");
    }
    assert!(connect_level(frame).is_none() || frame[0] >> 4 == 1, "only a CONNECT names a level");

    let Ok(packet) = decode(version, frame) else { return };
    let mut out = Vec::new();
    packet.encode(version, &mut out).expect("what decodes can be encoded");
    assert_eq!(out.len(), packet.encoded_len(version));
    // Except for the empty property section that an encoded DISCONNECT has.
    let spelt_out = usize::from(matches!(packet, Packet::Disconnect(_)));
    assert!(out.len() <= frame.len() + spelt_out, "the canonical form is never longer");
    assert_eq!(decode(version, &out).as_ref(), Ok(&packet));
    if let Packet::Publish(publish) = &packet {
        check_template(version, publish, &out);
    }
});

/// Encodes `publish` through a template and compares the result with the plain encoding.
fn check_template(version: Version, publish: &Publish<'_>, plain: &[u8]) {
    let mut template = PublishTemplate::default();
    PublishTemplate::encode(version, publish, &mut template).expect("what decodes can be encoded");
    let mut out = Vec::new();
    template.append(&mut out, publish.qos, publish.dup, publish.retain, publish.packet_id);
    assert_eq!(out, plain);
    out.clear();
    template.append_head(&mut out, publish.qos, publish.dup, publish.retain, publish.packet_id);
    out.extend_from_slice(publish.payload);
    assert_eq!(out, plain);
}
