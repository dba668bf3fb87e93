//! What the shards of a broker share: the configuration, and the few structures that no shard can own alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use mainstem_mqtt::ReasonCode;

use crate::answers::{Failure, Receipt};
use crate::config::{Durability, MqttConfig};
use crate::counters::{Counters, Published};
use crate::groups::{Group, Member};
use crate::journal::entry::Origin;
use crate::message::Message;
use crate::registry::Registry;
use crate::retained::Retained;
use crate::routes::{Matched, Routes, ShardSet};
use crate::session::Lacking;

/// Mail between the shards of one broker.
pub enum Mail {
    /// A publish for this shard's subscribers.
    #[doc(hidden)]
    Publish(PublishMail),
    /// A message of a shared subscription for a member that lives here.
    #[doc(hidden)]
    Dealt(Box<DealtMail>),
    /// A topic's retained message has changed: the first shard keeps it on disk.
    #[doc(hidden)]
    Retain(RetainMail),
    /// Whoever gets this is to tell when everything it has been sent before is on disk.
    #[doc(hidden)]
    Fence(ReceiptMail),
    /// What an answer waits for on another shard is on disk, or cannot be kept.
    #[doc(hidden)]
    Receipt(ReceiptMail, Part),
}

/// See [`Mail::Publish`].
#[derive(Debug)]
pub struct PublishMail {
    pub(crate) message: Arc<Message>,
    pub(crate) matched: Arc<Matched>,
    /// Who waits for it to be on disk.
    pub(crate) receipt: Option<Receipt>,
    pub(crate) origin: Option<Origin>,
    /// Who lacks it, if others have it from before it was cut short.
    pub(crate) only: Option<Lacking>,
}

/// See [`Mail::Retain`].
#[derive(Debug)]
pub struct RetainMail {
    pub(crate) topic: Box<str>,
    pub(crate) receipt: Option<Receipt>,
}

/// See [`Mail::Fence`] and [`Mail::Receipt`].
#[derive(Clone, Copy, Debug)]
pub struct ReceiptMail(pub(crate) Receipt);

/// What became of the part that a shard had in a publish.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) is_durable: bool,
    /// Why it was not even taken.
    pub(crate) refused: Option<ReasonCode>,
    /// The shared subscription that dealt it out there; without one it was for all subscribers of the shard.
    pub(crate) group: Option<Arc<Group>>,
    /// Journals of the shard that cannot keep anything now; one bit each.
    pub(crate) lacking: u64,
}

impl Part {
    /// Why whoever waits for it cannot be told that all went well.
    pub(crate) fn failure(&self) -> Option<Failure> {
        (!self.is_durable).then_some(self.refused.map_or(Failure::NotKept, Failure::Refused))
    }
}

/// See [`Mail::Dealt`].
#[derive(Debug)]
pub struct DealtMail {
    pub(crate) message: Arc<Message>,
    pub(crate) group: Arc<Group>,
    pub(crate) member: Member,
    /// Members that were tried before.
    pub(crate) tried: u8,
    /// Who waits for it to be on disk.
    pub(crate) receipt: Option<Receipt>,
    pub(crate) origin: Option<Origin>,
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
    /// Shards that have sessions which last.
    lasting: AtomicU64,
    /// Journals there are; one bit each.
    homes: AtomicU64,
    keeps_retained: AtomicBool,
    /// Journals that cannot keep anything now; one bit each.
    failing: AtomicU64,
    retained_failing: AtomicBool,
    connections: AtomicU32,
    pub(crate) sessions: AtomicU32,
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
            lasting: AtomicU64::new(0),
            homes: AtomicU64::new(0),
            keeps_retained: AtomicBool::new(false),
            failing: AtomicU64::new(0),
            retained_failing: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            names: AtomicU64::new(0),
            run: seed,
            config,
        })
    }

    /// Whether and how sessions are to be kept.
    pub fn durability(&self) -> Durability {
        self.config.durability
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

    /// There is a journal of this number.
    pub(crate) fn note_home(&self, home: u16) {
        self.homes.fetch_or(1 << home, Ordering::Release);
    }

    /// The journals there are; one bit each.
    pub(crate) fn homes(&self) -> u64 {
        self.homes.load(Ordering::Acquire)
    }

    /// Retained messages outlive the process.
    pub(crate) fn keep_retained(&self) {
        self.keeps_retained.store(true, Ordering::Release);
    }

    /// Whether they do.
    pub(crate) fn keeps_retained(&self) -> bool {
        self.keeps_retained.load(Ordering::Relaxed)
    }

    /// Shard `shard` has a session that lasts; that stays noted.
    pub(crate) fn note_lasting(&self, shard: u16) {
        self.lasting.fetch_or(1 << shard, Ordering::Release);
    }

    /// Shards that may have something to keep for sessions.
    pub(crate) fn lasting(&self) -> ShardSet {
        self.lasting.load(Ordering::Acquire)
    }

    /// Notes which of a shard's journals, `mine`, cannot keep anything now.
    pub(crate) fn set_failing(&self, mine: u64, failing: u64) {
        if self.failing.load(Ordering::Relaxed) & mine != failing {
            self.failing.fetch_and(!mine | failing, Ordering::Relaxed);
            self.failing.fetch_or(failing, Ordering::Relaxed);
        }
    }

    /// Journals that cannot keep anything now; one bit each.
    pub(crate) fn failing(&self) -> u64 {
        self.failing.load(Ordering::Relaxed)
    }

    /// Notes whether retained messages cannot be kept now.
    pub(crate) fn set_retained_failing(&self, failing: bool) {
        self.retained_failing.store(failing, Ordering::Relaxed);
    }

    /// Whether something cannot be kept now.
    pub fn is_failing(&self) -> bool {
        self.failing() != 0 || self.retained_failing.load(Ordering::Relaxed)
    }

    /// Messages queued for sessions of other shards than `shard`, as of their last turns.
    pub(crate) fn queued_elsewhere(&self, shard: u16) -> u64 {
        let others = self.counters.iter().enumerate().filter(|(other, _)| *other != usize::from(shard));
        others.map(|(_, counters)| counters.queued_messages()).sum()
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
