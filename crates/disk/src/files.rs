//! Segments that are open, no more of them than the settings allow.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::LogId;

use crate::fs::{File, Fs, Mode};

/// One segment of the store.
pub(crate) type SegmentKey = (LogId, u64);

/// Open files by segment. Of more than the bound, the half that was asked for longest ago is closed.
pub(crate) struct Files {
    fs: Arc<dyn Fs>,
    open: BTreeMap<SegmentKey, Held>,
    bound: usize,
    clock: u64,
}

struct Held {
    file: Arc<dyn File>,
    used: u64,
}

impl Files {
    pub(crate) fn new(fs: Arc<dyn Fs>, bound: usize) -> Self {
        Self { fs, open: BTreeMap::new(), bound: bound.max(2), clock: 0 }
    }

    /// The file of segment `key`, which is at `path`.
    pub(crate) fn get(
        &mut self,
        key: SegmentKey,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<Arc<dyn File>> {
        self.clock += 1;
        if let Some(held) = self.open.get_mut(&key) {
            held.used = self.clock;
            return Ok(held.file.clone());
        }
        let file = self.fs.open(&path(), Mode::Existing)?;
        self.hold(key, file.clone());
        Ok(file)
    }

    /// Takes in a file that was opened elsewhere.
    pub(crate) fn hold(&mut self, key: SegmentKey, file: Arc<dyn File>) {
        self.clock += 1;
        if self.open.len() >= self.bound {
            let mut ages: Vec<u64> = self.open.values().map(|held| held.used).collect();
            let (_, median, _) = ages.select_nth_unstable(self.bound / 2);
            let median = *median;
            self.open.retain(|_, held| held.used > median);
        }
        self.open.insert(key, Held { file, used: self.clock });
    }

    /// Counts one more use of whatever it is.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
    }

    /// Uses counted so far.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Closes one segment.
    pub(crate) fn close(&mut self, key: SegmentKey) {
        self.open.remove(&key);
    }

    /// Closes all segments of a log.
    pub(crate) fn close_log(&mut self, log: LogId) {
        self.open.retain(|(owner, _), _| *owner != log);
    }
}
