//! Connections beyond the limits: what they are told, and what they cannot take from the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mainstem_conformance::prelude::*;
use mainstem_conformance::{Bystanders, DEADLINE};

/// Connects without sending anything.
fn idle(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the broker accepts connections");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

/// Whether the broker has closed the connection, orderly or with a reset.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// Repeats until `is_so`.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn connections_cannot_take_the_descriptors_of_the_log() {
    let settings = ["http.max_connections=16", "mqtt.segment_bytes=65536", "mqtt.snapshot_bytes=4096"];
    let broker = Broker::with_open_files(400, &settings);
    let mut subscriber = Client::connect_with(&broker, V5, &Connect::new(unique("c")).durable()).0;
    subscriber.subscribe("log/#", 1);
    subscriber.abort();
    let mut publisher = Client::connect(&broker, V5);
    let crowd: Vec<TcpStream> = (0..450).map(|_| idle(broker.addr())).collect();
    wait_until(|| is_closed(crowd.last().expect("450")), "there is no limit");
    assert!(!is_closed(&crowd[0]), "the first connection is served");
    // New segments and snapshots need descriptors.
    for n in 0..400 {
        let message = Publish::new(format!("log/{n}"), "x".repeat(2_000)).retain();
        assert_eq!(publisher.publish_with(message, 1), 0, "message {n}");
    }
    let log = broker.log();
    assert!(
        log.contains("mqtt.max_connections = 100000 does not fit into the limit of open files, 400"),
        "{log}"
    );
    // One line for hundreds of refusals.
    assert_eq!(log.matches("closed at once").count(), 1, "{log}");
    assert!(!log.contains("cannot accept"), "{log}");
    // With the crowd gone there is room again.
    drop(crowd);
    wait_until(|| Client::open(&broker, V5).answers_connect(), "connections stay counted");
}

#[test]
fn a_client_beyond_max_connections_is_told_so() {
    let broker = Broker::with(&["mqtt.max_connections=2"]);
    let clients = [Client::connect(&broker, V5), Client::connect(&broker, V4)];
    for (version, code) in [(V5, reason::QUOTA_EXCEEDED), (V4, 3)] {
        let refused = Client::refused(&broker, version, &Connect::new(unique("c")));
        assert_eq!(refused, Some(code));
    }
    drop(clients);
    wait_until(|| Client::open(&broker, V5).answers_connect(), "connections stay counted");
}

#[test]
fn too_few_descriptors_prevent_the_start_and_the_log_says_how_many_are_needed() {
    let outcome = std::panic::catch_unwind(|| Broker::with_open_files(100, &[]));
    let message = *outcome.expect_err("100 are too few").downcast::<String>().expect("a message");
    assert!(
        message.contains("the limit of open files is 100, and the least that works here is"),
        "{message}"
    );
}

#[test]
fn connections_per_address_are_limited_over_all_listeners() {
    let broker = Broker::with(&["server.max_connections_per_address=2"]);
    let kafka = idle(broker.kafka_addr());
    let client = Client::connect(&broker, V5);
    for address in [broker.addr(), broker.kafka_addr()] {
        let refused = idle(address);
        wait_until(|| is_closed(&refused), "there is no limit");
    }
    assert!(!is_closed(&kafka));
    drop(client);
    wait_until(|| Client::open(&broker, V5).answers_connect(), "connections stay counted");
    assert!(broker.log().contains("server.max_connections_per_address"));
}

#[test]
fn refused_floods_do_not_disturb_the_others() {
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let garbage = vec![0x30; 256 * 1024];
    for _ in 0..50 {
        let flood: Vec<TcpStream> = (0..20).map(|_| idle(broker.addr())).collect();
        for mut stream in &flood {
            stream.set_write_timeout(Some(Duration::from_millis(1))).expect("a timeout");
            // The broker reads a part at most.
            stream.write_all(&garbage).ok();
        }
    }
    bystanders.finish("refused floods");
}

#[test]
fn idle_kafka_connections_are_closed_and_those_that_send_are_not() {
    let broker = Broker::with(&["kafka.connections_max_idle_ms=2s"]);
    let silent = idle(broker.kafka_addr());
    let mut active = idle(broker.kafka_addr());
    // ApiVersions of version 0: size, API key, version, correlation id, no client id.
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xFF, 0xFF];
    wait_until(
        || {
            active.write_all(&request).expect("the connection is open");
            assert_ne!(active.read(&mut [0; 4096]).expect("a response"), 0);
            is_closed(&silent)
        },
        "an idle connection stays open",
    );
}

#[test]
fn the_log_names_the_protocol_of_clients_on_the_wrong_port() {
    let kafka = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xFF, 0xFF];
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "TLS"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "the PROXY protocol"),
        (&kafka, "the Kafka protocol"),
    ];
    // A shard logs one such line per interval.
    for (bytes, name) in cases {
        let broker = Broker::with(&[]);
        let mut client = idle(broker.addr());
        client.write_all(bytes).expect("the connection is open");
        wait_until(|| is_closed(&client), "the connection stays open");
        let expected =
            format!("mqtt: a client at 127.0.0.1 speaks {name} on a listener for MQTT and is disconnected");
        assert_eq!(broker.log().matches(&expected).count(), 1, "{}", broker.log());
    }
    let broker = Broker::with(&[]);
    let mut client = idle(broker.kafka_addr());
    client.write_all(b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c").expect("the connection is open");
    wait_until(|| is_closed(&client), "the connection stays open");
    let expected =
        "kafka: a client at 127.0.0.1 speaks MQTT on a listener for the Kafka protocol and is disconnected";
    assert!(broker.log().contains(expected), "{}", broker.log());
}
