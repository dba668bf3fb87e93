//! Bad input beside innocent clients: the offender is disconnected with the right reason, nobody else notices.

use mainstem_conformance::prelude::*;
use mainstem_conformance::{Bystanders, DEADLINE};
use wire::Wire;

const REFUSED: [u8; 2] = [reason::MALFORMED_PACKET, reason::PROTOCOL_ERROR];

/// Reads to the end of the connection; returns the reason of the DISCONNECT, if one came.
fn read_to_end(client: &mut Client) -> Option<u8> {
    let mut reason = None;
    while let Event::Packet(packet) = client.event() {
        if let Packet::Disconnect(disconnect) = packet {
            reason = Some(disconnect.reason);
        }
    }
    reason
}

/// One valid packet of each kind that a connected client sends.
fn valid_packets(version: Version) -> Vec<Vec<u8>> {
    let props = || Props::new().user("name", "value");
    let mut list = vec![
        Publish::new("hostile/a", "payload").bytes(version),
        Publish::new("hostile/a", "payload").qos(1).id(7).props(props()).bytes(version),
        Publish::new("hostile/a", "payload").qos(2).id(8).props(props()).bytes(version),
        wire::ack(PUBACK, 7),
        wire::ack(PUBREC, 7),
        wire::ack(PUBREL, 7),
        wire::ack(PUBCOMP, 7),
        Subscribe::new(9).filter("hostile/+", 1).filter("hostile/#", 2).props(props()).bytes(version),
        Unsubscribe::new(10).filter("hostile/+").filter("hostile/x").props(props()).bytes(version),
        wire::PINGREQ.to_vec(),
    ];
    if version == V5 {
        list.push(wire::ack_with(PUBACK, 7, 0, &props()));
        list.push(wire::disconnect_with(0, &props().data(property::REASON_STRING, "bye")));
        list.push(wire::auth(0x18, &props().data(property::AUTHENTICATION_METHOD, "method")));
    }
    list
}

// [MQTT5-4.13.1-1] [MQTT3-4.8.0-1]
#[test]
fn packets_cut_short_end_their_connection() {
    let bystanders = Bystanders::start(Broker::shared());
    for version in BOTH {
        for packet in valid_packets(version) {
            // The fixed header promises exactly what is left, so the packet is whole, but ends inside a field.
            for length in 0..packet.len() - 2 {
                let cut = wire::frame(packet[0], &packet[2..2 + length]);
                let mut client = Client::connect(Broker::shared(), version);
                client.send(&cut);
                client.shut();
                let reason = read_to_end(&mut client);
                // Where a cut falls at the end of a field a shorter packet may be valid.
                let fits = reason.is_none_or(|reason| REFUSED.contains(&reason));
                assert!(fits, "{version:?}: {reason:02x?} for {cut:02x?}");
            }
        }
    }
    bystanders.finish("packets cut short");
}

// [MQTT5-3.8.3-2] [MQTT5-3.10.3-2] [MQTT3-3.8.3-3] [MQTT3-3.10.3-2] [MQTT5-4.13.1-1]
#[test]
fn requests_cut_inside_a_filter_are_refused() {
    let bystanders = Bystanders::start(Broker::shared());
    for version in BOTH {
        let subscribe = Subscribe::new(9).filter("filter", 1).bytes(version);
        let unsubscribe = Unsubscribe::new(9).filter("filter").bytes(version);
        for packet in [subscribe, unsubscribe] {
            for length in 0..packet.len() - 2 {
                let mut client = Client::connect(Broker::shared(), version);
                client.send(&wire::frame(packet[0], &packet[2..2 + length]));
                client.expect_refused_with(&REFUSED);
            }
        }
    }
    bystanders.finish("requests cut short");
}

// [MQTT5-3.1.4-1] [MQTT3-3.1.4-1]
#[test]
fn connects_cut_short_are_refused() {
    let bystanders = Bystanders::start(Broker::shared());
    for version in BOTH {
        let will = Will::new("w", "x").props(Props::new().user("a", "b"));
        let connect = Connect::new(unique("c")).username("user").password("pass").will(will);
        let packet = connect.props(Props::new().user("a", "b")).bytes(version);
        for length in 0..packet.len() - 2 {
            let code = Client::refused(Broker::shared(), version, &wire::frame(0x10, &packet[2..2 + length]));
            assert!(code.is_none_or(|code| version != V5 || code >= 0x80), "{code:02x?}");
        }
        // The connection ends inside the packet.
        for length in 0..packet.len() {
            let mut client = Client::open(Broker::shared(), version);
            client.send(&packet[..length]);
            client.shut();
            client.expect_closed();
        }
    }
    bystanders.finish("CONNECTs cut short");
}

// [MQTT5-4.13.1-1] [MQTT5-3.14.2-1] [MQTT5-3.2.2-8]
#[test]
fn one_wrong_bit_never_does_more_than_end_the_connection() {
    let bystanders = Bystanders::start(Broker::shared());
    for version in BOTH {
        for packet in valid_packets(version) {
            for position in 0..packet.len() {
                for bit in [0x01, 0x04, 0x20, 0x80] {
                    let mut wrong = packet.clone();
                    wrong[position] ^= bit;
                    let mut client = Client::connect(Broker::shared(), version);
                    client.send(&wrong);
                    client.try_send(&wire::PINGREQ).ok();
                    client.shut();
                    // The reader panics at anything that a server must not send.
                    read_to_end(&mut client);
                }
            }
        }
        // A wrong bit in the identifier must not make it another client's.
        let connect = Connect::new(unique("flipped")).will(Will::new("w", "x")).username("u").bytes(version);
        for position in 0..connect.len() {
            for bit in 0..8 {
                let mut wrong = connect.clone();
                wrong[position] ^= 1 << bit;
                let mut client = Client::open(Broker::shared(), V5);
                client.send(&wrong);
                client.shut();
                drop(client);
            }
        }
    }
    bystanders.finish("single wrong bits");
}

/// Numbers from a seed: the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

// [MQTT5-4.13.1-1] [MQTT3-4.8.0-1] [MQTT5-3.1.0-1]
#[test]
fn random_bytes_end_their_connection_alone() {
    let bystanders = Bystanders::start(Broker::shared());
    let mut numbers = Numbers(0x2545_F491_4F6C_DD1D);
    for round in 0..600 {
        let length = 1 + (numbers.next() % 300) as usize;
        let noise = numbers.bytes(length);
        let version = if round % 2 == 0 { V4 } else { V5 };
        let mut client = Client::open(Broker::shared(), version);
        if round % 3 > 0 {
            client.send(&Connect::new(unique("c")));
            assert!(matches!(client.recv(), Packet::ConnAck(_)));
            client.try_send(&noise).ok();
            client.shut();
            read_to_end(&mut client);
        } else {
            client.try_send(&noise).ok();
            client.shut();
            // Noise may look like a CONNECT of another version, so what comes back is not read as packets.
            drop(client);
        }
    }
    bystanders.finish("random bytes");
}

// [MQTT5-4.7.3-3] [MQTT3-4.7.3-3] [MQTT5-4.13.1-1]
#[test]
fn topics_and_filters_of_65_535_levels_are_answered_quickly() {
    let bystanders = Bystanders::start(Broker::shared());
    let deep_name = "/".repeat(65_535);
    let deep_filter = format!("{}+", "+/".repeat(32_767));
    for version in BOTH {
        let mut client = Client::connect(Broker::shared(), version);
        let failed = if version == V5 { reason::TOPIC_FILTER_INVALID } else { reason::V4_SUBSCRIBE_FAILURE };
        for filter in [&deep_name, &deep_filter] {
            let codes = client.try_subscribe(filter, 1);
            assert!(codes == [failed] || codes == [1], "{codes:02x?}");
            client.unsubscribe(filter);
        }
        client.send(&Publish::new(&deep_name, "x").qos(1).id(1));
        match client.event() {
            Event::Packet(Packet::Ack(ack)) => {
                assert!(matches!(
                    ack.reason,
                    0 | reason::NO_MATCHING_SUBSCRIBERS | reason::TOPIC_NAME_INVALID
                ));
            }
            Event::Packet(Packet::Disconnect(disconnect)) => {
                assert_eq!(disconnect.reason, reason::TOPIC_NAME_INVALID);
            }
            Event::Closed => assert_ne!(version, V5),
            other @ Event::Packet(_) => panic!("{other:?}"),
        }
        let will = Connect::new(unique("c")).will(Will::new(&deep_name, "x"));
        let (client, connack) = Client::try_connect(Broker::shared(), version, &will);
        assert!(version != V5 || matches!(connack.reason, 0 | reason::TOPIC_NAME_INVALID));
        drop(client);
    }
    bystanders.finish("deep topics");
}

// [MQTT5-4.7.1-2] [MQTT5-4.7.1-1]
#[test]
fn deep_wildcards_do_not_slow_matching_down() {
    // The worst that the limit of 200 levels allows: every filter has a wildcard at every second level.
    let broker = Broker::with(&[]);
    let bystanders = Bystanders::start(&broker);
    let mut subscriber = Client::connect(&broker, V5);
    let levels = 198;
    for kind in 0..40 {
        let filter: Vec<&str> =
            (0..levels).map(|level| if (level + kind) % (2 + kind % 7) == 0 { "a" } else { "+" }).collect();
        subscriber.subscribe(&filter.join("/"), 0);
        subscriber.subscribe(&format!("{}/#", filter[..levels - kind].join("/")), 0);
    }
    let mut publisher = Client::connect(&broker, V5);
    let name = vec!["a"; levels].join("/");
    for n in 0..200 {
        // Another last level each time, so that no result is remembered.
        publisher.publish(&format!("{name}/{n}"), "x", 1);
        publisher.publish(&format!("{}/{n}", vec!["a"; levels - 1].join("/")), "x", 1);
    }
    bystanders.finish("deep wildcards");
    assert!(subscriber.drain(&mut publisher).len() >= 400);
}

// [MQTT5-3.1.0-2] [MQTT3-3.1.0-2]
#[test]
fn a_storm_of_second_connects_changes_nothing() {
    let broker = Broker::shared();
    let bystanders = Bystanders::start(broker);
    for version in BOTH {
        let id = unique("c");
        let bytes = Connect::new(&id).durable().bytes(version).repeat(20);
        for _ in 0..50 {
            let mut client = Client::open(broker, version);
            client.send(&bytes);
            assert!(matches!(client.recv(), Packet::ConnAck(connack) if connack.reason == 0));
            client.expect_refused(reason::PROTOCOL_ERROR);
        }
        // The session is still the one that the first CONNECT made.
        let (_, connack) = Client::connect_with(broker, version, &Connect::new(&id).durable());
        assert!(connack.session_present);
    }
    bystanders.finish("second CONNECTs");
}

// [MQTT5-3.3.2-2] [MQTT5-2.2.1-3] [MQTT5-3.3.1-4] [MQTT5-4.13.1-1] [MQTT3-4.8.0-1]
#[test]
fn a_crowd_of_offenders_does_not_disturb_the_others() {
    let broker = Broker::shared();
    let bystanders = Bystanders::start(broker);
    let offences: [&[u8]; 10] = [
        b"\x00\x00",                             // reserved type
        b"\x36\x05\x00\x01a\x00\x01",            // QoS 3
        b"\x32\x05\x00\x01a\x00\x00",            // packet identifier 0
        b"\x30\x03\x00\x01+",                    // wildcard in a topic name
        b"\x30\x04\x00\x02\xC3\x28",             // ill-formed UTF-8
        b"\x82\x02\x00\x01",                     // SUBSCRIBE without filters
        b"\x80\x06\x00\x01\x00\x01a\x00",        // wrong flags
        b"\x82\x06\x00\x01\x00\x01a\x03",        // QoS 3 asked for
        b"\xC0\xFF\xFF\xFF\xFF\x01",             // remaining length of five bytes
        b"\x10\x0C\x00\x04MQTT\x04\x02\0\0\0\0", // second CONNECT
    ];
    for _ in 0..20 {
        let mut clients: Vec<Client> = offences.iter().map(|_| Client::connect(broker, V4)).collect();
        for (client, offence) in clients.iter_mut().zip(offences) {
            client.send(offence);
        }
        for client in &mut clients {
            client.expect_closed();
        }
    }
    bystanders.finish("a crowd of offenders");
}

// [MQTT5-3.1.4-3] [MQTT3-3.1.4-2]
#[test]
fn clients_that_fight_over_an_identifier_do_not_disturb_the_others() {
    let broker = Broker::shared();
    let bystanders = Bystanders::start(broker);
    let connect = Connect::new(unique("c")).durable();
    let mut last = Client::connect_with(broker, V5, &connect).0;
    let start = std::time::Instant::now();
    for _ in 0..300 {
        let next = Client::connect_with(broker, V5, &connect).0;
        last.expect_refused(reason::SESSION_TAKEN_OVER);
        last = next;
        assert!(start.elapsed() < DEADLINE * 3);
    }
    last.ping();
    bystanders.finish("take-overs");
}
