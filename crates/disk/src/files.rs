//! Segments that are open, no more of them than the settings allow.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::LogId;

use crate::fs::{File, Fs, Mode};

/// One segment of the store.
pub(crate) type SegmentKey = (LogId, u64);

/// Uses of so many that take turns cost next to nothing.
const NEWEST: usize = 3;

/// Open files by segment, no more of them than the bound.
pub(crate) struct Files {
    fs: Arc<dyn Fs>,
    open: BTreeMap<SegmentKey, Arc<dyn File>>,
    recent: Recent,
}

/// What was used lately. Of more than the bound, the half that was used longest ago has to go.
pub(crate) struct Recent {
    used: BTreeMap<SegmentKey, u64>,
    /// Those that were noted last, if they are still among them.
    newest: [Option<SegmentKey>; NEWEST],
    bound: usize,
    clock: u64,
    gone: Vec<SegmentKey>,
}

impl Recent {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            used: BTreeMap::new(),
            newest: [None; NEWEST],
            bound: bound.max(NEWEST),
            clock: 0,
            gone: Vec::new(),
        }
    }

    /// Takes note of a use.
    pub(crate) fn note(&mut self, key: SegmentKey) {
        // Often some take turns: a log of messages, that of what becomes of them, and its notes. Which of them is newer
        // makes no difference.
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
            self.gone.extend(self.used.extract_if(.., |_, used| *used <= median).map(|(key, _)| key));
        }
        self.used.insert(key, self.clock);
    }

    /// Takes what has to go.
    pub(crate) fn take_gone(&mut self) -> Vec<SegmentKey> {
        std::mem::take(&mut self.gone)
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
        Self { fs, open: BTreeMap::new(), recent: Recent::new(bound) }
    }

    /// The file of segment `key`, which is at `path`.
    pub(crate) fn get(
        &mut self,
        key: SegmentKey,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<Arc<dyn File>> {
        self.borrow(key, path).cloned()
    }

    /// The same for a short while.
    pub(crate) fn borrow(
        &mut self,
        key: SegmentKey,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<&Arc<dyn File>> {
        if self.open.contains_key(&key) {
            self.recent.note(key);
        } else {
            let file = self.fs.open(&path(), Mode::Existing)?;
            self.hold(key, file);
        }
        self.open.get(&key).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Takes in a file that was opened elsewhere.
    pub(crate) fn hold(&mut self, key: SegmentKey, file: Arc<dyn File>) {
        self.recent.note(key);
        for gone in self.recent.take_gone() {
            self.open.remove(&gone);
        }
        self.open.insert(key, file);
    }

    /// Closes one segment.
    pub(crate) fn close(&mut self, key: SegmentKey) {
        self.open.remove(&key);
        self.recent.forget(key);
    }

    /// Closes all segments of a log.
    pub(crate) fn close_log(&mut self, log: LogId) {
        self.open.retain(|(owner, _), _| *owner != log);
        self.recent.forget_log(log);
    }
}
