//! The data directory: opens the store of each shard and restores the broker's state from it.
//!
//! Each shard has a store in `log/<number>`. If an earlier run had more shards, store `n` belongs to shard
//! `n % shards`, so that no store stays unread. The MQTT and Kafka parts of a shard share its stores.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mainstem_compress::decompress;
use mainstem_disk::{Committer, File, RealFs, SegmentStore, Settings};
use mainstem_kafka_server as kafka;
use mainstem_log::{StoreAt, Stores};
use mainstem_mqtt_server::{Shard, Shared, settle_origins};
use mainstem_node::{BindingTable, ShardService, Snapshots};
use mainstem_runtime::{Clock, FileBytes, Wake};
use mainstem_security::SecurityHost;

use crate::commit_times::CommitTimes;
use crate::health_store::{FailingLogs, HealthTrackingStore};

/// Directory of the stores in the data directory. Each store is a directory in it, named by its number.
pub(crate) const STORES: &str = "log";

/// Largest size of a batch's records after decompression, in bytes.
const DECOMPRESSED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The service of a shard, with its state restored, and the handle with which its stores wake it.
pub(crate) struct RestoredShard {
    pub(crate) service: ShardService,
    pub(crate) waker: Waker,
}

/// Wakes a shard. Has no effect until the shard runs.
#[derive(Clone, Default)]
pub(crate) struct Waker(Arc<OnceLock<Wake>>);

impl Waker {
    /// Sets the function that wakes the shard. Called once, when the shard starts.
    pub(crate) fn bind(&self, wake: Wake) {
        debug_assert!(self.0.get().is_none());
        self.0.get_or_init(|| wake);
    }

    fn committer(&self) -> Committer {
        let waker = self.clone();
        let wake = Arc::new(move || {
            if let Some(wake) = waker.0.get() {
                wake();
            }
        });
        Committer::Thread { wake }
    }
}

/// State shared by all shards and by the HTTP API.
pub(crate) struct SharedState {
    pub(crate) mqtt: Arc<Shared>,
    pub(crate) kafka: Arc<kafka::Shared>,
    pub(crate) bindings: Arc<BindingTable>,
    /// How the shards take snapshots.
    pub(crate) snapshots: Arc<Snapshots>,
    /// How long records stay that are too old when they are produced, in ms.
    pub(crate) retention_check_ms: u64,
    /// Logs that cannot be written to.
    pub(crate) failing_logs: FailingLogs,
    /// How long commits take.
    pub(crate) commit_times: CommitTimes,
    /// Users and rules.
    pub(crate) security: Arc<dyn SecurityHost>,
}

/// Opens the stores of `count` shards, each with up to `open_segments_max` open segments, and restores the service of
/// each.
///
/// # Errors
/// A message for the user: the data directory, the store, and the error.
pub(crate) fn restore(
    data: &Path,
    shared_state: &SharedState,
    count: usize,
    open_segments_max: usize,
) -> Result<Vec<RestoredShard>, String> {
    let started = Instant::now();
    let root = data.join(STORES);
    let explain = |error: &dyn std::fmt::Display| format!("data directory {}: {error}", root.display());
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = Clock { now_ms: 0, unix_ms: unix.as_millis() as u64 };
    std::fs::create_dir_all(&root).map_err(|error| explain(&error))?;
    let others = stores_beyond(&root, count).map_err(|error| explain(&error))?;
    let (mut mqtt_shards, mut kafka_shards, mut wakers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sessions, mut messages, mut retained) = (0, 0, 0);
    for number in 0..count {
        let waker = Waker::default();
        let adopted = others.iter().copied().filter(|id| usize::from(*id) % count == number);
        let mut stores = Stores::default();
        for store_id in std::iter::once(number as u16).chain(adopted) {
            let settings = Settings {
                decompress: Some(Arc::new(|codec, bytes| {
                    decompress(codec, bytes, DECOMPRESSED_BYTES_MAX).ok()
                })),
                retention_check_ms: shared_state.retention_check_ms,
                open_files: open_segments_max,
                on_committed: Some(shared_state.commit_times.recorder(store_id)),
                ..Settings::default()
            };
            let directory = root.join(store_id.to_string());
            let store = SegmentStore::open(Arc::new(RealFs), directory, settings, waker.committer());
            let store = store.map_err(|error| explain(&error))?;
            let store = HealthTrackingStore::new(store, store_id, &shared_state.failing_logs);
            stores.push(StoreAt::new(store_id, Box::new(store)));
        }
        let failed = |error: mainstem_log::Error| explain(&restore_error(data, number, &error));
        let mut kafka =
            kafka::Shard::restore(number, Arc::clone(&shared_state.kafka), stores, clock).map_err(failed)?;
        let stores = std::mem::take(kafka.stores_mut());
        let (mqtt, restored) =
            Shard::restore(number, Arc::clone(&shared_state.mqtt), stores, clock).map_err(failed)?;
        sessions += restored.sessions;
        messages += restored.messages;
        retained += restored.retained;
        mqtt_shards.push(mqtt);
        kafka_shards.push(kafka);
        wakers.push(waker);
    }
    settle_origins(&mut mqtt_shards);
    let took_ms = started.elapsed().as_millis();
    log::info!(
        "restored {sessions} sessions with {messages} messages, {retained} retained messages and {} topics in {took_ms} ms",
        shared_state.kafka.topics()
    );
    let parts = mqtt_shards.into_iter().zip(kafka_shards).zip(wakers);
    let restored = parts.map(|((mqtt, kafka), waker)| RestoredShard {
        service: ShardService::new(
            mqtt,
            kafka,
            Arc::clone(&shared_state.bindings),
            Arc::clone(&shared_state.snapshots),
            count,
        ),
        waker,
    });
    Ok(restored.collect())
}

/// Number of stores that [`restore`] opens for `count` shards.
pub(crate) fn count_stores(data: &Path, count: usize) -> usize {
    // `restore` reports a directory that cannot be read.
    count + stores_beyond(&data.join(STORES), count).map_or(0, |others| others.len())
}

/// Why a shard cannot be restored, and what to do if its data is damaged.
fn restore_error(data: &Path, shard: usize, error: &mainstem_log::Error) -> String {
    let hint = match error {
        mainstem_log::Error::Corrupt { .. } => format!(
            "; the log lines above name the damaged file. Restore {} from a copy, or give up the log that is damaged as \
             docs/data-directory.md says",
            data.display()
        ),
        _ => String::new(),
    };
    format!("shard {shard}: {error}{hint}")
}

/// A file of a store that a connection's output can send with `sendfile`.
struct StoreFile(Arc<dyn File>);

impl FileBytes for StoreFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_fd()
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> std::io::Result<usize> {
        self.0.read_at(into, at)
    }
}

/// Converts the source of a file slice, so that an output can send it. `None` if it is not a file of a store.
pub(crate) fn sendable(source: &Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn FileBytes>> {
    let file = source.downcast_ref::<Arc<dyn File>>()?;
    Some(Arc::new(StoreFile(Arc::clone(file))))
}

/// Stores of an earlier run with more shards.
fn stores_beyond(root: &Path, count: usize) -> std::io::Result<Vec<u16>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name();
        if let Some(store_id) = name.to_str().and_then(|name| name.parse::<u16>().ok())
            && usize::from(store_id) >= count
        {
            found.push(store_id);
        }
    }
    found.sort_unstable();
    Ok(found)
}
