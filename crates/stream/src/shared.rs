//! What the shards of the Kafka door share.

use std::any::Any;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use mainstem_runtime::{FileBytes, Wake};

use crate::bound::Newest;
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::held::Room;
use crate::queues::desk::Counter;

/// Says how outputs send the source of a [`mainstem_log::Piece`]; nothing if they cannot.
pub type Sendable = fn(&Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn FileBytes>>;

/// What all shards of a broker's Kafka door share. Locks are taken when something has changed, not per request.
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
    /// Connections that are open.
    pub(crate) connections: AtomicI64,
    advertised: RwLock<(Arc<str>, u16)>,
    /// For each shard, what other threads ask of queues.
    pub(crate) counters: Vec<Counter>,
    /// What other doors write to and read.
    pub(crate) bound: Newest,
    /// Batches that wait for the transaction coordinator.
    pub(crate) held: Arc<Room>,
}

impl Shared {
    /// For a broker of `shards` shards. Without `sendable` records are copied on their way out.
    pub fn new(config: Config, shards: usize, sendable: Option<Sendable>) -> Arc<Self> {
        let advertised = (config.advertised_host.as_str().into(), config.advertised_port);
        let bound = Newest::new(config.bound_topics.clone(), config.sources.clone());
        Arc::new(Self {
            bound,
            held: Arc::default(),
            config,
            sendable,
            shards,
            catalogue: Mutex::default(),
            version: AtomicU64::new(0),
            cluster_id: RwLock::new("".into()),
            connections: AtomicI64::new(0),
            advertised: RwLock::new(advertised),
            counters: (0..shards).map(|_| Counter::default()).collect(),
        })
    }

    /// Lets a shard be woken when another thread asks it for something.
    pub fn bind_wake(&self, shard: usize, wake: Wake) {
        self.counters[shard].bind(wake);
    }

    pub(crate) fn snapshot(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The shard that has a queue; if there is none, the one that would make it.
    pub(crate) fn shard_of_queue(&self, name: &str) -> usize {
        let home = self.snapshot().topic(name).and_then(|topic| topic.home(0));
        home.map_or(0, |home| self.owner(home))
    }

    /// The names of all queues, in order.
    pub(crate) fn queues(&self) -> Vec<Arc<str>> {
        let catalogue = self.snapshot();
        let queues = catalogue.by_name.values().filter(|topic| topic.config.queue.is_some());
        queues.map(|topic| Arc::clone(&topic.name)).collect()
    }

    /// Tells clients to connect to this host and port, from now on.
    pub fn advertise(&self, host: &str, port: u16) {
        *self.advertised.write().unwrap_or_else(PoisonError::into_inner) = (host.into(), port);
    }

    /// Host and port that clients are told to connect to.
    pub(crate) fn advertised(&self) -> (Arc<str>, u16) {
        self.advertised.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of the shard that has the store `home`.
    pub(crate) fn owner(&self, home: u16) -> usize {
        usize::from(home) % self.shards
    }

    /// Stores for `count` partitions, one after the other.
    pub(crate) fn homes_from(&self, first: usize, count: i32) -> Vec<u16> {
        (0..count.max(0).unsigned_abs() as usize)
            .map(|step| (first.wrapping_add(step) % self.shards) as u16)
            .collect()
    }

    /// Replaces the topics that all shards see.
    pub(crate) fn publish(&self, catalogue: Arc<Catalogue>) {
        let version = catalogue.version;
        *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = catalogue;
        self.version.store(version, Ordering::Release);
    }

    /// Brings a picture of the topics up to date.
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
}
