//! DISCONNECT (3.14), AUTH (3.15), extended authentication (4.12), the end of the server.

use mainstem_conformance::prelude::*;
use wire::Wire;

fn method(name: &str) -> Props {
    Props::new().data(property::AUTHENTICATION_METHOD, name)
}

// [MQTT5-3.14.4-2] [MQTT5-3.14.4-1] [MQTT5-3.14.4-3]
#[test]
fn after_the_client_s_disconnect_the_server_closes_in_silence() {
    for version in BOTH {
        let topic = unique("t");
        let mut watcher = Client::connect(Broker::shared(), version);
        watcher.subscribe(&topic, 0);
        let mut client = Client::connect(Broker::shared(), version);
        // What follows a DISCONNECT is not processed, not even when it came in the same segment.
        let mut bytes = wire::DISCONNECT.to_vec();
        bytes.extend(Publish::new(&topic, "too late").bytes(version));
        bytes.extend(wire::PINGREQ);
        client.send(&bytes);
        client.expect_closed();
        let mut publisher = Client::connect(Broker::shared(), version);
        assert_eq!(watcher.drain(&mut publisher), []);
    }
}

// [MQTT5-3.14.2-1]
#[test]
fn every_form_of_disconnect_is_understood() {
    let props = Props::new().data(property::REASON_STRING, "tired").user("a", "b");
    let forms = [
        vec![0xE0, 0x00],
        vec![0xE0, 0x01, 0x00],
        vec![0xE0, 0x02, 0x00, 0x00],
        wire::disconnect_with(reason::SUCCESS, &props),
        wire::disconnect_with(reason::DISCONNECT_WITH_WILL, &props),
        wire::disconnect_with(reason::UNSPECIFIED_ERROR, &props),
    ];
    for form in forms {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&form);
        client.expect_closed();
    }
}

// [MQTT5-3.14.2-1] [MQTT5-4.13.1-1]
#[test]
fn malformed_disconnects_are_refused() {
    for bytes in
        [&[0xE0, 0x01, 0x01][..], &[0xE0, 0x01, 0x7F], &[0xE0, 0x02, 0x00, 0x05], &[0xE0, 0x03, 0, 0, 0]]
    {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(bytes);
        client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
    }
    let mut client = Client::connect(Broker::shared(), V4);
    client.send(&[0xE0, 0x01, 0x00]);
    client.expect_closed();
}

// [MQTT5-3.14.2-2] [MQTT5-3.14.4-1] [MQTT5-3.14.4-2] [MQTT5-4.13.2-1]
#[test]
fn after_the_server_s_disconnect_the_connection_is_closed() {
    let mut client = Client::connect(Broker::shared(), V5);
    client.send(&Subscribe::new(1).filter("$share/g/a", wire::NO_LOCAL));
    // Packets behind the error are neither answered nor processed.
    client.send(&[wire::PINGREQ, wire::PINGREQ].concat());
    let disconnect = client.expect_refused(reason::PROTOCOL_ERROR).expect("in version 5");
    assert!(!disconnect.props.has(property::SESSION_EXPIRY_INTERVAL));
}

// [MQTT5-3.14.2-1] [MQTT5-3.14.4-2] [MQTT3-4.8.0-2]
#[test]
fn the_end_of_the_server_is_announced() {
    let mut broker = Broker::with(&[]);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&broker, V5)).collect();
    let mut old = Client::connect(&broker, V4);
    broker.terminate();
    for client in &mut clients {
        client.expect_refused(reason::SERVER_SHUTTING_DOWN);
    }
    old.expect_closed();
    assert!(broker.wait().success());
}

// [MQTT5-4.12.0-1] [MQTT5-4.12.0-4] [MQTT5-3.1.4-2] [MQTT5-3.2.2-7]
#[test]
fn an_unknown_authentication_method_is_refused() {
    for props in
        [method("SCRAM-SHA-1"), method(""), method("x").data(property::AUTHENTICATION_DATA, [0, 255])]
    {
        let code = Client::refused(Broker::shared(), V5, &Connect::new(unique("c")).props(props));
        assert_eq!(code, Some(reason::BAD_AUTHENTICATION_METHOD));
    }
}

// [MQTT5-4.12.0-7] [MQTT5-4.12.1-1] [MQTT5-4.12.1-2] [MQTT5-3.15.2-1]
#[test]
fn auth_without_a_method_in_connect_is_a_protocol_error() {
    let packets = [
        wire::auth(reason::CONTINUE_AUTHENTICATION, &method("m")),
        wire::auth(reason::RE_AUTHENTICATE, &method("m")),
        vec![0xF0, 0x00],
    ];
    for packet in packets {
        let mut client = Client::connect(Broker::shared(), V5);
        client.send(&packet);
        client.expect_refused(reason::PROTOCOL_ERROR);
    }
}

// [MQTT5-3.15.2-1] [MQTT5-4.13.1-1]
#[test]
fn auth_with_an_unknown_reason_is_refused() {
    let mut client = Client::connect(Broker::shared(), V5);
    client.send(&wire::auth(0x80, &method("m")));
    client.expect_refused_with(&[reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR]);
}

// [MQTT5-4.12.0-6]
#[test]
fn without_a_method_the_server_speaks_of_none() {
    let connect = Connect::new(unique("c")).username("user").password("password");
    let (mut client, connack) = Client::connect_with(Broker::shared(), V5, &connect);
    assert!(!connack.props.has(property::AUTHENTICATION_METHOD));
    assert!(!connack.props.has(property::AUTHENTICATION_DATA));
    // No AUTH either.
    client.expect_silence();
}
