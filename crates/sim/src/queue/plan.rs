//! What a run with queues consists of, drawn from its seed.

use std::sync::Arc;

use mainstem_disk::fault::Rng;
use mainstem_kafka_server::{BoundTopic, Config};
use mainstem_mqtt::Version;
use mainstem_mqtt_server::MqttConfig;
use mainstem_node::{Bindings, Inbound, Key};
use mainstem_queue_core::Tuning;

use super::publisher::{self, PublisherProfile};
use crate::engine::{BrokerPlan, Environment, FaultPlan, NetworkPlan, draw_store_settings, pick};

/// The queue that is created and deleted during a run.
pub(crate) const TEMPORARY: &str = "temporary";
/// The queue for the dead letters of all queues, in some runs.
pub(crate) const SHARED_DEAD: &str = "grave";

/// Purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Producers send to it.
    Main {
        /// Index of the queue for its dead letters.
        dead: usize,
    },
    /// It receives dead letters.
    Dead,
    /// It is created and deleted during the run.
    Temporary,
}

/// A queue and those of its settings that the oracle considers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "settings, independent of each other")]
pub(crate) struct QueuePlan {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) max_deliveries: u32,
    pub(crate) backoff_ms: u64,
    pub(crate) backoff_max_ms: u64,
    pub(crate) jitter_percent: u64,
    pub(crate) is_fifo: bool,
    pub(crate) is_single: bool,
    pub(crate) dedup_window_ms: u64,
    pub(crate) length_max: u64,
    pub(crate) bytes_max: u64,
    pub(crate) drops_oldest: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) keeps_dead_letters: bool,
    /// It confirms without a sync: a loss of power may take what it has confirmed.
    pub(crate) is_lax: bool,
    /// Settings that operators change during the run: order by key; time to live; maximum length and overflow policy.
    pub(crate) changes_order: bool,
    pub(crate) changes_ttl: bool,
    pub(crate) changes_length: bool,
    /// Settings that the oracle does not consider.
    pub(crate) others: Vec<(String, String)>,
}

impl QueuePlan {
    /// Settings that it is created with.
    pub(crate) fn settings(&self, dead: Option<&str>) -> Vec<(String, String)> {
        let own = [
            ("max-deliveries", self.max_deliveries.to_string()),
            ("backoff-ms", self.backoff_ms.to_string()),
            ("backoff-max-ms", self.backoff_max_ms.to_string()),
            ("backoff-jitter-percent", self.jitter_percent.to_string()),
            ("fifo", self.is_fifo.to_string()),
            ("single-active-consumer", self.is_single.to_string()),
            ("dedup-window-ms", self.dedup_window_ms.to_string()),
            ("length-max", self.length_max.to_string()),
            ("bytes-max", self.bytes_max.to_string()),
            ("overflow", if self.drops_oldest { "drop-oldest" } else { "reject" }.to_owned()),
            ("ttl-ms", self.ttl_ms.to_string()),
            ("dead-letters", self.keeps_dead_letters.to_string()),
            self.durability(),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let dead = dead.map(|dead| ("dead-letter-queue".to_owned(), dead.to_owned()));
        own.into_iter().chain(dead).chain(self.others.clone()).collect()
    }

    pub(crate) fn durability(&self) -> (&'static str, String) {
        ("durability", if self.is_lax { "os" } else { "fsync" }.to_owned())
    }

    /// New values for settings that operators change.
    pub(crate) fn change(&self, rng: &mut Rng) -> Vec<(String, String)> {
        let others = [
            ("fifo", pick(rng, &["false", "true"]), self.changes_order),
            ("ttl-ms", pick(rng, &["0", "2000", "5000", "60000"]), self.changes_ttl),
            ("length-max", pick(rng, &["0", "10", "50"]), self.changes_length),
            ("overflow", pick(rng, &["reject", "drop-oldest"]), self.changes_length),
        ];
        let changed = others.iter().filter(|(.., is_changed)| *is_changed && rng.chance(60));
        let own = changed.map(|(name, value, _)| (*name, *value)).collect::<Vec<_>>();
        let retention = ("retention-ms", pick(rng, &["0", "1000", "60000"]));
        let all = own.into_iter().chain([retention]);
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Whether order by key holds at all times.
    pub(crate) fn has_order(&self) -> bool {
        self.is_fifo && !self.changes_order
    }

    pub(crate) fn may_have_order(&self) -> bool {
        self.is_fifo || self.changes_order
    }

    /// Upper bound of the time to live at all times; 0 for none.
    pub(crate) fn certain_ttl_ms(&self) -> u64 {
        if self.changes_ttl { 0 } else { self.ttl_ms }
    }

    /// Whether messages without a time to live of their own may expire.
    pub(crate) fn may_expire(&self) -> bool {
        self.changes_ttl || self.ttl_ms > 0
    }

    pub(crate) fn has_limit(&self) -> bool {
        self.length_max > 0 || self.bytes_max > 0
    }

    /// Whether messages may be dropped in favor of newer ones.
    pub(crate) fn may_drop(&self) -> bool {
        self.changes_length || (self.drops_oldest && self.has_limit())
    }

    /// Shortest backoff after the `count`th failed delivery.
    pub(crate) fn backoff_least_ms(&self, count: u32) -> u64 {
        let doubled = u128::from(self.backoff_ms) << count.saturating_sub(1).min(63);
        let longest = doubled.min(self.backoff_max_ms.into()) as u64;
        longest - longest * self.jitter_percent / 100
    }
}

/// Behavior of a worker or subscriber.
#[derive(Clone, Debug)]
pub(crate) struct WorkerProfile {
    pub(crate) group: &'static str,
    pub(crate) max: u32,
    pub(crate) lease_ms: u64,
    pub(crate) wait_ms: u64,
    /// Chances in 100 that it acknowledges rather than settles in another way, and that it vanishes with everything it
    /// holds.
    pub(crate) acks: u64,
    pub(crate) vanishes: u64,
}

/// What the clients of a run do.
pub(crate) struct Plan {
    pub(crate) queues: Vec<QueuePlan>,
    /// Queues are created when they are first used.
    pub(crate) are_auto_created: bool,
    pub(crate) producers: usize,
    /// Number of messages after which nobody sends new ones.
    pub(crate) messages_max: usize,
    pub(crate) workers: Vec<WorkerProfile>,
    /// Consumers by MQTT.
    pub(crate) subscribers: Vec<WorkerProfile>,
    /// Producers by MQTT.
    pub(crate) publishers: Vec<PublisherProfile>,
    pub(crate) operators: usize,
    /// Chances in 100 that a message has this property.
    pub(crate) keys: u64,
    pub(crate) priorities: u64,
    pub(crate) delays: u64,
    pub(crate) ttls: u64,
    pub(crate) ids: u64,
    /// Chance in 100 that a message is large.
    pub(crate) large: u64,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> (Self, Environment) {
        let safety = pick(
            rng,
            &[Safety::Os, Safety::Mixed, Safety::Mixed, Safety::Fsync, Safety::Fsync, Safety::Fsync],
        );
        let is_rough = rng.chance(30);
        let loses_power = safety != Safety::Os && rng.chance(60);
        let faults = FaultPlan::draw(rng, safety != Safety::Fsync, loses_power, is_rough);
        let config = config(rng, safety);
        let large = pick(rng, &[0, 0, 0, 5, 30]);
        let are_auto_created = config.queues_auto_create;
        let queues = queues(rng, safety, are_auto_created);
        let mut environment = Environment {
            shards: 1 + rng.below(3) as usize,
            changes_shards: rng.chance(40),
            steps: pick(rng, &[300, 1000, 3000]),
            broker: BrokerPlan {
                mqtt: MqttConfig { sys_interval_s: 0, segment_bytes: 65_536, ..MqttConfig::default() },
                kafka: config,
                bindings: Arc::default(),
                settings: draw_store_settings(rng),
                is_slow: rng.chance(80),
            },
            faults,
            network: NetworkPlan::default(),
        };
        let plan = Self {
            queues,
            are_auto_created,
            messages_max: if large > 0 { 100 } else { pick(rng, &[50, 500, 1_500]) },
            large,
            producers: 1 + rng.below(3) as usize,
            workers: (0..=rng.below(5)).map(|_| worker(rng)).collect(),
            subscribers: (0..pick(rng, &[0, 0, 1, 3])).map(|_| worker(rng)).collect(),
            operators: rng.below(3) as usize,
            keys: pick(rng, &[0, 50, 100]),
            priorities: pick(rng, &[0, 50]),
            delays: pick(rng, &[0, 0, 20]),
            ttls: pick(rng, &[0, 0, 20]),
            ids: pick(rng, &[0, 30, 100]),
            publishers: (0..pick(rng, &[0, 0, 1, 3])).map(|_| publisher(rng)).collect(),
        };
        if !plan.publishers.is_empty() {
            let BrokerPlan { kafka, bindings, .. } = &mut environment.broker;
            *bindings = bind(&plan.queues, kafka);
        }
        (plan, environment)
    }
}

/// Which queues sync what they confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Safety {
    Fsync,
    Os,
    Mixed,
}

impl Safety {
    fn is_lax(self, rng: &mut Rng) -> bool {
        match self {
            Self::Fsync => false,
            Self::Os => true,
            Self::Mixed => rng.chance(50),
        }
    }
}

fn config(rng: &mut Rng, safety: Safety) -> Config {
    let is_lax = safety.is_lax(rng);
    Config {
        durability: if is_lax { mainstem_log::Durability::Os } else { mainstem_log::Durability::Fsync },
        segment_bytes: pick(rng, &[4_096, 65_536]),
        retention_ms: -1,
        auto_create_topics: false,
        queues_auto_create: rng.chance(50),
        queue_tuning: Tuning {
            at_once: pick(rng, &[1_000, 1_000, 10]),
            known_max: pick(rng, &[1_000_000, 1_000_000, 20]),
            snapshot_bytes: pick(rng, &[1 << 20, 5_000, 500]),
            waste_bytes: pick(rng, &[64 << 20, 10_000, 0]),
        },
        ..Config::default()
    }
}

/// The main queues, then those for their dead letters, then the temporary one.
fn queues(rng: &mut Rng, safety: Safety, are_auto_created: bool) -> Vec<QueuePlan> {
    let count = 1 + rng.below(2) as usize;
    let has_shared_dead = rng.chance(30);
    let mut all: Vec<QueuePlan> = (0..count)
        .map(|number| {
            let dead = if has_shared_dead { count } else { count + number };
            let is_lax = safety.is_lax(rng);
            QueuePlan { is_lax, ..main_queue(rng, format!("q{number}"), dead) }
        })
        .collect();
    if has_shared_dead {
        let is_lax = safety.is_lax(rng);
        all.push(QueuePlan { is_lax, ..plain_queue(SHARED_DEAD.to_owned(), Role::Dead) });
    } else {
        for number in 0..count {
            // A queue that is created automatically has the durability of the queue whose dead letters it receives.
            let is_lax = if are_auto_created { all[number].is_lax } else { safety.is_lax(rng) };
            all.push(QueuePlan { is_lax, ..plain_queue(format!("q{number}.dead"), Role::Dead) });
        }
    }
    all.push(plain_queue(TEMPORARY.to_owned(), Role::Temporary));
    all
}

fn main_queue(rng: &mut Rng, name: String, dead: usize) -> QueuePlan {
    let others = [
        ("start", pick(rng, &["earliest", "earliest", "latest"])),
        ("retention-ms", pick(rng, &["0", "60000"])),
    ];
    QueuePlan {
        name,
        role: Role::Main { dead },
        max_deliveries: pick(rng, &[0, 1, 2, 5]),
        backoff_ms: pick(rng, &[0, 100, 1_000]),
        backoff_max_ms: pick(rng, &[1_000, 5_000]),
        jitter_percent: pick(rng, &[0, 20, 100]),
        is_fifo: rng.chance(80),
        is_single: rng.chance(15),
        dedup_window_ms: pick(rng, &[2_000, 600_000]),
        length_max: pick(rng, &[0, 0, 10, 50]),
        bytes_max: pick(rng, &[0, 0, 0, 1_000, 500_000]),
        drops_oldest: rng.chance(40),
        ttl_ms: pick(rng, &[0, 0, 0, 5_000]),
        keeps_dead_letters: rng.chance(85),
        is_lax: false,
        changes_order: rng.chance(25),
        changes_ttl: rng.chance(20),
        changes_length: rng.chance(20),
        others: others.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
    }
}

/// A queue with default settings.
fn plain_queue(name: String, role: Role) -> QueuePlan {
    QueuePlan {
        name,
        role,
        max_deliveries: if role == Role::Dead { 0 } else { 5 },
        backoff_ms: 1_000,
        backoff_max_ms: 300_000,
        jitter_percent: 20,
        is_fifo: true,
        is_single: false,
        dedup_window_ms: 120_000,
        length_max: 0,
        bytes_max: 0,
        drops_oldest: false,
        ttl_ms: 0,
        keeps_dead_letters: true,
        is_lax: false,
        changes_order: false,
        changes_ttl: false,
        changes_length: false,
        others: Vec::new(),
    }
}

/// Makes a binding for each main queue.
fn bind(queues: &[QueuePlan], config: &mut Config) -> Arc<Bindings> {
    let mut inbound = Vec::new();
    for queue in queues.iter().filter(|queue| matches!(queue.role, Role::Main { .. })) {
        let name: Arc<str> = queue.name.as_str().into();
        let dead = if let Role::Main { dead } = queue.role { Some(queues[dead].name.as_str()) } else { None };
        let key = |name: String| match &*name {
            "durability" => "mainstem.durability".to_owned(),
            _ => format!("queue.{name}"),
        };
        let own = queue.settings(dead).into_iter().map(|(name, value)| (key(name), value));
        let own = own.chain([("queue.enabled".to_owned(), "true".to_owned())]).collect();
        config.bound_topics.push(BoundTopic { name: Arc::clone(&name), partitions: 1, config: own });
        let filter = publisher::filter(&name);
        inbound.push(Inbound { name: Arc::clone(&name), filter, topic: name, key: Key::Level(3) });
    }
    Arc::new(Bindings { inbound, outbound: Vec::new() })
}

fn publisher(rng: &mut Rng) -> PublisherProfile {
    PublisherProfile {
        version: pick(rng, &[Version::V5, Version::V5, Version::V4]),
        keeps_session: rng.chance(70),
        qos2_percent: pick(rng, &[0, 50, 100]),
        qos0_percent: pick(rng, &[0, 0, 20]),
        vanishes: pick(rng, &[0, 1, 10]),
    }
}

fn worker(rng: &mut Rng) -> WorkerProfile {
    WorkerProfile {
        group: pick(rng, &["default", "default", "others"]),
        max: pick(rng, &[1, 2, 10, 100]),
        lease_ms: pick(rng, &[100, 1_000, 30_000]),
        wait_ms: pick(rng, &[0, 50, 2_000, u64::MAX]),
        acks: pick(rng, &[90, 50, 20]),
        vanishes: pick(rng, &[0, 1, 10]),
    }
}
