//! The data directory: a store for each shard, and the sessions that they have.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mainstem_broker::{Durability, Shard, Shared, StoreAt, settle_origins};
use mainstem_disk::{Committer, RealFs, SegmentStore, Settings};
use mainstem_log::Store;
use mainstem_runtime::{Clock, Wake};

/// Directory of the stores in the data directory; each shard has one in it, named by its number.
const STORES: &str = "log";

/// A shard with what its stores had, and what lets them wake it once it runs.
pub(crate) struct Stored {
    pub(crate) shard: Shard,
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

/// Opens the stores of `count` shards in the data directory, and makes the shards.
///
/// # Errors
/// What cannot be read, in words for a terminal.
pub(crate) fn restore(data: &Path, shared: &Arc<Shared>, count: usize) -> Result<Vec<Stored>, String> {
    let began = Instant::now();
    let root = data.join(STORES);
    let explain = |what: &dyn std::fmt::Display| format!("data directory {}: {what}", root.display());
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = Clock { now_ms: 0, unix_ms: unix.as_millis() as u64 };
    let keeps = shared.durability() != Durability::None;
    if keeps {
        std::fs::create_dir_all(&root).map_err(|error| explain(&error))?;
    }
    let others =
        if keeps { stores_beyond(&root, count).map_err(|error| explain(&error))? } else { Vec::new() };
    let (mut shards, mut wakers) = (Vec::new(), Vec::new());
    let (mut sessions, mut messages, mut retained) = (0, 0, 0);
    for number in 0..count {
        let waker = Waker::default();
        let mut stores = Vec::new();
        if keeps {
            let mine = others.iter().copied().filter(|home| usize::from(*home) % count == number);
            for home in std::iter::once(number as u16).chain(mine) {
                let store = open(root.join(home.to_string()), &waker).map_err(|error| explain(&error))?;
                stores.push(StoreAt { home, store });
            }
        }
        let (made, restored) = Shard::restore(number, Arc::clone(shared), stores, clock)
            .map_err(|error| explain(&format!("{number}: {error}")))?;
        sessions += restored.sessions;
        messages += restored.messages;
        retained += restored.retained;
        shards.push(made);
        wakers.push(waker);
    }
    settle_origins(&mut shards);
    if keeps {
        let took_ms = began.elapsed().as_millis();
        log::info!(
            "{sessions} sessions with {messages} messages and {retained} retained messages read in {took_ms} ms"
        );
    }
    Ok(shards.into_iter().zip(wakers).map(|(shard, waker)| Stored { shard, waker }).collect())
}

fn open(directory: PathBuf, waker: &Waker) -> Result<Box<dyn Store>, mainstem_log::Error> {
    let store = SegmentStore::open(Arc::new(RealFs), directory, Settings::default(), waker.committer())?;
    Ok(Box::new(store))
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
