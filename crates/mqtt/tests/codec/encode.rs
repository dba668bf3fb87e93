//! Encoding: the test vectors, omissions in 3.x, and rejected packets.

use mainstem_mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, EncodeError, MessageProperties, Packet, Publish, QoS,
    ReasonCode, SubAck, Subscribe, SubscribeFilter, SubscribeFilters, SubscribeOptions, SubscriptionIds,
    Unsubscribe, UnsubscribeFilters, UserProperties, Version, Will, decode,
};

use crate::vectors::{Expected, all};

fn encoded<'a>(version: Version, packet: impl Into<Packet<'a>>) -> Vec<u8> {
    let mut out = Vec::new();
    packet.into().encode(version, &mut out).expect("packet can be represented");
    out
}

#[test]
fn canonical_vectors_encode_to_their_bytes() {
    for vector in all() {
        let (Expected::Canonical(packet) | Expected::Lenient(packet)) = &vector.expected else { continue };
        let mut out = b"before".to_vec();
        packet.encode(vector.version, &mut out).expect(vector.name);
        let bytes = &out[6..];
        assert_eq!(out[..6], *b"before", "{}", vector.name);
        assert_eq!(packet.encoded_len(vector.version), bytes.len(), "{}", vector.name);
        let canonical = matches!(vector.expected, Expected::Canonical(_));
        assert_eq!(bytes == vector.bytes, canonical, "{}: {bytes:x?}", vector.name);
        assert_eq!(decode(vector.version, bytes).as_ref(), Ok(packet), "{}", vector.name);
    }
}

#[test]
fn decoded_packets_encode_again() {
    for vector in all() {
        let Ok(packet) = decode(vector.version, vector.bytes) else { continue };
        let mut out = Vec::new();
        packet.encode(vector.version, &mut out).expect(vector.name);
        assert_eq!(decode(vector.version, &out), Ok(packet), "{}", vector.name);
    }
}

#[test]
fn properties_are_omitted_for_3_1_1() {
    const USER: UserProperties<'static> = UserProperties::Pairs(&[("k", "v")]);
    let will = Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "w",
        payload: b"",
        delay_interval: Some(1),
        properties: MessageProperties { message_expiry: Some(1), ..MessageProperties::default() },
    };
    let connect = Connect {
        will: Some(will),
        session_expiry: Some(1),
        user_properties: USER,
        ..Connect::new(Version::V4, "c")
    };
    assert_eq!(
        encoded(Version::V4, connect),
        b"\x10\x12\x00\x04MQTT\x04\x06\x00\x00\x00\x01c\x00\x01w\x00\x00"
    );
    let publish = Publish {
        topic: "t",
        topic_alias: Some(1),
        subscription_ids: SubscriptionIds::List(&[1]),
        ..Publish::default()
    };
    assert_eq!(encoded(Version::V4, publish), b"\x30\x03\x00\x01t");
    let ack = Ack {
        packet_id: 1,
        reason: ReasonCode::QuotaExceeded,
        reason_string: Some("r"),
        user_properties: USER,
    };
    assert_eq!(encoded(Version::V4, Packet::PubRec(ack)), b"\x50\x02\x00\x01");
    let options = SubscribeOptions { no_local: true, ..SubscribeOptions::qos(QoS::AtLeastOnce) };
    let subscribe = Subscribe {
        packet_id: 1,
        subscription_id: Some(1),
        user_properties: USER,
        filters: SubscribeFilters::List(&[SubscribeFilter { filter: "f", options }]),
    };
    assert_eq!(encoded(Version::V4, subscribe), b"\x82\x06\x00\x01\x00\x01f\x01");
    let disconnect = Disconnect { reason: ReasonCode::ServerShuttingDown, ..Disconnect::default() };
    assert_eq!(encoded(Version::V4, disconnect), b"\xe0\x00");
}

#[test]
fn reasons_map_to_return_codes_for_3_1_1() {
    let suback = SubAck { packet_id: 1, reasons: b"\x00\x02\x80\x87\xa2", ..SubAck::default() };
    assert_eq!(encoded(Version::V4, Packet::SubAck(suback)), b"\x90\x07\x00\x01\x00\x02\x80\x80\x80");
    let unsuback = SubAck { packet_id: 1, reasons: b"\x11", ..SubAck::default() };
    assert_eq!(encoded(Version::V4, Packet::UnsubAck(unsuback)), b"\xb0\x02\x00\x01");
    for (reason, code) in [
        (ReasonCode::Success, 0),
        (ReasonCode::UnsupportedProtocolVersion, 1),
        (ReasonCode::ClientIdentifierNotValid, 2),
        (ReasonCode::ServerBusy, 3),
        (ReasonCode::UseAnotherServer, 3),
        (ReasonCode::BadAuthenticationMethod, 4),
        (ReasonCode::Banned, 5),
        (ReasonCode::RetainNotSupported, 5),
    ] {
        let connack = ConnAck { reason, ..ConnAck::default() };
        assert_eq!(encoded(Version::V4, connack), [0x20, 2, 0, code], "{reason:?}");
    }
}

#[test]
fn session_present_is_not_sent_to_3_1() {
    let connack = ConnAck { session_present: true, ..ConnAck::default() };
    assert_eq!(encoded(Version::V3, connack), [0x20, 2, 0, 0]);
}

#[test]
fn maximum_qos_2_is_omitted() {
    let connack = ConnAck { maximum_qos: Some(QoS::ExactlyOnce), ..ConnAck::default() };
    assert_eq!(encoded(Version::V5, connack), [0x20, 3, 0, 0, 0]);
}

/// Asserts that `packet` is rejected and that nothing was written.
#[track_caller]
fn expect_error<'a>(version: Version, packet: impl Into<Packet<'a>>) -> EncodeError {
    let packet = packet.into();
    let mut out = b"before".to_vec();
    let error = packet.encode(version, &mut out).expect_err("packet must be rejected");
    assert_eq!(out, b"before");
    error
}

#[track_caller]
fn expect_invalid<'a>(version: Version, packet: impl Into<Packet<'a>>, clause: &str) {
    match expect_error(version, packet) {
        EncodeError::Invalid(what) => assert!(what.contains(clause), "{what}"),
        other => panic!("{other}"),
    }
}

#[test]
fn rejects_fields_and_packets_that_are_too_long() {
    let longest = "x".repeat(65_535);
    let too_long = "x".repeat(65_536);
    let publish = |topic| Publish { topic, ..Publish::default() };
    let mut out = Vec::new();
    Packet::Publish(publish(&longest)).encode(Version::V5, &mut out).expect("65,535 bytes fit");
    assert_eq!(decode(Version::V5, &out), Ok(publish(&longest).into()));
    for version in [Version::V3, Version::V4, Version::V5] {
        assert_eq!(expect_error(version, publish(&too_long)), EncodeError::FieldTooLong);
    }
    let pairs = vec![(&*longest, &*longest); 2_100];
    let user_properties = UserProperties::Pairs(&pairs);
    let ack = Ack { packet_id: 1, user_properties, ..Ack::default() };
    assert_eq!(expect_error(Version::V5, Packet::PubAck(ack)), EncodeError::PacketTooLarge);
}

#[test]
fn packet_size_limit_is_exact() {
    let payload = vec![0; 268_435_455 - 3];
    let publish = Publish { topic: "t", payload: &payload, ..Publish::default() };
    assert_eq!(Packet::Publish(publish.clone()).encoded_len(Version::V4), 268_435_455 + 5);
    assert_eq!(
        expect_error(Version::V5, publish),
        EncodeError::PacketTooLarge,
        "one more byte for the property length"
    );
}

#[test]
fn auth_requires_mqtt_5() {
    for version in [Version::V3, Version::V4] {
        assert_eq!(expect_error(version, Auth::default()), EncodeError::NotInVersion);
    }
}

#[test]
fn rejects_forbidden_publishes() {
    let good = Publish { topic: "t", ..Publish::default() };
    let v5 = Version::V5;
    expect_invalid(v5, Publish { packet_id: 1, ..good.clone() }, "MQTT-2.2.1-2");
    expect_invalid(v5, Publish { qos: QoS::AtLeastOnce, ..good.clone() }, "MQTT-2.2.1-2");
    expect_invalid(v5, Publish { dup: true, ..good.clone() }, "MQTT-3.3.1-2");
    expect_invalid(v5, Publish { topic: "", ..good.clone() }, "3.3.2.1");
    expect_invalid(v5, Publish { topic: "a\0", ..good.clone() }, "MQTT-1.5.4-2");
    expect_invalid(v5, Publish { topic_alias: Some(0), ..good.clone() }, "MQTT-3.3.2-8");
    expect_invalid(
        v5,
        Publish { subscription_ids: SubscriptionIds::List(&[1, 0]), ..good.clone() },
        "3.3.2.3.8",
    );
    expect_invalid(
        v5,
        Publish { subscription_ids: SubscriptionIds::List(&[268_435_456]), ..good.clone() },
        "3.3.2.3.8",
    );
    let properties = MessageProperties { payload_format: Some(2), ..MessageProperties::default() };
    expect_invalid(v5, Publish { properties, ..good.clone() }, "3.3.2.3.2");
    expect_invalid(Version::V4, Publish { topic: "", topic_alias: Some(1), ..good }, "MQTT-4.7.3-1");
}

#[test]
fn rejects_forbidden_connects_and_connacks() {
    let connect = |version| Connect::new(version, "c");
    let (v4, v5) = (Version::V4, Version::V5);
    expect_invalid(v4, Connect { password: Some(b"p"), ..connect(v4) }, "MQTT-3.1.2-22");
    expect_invalid(v5, Connect { receive_maximum: Some(0), ..connect(v5) }, "3.1.2.11.3");
    expect_invalid(v5, Connect { maximum_packet_size: Some(0), ..connect(v5) }, "3.1.2.11.4");
    expect_invalid(v5, Connect { authentication_data: Some(b""), ..connect(v5) }, "3.1.2.11.10");
    expect_invalid(
        v5,
        ConnAck { session_present: true, reason: ReasonCode::Banned, ..ConnAck::default() },
        "3.2.2-6",
    );
    expect_invalid(v5, ConnAck { reason: ReasonCode::SessionTakenOver, ..ConnAck::default() }, "2.4");
    expect_invalid(v5, ConnAck { receive_maximum: Some(0), ..ConnAck::default() }, "3.1.2.11.3");
    expect_invalid(v5, Auth { reason: ReasonCode::ContinueAuthentication, ..Auth::default() }, "3.15.2.2.2");
    expect_invalid(v5, Disconnect { reason: ReasonCode::GrantedQoS1, ..Disconnect::default() }, "2.4");
}

#[test]
fn rejects_forbidden_acknowledgements_and_requests() {
    let v5 = Version::V5;
    expect_invalid(v5, Packet::PubAck(Ack::default()), "MQTT-2.2.1-3");
    expect_invalid(Version::V4, Packet::PubComp(Ack::default()), "MQTT-2.2.1-3");
    let reason = ReasonCode::PacketIdentifierNotFound;
    expect_invalid(v5, Packet::PubAck(Ack { packet_id: 1, reason, ..Ack::default() }), "2.4");
    expect_invalid(v5, Packet::SubAck(SubAck { packet_id: 1, ..SubAck::default() }), "3.9.3");
    expect_invalid(
        v5,
        Packet::SubAck(SubAck { packet_id: 1, reasons: b"\x11", ..SubAck::default() }),
        "3.9.3",
    );
    expect_invalid(
        v5,
        Packet::UnsubAck(SubAck { packet_id: 1, reasons: b"\xff", ..SubAck::default() }),
        "3.11.3",
    );
    let filters = SubscribeFilters::List(&[]);
    let subscribe = Subscribe {
        packet_id: 1,
        subscription_id: None,
        user_properties: UserProperties::default(),
        filters,
    };
    expect_invalid(v5, subscribe.clone(), "MQTT-3.8.3-2");
    let filters = SubscribeFilters::List(&[SubscribeFilter {
        filter: "f",
        options: SubscribeOptions::qos(QoS::AtMostOnce),
    }]);
    expect_invalid(v5, Subscribe { packet_id: 0, filters, ..subscribe.clone() }, "MQTT-2.2.1-3");
    expect_invalid(v5, Subscribe { subscription_id: Some(0), filters, ..subscribe }, "3.8.2.1.2");
    let user_properties = UserProperties::default();
    let unsubscribe = Unsubscribe { packet_id: 1, user_properties, filters: UnsubscribeFilters::List(&[]) };
    expect_invalid(v5, unsubscribe, "MQTT-3.10.3-2");
}
