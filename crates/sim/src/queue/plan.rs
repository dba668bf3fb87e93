//! What a run is made of, all of it from its seed.

use std::sync::Arc;

use mainstem_broker::MqttConfig;
use mainstem_disk::Settings;
use mainstem_disk::fault::Dice;
use mainstem_doors::{Bindings, Inbound, Key};
use mainstem_mqtt::Version;
use mainstem_queue::Tuning;
use mainstem_stream::{BoundTopic, Config};

use super::publisher::{self, Manner};
use crate::plan::{Faults, pick};

/// The queue that is made and deleted.
pub(crate) const TEMPORARY: &str = "temporary";
/// Where dead letters of all queues go in some runs.
pub(crate) const GRAVE: &str = "grave";

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Producers send to it.
    Main {
        /// Which one its dead letters go to.
        dead: usize,
    },
    /// Dead letters come to it.
    Dead,
    /// It comes and goes.
    Temporary,
}

/// A queue, and what it is set to as far as judgements ask for it.
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
    pub(crate) keeps_dead: bool,
    /// It answers without a sync: a loss of power may take what it has confirmed.
    pub(crate) is_lax: bool,
    /// What operators change while it is there: whether there is order by key, how long messages live, how many there
    /// may be and what happens to those beyond.
    pub(crate) turns_order: bool,
    pub(crate) changes_ttl: bool,
    pub(crate) changes_length: bool,
    /// Settings that no judgement asks for.
    pub(crate) others: Vec<(String, String)>,
}

impl QueuePlan {
    /// Its settings as it is made with.
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
            ("dead-letters", self.keeps_dead.to_string()),
            self.durability(),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let dead = dead.map(|dead| ("dead-letter-queue".to_owned(), dead.to_owned()));
        own.into_iter().chain(dead).chain(self.others.clone()).collect()
    }

    pub(crate) fn durability(&self) -> (&'static str, String) {
        ("durability", if self.is_lax { "os" } else { "fsync" }.to_owned())
    }

    /// Another value for something that operators change.
    pub(crate) fn change(&self, dice: &mut Dice) -> Vec<(String, String)> {
        let others = [
            ("fifo", pick(dice, &["false", "true"]), self.turns_order),
            ("ttl-ms", pick(dice, &["0", "2000", "5000", "60000"]), self.changes_ttl),
            ("length-max", pick(dice, &["0", "10", "50"]), self.changes_length),
            ("overflow", pick(dice, &["reject", "drop-oldest"]), self.changes_length),
        ];
        let changed = others.iter().filter(|(.., is_changed)| *is_changed && dice.chance(60));
        let own = changed.map(|(name, value, _)| (*name, *value)).collect::<Vec<_>>();
        let retention = ("retention-ms", pick(dice, &["0", "1000", "60000"]));
        let all = own.into_iter().chain([retention]);
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Whether there is order by key at all times, and whether there may be at some.
    pub(crate) fn has_order(&self) -> bool {
        self.is_fifo && !self.turns_order
    }

    pub(crate) fn may_have_order(&self) -> bool {
        self.is_fifo || self.turns_order
    }

    /// How long messages live at most, at all times; 0 for ever.
    pub(crate) fn surest_ttl_ms(&self) -> u64 {
        if self.changes_ttl { 0 } else { self.ttl_ms }
    }

    /// Whether messages may expire that do not ask for it.
    pub(crate) fn may_expire(&self) -> bool {
        self.changes_ttl || self.ttl_ms > 0
    }

    pub(crate) fn has_limit(&self) -> bool {
        self.length_max > 0 || self.bytes_max > 0
    }

    /// Whether messages may make way for others.
    pub(crate) fn may_drop(&self) -> bool {
        self.changes_length || (self.drops_oldest && self.has_limit())
    }

    /// The shortest wait of a message that was refused for the so manieth time.
    pub(crate) fn backoff_least_ms(&self, count: u32) -> u64 {
        let doubled = u128::from(self.backoff_ms) << count.saturating_sub(1).min(63);
        let longest = doubled.min(self.backoff_max_ms.into()) as u64;
        longest - longest * self.jitter_percent / 100
    }
}

/// What a worker is like.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) group: &'static str,
    pub(crate) max: u32,
    pub(crate) lease_ms: u64,
    pub(crate) wait_ms: u64,
    /// Chances in 100 that it acknowledges, rather than anything else; and that it is gone with all it has.
    pub(crate) acks: u64,
    pub(crate) vanishes: u64,
}

/// A whole run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) shards: usize,
    pub(crate) changes_shards: bool,
    pub(crate) steps: u64,
    pub(crate) mqtt: MqttConfig,
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) is_slow: bool,
    /// Something is answered without a sync before it.
    pub(crate) is_lax: bool,
    pub(crate) queues: Vec<QueuePlan>,
    pub(crate) producers: usize,
    /// Messages after which they send no more.
    pub(crate) messages_max: usize,
    pub(crate) workers: Vec<Habits>,
    /// Those who receive by MQTT.
    pub(crate) subscribers: Vec<Habits>,
    /// Those who send by MQTT, and what feeds their topics into queues.
    pub(crate) publishers: Vec<Manner>,
    pub(crate) bindings: Arc<Bindings>,
    pub(crate) operators: usize,
    /// What producers ask of their messages, chances in 100.
    pub(crate) keys: u64,
    pub(crate) priorities: u64,
    pub(crate) delays: u64,
    pub(crate) ttls: u64,
    pub(crate) ids: u64,
    /// How many of them are large.
    pub(crate) large: u64,
    pub(crate) faults: Faults,
}

impl Plan {
    pub(crate) fn of(dice: &mut Dice) -> Self {
        let safety = pick(
            dice,
            &[Safety::Os, Safety::Mixed, Safety::Mixed, Safety::Fsync, Safety::Fsync, Safety::Fsync],
        );
        let is_rough = dice.chance(30);
        let faults = Faults {
            loses_power: safety != Safety::Os && dice.chance(60),
            ends: pick(dice, &[0, 10, 20, 60]),
            errors: if is_rough { 5 } else { 0 },
            full: if is_rough { 10 } else { 0 },
        };
        let config = config(dice, safety);
        let large = pick(dice, &[0, 0, 0, 5, 30]);
        let queues = queues(dice, safety, config.queues_auto_create);
        let mut plan = Self {
            shards: 1 + dice.below(3) as usize,
            changes_shards: dice.chance(40),
            steps: pick(dice, &[300, 1000, 3000]),
            mqtt: MqttConfig { sys_interval_s: 0, segment_bytes: 65_536, ..MqttConfig::default() },
            config,
            settings: Settings {
                open_files: 16,
                journal_bytes: pick(dice, &[0, 65_536]),
                checkpoint_bytes: pick(dice, &[1_024, 16_384, 1 << 20]),
                ..Settings::default()
            },
            is_slow: dice.chance(80),
            is_lax: safety != Safety::Fsync,
            queues,
            messages_max: if large > 0 { 100 } else { pick(dice, &[50, 500, 1_500]) },
            large,
            producers: 1 + dice.below(3) as usize,
            workers: (0..=dice.below(5)).map(|_| worker(dice)).collect(),
            subscribers: (0..pick(dice, &[0, 0, 1, 3])).map(|_| worker(dice)).collect(),
            operators: dice.below(3) as usize,
            keys: pick(dice, &[0, 50, 100]),
            priorities: pick(dice, &[0, 50]),
            delays: pick(dice, &[0, 0, 20]),
            ttls: pick(dice, &[0, 0, 20]),
            ids: pick(dice, &[0, 30, 100]),
            faults,
            publishers: Vec::new(),
            bindings: Arc::default(),
        };
        plan.publishers = (0..pick(dice, &[0, 0, 1, 3])).map(|_| publisher(dice)).collect();
        if !plan.publishers.is_empty() {
            plan.bindings = bind(&plan.queues, &mut plan.config);
        }
        plan
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
    fn is_lax(self, dice: &mut Dice) -> bool {
        match self {
            Self::Fsync => false,
            Self::Os => true,
            Self::Mixed => dice.chance(50),
        }
    }
}

fn config(dice: &mut Dice, safety: Safety) -> Config {
    let is_lax = safety.is_lax(dice);
    Config {
        durability: if is_lax { mainstem_log::Durability::Os } else { mainstem_log::Durability::Fsync },
        segment_bytes: pick(dice, &[4_096, 65_536]),
        retention_ms: -1,
        auto_create_topics: false,
        queues_auto_create: dice.chance(50),
        queue_tuning: Tuning {
            at_once: pick(dice, &[1_000, 1_000, 10]),
            known_max: pick(dice, &[1_000_000, 1_000_000, 20]),
            snapshot_bytes: pick(dice, &[1 << 20, 5_000, 500]),
            waste_bytes: pick(dice, &[64 << 20, 10_000, 0]),
        },
        ..Config::default()
    }
}

/// Those that are sent to, behind them where their dead letters go, and the one that comes and goes.
fn queues(dice: &mut Dice, safety: Safety, are_made_of_themselves: bool) -> Vec<QueuePlan> {
    let count = 1 + dice.below(2) as usize;
    let has_grave = dice.chance(30);
    let mut all: Vec<QueuePlan> = (0..count)
        .map(|number| {
            let dead = if has_grave { count } else { count + number };
            let is_lax = safety.is_lax(dice);
            QueuePlan { is_lax, ..main_queue(dice, format!("q{number}"), dead) }
        })
        .collect();
    if has_grave {
        let is_lax = safety.is_lax(dice);
        all.push(QueuePlan { is_lax, ..plain_queue(GRAVE.to_owned(), Role::Dead) });
    } else {
        for number in 0..count {
            // One that is made of itself is as safe as that whose dead letters it has.
            let is_lax = if are_made_of_themselves { all[number].is_lax } else { safety.is_lax(dice) };
            all.push(QueuePlan { is_lax, ..plain_queue(format!("q{number}.dead"), Role::Dead) });
        }
    }
    all.push(plain_queue(TEMPORARY.to_owned(), Role::Temporary));
    all
}

fn main_queue(dice: &mut Dice, name: String, dead: usize) -> QueuePlan {
    let others = [
        ("start", pick(dice, &["earliest", "earliest", "latest"])),
        ("retention-ms", pick(dice, &["0", "60000"])),
    ];
    QueuePlan {
        name,
        role: Role::Main { dead },
        max_deliveries: pick(dice, &[0, 1, 2, 5]),
        backoff_ms: pick(dice, &[0, 100, 1_000]),
        backoff_max_ms: pick(dice, &[1_000, 5_000]),
        jitter_percent: pick(dice, &[0, 20, 100]),
        is_fifo: dice.chance(80),
        is_single: dice.chance(15),
        dedup_window_ms: pick(dice, &[2_000, 600_000]),
        length_max: pick(dice, &[0, 0, 10, 50]),
        bytes_max: pick(dice, &[0, 0, 0, 1_000, 500_000]),
        drops_oldest: dice.chance(40),
        ttl_ms: pick(dice, &[0, 0, 0, 5_000]),
        keeps_dead: dice.chance(85),
        is_lax: false,
        turns_order: dice.chance(25),
        changes_ttl: dice.chance(20),
        changes_length: dice.chance(20),
        others: others.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
    }
}

/// One as it is made by whoever wants it first.
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
        keeps_dead: true,
        is_lax: false,
        turns_order: false,
        changes_ttl: false,
        changes_length: false,
        others: Vec::new(),
    }
}

/// Binds each queue that is sent to.
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

fn publisher(dice: &mut Dice) -> Manner {
    Manner {
        version: pick(dice, &[Version::V5, Version::V5, Version::V4]),
        keeps_session: dice.chance(70),
        exactly: pick(dice, &[0, 50, 100]),
        carelessly: pick(dice, &[0, 0, 20]),
        vanishes: pick(dice, &[0, 1, 10]),
    }
}

fn worker(dice: &mut Dice) -> Habits {
    Habits {
        group: pick(dice, &["default", "default", "others"]),
        max: pick(dice, &[1, 2, 10, 100]),
        lease_ms: pick(dice, &[100, 1_000, 30_000]),
        wait_ms: pick(dice, &[0, 50, 2_000, u64::MAX]),
        acks: pick(dice, &[90, 50, 20]),
        vanishes: pick(dice, &[0, 1, 10]),
    }
}
