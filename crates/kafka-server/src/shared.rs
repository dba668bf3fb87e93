//! State that all shards of the Kafka server share.
//!
//! Everything here is either constant after the start, an atomic, or behind a lock that is taken when something
//! changes. The catalogue is copied on write: shard 0 publishes a new one and raises the version, and the others
//! compare the version before they take the lock.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use mainstem_partition::ProducerLimits;
use mainstem_queue_server::{CommandQueues, QueueClient, QueueDirectory};
use mainstem_runtime::{FileBytes, Wake};
use mainstem_sasl::Mechanism;

use crate::binding_registry::{BoundTopic, SharedBindings, Source};
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::counters::Counters;
use crate::request_memory::RequestPool;
use crate::security::{Security, SecurityReplies};
use crate::unverified_batches::HeldBytesBudget;

/// Converts the source of a [`mainstem_log::FileSlice`] into a file that an output can send; `None` if it cannot.
pub type Sendable = fn(&Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn FileBytes>>;

/// State that all shards share. A shard takes a lock when something has changed, not per request.
#[derive(Debug)]
pub struct Shared {
    pub(crate) config: Config,
    pub(crate) sendable: Option<Sendable>,
    /// Number of shards.
    pub(crate) shards: usize,
    catalogue: Mutex<Arc<Catalogue>>,
    version: AtomicU64,
    /// Set once by shard 0 before any client is served.
    cluster_id: RwLock<Arc<str>>,
    /// Open connections.
    pub(crate) connections: AtomicI64,
    /// Host and port that clients of each listener are told; the first is that of a listener that has none.
    advertised: RwLock<Vec<(Arc<str>, u16)>>,
    /// Commands to the queues of each shard from other threads.
    pub(crate) command_queues: CommandQueues,
    /// Topics that other protocols write to and read.
    pub(crate) bound: SharedBindings,
    /// Budget of batches that wait for the transaction coordinator.
    pub(crate) held_bytes: Arc<HeldBytesBudget>,
    /// Memory for requests that have not arrived completely.
    pub(crate) request_pool: Arc<RequestPool>,
    /// What each shard counts.
    pub(crate) counters: Box<[Counters]>,
    /// Users and rules; without any, everybody may do everything.
    security: OnceLock<Security>,
    /// Answers of the host about users and rules.
    pub(crate) security_replies: SecurityReplies,
}

impl Shared {
    /// State of a broker with `shards` shards. Without `sendable`, fetched records are always copied.
    pub fn new(config: Config, shards: usize, sendable: Option<Sendable>) -> Arc<Self> {
        let advertised = vec![(config.advertised_host.as_str().into(), config.advertised_port)];
        let bound = SharedBindings::new(config.bound_topics.clone(), config.sources.clone());
        Arc::new(Self {
            bound,
            held_bytes: Arc::default(),
            request_pool: RequestPool::new(config.queued_request_bytes_max),
            config,
            sendable,
            shards,
            catalogue: Mutex::default(),
            version: AtomicU64::new(0),
            cluster_id: RwLock::new("".into()),
            connections: AtomicI64::new(0),
            advertised: RwLock::new(advertised),
            counters: (0..shards).map(|_| Counters::default()).collect(),
            security: OnceLock::new(),
            security_replies: SecurityReplies::new(shards),
            command_queues: CommandQueues::new(shards),
        })
    }

    /// Sets the waker of a shard, for commands from other threads.
    pub fn bind_wake(&self, shard: usize, wake: Wake) {
        self.security_replies.bind_wake(shard, Arc::clone(&wake));
        if shard == 0
            && let Some(security) = self.security()
        {
            security.host.published().audit_events().bind_wake(Arc::clone(&wake));
        }
        self.command_queues.bind_wake(shard, wake);
    }

    /// A client of the queues, for any thread.
    pub fn queue_client(self: &Arc<Self>) -> QueueClient {
        let directory = Arc::clone(self);
        QueueClient::new(directory, self.command_queues.clone())
    }

    /// Sets users and rules. Call it once, before the shards run.
    pub fn secure(&self, security: Security) {
        let is_first = self.security.set(security).is_ok();
        debug_assert!(is_first, "users and rules are set once");
    }

    /// Users and rules, if the host has any.
    pub(crate) fn security(&self) -> Option<&Security> {
        self.security.get()
    }

    /// The epoch of users and rules.
    #[inline]
    pub(crate) fn security_epoch(&self) -> u64 {
        self.security.get().map_or(0, |security| security.host.published().epoch())
    }

    /// The name of a listener.
    pub(crate) fn listener_name(&self, listener: u16) -> Option<&Arc<str>> {
        self.config.listeners.get(usize::from(listener)).map(|listener| &listener.name)
    }

    /// The mechanisms of SASL that a listener offers.
    pub(crate) fn mechanisms(&self, listener: u16) -> &[Mechanism] {
        self.config.listeners.get(usize::from(listener)).map_or(&[], |listener| &listener.mechanisms)
    }

    pub(crate) fn snapshot(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the host and port that clients of each listener connect to, in the order of the listeners' numbers.
    pub fn advertise(&self, addresses: Vec<(Arc<str>, u16)>) {
        debug_assert!(!addresses.is_empty(), "one for each listener");
        *self.advertised.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Host and port that clients of a listener connect to.
    pub(crate) fn advertised(&self, listener: u16) -> (Arc<str>, u16) {
        let advertised = self.advertised.read().unwrap_or_else(PoisonError::into_inner);
        advertised.get(usize::from(listener)).or_else(|| advertised.first()).cloned().unwrap_or_default()
    }

    /// Limits on the producers of one shard's partitions.
    pub(crate) fn producer_limits(&self) -> ProducerLimits {
        ProducerLimits {
            bytes: self.config.producer_bytes_max / self.shards,
            expiration_ms: self.config.producer_id_expiration_ms,
        }
    }

    /// The shard that owns the store `store_id`.
    pub(crate) fn owner(&self, store_id: u16) -> usize {
        usize::from(store_id) % self.shards
    }

    /// Stores for `count` partitions, assigned round-robin from `first`.
    pub(crate) fn store_ids_from(&self, first: usize, count: i32) -> Vec<u16> {
        (0..count.max(0).unsigned_abs() as usize)
            .map(|step| (first.wrapping_add(step) % self.shards) as u16)
            .collect()
    }

    /// Publishes a new catalogue to all shards.
    pub(crate) fn publish(&self, catalogue: Arc<Catalogue>) {
        let version = catalogue.version;
        *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = catalogue;
        self.version.store(version, Ordering::Release);
    }

    /// Replaces `known` if it is outdated.
    pub(crate) fn refresh(&self, known: &mut Arc<Catalogue>) {
        if self.version.load(Ordering::Acquire) != known.version {
            *known = self.snapshot();
        }
    }

    /// Number of topics.
    pub fn topics(&self) -> usize {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner).by_name.len()
    }

    pub(crate) fn set_cluster_id(&self, id: &str) {
        *self.cluster_id.write().unwrap_or_else(PoisonError::into_inner) = id.into();
    }

    pub(crate) fn cluster_id(&self) -> Arc<str> {
        Arc::clone(&self.cluster_id.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a topic that another protocol writes to. The first record creates the topic if it does not exist. Returns
    /// the number for [`crate::SinkRecord::bound`].
    pub fn bind_topic(&self, topic: BoundTopic) -> usize {
        self.bound.change(|bound| {
            bound.topics.push(topic);
            bound.topics.len() - 1
        })
    }

    /// Adds a topic that another protocol reads. Returns the number in [`crate::SourceRecord::source`].
    pub fn add_source(&self, source: Source) -> usize {
        self.bound.change(|bound| {
            bound.sources.push(Some(source));
            bound.sources.len() - 1
        })
    }

    /// Removes a source. A later source of the same name continues from the stored positions.
    pub fn remove_source(&self, source: usize) {
        self.bound.change(|bound| {
            if let Some(place) = bound.sources.get_mut(source) {
                *place = None;
            }
        });
    }

    /// What other protocols have declared, such as bindings, by name. Their configuration must survive a restart and
    /// reach every shard. The catalogue does both for topics, so it stores these texts too, without interpreting them.
    pub fn declared(&self) -> BTreeMap<Arc<str>, Arc<str>> {
        (*self.snapshot().declared).clone()
    }
}

impl QueueDirectory for Shared {
    fn shard_of_queue(&self, name: &str) -> usize {
        let store_id = self.snapshot().topic(name).and_then(|topic| topic.store_id(0));
        store_id.map_or(0, |store_id| self.owner(store_id))
    }

    fn queues(&self) -> Vec<Arc<str>> {
        let catalogue = self.snapshot();
        let queues = catalogue.by_name.values().filter(|topic| topic.config.queue.is_some());
        queues.map(|topic| Arc::clone(&topic.name)).collect()
    }

    fn is_topic(&self, name: &str) -> bool {
        self.snapshot().topic(name).is_some_and(|topic| topic.config.queue.is_none())
    }
}
