//! Clients that want too much: what they cost stays bounded, and innocent clients beside them notice nothing.

use std::time::{Duration, Instant};

use mainstem_conformance::prelude::*;
use mainstem_conformance::{Bystanders, DEADLINE};
use wire::Wire;

/// How much a broker may grow under any of these, KiB: far less than what is thrown at it.
const GROWTH_KIB_MAX: u64 = 64 * 1024;

/// Watches the memory of a broker of its own.
struct Memory<'a> {
    broker: &'a Broker,
    before_kib: u64,
}

impl<'a> Memory<'a> {
    fn of(broker: &'a Broker) -> Self {
        Self { broker, before_kib: broker.resident_kib().expect("a broker of our own") }
    }

    #[track_caller]
    fn expect_bounded(&self, during: &str) {
        let now_kib = self.broker.resident_kib().expect("it still runs");
        println!("{during}: {} KiB before, {now_kib} KiB after", self.before_kib);
        assert!(now_kib < self.before_kib + GROWTH_KIB_MAX, "{during}: {} to {now_kib} KiB", self.before_kib);
    }
}

/// Waits until the retained number under `$SYS/broker/` reaches `least`.
fn wait_for_sys(broker: &Broker, name: &str, least: u64) {
    let mut client = Client::connect(broker, V5);
    client.subscribe(&format!("$SYS/broker/{name}"), 0);
    let start = Instant::now();
    while client.expect_message().text().parse::<u64>().expect("a number") < least {
        assert!(start.elapsed() < DEADLINE, "{name} never reached {least}");
    }
}

// [MQTT5-3.1.4-1] [MQTT3-3.1.4-1]
#[test]
fn connections_that_never_send_connect_are_closed() {
    let broker = Broker::with(&["mqtt.connect_timeout_ms=1000"]);
    let bystanders = Bystanders::start(&broker);
    let start = Instant::now();
    let connect = Connect::new(unique("c")).bytes(V5);
    let mut waiting: Vec<Client> = (0..150)
        .map(|n| {
            let mut client = Client::open(&broker, V5);
            // Some say nothing, some begin.
            client.send(&connect[..n % connect.len()]);
            client
        })
        .collect();
    for client in &mut waiting {
        client.expect_closed();
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    bystanders.finish("silent connections");
}

// [MQTT5-3.1.4-1] [MQTT3-3.1.4-1]
#[test]
fn a_connect_that_trickles_in_is_cut_off() {
    let broker = Broker::with(&["mqtt.connect_timeout_ms=1000"]);
    let bystanders = Bystanders::start(&broker);
    let connect = Connect::new("x".repeat(100)).bytes(V5);
    let mut client = Client::open(&broker, V5);
    let mut ended = false;
    for byte in connect {
        ended =
            client.try_send(&[byte]).is_err() || client.event_within(Duration::from_millis(100)).is_some();
        if ended {
            break;
        }
    }
    assert!(ended, "every byte bought more time");
    bystanders.finish("a trickle");
}

// [MQTT5-3.2.2-15]
#[test]
fn promised_bytes_cost_nothing_until_they_come() {
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let memory = Memory::of(&broker);
    let mut clients: Vec<Client> = (0..200).map(|n| Client::connect(&broker, BOTH[n % 2])).collect();
    for client in &mut clients {
        // A PUBLISH of nearly 16 MiB is to follow.
        client.send(&[0x30, 0xF0, 0xFF, 0xFF, 0x07, 0x00, 0x01, b'a']);
    }
    let mut unconnected: Vec<Client> = (0..100).map(|_| Client::open(&broker, V5)).collect();
    for client in &mut unconnected {
        client.send(&[0x10, 0xF0, 0xFF, 0xFF, 0x07, 0x00, 0x04, b'M']);
    }
    Client::connect(&broker, V5).ping();
    memory.expect_bounded("300 promises of 16 MiB");
    bystanders.finish("promises");
}

// [MQTT5-3.3.4-1]
#[test]
fn a_subscriber_that_never_reads_loses_qos_0_and_that_is_counted() {
    let broker = Broker::with(&["mqtt.sys_interval_s=1"]);
    let bystanders = Bystanders::start(&broker);
    let topic = unique("t");
    let mut deaf = Client::connect(&broker, V5);
    deaf.subscribe(&topic, 0);
    let mut reading = Client::connect(&broker, V5);
    reading.subscribe(&topic, 0);
    let memory = Memory::of(&broker);
    let mut publisher = Client::connect(&broker, V5);
    // 200 MiB, far more than the socket buffers hold.
    for n in 0..3200_u32 {
        let mut payload = vec![b'x'; 64 * 1024];
        payload[..4].copy_from_slice(&n.to_be_bytes());
        publisher.publish(&topic, payload, 0);
        assert_eq!(reading.expect_message().payload[..4], n.to_be_bytes());
    }
    publisher.ping();
    memory.expect_bounded("200 MiB to a client that never reads");
    wait_for_sys(&broker, "publish/messages/dropped", 1000);
    bystanders.finish("a deaf subscriber at QoS 0");
    assert!(broker.log().contains("loses messages"), "the log names the client once");
    // It is still connected: what comes is in order, with a gap.
    let first = deaf.expect_message();
    assert_eq!(first.payload[..4], [0; 4]);
}

// [MQTT5-4.9.0-2] [MQTT5-4.5.0-1]
#[test]
fn a_subscriber_that_never_acknowledges_has_a_bounded_queue() {
    let broker = Broker::with(&[
        "mqtt.max_queued_messages=100",
        "mqtt.max_inflight_messages=64",
        "mqtt.sys_interval_s=1",
    ]);
    let bystanders = Bystanders::start(&broker);
    for version in BOTH {
        let topic = unique("t");
        let mut slow = Client::connect(&broker, version);
        slow.subscribe(&topic, 1);
        let memory = Memory::of(&broker);
        let mut publisher = Client::connect(&broker, V4);
        for n in 0..5000 {
            let payload = format!("{n} {}", "x".repeat(10_000));
            publisher.publish(&topic, payload, 1);
        }
        memory.expect_bounded("50 MB to a client that never acknowledges");
        wait_for_sys(&broker, "publish/messages/dropped", 4000);
        // At most 64 in flight and 100 in the queue, at least the queue; what did not fit is missing.
        let mut got: Vec<Message> = (0..100).map(|_| slow.expect_message()).collect();
        got.extend(slow.drain(&mut publisher));
        let number = |message: &Message| -> u32 {
            message.text().split_once(' ').expect("a number").0.parse().expect("a number")
        };
        let numbers: Vec<u32> = got.iter().map(number).collect();
        assert!(numbers.len() <= 164 && numbers.is_sorted(), "{numbers:?}");
        assert!(numbers[..100].iter().copied().eq(0..100), "the newest were dropped: {numbers:?}");
    }
    bystanders.finish("no acknowledgements");
}

// [MQTT5-4.5.0-1]
#[test]
fn the_queue_is_bounded_in_bytes_too() {
    let broker = Broker::with(&["mqtt.max_queued_bytes=1048576"]);
    let topic = unique("t");
    let durable = Connect::new(unique("c")).durable();
    let (mut client, _) = Client::connect_with(&broker, V5, &durable);
    client.subscribe(&topic, 1);
    client.abort();
    let memory = Memory::of(&broker);
    let mut publisher = Client::connect(&broker, V5);
    for _ in 0..900 {
        publisher.publish(&topic, vec![b'x'; 100_000], 1);
    }
    memory.expect_bounded("90 MB for an absent client");
    let (mut client, _) = Client::connect_with(&broker, V5, &durable);
    let count = client.drain(&mut publisher).len();
    assert!((5..=10).contains(&count), "{count} messages of 100 kB in a queue of 1 MiB");
}

// [MQTT5-3.8.4-1] [MQTT5-3.8.4-7]
#[test]
fn a_flood_of_subscriptions_ends_at_the_limit() {
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let memory = Memory::of(&broker);
    let mut client = Client::connect(&broker, V5);
    let (mut granted, mut refused) = (0, 0);
    for batch in 0..120_u16 {
        let subscribe = (0..100).fold(Subscribe::new(batch + 1), |subscribe, n| {
            subscribe.filter(format!("flood/{batch}/+/{n}/#"), 0)
        });
        client.send(&subscribe);
        for code in client.expect_answer(SUBACK).reasons {
            match code {
                0 => granted += 1,
                reason::QUOTA_EXCEEDED => refused += 1,
                other => panic!("{other:02x}"),
            }
        }
    }
    assert_eq!((granted, refused), (10_000, 2_000));
    memory.expect_bounded("12,000 subscriptions");
    client.disconnect();
    bystanders.finish("a flood of SUBSCRIBEs");
}

// [MQTT5-3.8.4-3] [MQTT5-3.3.1-9]
#[test]
fn subscribing_again_and_again_without_acknowledging_costs_no_memory() {
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let topic = format!("walk/{}", "x".repeat(60_000));
    let mut publisher = Client::connect(&broker, V5);
    publisher.publish_with(Publish::new(&topic, "retained").retain(), 1);
    let props = Props::new().two(property::RECEIVE_MAXIMUM, 1);
    let (mut client, _) = Client::connect_with(&broker, V5, &Connect::new(unique("c")).props(props));
    let memory = Memory::of(&broker);
    // Each subscribe asks for the retained message again, and none can be sent but the first: 120 MB of filters.
    for _ in 0..2_000 {
        assert_eq!(client.try_subscribe(&topic, 1), [1]);
    }
    memory.expect_bounded("2,000 subscribes to one retained message");
    bystanders.finish("subscribing again and again");
}

// [MQTT5-3.12.4-1]
#[test]
fn a_client_that_pings_and_never_reads_is_held_back() {
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let memory = Memory::of(&broker);
    for version in BOTH {
        let mut client = Client::connect(&broker, version);
        client.stream().set_write_timeout(Some(Duration::from_secs(1))).expect("a socket");
        let pings = wire::PINGREQ.repeat(32 * 1024);
        // 80 MiB of pings, or as many as the broker is willing to read while nobody takes its answers.
        for _ in 0..1280 {
            if client.try_send(&pings).is_err() {
                break;
            }
        }
    }
    memory.expect_bounded("pings without end");
    bystanders.finish("pings without end");
}

// [MQTT5-4.1.0-2] [MQTT3-3.1.2-6]
#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let round = || {
        for n in 0..1500 {
            let mut client = Client::connect(&broker, BOTH[n % 2]);
            client.subscribe(&format!("{}/+", unique("churn")), 1);
            client.publish(&unique("churn"), "x", 0);
            if n % 2 == 0 { client.disconnect() } else { drop(client) }
        }
    };
    round();
    let memory = Memory::of(&broker);
    round();
    memory.expect_bounded("1,500 clients that came and went");
    bystanders.finish("churn");
}

// [MQTT5-3.1.4-2] [MQTT5-3.2.2-7]
#[test]
fn the_number_of_sessions_is_bounded() {
    let broker = Broker::with(&["mqtt.max_sessions=5"]);
    let durable: Vec<Connect> = (0..5).map(|_| Connect::new(unique("c")).durable()).collect();
    for connect in &durable {
        Client::connect_with(&broker, V5, connect).0.disconnect();
    }
    let code = Client::refused(&broker, V5, &Connect::new(unique("c")));
    let known = [reason::QUOTA_EXCEEDED, reason::SERVER_BUSY, reason::SERVER_UNAVAILABLE];
    assert!(code.is_none_or(|code| known.contains(&code)), "{code:02x?}");
    Client::refused(&broker, V4, &Connect::new(unique("c")));
    // Those that have a session come in, and make room by ending it.
    let (client, connack) = Client::connect_with(&broker, V5, &durable[0]);
    assert!(connack.session_present);
    client
        .disconnect_with(&wire::disconnect_with(0, &Props::new().four(property::SESSION_EXPIRY_INTERVAL, 0)));
    Client::connect(&broker, V5).ping();
}

// [MQTT5-3.1.4-2]
#[test]
fn the_number_of_connections_is_bounded() {
    let broker = Broker::with(&["mqtt.max_connections=5"]);
    let mut clients: Vec<Client> = (0..5).map(|_| Client::connect(&broker, V5)).collect();
    let code = Client::refused(&broker, V5, &Connect::new(unique("c")));
    let known = [reason::QUOTA_EXCEEDED, reason::SERVER_BUSY, reason::SERVER_UNAVAILABLE];
    assert!(code.is_none_or(|code| known.contains(&code)), "{code:02x?}");
    for client in &mut clients {
        client.ping();
    }
    clients.pop().expect("five").disconnect();
    Client::connect(&broker, V5).ping();
}

// [MQTT5-3.3.4-1]
#[test]
fn one_publisher_s_flood_does_not_starve_the_others() {
    let broker = Broker::with(&[]);
    let topic = unique("t");
    let mut subscribers: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = Client::connect(&broker, V4);
            client.subscribe(&topic, 0);
            client
        })
        .collect();
    let bystanders = Bystanders::start(&broker);
    let memory = Memory::of(&broker);
    let mut publisher = Client::connect(&broker, V4);
    let burst = Publish::new(&topic, "x".repeat(100)).bytes(V4).repeat(1000);
    for _ in 0..50 {
        publisher.send(&burst);
    }
    publisher.ping();
    for subscriber in &mut subscribers {
        subscriber.expect_message();
    }
    memory.expect_bounded("50,000 messages at once to 20 subscribers");
    bystanders.finish("a flood");
}
