//! Decoding does not allocate, and neither does sending from a template once the buffers have grown.

use allocation_counter::measure;
use mainstem_mqtt::{
    Ack, MessageProperties, Packet, Publish, PublishTemplate, QoS, SubscriptionIds, UserProperties, Version,
    decode,
};

fn full_publish() -> Publish<'static> {
    Publish {
        qos: QoS::AtLeastOnce,
        topic: "plant/7/press/temperature",
        packet_id: 1,
        topic_alias: Some(3),
        subscription_ids: SubscriptionIds::List(&[7, 300]),
        properties: MessageProperties {
            payload_format: Some(1),
            message_expiry: Some(60),
            content_type: Some("text/plain"),
            response_topic: Some("answers"),
            correlation_data: Some(b"42"),
            user_properties: UserProperties::Pairs(&[("a", "b"), ("c", "d")]),
        },
        payload: &[b'x'; 300],
        ..Publish::default()
    }
}

/// Returns the number of allocations made by `run`.
fn allocations(run: impl FnOnce()) -> u64 {
    measure(run).count_total
}

#[test]
fn allocation_counter_works() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0_u8; 100]))), 1);
}

#[test]
fn decoding_does_not_allocate() {
    for version in [Version::V3, Version::V4, Version::V5] {
        let mut frame = Vec::new();
        Packet::from(full_publish()).encode(version, &mut frame).expect("publish can be represented");
        let count = allocations(|| {
            let Ok(Packet::Publish(publish)) = decode(version, &frame) else { panic!("not a PUBLISH") };
            assert_eq!(publish.payload.len(), 300);
            let expected = if version == Version::V5 { (2, 2) } else { (0, 0) };
            let pairs = publish.properties.user_properties.iter().count();
            assert_eq!((publish.subscription_ids.iter().count(), pairs), expected);
        });
        assert_eq!(count, 0, "{version:?}");
    }
    let count = allocations(|| {
        decode(Version::V5, b"\x82\x09\x00\x01\x02\x0b\x07\x00\x01f\x02").expect("a SUBSCRIBE");
        decode(Version::V4, b"\x40\x02\x00\x01").expect("a PUBACK");
        decode(Version::V4, b"\x40\x02\x00\x00").expect_err("packet identifier 0");
    });
    assert_eq!(count, 0);
}

#[test]
fn sending_does_not_allocate_once_buffers_have_grown() {
    let publish = full_publish();
    let mut template = PublishTemplate::default();
    let mut out = Vec::new();
    let mut send = || {
        out.clear();
        for version in [Version::V4, Version::V5] {
            PublishTemplate::encode(version, &publish, &mut template).expect("publish can be represented");
            for packet_id in 1..=20 {
                template.append(&mut out, QoS::AtLeastOnce, false, false, packet_id);
            }
            template.append_head(&mut out, QoS::ExactlyOnce, true, false, 21);
        }
        for packet_id in 1..=20 {
            let ack = Packet::PubAck(Ack { packet_id, ..Ack::default() });
            ack.encode(Version::V5, &mut out).expect("acknowledgement can be represented");
        }
        Packet::from(publish.clone()).encode(Version::V5, &mut out).expect("publish can be represented");
    };
    assert!(allocations(&mut send) > 0, "the first run grows the buffers");
    assert_eq!(allocations(&mut send), 0);
}
