//! Attacks through MQTT sessions: subscriptions, queues, retained messages, wills.

use super::super::attacker::{Attacker, Link};
use super::client;
use mainstem_conformance::Version::{V4, V5};
use mainstem_conformance::property::{self, Props};
use mainstem_conformance::wire::{self, Connect, Publish, Subscribe, Unsubscribe, Will, Wire};
use std::io;
use std::time::Duration;

/// Subscriptions of one session: just below the default of `mqtt.max_subscriptions_per_session`.
const SUBSCRIPTIONS: usize = 9_900;
/// Levels of the overlapping filters.
const LEVELS: usize = 30;
/// Publishes per round that match all overlapping filters.
const MATCHING_PUBLISHES: usize = 4_000;
/// Expiry of sessions and messages that an attack leaves behind, in seconds: gone before memory is compared.
const EXPIRY_S: u32 = 3;
/// User properties of a message: 15 of 65,000 bytes.
const PROPERTIES: usize = 15;
const PROPERTY_BYTES: usize = 65_000;
/// Messages per round with these properties.
const PROPERTY_MESSAGES: u16 = 600;
/// Pause between rounds that fill memory, so that the broker can give it back.
const REST: Duration = Duration::from_secs(4);
/// Messages in flight to one session: almost all that the protocol allows.
const IN_FLIGHT: u16 = 60_000;
/// How long a client that reconnects in a loop stays.
const SHORT_STAY: Duration = Duration::from_millis(20);
/// Longest wait for acknowledgements.
const ACKS_MAX: Duration = Duration::from_millis(500);

/// 9,900 filters of 30 levels that all match one topic, then tiny publishes to it.
pub(in super::super) fn overlapping_filters(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("overlap")))?;
    let filter = |number: usize| {
        // The bits of the number choose the levels that are wildcards.
        let level = |level: usize| if number >> level & 1 == 1 { "+" } else { "a" };
        (0..LEVELS).map(level).collect::<Vec<_>>().join("/")
    };
    let subscribe =
        (0..SUBSCRIPTIONS).fold(Subscribe::new(1), |packet, number| packet.filter(filter(number), 0));
    link.send(&subscribe.bytes(V5))?;
    let publish = Publish::new(filter(0), "").bytes(V5);
    for _ in 0..MATCHING_PUBLISHES {
        link.send(&publish)?;
    }
    Ok(())
}

/// 20 clients with 9,900 subscriptions each disconnect at the same time.
pub(in super::super) fn vanishing_subscribers(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let subscribe = (0..SUBSCRIPTIONS)
        .fold(Subscribe::new(1), |packet, number| packet.filter(format!("vanish/{number}/+"), 1))
        .bytes(V5);
    let mut links = Vec::new();
    for number in 0..20 {
        let id = format!("{}-{number}", attacker.unique("vanish"));
        let mut link = client(attacker, V5, &Connect::new(id))?;
        link.send(&subscribe)?;
        link.await_reply()?;
        links.push(link);
    }
    drop(links);
    Ok(())
}

/// A subscriber that never reads, at QoS 0.
pub(in super::super) fn slow_reader_qos0(attacker: &mut Attacker<'_>) -> io::Result<()> {
    slow_reader(attacker, 0)
}

/// A subscriber that never reads, at QoS 1.
pub(in super::super) fn slow_reader_qos1(attacker: &mut Attacker<'_>) -> io::Result<()> {
    slow_reader(attacker, 1)
}

/// A subscriber that never reads, at QoS 2.
pub(in super::super) fn slow_reader_qos2(attacker: &mut Attacker<'_>) -> io::Result<()> {
    slow_reader(attacker, 2)
}

/// 20 subscribers that do not read, and one publisher that does not stop.
fn slow_reader(attacker: &Attacker<'_>, qos: u8) -> io::Result<()> {
    let topic = attacker.unique("slow");
    let mut readers = Vec::new();
    for number in 0..20 {
        let mut reader = client(attacker, V5, &Connect::new(format!("{topic}-{number}")))?;
        reader.send(&Subscribe::new(1).filter(&topic, qos).bytes(V5))?;
        reader.await_reply()?;
        readers.push(reader.unread());
    }
    let mut publisher = client(attacker, V5, &Connect::new(format!("{topic}-publisher")))?;
    for _ in 0..10_000 {
        for id in 1..=100 {
            let publish = Publish::new(&topic, [0; 1024]).qos(qos);
            let publish = if qos == 0 { publish } else { publish.id(id) };
            publisher.send(&publish.bytes(V5))?;
            if qos == 2 {
                publisher.send(&wire::ack(mainstem_conformance::packet::PUBREL, id))?;
            }
        }
    }
    Ok(())
}

/// The first attacker fills the retained messages, the others subscribe to `#` again and again.
pub(in super::super) fn retained_flood(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("retained")))?;
    if attacker.number == 0 {
        let expiry = Props::new().four(property::MESSAGE_EXPIRY_INTERVAL, EXPIRY_S);
        for number in 0..50_000 {
            let topic = format!("retained/{}/{number}", number % 100);
            link.send(&Publish::new(topic, [0; 100]).retain().props(expiry.clone()).bytes(V5))?;
        }
        return Ok(());
    }
    let subscribe = Subscribe::new(1).filter("#", 1).bytes(V5);
    let unsubscribe = Unsubscribe::new(2).filter("#").bytes(V5);
    for _ in 0..100 {
        link.send(&subscribe)?;
        link.send(&unsubscribe)?;
    }
    link.discard(ACKS_MAX)
}

/// Clients that connect, subscribe, publish and leave.
pub(in super::super) fn session_churn(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("session-churn")))?;
    let topic = |number| format!("session-churn/{}/{number}", attacker.number);
    let filters = (0..100).fold(Subscribe::new(1), |packet, number| packet.filter(topic(number), 1));
    link.send(&filters.bytes(V5))?;
    for id in 1..=100 {
        link.send(&Publish::new(topic(id), "x").qos(1).id(id).bytes(V5))?;
    }
    link.send(&wire::DISCONNECT)
}

/// The first attacker fills the retained messages, the others subscribe to filters that match none of them, and that
/// have to visit all.
pub(in super::super) fn retained_visits(attacker: &mut Attacker<'_>) -> io::Result<()> {
    if attacker.number == 0 {
        return retained_flood(attacker);
    }
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("visits")))?;
    let filter = |number| format!("+/+/+/none/{number}");
    let filters = (0..100).fold(Subscribe::new(1), |packet, number| packet.filter(filter(number), 1));
    for _ in 0..100 {
        link.send(&filters.bytes(V5))?;
    }
    link.discard(ACKS_MAX)
}

/// A session whose messages are never acknowledged. Its client connects again and again, and gets them once more.
pub(in super::super) fn in_flight_reconnect(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let id = format!("in-flight-{}", attacker.number);
    let most = Props::new().two(property::RECEIVE_MAXIMUM, u16::MAX);
    let connect = Connect::new(&id).resume().session_expiry(EXPIRY_S).props(most);
    let mut link = client(attacker, V5, &connect)?;
    if attacker.round == 0 {
        link.send(&Subscribe::new(1).filter(&id, 1).bytes(V5))?;
        for number in 0..IN_FLIGHT {
            link.send(&Publish::new(&id, "x").qos(1).id(1 + number % 1000).bytes(V5))?;
        }
    }
    link.discard(SHORT_STAY)
}

/// 20 subscribers that read a tenth of what they could get, and one publisher that does not stop.
pub(in super::super) fn trickling_readers(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let topic = attacker.unique("trickle");
    let mut readers = Vec::new();
    for number in 0..20 {
        let mut reader = client(attacker, V5, &Connect::new(format!("{topic}-{number}")))?;
        reader.send(&Subscribe::new(1).filter(&topic, 0).bytes(V5))?;
        reader.await_reply()?;
        readers.push(reader.unread());
    }
    let mut publisher = client(attacker, V5, &Connect::new(format!("{topic}-publisher")))?;
    let publish = Publish::new(&topic, [0; 1024]).bytes(V5);
    for _ in 0..10_000 {
        publisher.send(&publish.repeat(10))?;
        for reader in &mut readers {
            reader.read_exact(1024)?;
        }
    }
    Ok(())
}

/// 500 subscribers of one topic, and publishes to it without end.
pub(in super::super) fn wide_fan_out(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let topic = attacker.unique("fan-out");
    let mut readers = Vec::new();
    for number in 0..500 {
        let mut reader = client(attacker, V5, &Connect::new(format!("{topic}-{number}")))?;
        reader.send(&Subscribe::new(1).filter(&topic, 0).bytes(V5))?;
        reader.await_reply()?;
        readers.push(reader);
    }
    let mut publisher = client(attacker, V5, &Connect::new(format!("{topic}-publisher")))?;
    let flood = Publish::new(&topic, "x").bytes(V5).repeat(100);
    while !attacker.is_over() {
        publisher.send(&flood)?;
        for reader in &mut readers {
            reader.discard_once()?;
        }
    }
    Ok(())
}

/// User properties of 975 kB.
fn large_properties(props: Props) -> Props {
    (0..PROPERTIES).fold(props, |props, _| props.user("", vec![b'x'; PROPERTY_BYTES]))
}

/// Messages of one byte with large user properties for a session that is offline.
pub(in super::super) fn queued_properties(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let topic = attacker.unique("properties");
    let mut session = client(attacker, V5, &Connect::new(&topic).resume().session_expiry(EXPIRY_S))?;
    session.send(&Subscribe::new(1).filter(&topic, 1).bytes(V5))?;
    session.await_reply()?;
    drop(session);
    publish_properties(attacker, Props::new(), |id| Publish::new(&topic, "x").qos(1).id(id))
}

/// Retained messages of one byte with large user properties.
pub(in super::super) fn retained_properties(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let expiry = Props::new().four(property::MESSAGE_EXPIRY_INTERVAL, EXPIRY_S);
    publish_properties(attacker, expiry, |id| {
        Publish::new(format!("properties/{id}"), "x").qos(1).id(id).retain()
    })
}

fn publish_properties(
    attacker: &Attacker<'_>,
    props: Props,
    publish: impl Fn(u16) -> Publish,
) -> io::Result<()> {
    let props = large_properties(props);
    let mut publisher = client(attacker, V5, &Connect::new(attacker.unique("publisher")))?;
    for id in 1..=PROPERTY_MESSAGES {
        publisher.send(&publish(id).props(props.clone()).bytes(V5))?;
    }
    publisher.discard(ACKS_MAX)?;
    drop(publisher);
    attacker.pause(REST);
    Ok(())
}

/// 9,900 filters of 60,000 bytes.
pub(in super::super) fn large_filters(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = client(attacker, V5, &Connect::new(attacker.unique("filters")))?;
    for packet in 0..SUBSCRIPTIONS / 250 {
        let filter = |number| format!("{packet}-{number}-{}", "x".repeat(60_000));
        let subscribe = (0..250).fold(Subscribe::new(1), |packet, number| packet.filter(filter(number), 0));
        link.send(&subscribe.bytes(V5))?;
    }
    link.discard(ACKS_MAX)?;
    drop(link);
    attacker.pause(REST);
    Ok(())
}

/// Wills of 14 MB, most of it user properties. With four attackers there are 40 at a time.
pub(in super::super) fn large_wills(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let props = (0..215).fold(Props::new(), |props, _| props.user("", vec![b'x'; PROPERTY_BYTES]));
    let mut links = Vec::new();
    for number in 0..10 {
        let id = format!("{}-{number}", attacker.unique("will"));
        let will = Will::new("wills", [0; 100]).props(props.clone());
        links.push(client(attacker, V5, &Connect::new(id).will(will))?);
    }
    attacker.pause(REST);
    Ok(())
}

/// All attackers connect with one client identifier, to a session with subscriptions and queued messages.
pub(in super::super) fn take_over(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let connect = Connect::new("take-over").resume().session_expiry(EXPIRY_S);
    let mut link = client(attacker, V5, &connect)?;
    let subscribe =
        (0..100).fold(Subscribe::new(1), |packet, number| packet.filter(format!("take-over/{number}"), 1));
    link.send(&subscribe.bytes(V5))?;
    link.await_reply()?;
    for id in 1..=100 {
        link.send(&Publish::new(format!("take-over/{id}"), "x").qos(1).id(id).bytes(V5))?;
    }
    Ok(())
}

/// Clients with a will that they subscribe to themselves vanish and return.
pub(in super::super) fn will_loop(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut links = Vec::<Link<'_>>::new();
    for number in 0..50 {
        let id = format!("will-{}-{number}", attacker.number);
        let will = Will::new("will-loop", [0; 1024]).qos(1).retain();
        let mut link = client(attacker, V4, &Connect::new(id).will(will))?;
        link.send(&Subscribe::new(1).filter("will-loop", 1).bytes(V4))?;
        links.push(link);
    }
    drop(links);
    Ok(())
}
