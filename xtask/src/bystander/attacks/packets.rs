//! MQTT packets that cost the broker more than their sender.

use super::super::attacker::Attacker;
use super::client;
use mainstem_conformance::Version::{V4, V5};
use mainstem_conformance::property::{self, Props};
use mainstem_conformance::wire::{self, Connect, Publish, Subscribe, Unsubscribe, Wire, data, varint};
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// Default of `mqtt.max_packet_size_bytes`.
const PACKET_BYTES_MAX: usize = 16 << 20;
/// Filters that the broker handles in one packet.
const PACKET_FILTERS_MAX: usize = 128 << 10;
/// Longest wait for the broker to close a connection.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the response to a packet with millions of entries.
const RESPONSE_MAX: Duration = Duration::from_secs(1);
/// Packets per write of floods, and writes per connection.
const FLOOD_PACKETS: usize = 16 << 10;
const FLOOD_WRITES: usize = 1_000;
/// Publishes per round of the attacks with long topics.
const LONG_TOPICS: usize = 200;
const USER_PROPERTY_BYTES: usize = 60_000;

/// A SUBSCRIBE of 16 MiB with 4 million copies of one filter.
pub(in super::super) fn repeated_filter(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static PACKET: OnceLock<Vec<u8>> = OnceLock::new();
    // Length, one character, options.
    let packet = PACKET.get_or_init(|| request_of(0x82, &[0, 1, b'a', 0]));
    let mut link = client(attacker, V4, &Connect::new(attacker.unique("repeated")))?;
    link.send(packet)?;
    link.discard(RESPONSE_MAX)
}

/// An UNSUBSCRIBE of 16 MiB with 5 million copies of one filter.
pub(in super::super) fn repeated_unsubscribe(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static PACKET: OnceLock<Vec<u8>> = OnceLock::new();
    let packet = PACKET.get_or_init(|| request_of(0xA2, &[0, 1, b'a']));
    let mut link = client(attacker, V4, &Connect::new(attacker.unique("repeated")))?;
    link.send(packet)?;
    link.discard(RESPONSE_MAX)
}

/// A request that repeats `entry` up to the largest packet.
fn request_of(first: u8, entry: &[u8]) -> Vec<u8> {
    request_with(first, entry, (PACKET_BYTES_MAX - 16) / entry.len())
}

/// A request with `count` times the same entry.
fn request_with(first: u8, entry: &[u8], count: usize) -> Vec<u8> {
    let mut body = vec![0, 1];
    body.extend(entry.repeat(count));
    wire::frame(first, &body)
}

/// SUBSCRIBE and UNSUBSCRIBE with as many filters as one packet may have.
pub(in super::super) fn most_filters(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let packets = [
        request_with(0x82, &[0, 1, b'a', 0], PACKET_FILTERS_MAX),
        request_with(0xA2, &[0, 1, b'a'], PACKET_FILTERS_MAX),
    ];
    let packets = packets.concat();
    let mut link = client(attacker, V4, &Connect::new(attacker.unique("most")))?;
    for _ in 0..FLOOD_WRITES {
        link.send(&packets)?;
    }
    Ok(())
}

/// A SUBSCRIBE with as many filters as one packet may have, whose client does not wait for the response.
pub(in super::super) fn most_filters_gone(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V4, &Connect::new(attacker.unique("gone")))?;
    link.send(&request_with(0x82, &[0, 1, b'a', 0], PACKET_FILTERS_MAX))
}

/// A topic and a filter with as many levels as fit into 65,535 bytes.
pub(in super::super) fn deep_topic(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("deep")))?;
    link.send(&Subscribe::new(1).filter("+/".repeat(32_767), 0).bytes(V5))?;
    let publish = Publish::new("/".repeat(65_535), "").bytes(V5);
    for _ in 0..LONG_TOPICS {
        link.send(&publish)?;
    }
    Ok(())
}

/// A SUBSCRIBE whose last filter is longer than the packet.
pub(in super::super) fn truncated_subscribe(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut body = vec![0, 1];
    body.extend([data("a").as_slice(), &[0]].concat().repeat(1_000));
    body.extend([0xFF, 0xFF, b'a']);
    refused(attacker, &wire::frame(0x82, &body))
}

/// A PUBLISH at QoS 1 that ends before its packet identifier.
pub(in super::super) fn publish_without_id(attacker: &mut Attacker<'_>) -> io::Result<()> {
    refused(attacker, &wire::frame(0x32, &data("a")))
}

/// A SUBSCRIBE whose filter has no options byte.
pub(in super::super) fn subscribe_without_options(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let body = [&[0, 1], data("a").as_slice()].concat();
    refused(attacker, &wire::frame(0x82, &body))
}

/// Sends a malformed packet, and waits until the broker closes the connection.
fn refused(attacker: &Attacker<'_>, packet: &[u8]) -> io::Result<()> {
    let mut link = client(attacker, V4, &Connect::new(attacker.unique("malformed")))?;
    link.send(packet)?;
    link.await_close(CLOSE_MAX);
    Ok(())
}

/// PINGREQ without end.
pub(in super::super) fn ping_flood(attacker: &mut Attacker<'_>) -> io::Result<()> {
    flood(attacker, &wire::PINGREQ)
}

/// The smallest PUBLISH without end. Nobody subscribes.
pub(in super::super) fn tiny_packets(attacker: &mut Attacker<'_>) -> io::Result<()> {
    flood(attacker, &Publish::new("t", "").bytes(V4))
}

fn flood(attacker: &Attacker<'_>, packet: &[u8]) -> io::Result<()> {
    let mut link = client(attacker, V4, &Connect::new(attacker.unique("flood")))?;
    let packets = packet.repeat(FLOOD_PACKETS);
    for _ in 0..FLOOD_WRITES {
        link.send(&packets)?;
    }
    Ok(())
}

/// QoS 2 publishes that repeat the same identifiers and are never released.
pub(in super::super) fn unreleased_qos2(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("unreleased")))?;
    let publish = |id| Publish::new("unreleased", vec![0; 1024]).qos(2).id(id).dup().bytes(V5);
    let packets: Vec<u8> = (1..=200).flat_map(publish).collect();
    for _ in 0..FLOOD_WRITES {
        link.send(&packets)?;
    }
    Ok(())
}

/// Gives each topic alias a new topic of 60,000 bytes with each publish, then uses an alias that is not allowed.
pub(in super::super) fn topic_aliases(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("alias")))?;
    for number in 0..LONG_TOPICS {
        let topic = format!("{number:05}{}", "x".repeat(USER_PROPERTY_BYTES));
        let alias = Props::new().two(property::TOPIC_ALIAS, 1 + (number % 16) as u16);
        link.send(&Publish::new(topic, "").props(alias).bytes(V5))?;
    }
    let beyond = Props::new().two(property::TOPIC_ALIAS, u16::MAX);
    link.send(&Publish::new("a", "").props(beyond).bytes(V5))?;
    link.await_close(CLOSE_MAX);
    Ok(())
}

/// A CONNECT of 5 MiB that consists of empty user properties.
pub(in super::super) fn connect_properties(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static PACKET: OnceLock<Vec<u8>> = OnceLock::new();
    let packet = PACKET.get_or_init(|| {
        let properties = [property::USER_PROPERTY, 0, 0, 0, 0].repeat(1 << 20);
        let mut body = data("MQTT");
        body.extend([5, 2, 0, 60]);
        body.extend(varint(u32::try_from(properties.len()).expect("5 MiB")));
        body.extend(properties);
        body.extend(data("properties"));
        wire::frame(0x10, &body)
    });
    let mut link = attacker.open()?;
    link.send(packet)?;
    link.await_reply()
}

/// Subscribes to and unsubscribes from the same filters, shared ones included.
pub(in super::super) fn subscription_churn(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("churn")))?;
    let (mut subscribe, mut unsubscribe) = (Subscribe::new(1), Unsubscribe::new(2));
    for number in 0..500 {
        for filter in [format!("churn/{number}/+/#"), format!("$share/g{number}/churn/#")] {
            subscribe = subscribe.filter(&filter, 1);
            unsubscribe = unsubscribe.filter(&filter);
        }
    }
    let packets = [subscribe.bytes(V5), unsubscribe.bytes(V5)].concat();
    for _ in 0..FLOOD_WRITES {
        link.send(&packets)?;
    }
    Ok(())
}
