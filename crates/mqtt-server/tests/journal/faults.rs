//! What clients see when stores are full, and when the process ends while two stores have different parts of a publish.

use mainstem_mqtt::{MessageProperties, Publish, QoS, Will};
use mainstem_mqtt_server::MqttConfig;

use crate::broker::{Broker, Link, TestStore};
use crate::story::{FILLER, PUMP, config, fill};

/// Time in which a store that accepts appends again is brought up to date, ms.
const MENDED_MS: u64 = 3_000;

fn qos2(packet_id: u16, topic: &'static str, payload: &'static str) -> Publish<'static> {
    let (qos, payload) = (QoS::ExactlyOnce, payload.as_bytes());
    Publish { qos, packet_id, topic, payload, ..Publish::default() }
}

fn repeated(publish: &Publish<'static>) -> Publish<'static> {
    Publish { dup: true, ..publish.clone() }
}

/// Connects a client and checks whether its session is present.
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

/// Publishes to `t` at QoS 2 while a journal is full, which ends the connection. Afterwards the journal accepts
/// appends.
fn publish_while_full(broker: &mut Broker, store: &TestStore, writer: usize) {
    store.fill("mqtt");
    broker.publish(writer, qos2(1, "t", "x"));
    broker.settle();
    assert_eq!(broker.take(writer), ["disconnect 0x97"]);
    store.clear();
    broker.pass(MENDED_MS);
}

/// The store as the process leaves it when it is killed.
pub(crate) fn after_kill(stores: &[TestStore]) -> Vec<TestStore> {
    stores.iter().map(|store| store.copy(|_| true)).collect()
}

#[test]
fn lost_entries_do_not_count_as_arrived() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    publish_while_full(&mut broker, &stores[1], writer);
    assert_eq!(broker.take(reader), [""; 0]);

    let mut broker = Broker::new(&config(), &after_kill(&stores), 2, MENDED_MS);
    let reader = join(&mut broker, 1, Link::five("reader"), true);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(reader), ["publish q2 2 t x"]);
}

#[test]
fn publish_lost_by_its_own_journal_is_known_after_newer_ones() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    let before = stores[0].copy(|_| true);
    let publishes = [qos2(1, "nobody", "x"), qos2(2, "t", "y")];
    for publish in &publishes {
        broker.publish(writer, publish.clone());
    }
    broker.settle();
    assert_eq!(broker.take(reader), ["publish q2 1 t y"]);
    broker.receive(reader, 1);
    broker.settle();
    assert_eq!(broker.take(reader), ["pubrel 1"]);

    // Power is lost between the two stores, and the process ends again when the first of the two is up to date.
    let stores = [before, stores[1].copy(|_| true)];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, repeated(&publishes[0]));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1 0x10"]);

    let mut broker = Broker::new(&config(), &after_kill(&stores), 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    let reader = join(&mut broker, 1, Link::five("reader"), true);
    broker.publish(writer, repeated(&publishes[1]));
    broker.settle();
    assert_eq!(broker.take(writer).last().map(String::as_str), Some("pubrec 2"));
    assert_eq!(broker.take(reader), [""; 0]);
}

#[test]
fn group_delivery_is_known_without_the_journal_of_the_publisher() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let member = join(&mut broker, 0, Link::five("member"), false);
    subscribe(&mut broker, member, "$share/crew/t", QoS::ExactlyOnce);
    join(&mut broker, 1, Link::five("writer"), false);
    // Both journals are those of one shard from now on.
    let stores = after_kill(&stores);
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    let member = join(&mut broker, 0, Link::five("member"), true);
    publish_while_full(&mut broker, &stores[1], writer);
    assert_eq!(broker.take(member), ["publish q2 1 t x"]);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(member), [""; 0]);
}

#[test]
fn snapshot_records_that_no_group_member_has_a_publish() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let member = join(&mut broker, 1, Link::five("member"), false);
    subscribe(&mut broker, member, "$share/crew/t", QoS::ExactlyOnce);
    publish_while_full(&mut broker, &stores[1], writer);
    assert_eq!(broker.take(member), [""; 0]);
    fill(&mut broker, &stores, 0);

    let mut broker = Broker::new(&config(), &after_kill(&stores), 2, MENDED_MS);
    let member = join(&mut broker, 1, Link::five("member"), true);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(member), ["publish q2 2 t x"]);
}

#[test]
fn repeated_publish_does_not_replace_a_newer_retained_message() {
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    stores[0].fill("mqtt-retained");
    let publishes = ["a", "b", "c"].into_iter().zip(1..);
    let publishes =
        publishes.map(|(payload, id)| Publish { retain: true, ..qos2(id, "t", payload) }).collect::<Vec<_>>();
    for publish in &publishes {
        broker.publish(writer, publish.clone());
    }
    broker.settle();
    assert_eq!(broker.take(writer), ["disconnect 0x97"]);
    stores[0].clear();
    broker.pass(MENDED_MS);

    let writer = join(&mut broker, 0, Link::five("writer"), true);
    for publish in &publishes {
        broker.publish(writer, repeated(publish));
    }
    broker.settle();
    let got = broker.take(writer);
    assert_eq!(got.iter().filter(|line| line.starts_with("pubrec")).count(), 3, "{got:?}");
    let mut others = Broker::new(&config(), &after_kill(&stores), 1, MENDED_MS);
    for broker in [&mut broker, &mut others] {
        let reader = broker.connect(0, Link { is_durable: false, ..Link::five("reader") });
        broker.subscribe(reader, "t", QoS::AtMostOnce, None);
        broker.settle();
        assert_eq!(broker.take(reader), ["connack", "suback [0]", "publish q0 0 t c retain"]);
    }
}

#[test]
fn repeated_publish_reaches_transient_sessions_once() {
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 0, Link { is_durable: false, ..Link::five("reader") }, false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    publish_while_full(&mut broker, &stores[0], writer);
    assert_eq!(broker.take(reader), ["publish q2 1 t x"]);

    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(reader), [""; 0]);
}

#[test]
fn clean_start_is_refused_while_the_old_session_cannot_end_on_disk() {
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let first = join(&mut broker, 0, Link::five("client"), false);
    subscribe(&mut broker, first, "t", QoS::AtLeastOnce);
    broker.hang_up(first);
    broker.settle();
    let anew = Link { is_durable: false, ..Link::five("client") };
    stores[0].fill("mqtt");
    let second = broker.connect(0, anew.clone());
    broker.settle();
    assert_eq!(broker.take(second), ["connack 0x88"]);
    assert_eq!(Broker::new(&config(), &after_kill(&stores), 1, 0).restored.sessions, 1);

    stores[0].clear();
    broker.pass(MENDED_MS);
    join(&mut broker, 0, anew, false);
    assert_eq!(Broker::new(&config(), &after_kill(&stores), 1, 0).restored.sessions, 0);
}

#[test]
fn group_message_stays_with_its_member_until_durable_elsewhere() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    for (shard, member) in ["left", "right"].into_iter().enumerate() {
        let member = join(&mut broker, shard, Link::five(member), false);
        subscribe(&mut broker, member, "$share/g/t", QoS::AtLeastOnce);
    }

    // One shard has both journals now.
    let stores = after_kill(&stores);
    let mut broker = Broker::new(&config(), &stores, 1, 1_000);
    let left = join(&mut broker, 0, Link::five("left"), true);
    let writer = join(&mut broker, 0, Link { is_durable: false, ..Link::five("writer") }, false);
    broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..qos2(1, "t", "x") });
    broker.settle();
    assert_eq!(broker.take(left), ["publish q1 1 t x"]);
    let right = join(&mut broker, 0, Link::five("right"), true);
    let before = stores[1].copy(|_| true);
    stores[1].hold_completions();
    broker.hang_up(left);
    broker.settle();
    assert_eq!(broker.take(right), ["publish q1 1 t x"]);

    // The last entries of the second journal were still in flight.
    let left_behind = [stores[0].copy(|_| true), before];
    let mut broker = Broker::new(&config(), &left_behind, 1, 2_000);
    let left = broker.connect(0, Link::five("left"));
    broker.settle();
    assert_eq!(broker.take(left), ["connack present", "publish dup q1 1 t x"]);
}

/// `left` has left its group, and `right` on the other shard has its message, but not on disk. Returns the broker, its
/// stores, and what the second store has on disk.
fn moved(leave: impl FnOnce(&mut Broker, usize)) -> (Broker, Vec<TestStore>, TestStore) {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let left = join(&mut broker, 0, Link::five("left"), false);
    subscribe(&mut broker, left, "$share/g/t", QoS::AtLeastOnce);
    let writer = join(&mut broker, 0, Link { is_durable: false, ..Link::five("writer") }, false);
    broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..qos2(1, "t", "x") });
    broker.settle();
    assert_eq!(broker.take(left), ["publish q1 1 t x"]);
    let right = join(&mut broker, 1, Link::five("right"), false);
    subscribe(&mut broker, right, "$share/g/t", QoS::AtLeastOnce);
    let before = stores[1].copy(|_| true);
    stores[1].hold_completions();
    leave(&mut broker, left);
    broker.settle();
    assert_eq!(broker.take(right), ["publish q1 1 t x"]);
    (broker, stores, before)
}

#[test]
fn group_member_ends_after_its_messages_are_durable_elsewhere() {
    let (_, stores, before) = moved(|broker, left| broker.disconnect(left, false));
    let left_behind = [stores[0].copy(|_| true), before];
    let mut broker = Broker::new(&config(), &left_behind, 2, 1_000);
    let left = broker.connect(0, Link::five("left"));
    broker.settle();
    assert_eq!(broker.take(left), ["connack present", "publish dup q1 1 t x"]);
}

/// Makes a shard write a snapshot, by messages of more bytes than the snapshot interval.
fn begin_snapshot(broker: &mut Broker, shard: usize) {
    let bulk = join(broker, shard, Link::five("bulk"), false);
    subscribe(broker, bulk, "bulk", QoS::AtLeastOnce);
    let payload = "x".repeat(2 * config().snapshot_bytes as usize);
    for packet_id in 1..3 {
        let publish =
            Publish { qos: QoS::AtLeastOnce, payload: payload.as_bytes(), ..qos2(packet_id, "bulk", "") };
        broker.publish(bulk, publish);
        broker.settle();
    }
}

/// The same, after the first shard has written a snapshot. Returns what is on disk.
fn stores_after_snapshot(leave: impl FnOnce(&mut Broker, usize)) -> [TestStore; 2] {
    let (mut broker, stores, before) = moved(leave);
    begin_snapshot(&mut broker, 0);
    let left_behind = [stores[0].copy(|_| true), before];
    assert!(left_behind[0].names().contains(&"mqtt-snapshot".to_owned()));
    left_behind
}

#[test]
fn snapshot_contains_reassigned_messages_that_are_not_durable_elsewhere() {
    let left_behind = stores_after_snapshot(Broker::hang_up);
    let mut broker = Broker::new(&config(), &left_behind, 2, 1_000);
    let left = broker.connect(0, Link::five("left"));
    broker.settle();
    assert_eq!(broker.take(left), ["connack present", "publish dup q1 1 t x"]);
}

#[test]
fn snapshot_contains_an_ended_session_until_its_messages_are_durable_elsewhere() {
    let left_behind = stores_after_snapshot(|broker, left| broker.disconnect(left, false));
    let mut broker = Broker::new(&config(), &left_behind, 2, 1_000);
    let right = broker.connect(1, Link::five("right"));
    broker.settle();
    assert_eq!(broker.take(right), ["connack present", "publish q1 1 t x"]);
}

#[test]
fn publishes_behind_a_pending_refusal_are_held() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::AtLeastOnce);
    let publish = |id, payload| Publish { qos: QoS::AtLeastOnce, ..qos2(id, "t", payload) };
    stores[1].hold_completions();
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

    stores[1].release_completions();
    broker.settle();
    assert_eq!(broker.take(writer), ["puback 1", "puback 2 0x97", "puback 3"]);
    assert_eq!(broker.take(reader), ["publish q1 2 t c"]);
}

#[test]
fn entries_lost_by_two_failures_are_distinguished() {
    const MESSAGES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    const PUMPS: [&str; 4] = ["north", "east", "south", "west"];
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let reader = join(&mut broker, 0, Link::five("reader"), false);
    for filter in ["t", "wills/#"] {
        subscribe(&mut broker, reader, filter, QoS::AtLeastOnce);
    }
    let other = join(&mut broker, 0, Link::five("other"), false);
    let guest = |client_id| Link { is_durable: false, ..Link::five(client_id) };
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
        // Entries that nothing refers to, which the next attempt does not repeat.
        broker.subscribe(other, "x", QoS::AtLeastOnce, None);
        broker.unsubscribe(other, "x");
        broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..qos2(id, "t", payload) });
    }
    broker.settle();
    // The next attempt fails as well, and later entries get offsets that lost ones had.
    broker.pass(MENDED_MS / 2);
    for pump in pumps {
        broker.hang_up(pump);
    }
    broker.pass(MENDED_MS / 2);
    stores[0].clear();
    broker.pass(MENDED_MS);

    let mut broker = Broker::new(&config(), &after_kill(&stores), 1, 3 * MENDED_MS);
    let reader = broker.connect(0, Link::five("reader"));
    broker.settle();
    let topics = MESSAGES.map(|payload| format!("t {payload}"));
    let wills = PUMPS.map(|client_id| format!("wills/pump {client_id}"));
    let all = topics.iter().chain(&wills).zip(1..).map(|(what, id)| format!("publish q1 {id} {what}"));
    let all: Vec<_> = std::iter::once("connack present".to_owned()).chain(all).collect();
    assert_eq!(broker.take(reader), all);
}

#[test]
fn expired_session_does_not_come_back() {
    let stores = vec![TestStore::default()];
    let link = Link { expiry_s: 2, ..Link::five("reader") };
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let reader = join(&mut broker, 0, link.clone(), false);
    subscribe(&mut broker, reader, "t", QoS::AtLeastOnce);

    // Its connection was lost with the broker, and the next broker ends before it has recorded the end of the session.
    let stores = after_kill(&stores);
    let mut broker = Broker::new(&config(), &stores, 1, 1_000);
    broker.settle();
    let before = after_kill(&stores);
    broker.pass(2_000);
    let writer = join(&mut broker, 0, Link { is_durable: false, ..Link::five("writer") }, false);
    broker.publish(writer, Publish { qos: QoS::AtLeastOnce, ..qos2(1, "t", "x") });
    broker.settle();
    assert_eq!(broker.take(writer), ["puback 1 0x10"]);
    let mut broker = Broker::new(&config(), &before, 1, 4_000);
    join(&mut broker, 0, link, false);
}

#[test]
fn session_expires_after_its_disconnection_is_on_disk() {
    let stores = vec![TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 1, 0);
    let reader = join(&mut broker, 0, Link { expiry_s: 2, ..Link::five("reader") }, false);
    subscribe(&mut broker, reader, "t", QoS::AtLeastOnce);
    stores[0].hold_completions();
    broker.hang_up(reader);
    broker.settle();
    broker.pass(2_000);
    let writer = join(&mut broker, 0, Link { is_durable: false, ..Link::five("writer") }, false);
    let publish = |id| Publish { qos: QoS::AtLeastOnce, ..qos2(id, "t", "x") };
    broker.publish(writer, publish(1));
    broker.settle();
    assert_eq!(broker.take(writer), [""; 0], "if the process ended now, the session would be there");
    stores[0].release_completions();
    broker.pass(2_000);
    broker.publish(writer, publish(2));
    broker.settle();
    assert_eq!(broker.take(writer), ["puback 1", "puback 2 0x10"]);
}

#[test]
fn repeated_publish_is_not_acked_if_the_first_is_not_durable() {
    let stores = vec![TestStore::default(), TestStore::default()];
    let mut broker = Broker::new(&config(), &stores, 2, 0);
    let writer = join(&mut broker, 1, Link::five("writer"), false);
    let publish = Publish { retain: true, ..qos2(1, "t", "x") };
    stores[0].fill("mqtt-retained");
    broker.publish(writer, publish.clone());
    broker.turn(1);
    // The first shard has it, and has not tried to append it.
    broker.turn(0);
    broker.hang_up(writer);
    let writer = broker.connect(1, Link::five("writer"));
    broker.publish(writer, repeated(&publish));
    broker.turn(1);
    broker.settle();
    assert_eq!(broker.take(writer), ["connack present", "disconnect 0x97"]);

    stores[0].clear();
    broker.pass(MENDED_MS);
    let writer = join(&mut broker, 1, Link::five("writer"), true);
    broker.publish(writer, repeated(&publish));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1 0x10"]);
    assert_eq!(Broker::new(&config(), &after_kill(&stores), 2, MENDED_MS).restored.retained, 1);
}

/// More QoS 2 publishes of other sessions than a journal remembers.
const FORGOTTEN_AFTER: u16 = 4_200;

fn without_snapshots() -> MqttConfig {
    MqttConfig { snapshot_bytes: 1 << 30, ..config() }
}

/// Publishes to a session of shard 1 until its journal remembers nothing of what came before.
fn publish_many_others(broker: &mut Broker) {
    let consumer = join(broker, 1, Link::five("consumer"), false);
    subscribe(broker, consumer, "u", QoS::AtLeastOnce);
    let other = join(broker, 0, Link::four("other"), false);
    for packet_id in 1..=FORGOTTEN_AFTER {
        broker.publish(other, qos2(packet_id, "u", "."));
        (0..4).for_each(|_| (0..2).for_each(|shard| broker.turn(shard)));
        broker.acknowledge(consumer, packet_id);
    }
    broker.settle();
    assert_eq!(broker.take(consumer).len(), usize::from(FORGOTTEN_AFTER));
}

/// A writer on shard 0 whose publish to `t` has reached the reader on shard 1, and not the one on shard 2.
fn readers_of_t(broker: &mut Broker) -> (usize, [usize; 2]) {
    let writer = join(broker, 0, Link::five("writer"), false);
    let readers = [1, 2].map(|shard| {
        let reader = join(broker, shard, Link::five(["near", "far"][shard - 1]), false);
        subscribe(broker, reader, "t", QoS::ExactlyOnce);
        reader
    });
    (writer, readers)
}

/// A publish that one of two journals could not keep is repeated after both have forgotten it.
fn repeat_forgotten_publish(restarts: bool) {
    let config = without_snapshots();
    let stores = [(); 3].map(|()| TestStore::default());
    let mut broker = Broker::new(&config, &stores, 3, 0);
    let (writer, [mut near, mut far]) = readers_of_t(&mut broker);
    publish_while_full(&mut broker, &stores[2], writer);
    assert_eq!(broker.take(near), ["publish q2 1 t x"]);
    assert_eq!(broker.take(far), [""; 0]);
    publish_many_others(&mut broker);
    if restarts {
        broker = Broker::new(&config, &after_kill(&stores), 3, 0);
        near = join(&mut broker, 1, Link::five("near"), true);
        far = join(&mut broker, 2, Link::five("far"), true);
        broker.take(near);
    }
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(near), [""; 0]);
    assert_eq!(broker.take(far), ["publish q2 2 t x"]);
}

#[test]
fn partial_publish_is_known_after_its_journals_have_forgotten_it() {
    repeat_forgotten_publish(false);
}

#[test]
fn partial_publish_is_known_after_its_journals_have_forgotten_it_and_a_restart() {
    repeat_forgotten_publish(true);
}

#[test]
fn partial_publish_is_known_after_two_restarts() {
    let config = without_snapshots();
    let stores = [(); 3].map(|()| TestStore::default());
    let mut broker = Broker::new(&config, &stores, 3, 0);
    let (writer, _) = readers_of_t(&mut broker);
    let ends = [0, 2].map(|store: usize| stores[store].end());
    broker.publish(writer, qos2(1, "t", "x"));
    broker.settle();

    // Power is lost before the third store has it, and the first has only the publish.
    stores[0].truncate(ends[0] + 1);
    stores[2].truncate(ends[1]);
    let stores = after_kill(&stores);
    let mut broker = Broker::new(&config, &stores, 3, 0);
    publish_many_others(&mut broker);
    let mut broker = Broker::new(&config, &after_kill(&stores), 3, 0);
    let near = join(&mut broker, 1, Link::five("near"), true);
    let far = join(&mut broker, 2, Link::five("far"), true);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    broker.take(near);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(near), [""; 0]);
    assert_eq!(broker.take(far), ["publish q2 1 t x"]);
}

#[test]
fn shared_delivery_does_not_stand_for_subscriptions_of_the_same_journal() {
    let config = without_snapshots();
    let stores = [(); 2].map(|()| TestStore::default());
    let mut broker = Broker::new(&config, &stores, 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), false);
    let member = join(&mut broker, 1, Link::five("member"), false);
    subscribe(&mut broker, member, "$share/crew/t", QoS::ExactlyOnce);
    let reader = join(&mut broker, 1, Link::five("reader"), false);
    subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
    let ends = [0, 1].map(|store: usize| stores[store].end());
    // Each entry is a batch of its own.
    let payload = "x".repeat(2 * 16 * 1024).leak();
    let publish = qos2(1, "t", payload);
    broker.publish(writer, publish.clone());
    broker.settle();
    assert_eq!((broker.take(member).len(), broker.take(reader).len()), (1, 1));

    // Power is lost between the two deliveries.
    (0..2).for_each(|store| stores[store].truncate(ends[store] + 1));
    let mut broker = Broker::new(&config, &after_kill(&stores), 2, 0);
    let writer = join(&mut broker, 0, Link::five("writer"), true);
    let member = join(&mut broker, 1, Link::five("member"), true);
    let reader = join(&mut broker, 1, Link::five("reader"), true);
    assert_eq!(broker.take(reader), [""; 0]);
    broker.take(member);
    broker.publish(writer, repeated(&publish));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!((broker.take(member).len(), broker.take(reader).len()), (0, 1));
}

#[test]
fn partial_publish_is_known_to_the_last_of_64_shards() {
    let stores = [(); 64].map(|()| TestStore::default());
    let mut broker = Broker::new(&config(), &stores, 64, 0);
    let writer = join(&mut broker, 61, Link::five("writer"), false);
    let readers = [62, 63].map(|shard| {
        let reader = join(&mut broker, shard, Link::five(["near", "far"][shard - 62]), false);
        subscribe(&mut broker, reader, "t", QoS::ExactlyOnce);
        reader
    });
    publish_while_full(&mut broker, &stores[63], writer);
    let writer = join(&mut broker, 61, Link::five("writer"), true);
    broker.publish(writer, repeated(&qos2(1, "t", "x")));
    broker.settle();
    assert_eq!(broker.take(writer), ["pubrec 1"]);
    assert_eq!(broker.take(readers[0]), ["publish q2 1 t x"]);
    assert_eq!(broker.take(readers[1]), ["publish q2 2 t x"]);
}

/// Each append in turn is refused: of snapshots that move the messages of absent clients, of their last entries, and of
/// what mends the journal.
#[test]
fn a_disk_that_is_full_for_one_append_loses_no_message() {
    const SLEEPERS: [&str; 3] = ["one", "two", "three"];
    const MESSAGES: u16 = 12;
    let mut refused = 0;
    for accepted in 0..60 {
        let stores = vec![TestStore::default()];
        let mut broker = Broker::new(&config(), &stores, 1, 0);
        for name in SLEEPERS {
            let sleeper = join(&mut broker, 0, Link::five(name), false);
            subscribe(&mut broker, sleeper, "t", QoS::AtLeastOnce);
            broker.disconnect(sleeper, true);
        }
        let writer = join(&mut broker, 0, Link::five("writer"), false);
        // Several batches of entries when they are moved.
        let payload = "x".repeat(5_000);
        for packet_id in 1..=MESSAGES {
            let payload = payload.as_bytes();
            let qos = QoS::AtLeastOnce;
            broker.publish(writer, Publish { qos, packet_id, topic: "t", payload, ..Publish::default() });
            broker.settle();
        }
        assert_eq!(broker.take(writer).len(), usize::from(MESSAGES));
        // From now on they are on disk only.
        let stores = after_kill(&stores);
        let mut broker = Broker::new(&config(), &stores, 1, 0);
        stores[0].refuse_one("mqtt", accepted);
        for _ in 0..8 {
            // Absent clients with large wills make the journal grow.
            for client_id in ["filler-0", "filler-1", "filler-2", "filler-3"] {
                let filler = broker.connect(0, Link { will: Some(FILLER), ..Link::five(client_id) });
                broker.settle();
                broker.disconnect(filler, true);
            }
            broker.pass(MENDED_MS);
        }
        refused += u32::from(!stores[0].is_to_refuse());

        let mut broker = Broker::new(&config(), &after_kill(&stores), 1, 0);
        for name in SLEEPERS {
            let sleeper = broker.connect(0, Link::five(name));
            broker.settle();
            let received = broker.take(sleeper).iter().filter(|packet| packet.starts_with("publish")).count();
            assert_eq!(received, usize::from(MESSAGES), "{name}, append {accepted}");
        }
    }
    assert!(refused > 20, "{refused}");
}
