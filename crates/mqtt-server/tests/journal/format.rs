//! The format of the MQTT logs as `docs/formats/mqtt-journal.md` describes it: reads the logs of two shards of a broker
//! that was killed, and checks the sessions in them.
//!
//! `MAINSTEM_WRITE_FIXTURE=1` writes the fixture of the current version. A change of the format needs a new one
//! beside it.

use std::fs;
use std::path::{Path, PathBuf};

use mainstem_mqtt::{Publish, QoS};

use crate::broker::{Broker, Link, TestStore};
use crate::coverage::Coverage;
use crate::story::{config, story};

/// Time between the start of the story and the next start of the broker, ms.
const AWAY_MS: u64 = 1_000_000;

fn fixture(shard: usize) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mqtt-journal-2");
    directory.join(shard.to_string())
}

fn load() -> Vec<TestStore> {
    let log = |shard: usize, name: &str| {
        // Only the first shard has retained messages.
        (shard == 0 || name != "mqtt-retained").then(|| fs::read(fixture(shard).join(name)).unwrap())
    };
    (0..2).map(|shard| TestStore::of(|name| log(shard, name))).collect()
}

/// The broker after its restart, and its clients.
struct Second {
    broker: Broker,
    /// Shard that now has the sessions of each former shard.
    shards_of: [usize; 2],
}

impl Second {
    fn new(stores: &[TestStore], shards: usize) -> Self {
        let stores: Vec<TestStore> = stores.iter().map(|store| store.copy(|_| true)).collect();
        let broker = Broker::new(&config(), &stores, shards, AWAY_MS);
        Self { broker, shards_of: [0, shards - 1] }
    }

    /// Connects a client to the shard that has its session. Returns what it gets first.
    fn resume(&mut self, store: usize, link: Link) -> (usize, Vec<String>) {
        let client = self.broker.connect(self.shards_of[store], link);
        self.broker.settle();
        (client, self.broker.take(client))
    }
}

/// Checks everything in the two logs by what the sessions get.
fn check(stores: &[TestStore], shards: usize) {
    let mut second = Second::new(stores, shards);
    let restored = second.broker.restored;
    assert_eq!((restored.sessions, restored.retained), (7, 2));

    // Sent, acknowledged in part; dealt out; queued. Packet identifiers are those from before the restart.
    let (panel, got) = second.resume(0, Link::five("panel"));
    let expected = [
        "connack present",
        "pubrel 3",
        "publish dup q2 4 alarms/2 a2",
        "publish dup q1 5 jobs j1",
        "publish q1 6 plant/1/temp 22 ids [7]",
        "publish q2 7 alarms/3 a3",
        "publish q1 8 jobs j2",
        "publish q2 9 alarms/4 a4",
        "publish q2 10 alarms/5 a5",
        "publish q2 11 alarms/6 a6",
    ];
    assert_eq!(got, expected);

    let (hall, got) = second.resume(1, Link::four("hall"));
    let expected = [
        "connack present",
        "publish dup q1 2 alarms/2 a2",
        "publish dup q1 3 alarms/3 a3",
        "publish dup q1 4 alarms/4 a4",
        "publish dup q1 5 alarms/5 a5",
    ];
    assert_eq!(got, expected, "and nothing of the publish that was cut short");

    check_publisher(&mut second, panel, hall);
    check_replay(&mut second);
    check_retained(&mut second);
    check_will(&mut second, panel);
}

/// Repeated publishes reach the sessions that miss them, and no others.
fn check_publisher(second: &mut Second, panel: usize, hall: usize) {
    let (sensor, got) = second.resume(0, Link::five("sensor"));
    assert_eq!(got, ["connack present"]);
    let again = |packet_id, topic, payload| Publish {
        dup: true,
        qos: QoS::ExactlyOnce,
        packet_id,
        topic,
        payload,
        ..Publish::default()
    };
    second.broker.publish(sensor, again(2, "alarms/2", b"a2"));
    second.broker.publish(sensor, again(4, "jobs", b"j1"));
    second.broker.publish(sensor, again(6, "alarms/6", b"a6"));
    second.broker.settle();
    assert_eq!(second.broker.take(sensor), ["pubrec 2", "pubrec 4", "pubrec 6"]);
    assert_eq!(second.broker.take(panel), [""; 0]);
    assert_eq!(second.broker.take(hall), ["publish q1 6 alarms/6 a6"]);
    for packet_id in [1, 2, 3, 4, 5, 6] {
        second.broker.release(sensor, packet_id);
    }
    second.broker.settle();
    let unknown = |id| format!("pubcomp {id} 0x92");
    let expected =
        [unknown(1), "pubcomp 2".into(), unknown(3), "pubcomp 4".into(), unknown(5), "pubcomp 6".into()];
    assert_eq!(second.broker.take(sensor), expected);
}

/// A replay of retained messages continues where it was.
fn check_replay(second: &mut Second) {
    let (_, got) = second.resume(1, Link::five("late"));
    let expected = [
        "connack present",
        "publish dup q1 1 plant/1/temp 20 retain",
        "publish q1 2 plant/1/humidity 51",
        "publish q1 3 plant/1/temp 22",
        "publish q1 4 plant/2/temp 21 retain text/plain expiry 85400",
    ];
    assert_eq!(got, expected);
}

fn check_retained(second: &mut Second) {
    let (reader, _) = second.resume(0, Link { is_durable: false, ..Link::five("reader") });
    second.broker.subscribe(reader, "plant/#", QoS::AtMostOnce, None);
    second.broker.settle();
    let expected = [
        "suback [0]",
        "publish q0 0 plant/1/temp 20 retain",
        "publish q0 0 plant/2/temp 21 retain text/plain expiry 85400",
    ];
    assert_eq!(second.broker.take(reader), expected);
}

/// A will waits for the rest of its delay.
fn check_will(second: &mut Second, panel: usize) {
    second.broker.pass(2_590_000);
    assert_eq!(second.broker.take(panel), [""; 0]);
    second.broker.pass(20_000);
    assert_eq!(second.broker.take(panel), ["publish q1 12 wills/pump down expiry 60"]);
}

fn check_all(stores: &[TestStore]) {
    check(stores, 2);
    // With another number of shards.
    check(stores, 1);
    // From the start: the snapshots replace what came before.
    let whole = stores.iter().map(|store| store.copy(|name| name != "mqtt-snapshot"));
    check(&whole.collect::<Vec<_>>(), 2);
    let mut coverage = Coverage::default();
    for store in stores {
        coverage.add(&store.bytes("mqtt"));
    }
    assert_eq!(coverage, Coverage::whole());
}

#[test]
fn reads_version_2() {
    if std::env::var_os("MAINSTEM_WRITE_FIXTURE").is_some() {
        for (shard, store) in story().iter().enumerate() {
            fs::create_dir_all(fixture(shard)).unwrap();
            for name in store.names() {
                fs::write(fixture(shard).join(&name), store.bytes(&name)).unwrap();
            }
        }
    }
    check_all(&load());
}

#[test]
fn reads_what_it_writes() {
    check_all(&story());
}
