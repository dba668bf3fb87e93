//! The cache of open segment files, bounded by [`Settings::open_files`](crate::settings::Settings::open_files).
//!
//! Eviction drops the least recently used half at once, which amortizes finding them. The last few keys are remembered
//! separately, so that a few logs in alternation cost no map update.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::LogId;

use crate::fs::{File, Fs, Mode};

/// Log and base offset of a segment.
pub(crate) type SegmentKey = (LogId, u64);

/// Written bytes of a segment to make durable.
pub(crate) struct Range {
    pub(crate) key: SegmentKey,
    /// Name of the log.
    pub(crate) name: Arc<str>,
    pub(crate) file: Arc<dyn File>,
    /// Everything before this was submitted earlier.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Whether the segment is closed; it is then synced directly.
    pub(crate) is_closed: bool,
    /// Whether the file ends at `to` then: reserved space follows.
    pub(crate) releases_space: bool,
}

impl Range {
    /// Syncs the segment, after giving back the space behind it.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.releases_space {
            self.file.set_len(self.to)?;
        }
        self.file.sync_data()
    }
}

/// Number of keys that can alternate without an update of the map.
const NEWEST: usize = 3;

/// Open files by segment.
pub(crate) struct Files {
    fs: Arc<dyn Fs>,
    open: BTreeMap<SegmentKey, Arc<dyn File>>,
    /// Files that do not have the names of their segments yet, and could not be opened again.
    unnamed: BTreeMap<SegmentKey, Arc<dyn File>>,
    /// Files that other ones replace just now: their names may lead to those already.
    replaced: BTreeMap<SegmentKey, Arc<dyn File>>,
    recent: Recent,
}

/// Bounded set of recently used keys. When full, it evicts the least recently used half.
pub(crate) struct Recent {
    used: BTreeMap<SegmentKey, u64>,
    /// The most recently used keys.
    newest: [Option<SegmentKey>; NEWEST],
    bound: usize,
    clock: u64,
    evicted: Vec<SegmentKey>,
}

impl Recent {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            used: BTreeMap::new(),
            newest: [None; NEWEST],
            bound: bound.max(NEWEST),
            clock: 0,
            evicted: Vec::new(),
        }
    }

    /// Marks a key as used.
    pub(crate) fn note(&mut self, key: SegmentKey) {
        // Often a few keys alternate: a log of messages, the log of their state, and its notes. Their relative order
        // does not matter.
        if self.newest.contains(&Some(key)) {
            return;
        }
        self.newest.rotate_right(1);
        self.newest[0] = Some(key);
        self.clock += 1;
        if let Some(used) = self.used.get_mut(&key) {
            *used = self.clock;
            return;
        }
        if self.used.len() >= self.bound {
            let mut ages: Vec<u64> = self.used.values().copied().collect();
            let (_, median, _) = ages.select_nth_unstable(self.bound / 2);
            let median = *median;
            self.evicted.extend(self.used.extract_if(.., |_, used| *used <= median).map(|(key, _)| key));
        }
        self.used.insert(key, self.clock);
    }

    /// Drains the evicted keys.
    pub(crate) fn take_evicted(&mut self) -> Vec<SegmentKey> {
        std::mem::take(&mut self.evicted)
    }

    fn forget(&mut self, key: SegmentKey) {
        self.newest = [None; NEWEST];
        self.used.remove(&key);
    }

    fn forget_log(&mut self, log: LogId) {
        self.newest = [None; NEWEST];
        self.used.retain(|(owner, _), _| *owner != log);
    }
}

impl Files {
    pub(crate) fn new(fs: Arc<dyn Fs>, bound: usize) -> Self {
        let [open, unnamed, replaced] = [const { BTreeMap::new() }; 3];
        Self { fs, open, unnamed, replaced, recent: Recent::new(bound) }
    }

    /// Returns the file of segment `key`, opening it at `path` if necessary.
    pub(crate) fn get(
        &mut self,
        key: SegmentKey,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<Arc<dyn File>> {
        self.borrow(key, path).cloned()
    }

    /// Like [`Files::get`], without cloning the handle.
    pub(crate) fn borrow(
        &mut self,
        key: SegmentKey,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<&Arc<dyn File>> {
        if self.open.contains_key(&key) {
            self.recent.note(key);
        } else {
            let file = match self.unnamed.get(&key).or_else(|| self.replaced.get(&key)) {
                Some(file) => file.clone(),
                None => self.fs.open(&path(), Mode::Existing)?,
            };
            self.hold(key, file);
        }
        self.open.get(&key).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Adds an open file.
    pub(crate) fn hold(&mut self, key: SegmentKey, file: Arc<dyn File>) {
        self.recent.note(key);
        for evicted in self.recent.take_evicted() {
            self.open.remove(&evicted);
        }
        self.open.insert(key, file);
    }

    /// Adds the file of a segment that does not have its name yet.
    pub(crate) fn hold_unnamed(&mut self, key: SegmentKey, file: Arc<dyn File>) {
        self.unnamed.insert(key, file.clone());
        self.hold(key, file);
    }

    /// Keeps the file of segment `key` open, because another one is about to take its name.
    ///
    /// # Errors
    /// If it cannot be opened at `path`.
    pub(crate) fn keep_replaced(
        &mut self,
        key: SegmentKey,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<()> {
        let file = self.get(key, path)?;
        self.replaced.insert(key, file);
        Ok(())
    }

    /// The file of segment `key` is replaced, or is not going to be. Returns it.
    pub(crate) fn release_replaced(&mut self, key: SegmentKey) -> Option<Arc<dyn File>> {
        self.replaced.remove(&key)
    }

    /// The files of a log have their names.
    pub(crate) fn mark_named(&mut self, log: LogId) {
        self.unnamed.retain(|(owner, _), _| *owner != log);
    }

    pub(crate) fn close(&mut self, key: SegmentKey) {
        self.take(key);
    }

    /// Gives up the file of segment `key`, if it is open. Dropping it may free the space of a removed file.
    pub(crate) fn take(&mut self, key: SegmentKey) -> Option<Arc<dyn File>> {
        self.unnamed.remove(&key);
        self.recent.forget(key);
        self.open.remove(&key)
    }

    pub(crate) fn close_log(&mut self, log: LogId) {
        self.open.retain(|(owner, _), _| *owner != log);
        self.replaced.retain(|(owner, _), _| *owner != log);
        self.mark_named(log);
        self.recent.forget_log(log);
    }
}
