//! The part of a group that no acknowledgement waits for. A thread of its own runs it, a slice at a time, so that slow
//! system calls delay neither the shard nor its next group. With the inline committer, it follows the acknowledgements.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_log::LogId;

use crate::files::SegmentKey;
use crate::fs::{File, Fs};
use crate::index::Index;
use crate::name;
use crate::new_log::NewLog;
use crate::next_file::FileRequest;
use crate::replacement::Replacement;

/// Work after the acknowledgements.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Checkpoint to write. It claims only data that is already durable.
    pub(crate) checkpoint: Option<CheckpointRequest>,
    /// Logs to remove, with their names.
    pub(crate) removals: BTreeMap<LogId, Arc<str>>,
    /// Indexes of segments that are durable.
    pub(crate) indexes: Vec<SealedIndex>,
    /// Logs to create.
    pub(crate) logs: BTreeMap<LogId, Arc<NewLog>>,
    /// Files for the next segments of logs.
    pub(crate) files: VecDeque<FileRequest>,
    /// Space to reserve in newest segments.
    pub(crate) reservations: BTreeMap<SegmentKey, Reservation>,
    /// Segments to remove from the beginning of logs.
    pub(crate) segments: BTreeMap<LogId, SegmentRemoval>,
    /// Files to sync that no segment depends on.
    pub(crate) syncs: Vec<FileSync>,
    /// Segments to replace by compacted ones.
    pub(crate) replacements: BTreeMap<LogId, Replacement>,
    /// Files to close: that may free their blocks.
    pub(crate) closing: Vec<Arc<dyn File>>,
}

/// A checkpoint to write.
#[derive(Default)]
pub(crate) struct CheckpointRequest {
    /// Each checkpoint of a store has a higher number than the one before.
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A file to sync that is not a segment yet.
pub(crate) struct FileSync {
    file: Arc<dyn File>,
    outcome: SyncOutcome,
}

/// How the sync of a file went, once the committer has done it.
#[derive(Clone, Default)]
pub(crate) struct SyncOutcome(Arc<Mutex<Option<io::Result<()>>>>);

impl SyncOutcome {
    /// Takes the outcome; `None` if the sync is not done.
    pub(crate) fn take(&self) -> Option<io::Result<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The index of a closed segment, to be written once the segment is durable.
pub(crate) struct SealedIndex {
    pub(crate) key: SegmentKey,
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

/// Space to reserve in a file.
pub(crate) struct Reservation {
    pub(crate) file: Arc<dyn File>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Segments to remove from the beginning of a log.
pub(crate) struct SegmentRemoval {
    dir: PathBuf,
    /// Base offsets, oldest first. An open file is closed after its removal, since that may free its blocks.
    segments: VecDeque<(u64, Option<Arc<dyn File>>)>,
}

impl Deferred {
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            checkpoint,
            removals,
            indexes,
            logs,
            files,
            reservations,
            segments,
            syncs,
            replacements,
            closing,
        } = self;
        checkpoint.is_none()
            && removals.is_empty()
            && indexes.is_empty()
            && logs.is_empty()
            && files.is_empty()
            && reservations.is_empty()
            && segments.is_empty()
            && syncs.is_empty()
            && replacements.is_empty()
            && closing.is_empty()
    }

    /// Whether any of it removes or replaces files that logs consist of.
    pub(crate) fn removes_files(&self) -> bool {
        !(self.removals.is_empty() && self.segments.is_empty() && self.replacements.is_empty())
    }

    /// Whether any of it removes and replaces no files that logs consist of.
    pub(crate) fn keeps_files(&self) -> bool {
        let Self { checkpoint, indexes, logs, files, reservations, syncs, closing, .. } = self;
        checkpoint.is_some()
            || !(indexes.is_empty() && logs.is_empty() && files.is_empty())
            || !(reservations.is_empty() && syncs.is_empty() && closing.is_empty())
    }

    /// Schedules a sync of a file that is not a segment yet.
    pub(crate) fn sync(&mut self, file: Arc<dyn File>) -> SyncOutcome {
        let outcome = SyncOutcome::default();
        self.syncs.push(FileSync { file, outcome: outcome.clone() });
        outcome
    }

    /// Schedules the removal of the oldest segment of a log.
    pub(crate) fn remove_segment(&mut self, log: LogId, dir: &Path, base: u64, file: Option<Arc<dyn File>>) {
        let removal = self.segments.entry(log);
        let new = || SegmentRemoval { dir: dir.to_owned(), segments: VecDeque::new() };
        removal.or_insert_with(new).segments.push_back((base, file));
    }

    /// Schedules a reservation, unless another one for the same file covers it.
    pub(crate) fn reserve(&mut self, key: SegmentKey, reservation: Reservation) {
        match self.reservations.get_mut(&key) {
            Some(known) => {
                known.from = known.from.min(reservation.from);
                known.to = known.to.max(reservation.to);
            }
            None => {
                self.reservations.insert(key, reservation);
            }
        }
    }

    /// Drops what concerns a log that is going to be removed.
    pub(crate) fn forget_log(&mut self, log: LogId) {
        self.indexes.retain(|index| index.key.0 != log);
        self.logs.remove(&log);
        self.files.retain(|request| request.log != log);
        drop(self.take_reservations(log));
        self.segments.remove(&log);
        self.replacements.remove(&log);
    }

    /// Drops the reservation for a segment.
    pub(crate) fn forget_reservation(&mut self, key: SegmentKey) {
        self.reservations.remove(&key);
    }

    fn take_reservations(&mut self, log: LogId) -> BTreeMap<SegmentKey, Reservation> {
        let of_log = self.reservations.range((log, 0)..=(log, u64::MAX));
        let keys: Vec<SegmentKey> = of_log.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.reservations.remove_entry(&key)).collect()
    }

    /// Merges the work of a later group into this one.
    pub(crate) fn merge(&mut self, later: Self) {
        if later.is_empty() {
            // Most groups of a busy store have nothing but appends.
            return;
        }
        if later.checkpoint.is_some() {
            self.checkpoint = later.checkpoint;
        }
        for log in later.removals.keys() {
            self.forget_log(*log);
        }
        self.removals.extend(later.removals);
        // The index of a segment must not appear after its removal.
        let is_removed = |index: &SealedIndex| {
            let (log, base) = index.key;
            let removal = later.segments.get(&log);
            let replacement = later.replacements.get(&log);
            removal.is_some_and(|removal| removal.segments.iter().any(|(removed, _)| *removed == base))
                || replacement.is_some_and(|replacement| replacement.bases.contains(&base))
        };
        self.indexes.retain(|index| !is_removed(index));
        self.indexes.extend(later.indexes);
        self.logs.extend(later.logs);
        self.files.extend(later.files);
        self.syncs.extend(later.syncs);
        self.replacements.extend(later.replacements);
        self.closing.extend(later.closing);
        for (key, reservation) in later.reservations {
            self.reserve(key, reservation);
        }
        for (log, mut removal) in later.segments {
            match self.segments.get_mut(&log) {
                Some(known) => known.segments.append(&mut removal.segments),
                None => {
                    self.segments.insert(log, removal);
                }
            }
        }
    }

    /// Takes up to `max` logs to create.
    pub(crate) fn take_creations(&mut self, max: usize) -> Self {
        let mut first = Self::default();
        while first.logs.len() < max
            && let Some((log, request)) = self.logs.pop_first()
        {
            first.logs.insert(log, request);
        }
        first
    }

    /// The logs that it concerns.
    pub(crate) fn logs(&self) -> impl Iterator<Item = LogId> {
        let indexes = self.indexes.iter().map(|index| index.key.0);
        let files = self.files.iter().map(|file| file.log);
        let reservations = self.reservations.keys().map(|(log, _)| *log);
        let keys = self.removals.keys().chain(self.logs.keys()).chain(self.segments.keys());
        let keys = keys.chain(self.replacements.keys());
        keys.copied().chain(indexes).chain(files).chain(reservations)
    }

    /// Takes the checkpoint and up to `slice` pieces of each kind, except creations and removals of logs; with
    /// `is_held`, except what removes or replaces files.
    pub(crate) fn take_first(&mut self, slice: usize, is_held: bool) -> Self {
        let mut first = Self {
            checkpoint: self.checkpoint.take(),
            indexes: self.indexes.drain(..slice.min(self.indexes.len())).collect(),
            files: self.files.drain(..slice.min(self.files.len())).collect(),
            syncs: self.syncs.drain(..slice.min(self.syncs.len())).collect(),
            closing: self.closing.drain(..slice.min(self.closing.len())).collect(),
            ..Self::default()
        };
        while first.reservations.len() < slice
            && let Some((key, reservation)) = self.reservations.pop_first()
        {
            first.reservations.insert(key, reservation);
        }
        if is_held {
            return first;
        }
        while first.replacements.len() < slice
            && let Some((log, replacement)) = self.replacements.pop_first()
        {
            first.replacements.insert(log, replacement);
        }
        let mut left = slice;
        while left > 0
            && let Some((log, mut removal)) = self.segments.pop_first()
        {
            let rest = removal.segments.split_off(left.min(removal.segments.len()));
            left -= removal.segments.len();
            if !rest.is_empty() {
                let dir = removal.dir.clone();
                self.segments.insert(log, SegmentRemoval { dir, segments: rest });
            }
            first.segments.insert(log, removal);
        }
        first
    }

    /// Takes the pieces that concern this log, except its removal; with `is_held`, except what removes or replaces
    /// files.
    pub(crate) fn take_log(&mut self, log: LogId, is_held: bool) -> Self {
        let (of_log, others) = std::mem::take(&mut self.files).into_iter().partition(|file| file.log == log);
        self.files = others;
        let mut taken = Self {
            indexes: self.indexes.extract_if(.., |index| index.key.0 == log).collect(),
            logs: self.logs.remove_entry(&log).into_iter().collect(),
            files: of_log,
            reservations: self.take_reservations(log),
            ..Self::default()
        };
        if !is_held {
            taken.segments.extend(self.segments.remove_entry(&log));
            taken.replacements.extend(self.replacements.remove_entry(&log));
        }
        taken
    }
}

impl SegmentRemoval {
    /// Removes the segments one at a time, oldest first, with a sync of the directory in between, so that a crash at
    /// any point leaves a log without holes. Calls `removed` after each one.
    ///
    /// `failed` is the first segment of the log that could not be removed. None after it is removed before it is: they
    /// may be in a slice of their own, or in a group that was submitted before the failure was reported.
    ///
    /// # Errors
    /// IO errors. The segment may exist or not.
    fn run(self, fs: &dyn Fs, failed: &mut Option<u64>, mut removed: impl FnMut(u64)) -> io::Result<()> {
        for (base, file) in self.segments {
            if failed.is_some_and(|failed| failed < base) {
                continue;
            }
            *failed = Some(base);
            Index::remove(fs, &self.dir.join(name::index(base)))?;
            match fs.remove_file(&self.dir.join(name::segment(base))) {
                // Removed by an attempt that failed after that.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                outcome => outcome?,
            }
            fs.sync_dir(&self.dir)?;
            drop(file);
            *failed = None;
            removed(base);
        }
        Ok(())
    }
}

/// The first segment of each log that could not be removed.
#[derive(Default)]
pub(crate) struct Removals {
    failed: BTreeMap<LogId, u64>,
}

impl Removals {
    /// Removes segments of a log. Calls `removed` after each one. Returns whether all of them were removed.
    pub(crate) fn run(
        &mut self,
        fs: &dyn Fs,
        log: LogId,
        removal: SegmentRemoval,
        removed: impl FnMut(u64),
    ) -> bool {
        let mut failed = self.failed.remove(&log);
        let dir = removal.dir.clone();
        if let Err(error) = removal.run(fs, &mut failed, removed) {
            log::warn!("{}: cannot remove old segments: {error}; they are removed later", dir.display());
        }
        self.failed.extend(failed.map(|base| (log, base)));
        failed.is_none()
    }

    /// The log is removed as a whole.
    pub(crate) fn forget(&mut self, log: LogId) {
        self.failed.remove(&log);
    }
}

impl FileSync {
    pub(crate) fn run(self) {
        let synced = self.file.sync_data();
        *self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(synced);
    }
}

impl Reservation {
    /// Reserves the space. Without it, writes may fail for lack of space, which they report themselves.
    pub(crate) fn run(&self) {
        if let Err(error) = self.file.allocate(self.from, self.to - self.from) {
            log::debug!("cannot reserve bytes {} to {} of a segment: {error}", self.from, self.to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{FaultFs, Plan};
    use crate::fs::Mode;

    const LOG: LogId = LogId(0);

    fn removal(bases: impl IntoIterator<Item = u64>) -> SegmentRemoval {
        let segments = bases.into_iter().map(|base| (base, None)).collect();
        SegmentRemoval { dir: "/".into(), segments }
    }

    #[test]
    fn no_segment_is_removed_before_an_older_one() {
        for failing in 1..=6 {
            let fs = FaultFs::new(failing);
            for base in 0..6 {
                fs.open(Path::new(&format!("/{}", name::segment(base))), Mode::New).unwrap();
            }
            fs.set(Plan { failing_name: Some(failing), ..Plan::default() });
            let (mut removals, mut removed) = (Removals::default(), Vec::new());
            let is_done = removals.run(&fs, LOG, removal(0..3), |base| removed.push(base));
            // Submitted before the shard knows of the failure, and merged with the next attempt.
            let is_all = removals.run(&fs, LOG, removal(3..6), |base| removed.push(base));
            let left = fs.files().len();
            assert_eq!((is_done, is_all, left), (false, false, 6 - removed.len()), "{failing}: {removed:?}");
            assert!(removals.run(&fs, LOG, removal((3..6).chain(0..6)), |base| removed.push(base)));
            // Those that were removed before are so once more.
            let mut first: Vec<u64> = Vec::new();
            for base in removed {
                if !first.contains(&base) {
                    first.push(base);
                }
            }
            assert_eq!((first, fs.files().len()), ((0..6).collect(), 0), "{failing}");
        }
    }

    #[test]
    fn slices_leave_the_order() {
        let mut work = Deferred::default();
        for (log, base) in [(1, 0), (1, 5), (2, 0), (1, 9), (2, 7)] {
            work.remove_segment(LogId(log), Path::new("/"), base, None);
        }
        let bases = |work: &Deferred| -> Vec<(u32, u64)> {
            let all = work
                .segments
                .iter()
                .flat_map(|(log, removal)| removal.segments.iter().map(|(base, _)| (log.0, *base)));
            all.collect()
        };
        let mut first = work.take_first(2, false);
        assert_eq!((bases(&first), bases(&work)), (vec![(1, 0), (1, 5)], vec![(1, 9), (2, 0), (2, 7)]));
        let mut newest = Deferred::default();
        newest.remove_segment(LogId(1), Path::new("/"), 12, None);
        work.merge(newest);
        assert_eq!(bases(&work), [(1, 9), (1, 12), (2, 0), (2, 7)]);
        first = work.take_first(4, false);
        assert_eq!((bases(&first), work.is_empty()), (vec![(1, 9), (1, 12), (2, 0), (2, 7)], true));
    }
}
