//! What the shard gives the committer: a [`Group`] per turn, which merges with later ones while the disk is busy.
//!
//! A group has one range per segment, however often the segment was written, and one report per log where nothing
//! tells two of them apart. So its size depends on the logs in it, not on the turns that it covers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{Error, LogId, Ticket};

use crate::deferred::Deferred;
use crate::files::{Range, SegmentKey};
use crate::scan::Place;

/// Report of one log, delivered when its group is durable or has failed.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) log: LogId,
    /// `None` if no append depends on it.
    pub(crate) ticket: Option<Ticket>,
    /// Durable end of the log after this group.
    pub(crate) end: Place,
    /// Whether everything up to `end` is synced.
    pub(crate) is_synced: bool,
    pub(crate) outcome: Result<(), Error>,
    /// Number of earlier acks merged into this one.
    pub(crate) earlier: usize,
    /// Base of a removed segment that cannot reappear any more.
    pub(crate) removed: Option<u64>,
}

impl Ack {
    /// A report about a log that ends at `end`, on which no ticket depends.
    pub(crate) fn of(log: LogId, end: Place) -> Self {
        Self { log, ticket: None, end, is_synced: false, outcome: Ok(()), earlier: 0, removed: None }
    }

    fn can_merge(&self, later: &Self) -> bool {
        let has_ticket = |ack: &Self| ack.ticket.is_some();
        self.log == later.log
            && has_ticket(self) == has_ticket(later)
            && self.outcome.is_ok()
            && later.outcome.is_ok()
    }
}

/// A log directory with new entries to sync.
pub(crate) struct DirSync {
    pub(crate) dir: PathBuf,
    /// Whether the directory itself is new, with the first segment in it.
    pub(crate) is_new: bool,
    /// Base offsets of new segments, oldest first, and the paths of their files, which get the names of segments.
    pub(crate) segments: Vec<(u64, PathBuf)>,
}

/// Writes of one or more turns.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) dirs: BTreeMap<LogId, DirSync>,
    pub(crate) ranges: BTreeMap<SegmentKey, Range>,
    pub(crate) acks: Vec<Ack>,
    /// Logs whose segments are to get their names after all.
    pub(crate) retries: BTreeSet<LogId>,
    pub(crate) deferred: Deferred,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { dirs, ranges, acks, retries, deferred } = self;
        dirs.is_empty() && ranges.is_empty() && acks.is_empty() && retries.is_empty() && deferred.is_empty()
    }

    /// Lets the committer try again to name the segments of a log.
    pub(crate) fn retry(&mut self, log: LogId) {
        self.retries.insert(log);
    }

    /// Gives the file at `path` the name of the segment with base offset `base`.
    pub(crate) fn add_segment(&mut self, log: LogId, dir: &Path, base: u64, path: PathBuf) {
        let new = || DirSync { dir: dir.to_owned(), is_new: false, segments: Vec::new() };
        self.dirs.entry(log).or_insert_with(new).segments.push((base, path));
    }

    /// Takes back the name of a segment. Returns the path of its file if it was not submitted.
    pub(crate) fn take_segment(&mut self, log: LogId, base: u64) -> Option<PathBuf> {
        let segments = &mut self.dirs.get_mut(&log)?.segments;
        let at = segments.iter().position(|(known, _)| *known == base)?;
        Some(segments.remove(at).1)
    }

    /// Base offset of the newest segment of a log that gets its name with this group.
    pub(crate) fn newest_unnamed(&self, log: LogId) -> Option<u64> {
        self.dirs.get(&log)?.segments.last().map(|(base, _)| *base)
    }

    /// Schedules the removal of a log and drops its unsubmitted writes.
    pub(crate) fn remove(&mut self, log: LogId, name: Arc<str>) {
        self.dirs.remove(&log);
        self.retries.remove(&log);
        self.ranges.retain(|(owner, _), _| *owner != log);
        self.acks.retain(|ack| ack.log != log);
        self.deferred.forget_log(log);
        self.deferred.removals.insert(log, name);
    }

    /// Adds changes of the directory of a log.
    pub(crate) fn change_dir(&mut self, log: LogId, mut names: DirSync) {
        match self.dirs.get_mut(&log) {
            Some(known) => known.segments.append(&mut names.segments),
            None => {
                self.dirs.insert(log, names);
            }
        }
    }

    pub(crate) fn add(&mut self, range: Range) {
        if range.is_closed {
            // It would follow the release of the reserved space.
            self.deferred.forget_reservation(range.key);
        }
        match self.ranges.get_mut(&range.key) {
            Some(known) => {
                known.from = known.from.min(range.from);
                known.to = known.to.max(range.to);
                known.is_closed |= range.is_closed;
                known.releases_space |= range.releases_space;
            }
            None => {
                self.ranges.insert(range.key, range);
            }
        }
    }

    pub(crate) fn acknowledge(&mut self, ack: Ack) {
        match self.acks.last_mut() {
            Some(last) if last.can_merge(&ack) && ack.ticket.is_none() => {
                last.end = last.end.max(ack.end);
                last.is_synced |= ack.is_synced;
                last.removed = ack.removed.or(last.removed);
                last.earlier += 1;
            }
            Some(last) if last.can_merge(&ack) => {
                *last = Ack { earlier: last.earlier + 1 + ack.earlier, ..ack }
            }
            _ => self.acks.push(ack),
        }
    }

    /// The logs whose directories change, or that have ranges or acks.
    pub(crate) fn logs(&self) -> impl Iterator<Item = LogId> + use<> {
        let ranges = self.ranges.keys().map(|(log, _)| *log);
        let acks = self.acks.iter().map(|ack| ack.log);
        let logs: BTreeSet<LogId> = self.dirs.keys().copied().chain(ranges).chain(acks).collect();
        logs.into_iter()
    }

    /// Takes what concerns a log, except deferred work.
    pub(crate) fn take_log(&mut self, log: LogId) -> Self {
        Self {
            dirs: self.dirs.remove_entry(&log).into_iter().collect(),
            ranges: self.ranges.extract_if(.., |(owner, _), _| *owner == log).collect(),
            acks: self.acks.extract_if(.., |ack| ack.log == log).collect(),
            retries: self.retries.take(&log).into_iter().collect(),
            deferred: Deferred::default(),
        }
    }

    /// Merges a later group into this one.
    pub(crate) fn merge(&mut self, later: Self) {
        for (log, names) in later.dirs {
            self.change_dir(log, names);
        }
        for (_, range) in later.ranges {
            self.add(range);
        }
        for ack in later.acks {
            self.acknowledge(ack);
        }
        self.retries.extend(later.retries);
        self.deferred.merge(later.deferred);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(log: LogId) -> Ack {
        let end = Place::default();
        Ack { log, ticket: Some(Ticket(1)), end, is_synced: true, outcome: Ok(()), earlier: 0, removed: None }
    }

    #[test]
    fn removal_drops_acks_of_the_log() {
        let mut group = Group::default();
        for log in [LogId(1), LogId(2)] {
            group.add_segment(log, Path::new("dir"), 0, "new".into());
            group.acknowledge(ack(log));
        }
        group.remove(LogId(1), "one".into());
        assert!(group.dirs.keys().eq([&LogId(2)]));
        assert!(group.acks.iter().all(|ack| ack.log == LogId(2)));
        assert!(group.deferred.removals.keys().eq([&LogId(1)]));
    }
}
