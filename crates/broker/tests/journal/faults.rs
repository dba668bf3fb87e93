//! What clients see of stores that are full, and of an end of the process between what two stores have.

use mainstem_mqtt::{MessageProperties, Publish, QoS, Will};

use crate::broker::{Broker, Kept, Link};
use crate::story::{PUMP, config, fill};

/// Time in which a store that has room again has been made up to, ms.
const MENDED_MS: u64 = 3_000;

fn once(packet_id: u16, topic: &'static str, payload: &'static str) -> Publish<'static> {
    let (qos, payload) = (QoS::ExactlyOnce, payload.as_bytes());
    Publish { qos, packet_id, topic, payload, ..Publish::default() }
}

fn again(publish: &Publish<'static>) -> Publish<'static> {
    Publish { dup: true, ..publish.clone() }
}

/// Connects a client, which has a session if `is_present`.
pub(crate) fn join(broker: &mut Broker, shard: usize, link: Link, is_present: bool) -> usize {
    let client = broker.connect(shard, link);
    broker.settle();
    let connack = if is_present { "connack present" } else { "connack" };
    assert_eq!(broker.take(client).first().map(String::as_str), Some(connack));
    client
}

pub(crate) fn subscribe(broker: &mut Broker, client: usize, filter: &str, qos: QoS) {
    broker.subscribe(client, filter, qos, None);
    broker.settle();
    assert_eq!(broker.take(client).remove(0), format!("suback [{}]", qos as u8));
}

/// Publishes to `t` at QoS 2 while a journal is full, which ends the connection; then there is room again.
fn publish_in_vain(broker: &mut Broker, store: &Kept, writer: usize) {
    store.fill("mqtt");
    broker.publish(writer, once(1, "t", "x"));
    broker.settle();
    assert_eq!(broker.take(writer), ["disconnect 0x97"]);
    store.clear();
    broker.pass(MENDED_MS);
}

/// The store as the process leaves it when it is killed.
pub(crate) fn killed(stores: &[Kept]) -> Vec<Kept> {
    stores.iter().map(|store| store.copy(|_| true)).collect()
}

#[test]
fn what_a_journal_has_lost_has_not_arrived_there() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    publish_in_vain(&mut broker, &stores[1], writer);
    assert_eq!(broker.take(reader), [""; 0]);

    let mut broker = Broker::new(&config(), &killed(&stores), 2, MENDED_MS);
    let reader = join(&mut broker, 1, Link::five("reader"), true);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, again(&once(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(reader), ["publish q2 2 t x"]);
}

#[test]
fn what_its_own_journal_has_lost_is_known_behind_what_is_newer() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    let before = stores[0].copy(|_| true);
    let publishes = [once(1, "nobody", "x"), once(2, "t", "y")];
    for publish in &publishes {
        broker.publish(writer, publish.clone());
    }
    broker.settle();
    assert_eq!(broker.take(reader), ["publish q2 1 t y"]);
    broker.receive(reader, 1);
    broker.settle();
    assert_eq!(broker.take(reader), ["pubrel 1"]);

    // The power goes between the two stores; and soon the process, when the first of the two is there again.
    let stores = [before, stores[1].copy(|_| true)];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, again(&publishes[0]));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1 0x10"]);

    let mut broker = Broker::new(&config(), &killed(&stores), 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    let reader = join(&mut broker, 1, Link::five("reader"), true);
    broker.publish(writer, again(&publishes[1]));
    broker.settle();
    assert_eq!(broker.take(writer).last().map(String::as_str), Some("pubrec 2"));
    assert_eq!(broker.take(reader), [""; 0]);
}

#[test]
fn what_a_group_has_dealt_out_is_known_without_the_journal_of_its_publisher() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let member = join(&mut broker, 0, Link::five("member"), false);
    subscribe(&mut broker, member, "$share/crew/t", QoS::ExactlyOnce);
    join(&mut broker, 1, Link::five("writer"), false);
    // Both journals are those of one shard from now on.
    let stores = killed(&stores);
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    let member = join(&mut broker, 0, Link::five("member"), true);
    publish_in_vain(&mut broker, &stores[1], writer);
    assert_eq!(broker.take(member), ["publish q2 1 t x"]);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, again(&once(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(member), [""; 0]);
}

#[test]
fn a_snapshot_knows_that_no_member_of_a_group_has_a_publish() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let member = join(&mut broker, 1, Link::five("member"), false);
    subscribe(&mut broker, member, "$share/crew/t", QoS::ExactlyOnce);
    publish_in_vain(&mut broker, &stores[1], writer);
    assert_eq!(broker.take(member), [""; 0]);
    fill(&mut broker, &stores, 0);

    let mut broker = Broker::new(&config(), &killed(&stores), 2, MENDED_MS);
    let member = join(&mut broker, 1, Link::five("member"), true);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, again(&once(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(member), ["publish q2 2 t x"]);
}

#[test]
fn what_is_retained_gives_way_to_nothing_older_that_is_sent_again() {
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    stores[0].fill("mqtt-retained");
    let publishes = ["a", "b", "c"].into_iter().zip(1..);
    let publishes =
        publishes.map(|(payload, id)| Publish { retain: true, ..once(id, "t", payload) }).collect::<Vec<_>>();
    for publish in &publishes {
        broker.publish(writer, publish.clone());
    }
    broker.settle();
    assert_eq!(broker.take(writer), ["disconnect 0x97"]);
    stores[0].clear();
    broker.pass(MENDED_MS);

    let writer = join(&mut broker, 0, Link::five("writer"), true);
    for publish in &publishes {
        broker.publish(writer, again(publish));
    }
    broker.settle();
    let got = broker.take(writer);
    assert_eq!(got.iter().filter(|line| line.starts_with("pubrec")).count(), 3, "{got:?}");
    let mut others = Broker::new(&config(), &killed(&stores), 1, MENDED_MS);
    for broker in [&mut broker, &mut others] {
        let reader = broker.connect(0, Link { lasts: false, ..Link::five("reader") });
        broker.subscribe(reader, "t", QoS::AtMostOnce, None);
        broker.settle();
        assert_eq!(broker.take(reader), ["connack", "suback [0]", "publish q0 0 t c retain"]);
    }
}

#[test]
fn what_is_sent_again_comes_once_to_sessions_that_end_with_their_connection() {
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 0, Link { lasts: false, ..Link::five("reader") }, false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    publish_in_vain(&mut broker, &stores[0], writer);
    assert_eq!(broker.take(reader), ["publish q2 1 t x"]);

    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, again(&once(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(reader), [""; 0]);
}

#[test]
fn a_clean_start_is_refused_if_the_old_session_cannot_be_ended_on_disk() {
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let first = join(&mut broker, 0, Link::five("client"), false);
    subscribe(&mut broker, first, "t", QoS::AtLeastOnce);
    broker.hang_up(first);
    broker.settle();
    let anew = Link { lasts: false, ..Link::five("client") };
    stores[0].fill("mqtt");
    let second = broker.connect(0, anew.clone());
    broker.settle();
    assert_eq!(broker.take(second), ["connack 0x88"]);
    assert_eq!(Broker::new(&config(), &killed(&stores), 1, 0).restored.sessions, 1);

    stores[0].clear();
    broker.pass(MENDED_MS);
    join(&mut broker, 0, anew, false);
    assert_eq!(Broker::new(&config(), &killed(&stores), 1, 0).restored.sessions, 0);
}

#[test]
fn a_message_stays_with_the_member_of_a_group_until_the_journal_of_another_has_it() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    for (shard, member) in ["left", "right"].into_iter().enumerate() {
        let member = join(&mut broker, shard, Link::five(member), false);
        subscribe(&mut broker, member, "$share/g/t", QoS::AtLeastOnce);
    }

    // One shard has both journals now.
    let stores = killed(&stores);
    let mut broker = Broker::new(&config(), &stores, 1, 1_000);
    let left = join(&mut broker, 0, Link::five("left"), true);
    let writer = join(&mut broker, 0, Link { lasts: false, ..Link::five("writer") }, false);
    broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..once(1, "t", "x") });
    broker.settle();
    assert_eq!(broker.take(left), ["publish q1 1 t x"]);
    let right = join(&mut broker, 0, Link::five("right"), true);
    let before = stores[1].copy(|_| true);
    stores[1].stop_telling();
    broker.hang_up(left);
    broker.settle();
    assert_eq!(broker.take(right), ["publish q1 1 t x"]);

    // What went to the second journal last was still on its way.
    let left_behind = [stores[0].copy(|_| true), before];
    let mut broker = Broker::new(&config(), &left_behind, 1, 2_000);
    let left = broker.connect(0, Link::five("left"));
    broker.settle();
    assert_eq!(broker.take(left), ["connack present", "publish dup q1 1 t x"]);
}

/// `left` of a group has left somehow, and `right` on the other shard has its message, though that is not on disk
/// there: the broker, its stores, and what the second of them has on disk.
fn moved(leave: impl FnOnce(&mut Broker, usize)) -> (Broker, Vec<Kept>, Kept) {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let left = join(&mut broker, 0, Link::five("left"), false);
    subscribe(&mut broker, left, "$share/g/t", QoS::AtLeastOnce);
    let writer = join(&mut broker, 0, Link { lasts: false, ..Link::five("writer") }, false);
    broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..once(1, "t", "x") });
    broker.settle();
    assert_eq!(broker.take(left), ["publish q1 1 t x"]);
    let right = join(&mut broker, 1, Link::five("right"), false);
    subscribe(&mut broker, right, "$share/g/t", QoS::AtLeastOnce);
    let before = stores[1].copy(|_| true);
    stores[1].stop_telling();
    leave(&mut broker, left);
    broker.settle();
    assert_eq!(broker.take(right), ["publish q1 1 t x"]);
    (broker, stores, before)
}

#[test]
fn a_member_of_a_group_is_not_over_before_others_have_what_it_had() {
    let (_, stores, before) = moved(|broker, left| broker.disconnect(left, false));
    let left_behind = [stores[0].copy(|_| true), before];
    let mut broker = Broker::new(&config(), &left_behind, 2, 1_000);
    let left = broker.connect(0, Link::five("left"));
    broker.settle();
    assert_eq!(broker.take(left), ["connack present", "publish dup q1 1 t x"]);
}

/// Lets a snapshot of all sessions of a shard be written: somebody there gets more than one takes.
fn let_snapshot_begin(broker: &mut Broker, shard: usize) {
    let bulk = join(broker, shard, Link::five("bulk"), false);
    subscribe(broker, bulk, "bulk", QoS::AtLeastOnce);
    let payload = "x".repeat(2 * config().snapshot_bytes as usize);
    for packet_id in 1..3 {
        let publish =
            Publish { qos: QoS::AtLeastOnce, payload: payload.as_bytes(), ..once(packet_id, "bulk", "") };
        broker.publish(bulk, publish);
        broker.settle();
    }
}

/// The same, and the first shard has written a snapshot: what is on disk.
fn left_behind_when(leave: impl FnOnce(&mut Broker, usize)) -> [Kept; 2] {
    let (mut broker, stores, before) = moved(leave);
    let_snapshot_begin(&mut broker, 0);
    let left_behind = [stores[0].copy(|_| true), before];
    assert!(left_behind[0].names().contains(&"mqtt-snapshot".to_owned()));
    left_behind
}

#[test]
fn a_snapshot_knows_what_a_member_of_a_group_has_given_away_and_nobody_has_on_disk() {
    let left_behind = left_behind_when(Broker::hang_up);
    let mut broker = Broker::new(&config(), &left_behind, 2, 1_000);
    let left = broker.connect(0, Link::five("left"));
    broker.settle();
    assert_eq!(broker.take(left), ["connack present", "publish dup q1 1 t x"]);
}

#[test]
fn a_snapshot_knows_a_session_that_has_ended_until_others_have_what_it_had() {
    let left_behind = left_behind_when(|broker, left| broker.disconnect(left, false));
    let mut broker = Broker::new(&config(), &left_behind, 2, 1_000);
    let right = broker.connect(1, Link::five("right"));
    broker.settle();
    assert_eq!(broker.take(right), ["connack present", "publish q1 1 t x"]);
}

#[test]
fn nothing_is_taken_behind_a_publish_whose_refusal_has_not_left() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::AtLeastOnce);
    let publish = |id, payload| Publish { qos: QoS::AtLeastOnce, ..once(id, "t", payload) };
    stores[1].stop_telling();
    broker.publish(writer, publish(1, "a"));
    broker.settle();
    stores[0].fill("mqtt");
    let other = broker.connect(0, Link::five("other"));
    broker.settle();
    assert_eq!(broker.take(other), ["connack 0x88"]);
    broker.publish(writer, publish(2, "b"));
    broker.settle();
    stores[0].clear();
    broker.pass(MENDED_MS);
    broker.publish(writer, publish(3, "c"));
    broker.settle();
    // If the process ended now, the writer would send all three again.
    assert_eq!(broker.take(writer), [""; 0]);
    assert_eq!(broker.take(reader), ["publish q1 1 t a"]);

    stores[1].tell_again();
    broker.settle();
    assert_eq!(broker.take(writer), ["puback 1", "puback 2 0x97", "puback 3"]);
    assert_eq!(broker.take(reader), ["publish q1 2 t c"]);
}

#[test]
fn what_two_failures_in_a_row_have_lost_is_told_apart() {
    const MESSAGES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    const PUMPS: [&str; 4] = ["north", "east", "south", "west"];
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let reader = join(&mut broker, 0, Link::five("reader"), false);
    for filter in ["t", "wills/#"] {
        subscribe(&mut broker, reader, filter, QoS::AtLeastOnce);
    }
    let other = join(&mut broker, 0, Link::five("other"), false);
    let guest = |client_id| Link { lasts: false, ..Link::five(client_id) };
    let writer = join(&mut broker, 0, guest("writer"), false);
    let pumps = PUMPS.map(|client_id| {
        let will = Will { delay_interval: None, payload: client_id.as_bytes(), ..PUMP };
        let will = Will { properties: MessageProperties::default(), ..will };
        join(&mut broker, 0, Link { will: Some(will), ..guest(client_id) }, false)
    });
    broker.disconnect(reader, true);
    broker.settle();
    stores[0].fill("mqtt");
    for (id, payload) in (1..).zip(MESSAGES) {
        // Entries that nothing refers to, which the next try does not make again.
        broker.subscribe(other, "x", QoS::AtLeastOnce, None);
        broker.unsubscribe(other, "x");
        broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..once(id, "t", payload) });
    }
    broker.settle();
    // The next try fails as well, and what is entered behind it stands where something of the first has stood.
    broker.pass(MENDED_MS / 2);
    for pump in pumps {
        broker.hang_up(pump);
    }
    broker.pass(MENDED_MS / 2);
    stores[0].clear();
    broker.pass(MENDED_MS);

    let mut broker = Broker::new(&config(), &killed(&stores), 1, 3 * MENDED_MS);
    let reader = broker.connect(0, Link::five("reader"));
    broker.settle();
    let topics = MESSAGES.map(|payload| format!("t {payload}"));
    let wills = PUMPS.map(|client_id| format!("wills/pump {client_id}"));
    let all = topics.iter().chain(&wills).zip(1..).map(|(what, id)| format!("publish q1 {id} {what}"));
    let all: Vec<_> = std::iter::once("connack present".to_owned()).chain(all).collect();
    assert_eq!(broker.take(reader), all);
}

#[test]
fn a_session_that_has_expired_does_not_come_back() {
    let stores = vec![Kept::default()];
    let link = Link { expiry_s: 2, ..Link::five("reader") };
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let reader = join(&mut broker, 0, link.clone(), false);
    subscribe(&mut broker, reader, "t", QoS::AtLeastOnce);

    // Its connection was lost with the broker, and the next one ends before it has entered that the session is over.
    let stores = killed(&stores);
    let mut broker = Broker::new(&config(), &stores, 1, 1_000);
    broker.settle();
    let before = killed(&stores);
    broker.pass(2_000);
    let writer = join(&mut broker, 0, Link { lasts: false, ..Link::five("writer") }, false);
    broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..once(1, "t", "x") });
    broker.settle();
    assert_eq!(broker.take(writer), ["puback 1 0x10"]);
    let mut broker = Broker::new(&config(), &before, 1, 4_000);
    join(&mut broker, 0, link, false);
}

#[test]
fn a_session_does_not_expire_before_it_is_on_disk_that_its_client_has_gone() {
    let stores = vec![Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let reader = join(&mut broker, 0, Link { expiry_s: 2, ..Link::five("reader") }, false);
    subscribe(&mut broker, reader, "t", QoS::AtLeastOnce);
    stores[0].stop_telling();
    broker.hang_up(reader);
    broker.settle();
    broker.pass(2_000);
    let writer = join(&mut broker, 0, Link { lasts: false, ..Link::five("writer") }, false);
    let publish = |id| Publish { qos: QoS::AtLeastOnce, ..once(id, "t", "x") };
    broker.publish(writer, publish(1));
    broker.settle();
    assert_eq!(broker.take(writer), [""; 0], "if the process ended now, the session would be there");
    stores[0].tell_again();
    broker.pass(2_000);
    broker.publish(writer, publish(2));
    broker.settle();
    assert_eq!(broker.take(writer), ["puback 1", "puback 2 0x10"]);
}

#[test]
fn a_publish_that_is_sent_again_is_not_acknowledged_if_the_first_was_not_kept() {
    let stores = vec![Kept::default(), Kept::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 1, Link::five("writer"), false);
    let publish = Publish { retain: true, ..once(1, "t", "x") };
    stores[0].fill("mqtt-retained");
    broker.publish(writer, publish.clone());
    broker.turn(1);
    // The first shard has it, and has not tried to keep it.
    broker.turn(0);
    broker.hang_up(writer);
    let writer = broker.connect(1, Link::five("writer"));
    broker.publish(writer, again(&publish));
    broker.turn(1);
    broker.settle();
    assert_eq!(broker.take(writer), ["connack present", "disconnect 0x97"]);

    stores[0].clear();
    broker.pass(MENDED_MS);
    let writer = join(&mut broker, 1, Link::five("writer"), true);
    broker.publish(writer, again(&publish));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1 0x10"]);
    assert_eq!(Broker::new(&config(), &killed(&stores), 2, MENDED_MS).restored.retained, 1);
}
