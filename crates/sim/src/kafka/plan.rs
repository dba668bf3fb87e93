//! What a run is made of, all of it from its seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_disk::fault::Rng;
use mainstem_kafka_server::{BoundTopic, Config};
use mainstem_mqtt::Version;
use mainstem_mqtt_server::{Durability, MqttConfig};
use mainstem_node::{Bindings, Inbound, Key};

use super::client::Topic;
use super::consumer::ConsumerProfile;
use super::consumer_member;
use super::oracle::Isolation;
use super::producer::Kind;
use super::transactor::TransactorProfile;
use crate::engine::{BrokerPlan, Environment, FaultPlan, NetworkPlan, draw_store_settings, pick};
use crate::mqtt::plan::Profile;

/// Topics that messages are published to which a binding takes.
pub(crate) const BOUND_TOPICS: [&str; 4] = ["b/1", "b/2", "b/3/x", "b/4"];
/// The topic that they go to.
const BOUND: &str = "bound";

/// What the clients of a run do.
pub(crate) struct Plan {
    pub(crate) topics: Vec<Topic>,
    pub(crate) producers: Vec<Kind>,
    pub(crate) transactors: Vec<TransactorProfile>,
    pub(crate) consumers: Vec<ConsumerProfile>,
    pub(crate) committers: usize,
    pub(crate) admins: usize,
    pub(crate) group_members: usize,
    pub(crate) consumer_members: usize,
    pub(crate) publishers: Vec<Profile>,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> (Self, Environment) {
        let is_lax = rng.chance(15);
        let is_rough = rng.chance(30);
        let loses_power = !is_lax && rng.chance(60);
        let faults = FaultPlan::draw(rng, is_lax, loses_power, is_rough);
        let topics = topics(rng);
        let mut environment = Environment {
            shards: 1 + rng.below(3) as usize,
            changes_shards: rng.chance(40),
            steps: pick(rng, &[300, 1000, 3000, 5000]),
            broker: broker(rng, is_lax, &topics),
            faults,
            network: NetworkPlan::default(),
        };
        let plan = Self {
            topics,
            producers: (0..some(rng, 3)).map(|_| producer(rng)).collect(),
            transactors: transactors(rng),
            consumers: (0..=rng.below(3)).map(|_| consumer(rng)).collect(),
            committers: some(rng, 2),
            admins: some(rng, 2),
            group_members: some(rng, 4),
            publishers: (0..some(rng, 2)).map(|_| publisher(rng)).collect(),
            consumer_members: 0,
        };
        environment.network = NetworkPlan::draw(rng);
        let plan = Self { consumer_members: some(rng, 4), ..plan };
        (plan, environment)
    }
}

fn broker(rng: &mut Rng, is_lax: bool, topics: &[Topic]) -> BrokerPlan {
    let bound = topics.iter().find(|topic| topic.is_bound).map_or(1, |topic| topic.partitions);
    let durability = if is_lax { Durability::Os } else { Durability::Fsync };
    let inbound =
        Inbound { name: BOUND.into(), filter: "b/#".to_owned(), topic: BOUND.into(), key: Key::Topic };
    BrokerPlan {
        mqtt: MqttConfig { durability, segment_bytes: 65_536, sys_interval_s: 0, ..MqttConfig::default() },
        kafka: config(is_lax, bound),
        bindings: Arc::new(Bindings { inbound: vec![inbound], outbound: Vec::new() }),
        settings: draw_store_settings(rng),
        is_slow: rng.chance(80),
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
        group_consumer_session_timeout_ms: consumer_member::SESSION_MS,
        bound_topics: vec![topic],
        ..Config::default()
    }
}

/// Those that records are produced to come first.
fn topics(rng: &mut Rng) -> Vec<Topic> {
    let mut topics: Vec<Topic> = (0..=rng.below(2))
        .map(|number| Topic {
            name: format!("t{number}"),
            partitions: 1 + rng.below(3) as u16,
            is_bound: false,
        })
        .collect();
    topics.push(Topic { name: BOUND.to_owned(), partitions: 1 + rng.below(2) as u16, is_bound: true });
    topics
}

fn producer(rng: &mut Rng) -> Kind {
    pick(rng, &[Kind::Idempotent, Kind::Idempotent, Kind::Idempotent, Kind::Plain, Kind::Unacknowledged])
}

/// How many of a kind there are: the fewer kinds there are in a run, the more each of them does.
fn some(rng: &mut Rng, most: u64) -> usize {
    if rng.chance(40) { 0 } else { 1 + rng.below(most) as usize }
}

/// Either all have names of their own, or they fence one another.
fn transactors(rng: &mut Rng) -> Vec<TransactorProfile> {
    let (count, are_exclusive) = (some(rng, 3), rng.chance(50));
    let profile = |number: usize| TransactorProfile {
        name: if are_exclusive { format!("x{number}") } else { "x".to_owned() },
        is_v2: rng.chance(60),
        is_exclusive: are_exclusive,
        timeout_ms: if are_exclusive { 900_000 } else { pick(rng, &[1_000, 10_000, 900_000]) },
    };
    (0..count).map(profile).collect()
}

fn consumer(rng: &mut Rng) -> ConsumerProfile {
    ConsumerProfile {
        isolation: pick(rng, &[Isolation::ReadUncommitted, Isolation::ReadCommitted]),
        has_session: rng.chance(50),
        max_wait_ms: pick(rng, &[0, 50, 500]),
        partition_max_bytes: pick(rng, &[1, 500, 1 << 20]),
        sweeps: false,
    }
}

fn publisher(rng: &mut Rng) -> Profile {
    Profile::publisher(if rng.chance(40) { Version::V4 } else { Version::V5 })
}
