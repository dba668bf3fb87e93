//! What the shards of a broker share: the configuration, and the few structures that no shard can own alone.
//!
//! Each structure has its own lock or atomics. None is locked on the path of a publish whose topic is in the match
//! cache.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_runtime::{MemoryBudget, MemoryMeter, Wake};
use mainstem_security::SecurityHost;

use crate::access::Security;
use crate::config::{Durability, MqttConfig};
use crate::counters::{Counters, Published};
use crate::flapping::Flapping;
use crate::groups::{Group, Member};
use crate::journal::entry::Origin;
use crate::message::Message;
use crate::pending_acks::{AckToken, RemoteCommitResult};
use crate::qos2_recovery::PartialPublish;
use crate::registry::Registry;
use crate::retained::Retained;
use crate::routes::{Matched, Routes, ShardSet};

/// Owner of the memory of messages, wherever they are: queued, in flight, retained, wills.
const MESSAGES: &str = "messages";
/// Owner of what sessions hold besides messages: identifiers, subscriptions, replays of retained messages.
const SESSIONS: &str = "sessions";

/// Messages between the shards of one broker.
pub enum Mail {
    /// A publish for this shard's subscribers.
    #[doc(hidden)]
    Publish(PublishMail),
    /// A message of a shared subscription for a member on this shard.
    #[doc(hidden)]
    Group(Box<GroupMail>),
    /// The retained message of a topic has changed: the first shard writes it to disk.
    #[doc(hidden)]
    Retain(RetainMail),
    /// Asks for a receipt when everything sent before is durable.
    #[doc(hidden)]
    Fence(ReceiptMail),
    /// A part that a pending ack of this shard waits for is over.
    #[doc(hidden)]
    Receipt(ReceiptMail, RemoteCommitResult),
}

/// See [`Mail::Publish`].
#[derive(Debug)]
pub struct PublishMail {
    pub(crate) message: Arc<Message>,
    pub(crate) matched: Arc<Matched>,
    /// The pending ack that waits for a receipt.
    pub(crate) token: Option<AckToken>,
    pub(crate) origin: Option<Origin>,
    /// Set if some targets had the publish before it was interrupted.
    pub(crate) partial: Option<Arc<PartialPublish>>,
}

/// See [`Mail::Retain`].
#[derive(Debug)]
pub struct RetainMail {
    pub(crate) topic: Box<str>,
    pub(crate) token: Option<AckToken>,
}

/// See [`Mail::Fence`] and [`Mail::Receipt`].
#[derive(Clone, Copy, Debug)]
pub struct ReceiptMail(pub(crate) AckToken);

/// See [`Mail::Group`].
#[derive(Debug)]
pub struct GroupMail {
    pub(crate) message: Arc<Message>,
    pub(crate) group: Arc<Group>,
    pub(crate) member: Member,
    /// Number of members that were tried before.
    pub(crate) tried: u8,
    /// The pending ack that waits for a receipt.
    pub(crate) token: Option<AckToken>,
    pub(crate) origin: Option<Origin>,
}

/// State that all shards of one broker share.
pub struct Shared {
    pub(crate) config: MqttConfig,
    pub(crate) routes: Routes,
    pub(crate) registry: Registry,
    pub(crate) retained: Retained,
    pub(crate) counters: Vec<Published>,
    memory: Arc<MemoryBudget>,
    /// Shards with a backlog that publishers should wait for.
    overloaded: AtomicU64,
    /// Shards that have durable sessions.
    persistent: AtomicU64,
    /// All journals.
    journals: Mutex<BTreeSet<u16>>,
    retained_durable: AtomicBool,
    /// Shards with a journal that fails.
    failing: AtomicU64,
    retained_failing: AtomicBool,
    connections: AtomicU32,
    sessions: AtomicU32,
    assigned_ids: AssignedIds,
    pub(crate) security: Arc<Security>,
    pub(crate) flapping: Flapping,
}

/// Where assigned client identifiers come from.
#[derive(Debug)]
enum AssignedIds {
    /// The operating system's random numbers.
    Random,
    /// A run that must be reproducible: a seed, and the number of identifiers so far.
    Reproducible(u64, AtomicU64),
}

impl Shared {
    /// The state of a broker of `shards` shards. `seed` makes the order of everything unordered reproducible.
    pub fn new(config: MqttConfig, shards: usize, seed: u64) -> Arc<Self> {
        Self::within(&MemoryBudget::unlimited(shards), config, shards, seed)
    }

    /// Like [`Shared::new`], with the memory budget that the shards' [`Io`](mainstem_runtime::Io) has too.
    pub fn within(memory: &Arc<MemoryBudget>, config: MqttConfig, shards: usize, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            routes: Routes::new(seed, config.write_only_topics.clone()),
            registry: Registry::new(),
            retained: Retained::new(
                config.max_retained_messages,
                config.max_retained_bytes,
                memory.meter(0, memory.owner(MESSAGES)),
            ),
            counters: (0..shards).map(|_| Published::default()).collect(),
            overloaded: AtomicU64::new(0),
            persistent: AtomicU64::new(0),
            journals: Mutex::default(),
            retained_durable: AtomicBool::new(false),
            failing: AtomicU64::new(0),
            retained_failing: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            assigned_ids: AssignedIds::Random,
            security: Arc::new(Security::new(shards)),
            flapping: Flapping::new(config.flapping_max_connects, config.flapping_window_s),
            config,
        })
    }

    /// As [`Shared::new`], for a simulation: the client identifiers that the broker assigns are reproducible, and can
    /// therefore be guessed.
    pub fn reproducible(config: MqttConfig, shards: usize, seed: u64) -> Arc<Self> {
        let mut shared = Self::new(config, shards, seed);
        let own = Arc::get_mut(&mut shared).expect("nobody else has it yet");
        own.assigned_ids = AssignedIds::Reproducible(seed, AtomicU64::new(0));
        shared
    }

    /// Sets the users and rules, the names of the listeners by their number, and the secret that decides what unknown
    /// users are told in a log-in, before the shards start. Without them, everyone may do everything.
    pub fn set_security(
        &self,
        host: Arc<dyn SecurityHost>,
        listeners: Vec<Arc<str>>,
        unknown_user_secret: [u8; 32],
    ) {
        self.security.set_host(host, listeners, unknown_user_secret);
    }

    /// Sets the function that wakes a shard for the result of a log-in.
    pub fn bind_wake(&self, shard: usize, wake: Wake) {
        self.security.bind_wake(shard, wake);
    }

    /// Adds a sink for a filter, which must be valid, and returns its number: 0, 1, 2 and so on. Whoever takes sink
    /// messages must know it by then.
    pub fn add_sink(&self, filter: &str) -> u32 {
        self.routes.add_sink(filter)
    }

    /// Removes the sink with this number from its filter. Messages on their way still come.
    pub fn remove_sink(&self, filter: &str, number: u32) {
        self.routes.remove_sink(filter, number);
    }

    /// The memory budget of the process.
    pub fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Counts the memory of the messages that a shard makes.
    pub(crate) fn message_meter(&self, shard: u16) -> MemoryMeter {
        self.memory.meter(usize::from(shard), self.memory.owner(MESSAGES))
    }

    /// Counts what the sessions of a shard hold, without messages.
    pub(crate) fn session_meter(&self, shard: u16) -> MemoryMeter {
        self.memory.meter(usize::from(shard), self.memory.owner(SESSIONS))
    }

    /// When sessions count as durable.
    pub fn durability(&self) -> Durability {
        self.config.durability
    }

    /// Sum of the counters of all shards, each as of the end of its last turn.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for shard in &self.counters {
            sum += shard.load();
        }
        sum
    }

    /// Notes whether a shard has a backlog. Writes only if that has changed.
    pub(crate) fn set_overloaded(&self, shard: u16, overloaded: bool) {
        set_bit(&self.overloaded, shard, overloaded);
    }

    /// Whether any of these shards has a backlog.
    pub(crate) fn any_overloaded(&self, shards: ShardSet) -> bool {
        self.overloaded.load(Ordering::Relaxed) & shards != 0
    }

    /// Adds the journal of this number.
    pub(crate) fn note_journal(&self, id: u16) {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// All journals.
    pub(crate) fn journals(&self) -> BTreeSet<u16> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Retained messages are durable.
    pub(crate) fn set_retained_durable(&self) {
        self.retained_durable.store(true, Ordering::Release);
    }

    /// Whether retained messages are durable.
    pub(crate) fn is_retained_durable(&self) -> bool {
        self.retained_durable.load(Ordering::Relaxed)
    }

    /// Shard `shard` has or had a durable session.
    pub(crate) fn note_persistent(&self, shard: u16) {
        self.persistent.fetch_or(1 << shard, Ordering::Release);
    }

    /// Shards that may have durable sessions.
    pub(crate) fn persistent_shards(&self) -> ShardSet {
        self.persistent.load(Ordering::Acquire)
    }

    /// Notes whether a journal of a shard fails.
    pub(crate) fn set_failing(&self, shard: u16, is_failing: bool) {
        set_bit(&self.failing, shard, is_failing);
    }

    /// Notes whether the log of retained messages fails.
    pub(crate) fn set_retained_failing(&self, failing: bool) {
        self.retained_failing.store(failing, Ordering::Relaxed);
    }

    /// Whether a journal or the log of retained messages fails.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed) != 0 || self.retained_failing.load(Ordering::Relaxed)
    }

    /// Messages queued on other shards than `shard`, as of the end of their last turns.
    pub(crate) fn queued_elsewhere(&self, shard: u16) -> u64 {
        let others = self.counters.iter().enumerate().filter(|(other, _)| *other != usize::from(shard));
        others.map(|(_, counters)| counters.queued_messages()).sum()
    }

    pub(crate) fn add_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether more connections are open than are allowed.
    pub(crate) fn has_too_many_connections(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > self.config.max_connections
    }

    /// Counts one more session. False if there are as many as are allowed.
    pub(crate) fn open_session(&self) -> bool {
        let open = |count: u32| (count < self.config.max_sessions).then_some(count + 1);
        self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).is_ok()
    }

    /// Counts a restored session, whatever the limit is now.
    pub(crate) fn count_session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn close_session(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client identifier that nobody can guess: who knows it can take over the session. `None` if the operating
    /// system has no random numbers.
    pub(crate) fn new_client_id(&self) -> Option<String> {
        let mut bytes = [0; 16];
        match &self.assigned_ids {
            AssignedIds::Random => getrandom::fill(&mut bytes)
                .inspect_err(|error| log::error!("no random numbers for a client identifier: {error}"))
                .ok()?,
            AssignedIds::Reproducible(seed, count) => {
                bytes[..8].copy_from_slice(&seed.to_be_bytes());
                bytes[8..].copy_from_slice(&count.fetch_add(1, Ordering::Relaxed).to_be_bytes());
            }
        }
        Some(format!("auto-{:032x}", u128::from_be_bytes(bytes)))
    }
}

/// Sets or clears the bit of a shard, which is the only one that does. Writes only if that changes something.
fn set_bit(shards: &AtomicU64, shard: u16, is_set: bool) {
    let bit = 1 << shard;
    if (shards.load(Ordering::Relaxed) & bit != 0) != is_set {
        shards.fetch_xor(bit, Ordering::Release);
    }
}
