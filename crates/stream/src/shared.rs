//! What the shards of the Kafka door share.

use std::any::Any;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use mainstem_runtime::FileBytes;

use crate::catalogue::Catalogue;
use crate::config::Config;

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
}

impl Shared {
    /// For a broker of `shards` shards. Without `sendable` records are copied on their way out.
    pub fn new(config: Config, shards: usize, sendable: Option<Sendable>) -> Arc<Self> {
        let advertised = (config.advertised_host.as_str().into(), config.advertised_port);
        Arc::new(Self {
            config,
            sendable,
            shards,
            catalogue: Mutex::default(),
            version: AtomicU64::new(0),
            cluster_id: RwLock::new("".into()),
            connections: AtomicI64::new(0),
            advertised: RwLock::new(advertised),
        })
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
            *known = Arc::clone(&self.catalogue.lock().unwrap_or_else(PoisonError::into_inner));
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
