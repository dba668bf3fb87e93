//! The trait through which this crate reaches the broker.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use mainstem_metrics::Exposition;
use mainstem_queue_core::{Reply, Request};
use mainstem_security::SecurityHost;
use serde_json::{Map, Value};

/// Receives the reply to one request. It is called at most once, on any thread, and must not block.
pub type ReplyCallback = Box<dyn FnOnce(Reply) + Send>;

/// Counts a connection toward a limit until it is dropped.
pub type ConnectionPermit = Box<dyn Any + Send>;

/// Memory of the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsage {
    /// Counted bytes by owner. Each name is a label.
    pub by_owner: Vec<(&'static str, u64)>,
    /// Limit of their sum.
    pub bytes_max: u64,
    /// Resident memory of the process, bytes.
    pub resident_bytes: u64,
}

/// How long the turns of the shards take.
#[derive(Clone, Debug, Default)]
pub struct TurnDurations {
    /// Upper bounds of the buckets, ascending, microseconds.
    pub bounds_us: &'static [u64],
    /// One histogram per shard and phase.
    pub series: Vec<PhaseDurations>,
}

/// Durations of one phase of the turns of one shard.
#[derive(Clone, Debug, Default)]
pub struct PhaseDurations {
    /// Number of the shard, a label.
    pub shard: usize,
    /// Name of the phase, a label.
    pub phase: &'static str,
    /// Number of durations in each bucket, not cumulative; one more than there are bounds, for what is above all.
    pub buckets: Vec<u64>,
    /// Sum of all durations, ns.
    pub sum_ns: u64,
}

/// The configuration of the running broker. Methods may block to read files.
pub trait ConfigHost: Send + Sync + 'static {
    /// Level and format of the log: the fields of the schema `Log` in `openapi.json`.
    fn log(&self) -> Value;

    /// Sets the level of the log, until a reload sets the configured one.
    ///
    /// # Errors
    /// What is wrong with the level. The one in use stays.
    fn set_log_level(&self, level: &str) -> Result<(), String>;

    /// Reads the configuration again and applies it, all of it or nothing. Returns the fields of the schema `Reload`.
    ///
    /// # Errors
    /// What is wrong with the configuration. Nothing has changed.
    fn reload(&self) -> Result<Value, String>;
}

/// Snapshots of the data directory of the running broker. Methods block while files are linked or removed.
pub trait SnapshotHost: Send + Sync + 'static {
    /// The snapshots there are, oldest first: each the fields of the schema `Snapshot` in `openapi.json`.
    fn list(&self) -> Vec<Value>;

    /// Takes a snapshot.
    ///
    /// # Errors
    /// Why that is not possible now.
    fn take(&self) -> Result<Value, String>;

    /// Removes a snapshot. Returns whether there was one with this identifier.
    ///
    /// # Errors
    /// A file could not be removed.
    fn remove(&self, id: &str) -> Result<bool, String>;
}

/// The broker's side of the HTTP API. No method blocks; each may be called on any thread.
pub trait Broker: Send + Sync + 'static {
    /// Admits a connection of this client address. `None` if the address has too many; the broker logs that.
    fn admit(&self, peer: IpAddr) -> Option<ConnectionPermit>;

    /// Sends a request to a queue. A broker that shuts down may drop `reply` without calling it.
    fn submit(&self, queue: &str, request: Request, reply: ReplyCallback);

    /// Returns the names of all queues, sorted.
    fn queues(&self) -> Vec<Arc<str>>;

    /// Whether there is a topic of this name that is no queue.
    fn is_topic(&self, name: &str) -> bool;

    /// Returns all bindings, sorted by name. Fields are those of the schema `Binding` in `openapi.json`.
    fn bindings(&self) -> Vec<Map<String, Value>>;

    /// Adds a binding. `reply` gets [`Reply::Done`] once the binding is durable and active.
    fn add_binding(&self, name: &str, binding: Map<String, Value>, reply: ReplyCallback);

    /// Removes a binding. `reply` gets [`Reply::Done`] once the removal is durable.
    fn remove_binding(&self, name: &str, reply: ReplyCallback);

    /// Returns how much memory the broker uses.
    fn memory(&self) -> MemoryUsage;

    /// Returns how long the turns of the shards have taken since the start.
    fn turn_durations(&self) -> TurnDurations;

    /// Writes the metrics of the protocol servers, and of the process.
    fn write_metrics(&self, _text: &mut Exposition) {}

    /// Returns the users and rules; `None` if the broker has none, and everyone may do everything.
    fn security(&self) -> Option<Arc<dyn SecurityHost>> {
        None
    }

    /// Returns the configuration; `None` if the broker has none that can change.
    fn config(&self) -> Option<Arc<dyn ConfigHost>> {
        None
    }

    /// Returns the snapshots of the data directory; `None` if the broker takes none.
    fn snapshots(&self) -> Option<Arc<dyn SnapshotHost>> {
        None
    }

    /// Returns why the broker is not ready, one message per cause. Empty if it is ready.
    fn errors(&self) -> Vec<String>;
}
