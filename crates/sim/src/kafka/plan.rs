//! What a run is made of, all of it from its seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_broker::{Durability, MqttConfig};
use mainstem_disk::Settings;
use mainstem_disk::fault::Dice;
use mainstem_doors::{Bindings, Inbound, Key};
use mainstem_mqtt::Version;
use mainstem_stream::{BoundTopic, Config};

use super::client::Topic;
use super::consumer::Habits;
use super::ledger::Isolation;
use super::producer::Kind;
use super::transactor::Manner;
use crate::plan::{Faults, Profile, pick};

/// Topics that messages are published to which a binding takes.
pub(crate) const BOUND_TOPICS: [&str; 4] = ["b/1", "b/2", "b/3/x", "b/4"];
/// The topic that they go to.
const BOUND: &str = "bound";

/// A whole run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) shards: usize,
    pub(crate) changes_shards: bool,
    pub(crate) steps: u64,
    pub(crate) mqtt: MqttConfig,
    pub(crate) config: Config,
    pub(crate) bindings: Arc<Bindings>,
    pub(crate) settings: Settings,
    pub(crate) is_slow: bool,
    /// Without syncs before answers.
    pub(crate) is_lax: bool,
    pub(crate) topics: Vec<Topic>,
    pub(crate) producers: Vec<Kind>,
    pub(crate) transactors: Vec<Manner>,
    pub(crate) consumers: Vec<Habits>,
    /// How many commit offsets, and how many administrators there are.
    pub(crate) committers: usize,
    pub(crate) admins: usize,
    pub(crate) group_members: usize,
    pub(crate) publishers: Vec<Profile>,
    pub(crate) faults: Faults,
    /// Chance in 100 that bytes go in small pieces.
    pub(crate) pieces: u64,
    /// Chance in 10,000 steps that a connection is cut.
    pub(crate) cuts: u64,
}

impl Plan {
    pub(crate) fn of(dice: &mut Dice) -> Self {
        let is_lax = dice.chance(15);
        let is_rough = dice.chance(30);
        let faults = Faults {
            loses_power: !is_lax && dice.chance(60),
            ends: pick(dice, &[0, 10, 20, 60]),
            errors: if is_rough { 5 } else { 0 },
            full: if is_rough { 10 } else { 0 },
        };
        let topics = topics(dice);
        let bound = topics.iter().find(|topic| topic.is_bound).map_or(1, |topic| topic.partitions);
        let durability = if is_lax { Durability::Os } else { Durability::Fsync };
        let inbound =
            Inbound { name: BOUND.into(), filter: "b/#".to_owned(), topic: BOUND.into(), key: Key::Topic };
        Self {
            shards: 1 + dice.below(3) as usize,
            changes_shards: dice.chance(40),
            steps: pick(dice, &[300, 1000, 3000, 5000]),
            mqtt: MqttConfig {
                durability,
                segment_bytes: 65_536,
                sys_interval_s: 0,
                ..MqttConfig::default()
            },
            config: config(is_lax, bound),
            bindings: Arc::new(Bindings { inbound: vec![inbound], outbound: Vec::new() }),
            settings: settings(dice),
            is_slow: dice.chance(80),
            is_lax,
            topics,
            producers: (0..some(dice, 3)).map(|_| producer(dice)).collect(),
            transactors: transactors(dice),
            consumers: (0..=dice.below(3)).map(|_| consumer(dice)).collect(),
            committers: some(dice, 2),
            admins: some(dice, 2),
            group_members: some(dice, 4),
            publishers: (0..some(dice, 2)).map(|_| publisher(dice)).collect(),
            faults,
            pieces: pick(dice, &[0, 5, 50]),
            cuts: pick(dice, &[0, 20, 100]),
        }
    }
}

fn config(is_lax: bool, bound: u16) -> Config {
    let durability = if is_lax { mainstem_log::Durability::Os } else { mainstem_log::Durability::Fsync };
    let topic = BoundTopic { name: BOUND.into(), partitions: bound.into(), config: BTreeMap::new() };
    Config {
        durability,
        segment_bytes: 65_536,
        retention_ms: -1,
        auto_create_topics: false,
        bound_topics: vec![topic],
        ..Config::default()
    }
}

/// Those that records are produced to come first.
fn topics(dice: &mut Dice) -> Vec<Topic> {
    let mut topics: Vec<Topic> = (0..=dice.below(2))
        .map(|number| Topic {
            name: format!("t{number}"),
            partitions: 1 + dice.below(3) as u16,
            is_bound: false,
        })
        .collect();
    topics.push(Topic { name: BOUND.to_owned(), partitions: 1 + dice.below(2) as u16, is_bound: true });
    topics
}

fn settings(dice: &mut Dice) -> Settings {
    Settings {
        open_files: 16,
        journal_bytes: pick(dice, &[0, 65_536]),
        checkpoint_bytes: pick(dice, &[1_024, 16_384, 1 << 20]),
        ..Settings::default()
    }
}

fn producer(dice: &mut Dice) -> Kind {
    pick(dice, &[Kind::Idempotent, Kind::Idempotent, Kind::Idempotent, Kind::Plain, Kind::Blind])
}

/// How many of a kind there are: the fewer kinds there are in a run, the more each of them does.
fn some(dice: &mut Dice, most: u64) -> usize {
    if dice.chance(40) { 0 } else { 1 + dice.below(most) as usize }
}

/// Either all have names of their own, or they fence one another.
fn transactors(dice: &mut Dice) -> Vec<Manner> {
    let (count, are_alone) = (some(dice, 3), dice.chance(50));
    let manner = |number: usize| Manner {
        name: if are_alone { format!("x{number}") } else { "x".to_owned() },
        is_two: dice.chance(60),
        is_alone: are_alone,
        timeout_ms: if are_alone { 900_000 } else { pick(dice, &[1_000, 10_000, 900_000]) },
    };
    (0..count).map(manner).collect()
}

fn consumer(dice: &mut Dice) -> Habits {
    Habits {
        isolation: pick(dice, &[Isolation::ReadUncommitted, Isolation::ReadCommitted]),
        has_session: dice.chance(50),
        max_wait_ms: pick(dice, &[0, 50, 500]),
        partition_max_bytes: pick(dice, &[1, 500, 1 << 20]),
        sweeps: false,
    }
}

fn publisher(dice: &mut Dice) -> Profile {
    Profile {
        version: if dice.chance(40) { Version::V4 } else { Version::V5 },
        expiry_s: u32::MAX,
        receive_maximum: u16::MAX,
        prompt: 100,
        is_lazy: false,
        group: ("", ""),
        has_will: false,
        will_delay_s: 0,
        publishes: 100,
    }
}
