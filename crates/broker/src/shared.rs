//! What the shards of a broker share: the configuration, and the few structures that no shard can own alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::config::MqttConfig;
use crate::counters::{Counters, Published};
use crate::groups::{Group, Member};
use crate::message::Message;
use crate::registry::Registry;
use crate::retained::Retained;
use crate::routes::{Matched, Routes, ShardSet};

/// Mail between the shards of one broker.
pub enum Mail {
    /// A publish for this shard's subscribers.
    #[doc(hidden)]
    Publish(PublishMail),
    /// A message of a shared subscription for a member that lives here.
    #[doc(hidden)]
    Dealt(Box<DealtMail>),
}

/// See [`Mail::Publish`].
#[derive(Debug)]
pub struct PublishMail {
    pub(crate) message: Arc<Message>,
    pub(crate) matched: Arc<Matched>,
}

/// See [`Mail::Dealt`].
#[derive(Debug)]
pub struct DealtMail {
    pub(crate) message: Arc<Message>,
    pub(crate) group: Arc<Group>,
    pub(crate) member: Member,
    /// Members that were tried before.
    pub(crate) tried: u8,
}

/// Shared by all shards of one broker.
pub struct Shared {
    pub(crate) config: MqttConfig,
    pub(crate) routes: Routes,
    pub(crate) registry: Registry,
    pub(crate) retained: Retained,
    pub(crate) counters: Vec<Published>,
    /// Which shards have a backlog that publishers should wait for.
    overloaded: AtomicU64,
    connections: AtomicU32,
    sessions: AtomicU32,
    names: AtomicU64,
    /// What makes assigned client identifiers unlike those of an earlier run.
    pub(crate) run: u64,
}

impl Shared {
    /// For a broker of `shards` shards. `seed` decides the order of everything that has none of its own.
    pub fn new(config: MqttConfig, shards: usize, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            routes: Routes::new(seed, config.write_only_topics.clone()),
            registry: Registry::new(),
            retained: Retained::new(config.max_retained_messages, config.max_retained_bytes),
            counters: (0..shards).map(|_| Published::default()).collect(),
            overloaded: AtomicU64::new(0),
            connections: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            names: AtomicU64::new(0),
            run: seed,
            config,
        })
    }

    /// All shards' counters added up, each as of the end of its last turn.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for shard in &self.counters {
            sum += shard.load();
        }
        sum
    }

    /// Notes whether a shard has a backlog; costs nothing while that does not change.
    pub(crate) fn set_overloaded(&self, shard: u16, overloaded: bool) {
        let bit = 1 << shard;
        if (self.overloaded.load(Ordering::Relaxed) & bit != 0) != overloaded {
            self.overloaded.fetch_xor(bit, Ordering::Relaxed);
        }
    }

    /// Whether any of these shards has a backlog.
    pub(crate) fn any_overloaded(&self, shards: ShardSet) -> bool {
        self.overloaded.load(Ordering::Relaxed) & shards != 0
    }

    pub(crate) fn enter(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether more connections are open than are allowed.
    pub(crate) fn is_crowded(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > self.config.max_connections
    }

    /// Counts one more session, if there may be one.
    pub(crate) fn open_session(&self) -> bool {
        let open = |count: u32| (count < self.config.max_sessions).then_some(count + 1);
        self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).is_ok()
    }

    pub(crate) fn close_session(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client identifier that no client of this run has been given before.
    pub(crate) fn new_client_id(&self) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!("auto-{:08x}-{number:x}", self.run as u32)
    }
}
