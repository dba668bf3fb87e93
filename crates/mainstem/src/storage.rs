//! The data directory: a store for each shard, and what the doors have in them.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mainstem_broker::{Durability, Shard, Shared, StoreAt, settle_origins};
use mainstem_compress::decompress;
use mainstem_disk::{Committer, File, RealFs, SegmentStore, Settings};
use mainstem_doors::{Doors, Table};
use mainstem_log::{Lender, Store};
use mainstem_runtime::{Clock, FileBytes, Wake};
use mainstem_stream as stream;

use crate::watched::{Failing, Watched};

/// Directory of the stores in the data directory; each shard has one in it, named by its number.
const STORES: &str = "log";

/// What the records of one batch may take when they are decompressed, bytes.
const PLAIN_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A shard's doors with what its stores had, and what lets them wake it once it runs.
pub(crate) struct Stored {
    pub(crate) doors: Doors,
    pub(crate) waker: Waker,
}

/// Wakes a shard that may not run yet.
#[derive(Clone, Default)]
pub(crate) struct Waker(Arc<OnceLock<Wake>>);

impl Waker {
    /// The shard runs now.
    pub(crate) fn bind(&self, wake: Wake) {
        // Nothing else binds it.
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

/// What the doors of all shards have in common.
pub(crate) struct Common {
    pub(crate) mqtt: Arc<Shared>,
    pub(crate) stream: Arc<stream::Shared>,
    pub(crate) bindings: Arc<Table>,
    /// Time between two looks for what is to be removed by age or size, ms.
    pub(crate) retention_check_ms: u64,
    /// Logs that cannot keep anything now.
    pub(crate) failing: Failing,
}

/// Opens the stores of `count` shards in the data directory, and makes their doors.
///
/// # Errors
/// What cannot be read, in words for a terminal.
pub(crate) fn restore(data: &Path, common: &Common, count: usize) -> Result<Vec<Stored>, String> {
    let began = Instant::now();
    let root = data.join(STORES);
    let explain = |what: &dyn std::fmt::Display| format!("data directory {}: {what}", root.display());
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = Clock { now_ms: 0, unix_ms: unix.as_millis() as u64 };
    std::fs::create_dir_all(&root).map_err(|error| explain(&error))?;
    let others = stores_beyond(&root, count).map_err(|error| explain(&error))?;
    let (mut shards, mut streams, mut wakers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sessions, mut messages, mut retained) = (0, 0, 0);
    for number in 0..count {
        let waker = Waker::default();
        let mine = others.iter().copied().filter(|home| usize::from(*home) % count == number);
        let (mut lenders, mut stores, mut topics) = (Vec::new(), Vec::new(), Vec::new());
        for home in std::iter::once(number as u16).chain(mine) {
            let store = open(root.join(home.to_string()), &waker, common.retention_check_ms);
            let store = store.map_err(|error| explain(&error))?;
            let lender = Lender::new(Box::new(Watched::new(store, home, &common.failing)));
            if common.mqtt.durability() != Durability::None {
                stores.push(StoreAt { home, store: Box::new(lender.lend()) });
            }
            topics.push(stream::StoreAt { home, store: Box::new(lender.lend()) });
            lenders.push(lender);
        }
        let failed = |error: mainstem_log::Error| explain(&format!("{number}: {error}"));
        let (made, restored) =
            Shard::restore(number, Arc::clone(&common.mqtt), stores, clock).map_err(failed)?;
        let stream =
            stream::Shard::restore(number, Arc::clone(&common.stream), topics, clock).map_err(failed)?;
        sessions += restored.sessions;
        messages += restored.messages;
        retained += restored.retained;
        shards.push(made);
        streams.push((stream, lenders));
        wakers.push(waker);
    }
    settle_origins(&mut shards);
    let took_ms = began.elapsed().as_millis();
    log::info!(
        "{sessions} sessions with {messages} messages, {retained} retained messages and {} topics read in {took_ms} ms",
        common.stream.topics()
    );
    let doors = shards.into_iter().zip(streams).zip(wakers);
    let doors = doors.map(|((mqtt, (stream, lenders)), waker)| Stored {
        doors: Doors::new(mqtt, stream, lenders, Arc::clone(&common.bindings), count),
        waker,
    });
    Ok(doors.collect())
}

fn open(
    directory: PathBuf,
    waker: &Waker,
    retention_check_ms: u64,
) -> Result<Box<dyn Store>, mainstem_log::Error> {
    let settings = Settings {
        decompress: Some(Arc::new(|codec, bytes| decompress(codec, bytes, PLAIN_BYTES_MAX).ok())),
        retention_check_ms,
        ..Settings::default()
    };
    let store = SegmentStore::open(Arc::new(RealFs), directory, settings, waker.committer())?;
    Ok(Box::new(store))
}

/// A file of a store, for outputs that send it.
struct Sent(Arc<dyn File>);

impl FileBytes for Sent {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_fd()
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> std::io::Result<usize> {
        self.0.read_at(into, at)
    }
}

/// How outputs send what a piece of a log lies in.
pub(crate) fn sendable(source: &Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn FileBytes>> {
    let file = source.downcast_ref::<Arc<dyn File>>()?;
    Some(Arc::new(Sent(Arc::clone(file))))
}

/// Stores of shards that there were in an earlier run and are not now.
fn stores_beyond(root: &Path, count: usize) -> std::io::Result<Vec<u16>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name();
        if let Some(home) = name.to_str().and_then(|name| name.parse::<u16>().ok())
            && usize::from(home) >= count
        {
            found.push(home);
        }
    }
    found.sort_unstable();
    Ok(found)
}
