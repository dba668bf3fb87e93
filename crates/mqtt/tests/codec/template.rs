//! The PUBLISH template must produce the same bytes as encoding the packet for each receiver.

use mainstem_mqtt::{EncodeError, Packet, Publish, PublishTemplate, QoS, UserProperties, Version};
use proptest::prelude::*;

use crate::strategies::publish;

const ABOVE_0: [QoS; 2] = [QoS::AtLeastOnce, QoS::ExactlyOnce];

/// Encodes `publish` without a template.
fn plain(version: Version, publish: &Publish<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Packet::Publish(publish.clone()).encode(version, &mut out).expect("publish can be represented");
    out
}

proptest! {
    #[test]
    fn template_agrees_with_plain_encoding(
        first in publish(),
        second in publish(),
        flags in any::<(bool, bool)>(),
        qos in prop::sample::select(&ABOVE_0),
        packet_id in 1..=u16::MAX,
        alias in 1..=u16::MAX,
    ) {
        let mut template = PublishTemplate::default();
        // The second message reuses the buffers of the first.
        for publish in [first, second] {
            for version in [Version::V3, Version::V4, Version::V5] {
                PublishTemplate::encode(version, &publish, &mut template).expect("publish can be represented");
                let has_id = publish.qos != QoS::AtMostOnce;
                let mut receiver = Publish {
                    dup: flags.0 && has_id,
                    retain: flags.1,
                    qos: if has_id { qos } else { QoS::AtMostOnce },
                    packet_id: if has_id { packet_id } else { 0 },
                    ..publish.clone()
                };
                let mut out = b"before".to_vec();
                let append = |template: &PublishTemplate, out: &mut Vec<u8>| {
                    template.append(out, receiver.qos, receiver.dup, receiver.retain, receiver.packet_id);
                };
                append(&template, &mut out);
                prop_assert_eq!(&out[..6], b"before");
                prop_assert_eq!(&out[6..], plain(version, &receiver));
                prop_assert_eq!(template.packet_len(), out.len() - 6);

                let mut head = Vec::new();
                template.append_head(&mut head, receiver.qos, receiver.dup, receiver.retain, receiver.packet_id);
                prop_assert_eq!(template.head_len(), head.len());
                prop_assert_eq!([&head, publish.payload].concat(), &out[6..]);

                PublishTemplate::encode_head(version, &publish, 0, &mut template).expect("the same again");
                let mut alone = Vec::new();
                template.append_head(&mut alone, receiver.qos, receiver.dup, receiver.retain, receiver.packet_id);
                prop_assert_eq!(&alone, &head);
                prop_assert_eq!(template.packet_len(), out.len() - 6);

                let mut user = Vec::new();
                if version == Version::V5 {
                    prop_assert!(publish.properties.user_properties.append_to(&mut user));
                }
                let mut rest = publish.clone();
                rest.properties.user_properties = UserProperties::default();
                PublishTemplate::encode_head(version, &rest, user.len(), &mut template).expect("the same again");
                let mut split = Vec::new();
                template.append_head(&mut split, receiver.qos, receiver.dup, receiver.retain, receiver.packet_id);
                prop_assert_eq!([&split, &user[..], publish.payload].concat(), &out[6..]);
                prop_assert_eq!(template.packet_len(), out.len() - 6);

                if version == Version::V5 && receiver.topic_alias.is_some() {
                    template.patch_alias(&mut alone, alias);
                    receiver.topic_alias = Some(alias);
                    prop_assert_eq!([&alone, publish.payload].concat(), plain(version, &receiver));
                }
            }
        }
    }
}

#[test]
fn alias_is_patched_in_a_long_property_section() {
    let content_type = "x".repeat(20_000);
    let mut publish = Publish { topic: "t", topic_alias: Some(1), payload: b"p", ..Publish::default() };
    publish.properties.content_type = Some(&content_type);
    let mut template = PublishTemplate::default();
    PublishTemplate::encode(Version::V5, &publish, &mut template).expect("publish can be represented");
    let mut out = Vec::new();
    template.append(&mut out, QoS::AtMostOnce, false, false, 0);
    template.patch_alias(&mut out, 0x1234);
    publish.topic_alias = Some(0x1234);
    assert_eq!(out, plain(Version::V5, &publish));
}

#[test]
fn rejects_packets_that_cannot_be_encoded() {
    let mut template = PublishTemplate::default();
    let publish = Publish { topic: "", ..Publish::default() };
    for version in [Version::V3, Version::V4, Version::V5] {
        let error = PublishTemplate::encode(version, &publish, &mut template).expect_err("empty topic");
        assert!(matches!(error, EncodeError::Invalid(_)), "{error}");
    }
    let topic = "x".repeat(65_536);
    let publish = Publish { topic: &topic, ..Publish::default() };
    let encoded = PublishTemplate::encode(Version::V5, &publish, &mut template);
    assert_eq!(encoded, Err(EncodeError::FieldTooLong));
    let payload = vec![0; 268_435_453];
    let publish = Publish { topic: "t", payload: &payload, ..Publish::default() };
    let encoded = PublishTemplate::encode_head(Version::V4, &publish, 0, &mut template);
    assert_eq!(encoded, Err(EncodeError::PacketTooLarge));
}
