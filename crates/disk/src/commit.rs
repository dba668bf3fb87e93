//! Group commit: what the shard has written becomes durable with as few syncs as possible.
//!
//! The shard submits a [`Group`] per turn. While the disk is busy, groups merge into one. How a group is made
//! durable is decided when its turn comes: see [`Syncer::run`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{Error, LogId, Ticket};

use crate::checkpoint;
use crate::files::SegmentKey;
use crate::fs::{File, Fs};
use crate::journal::{Journal, Refused};
use crate::name;
use crate::scan::Place;

/// Up to so many bytes of one segment go by way of the journal. Beyond, writing them twice costs more than a
/// sync of their own.
const JOURNALED_BYTES_MAX: u64 = 64 * 1024;
/// Logs with new names, or to be removed, that are dealt with at once: each takes the disk some milliseconds, which
/// all others wait for.
const NAMED_MAX: usize = 8;

/// Bytes of a segment that were written and are to become durable.
pub(crate) struct Range {
    pub(crate) key: SegmentKey,
    /// Of the log.
    pub(crate) name: Arc<str>,
    pub(crate) file: Arc<dyn File>,
    /// All before this was submitted before.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Whether the segment is complete: then it is synced itself.
    pub(crate) is_closed: bool,
}

/// What is to be reported once a group is durable, or has failed to become so.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) log: LogId,
    /// Nothing if nobody waits for it.
    pub(crate) ticket: Option<Ticket>,
    /// How far the log is durable then.
    pub(crate) end: Place,
    /// Whether all up to there is synced then.
    pub(crate) is_synced: bool,
    pub(crate) outcome: Result<(), Error>,
    /// How many others it stands for.
    pub(crate) earlier: usize,
}

impl Ack {
    fn says_the_same(&self, later: &Self) -> bool {
        let is_awaited = |ack: &Self| ack.ticket.is_some();
        self.log == later.log
            && is_awaited(self) == is_awaited(later)
            && self.outcome.is_ok()
            && later.outcome.is_ok()
    }
}

/// A log's directory, in which there are new names.
pub(crate) struct NewNames {
    pub(crate) dir: PathBuf,
    /// Whether that of the directory is new as well.
    pub(crate) is_new: bool,
}

/// What was written in one or more turns.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) dirs: BTreeMap<LogId, NewNames>,
    pub(crate) ranges: BTreeMap<SegmentKey, Range>,
    pub(crate) acks: Vec<Ack>,
    pub(crate) rest: Rest,
}

/// What of a group nobody waits for.
#[derive(Default)]
pub(crate) struct Rest {
    /// To be written. Nothing in it depends on what has yet to become durable.
    pub(crate) checkpoint: Option<Vec<u8>>,
    /// Logs to be removed, and their names.
    pub(crate) removals: BTreeMap<LogId, Arc<str>>,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { dirs, ranges, acks, rest: Rest { checkpoint, removals } } = self;
        dirs.is_empty() && ranges.is_empty() && acks.is_empty() && checkpoint.is_none() && removals.is_empty()
    }

    /// The directory of a log has a new name in it.
    pub(crate) fn note_names(&mut self, log: LogId, dir: &Path) {
        self.dirs.entry(log).or_insert_with(|| NewNames { dir: dir.to_owned(), is_new: false });
    }

    /// Has a log removed, of which nothing that is not yet submitted need become durable.
    pub(crate) fn remove(&mut self, log: LogId, name: Arc<str>) {
        self.dirs.remove(&log);
        self.ranges.retain(|(owner, _), _| *owner != log);
        self.acks.retain(|ack| ack.log != log);
        self.rest.removals.insert(log, name);
    }

    /// Takes out everything about logs that have new names or are to be removed, but for the first few of them from
    /// `from` on, round and round. Moves `from` behind these.
    pub(crate) fn split_off(&mut self, from: &mut LogId) -> Self {
        let named: BTreeSet<LogId> = self.dirs.keys().chain(self.rest.removals.keys()).copied().collect();
        if named.len() <= NAMED_MAX {
            return Self::default();
        }
        let in_turn = named.range(*from..).chain(named.range(..*from));
        let later: BTreeSet<LogId> = in_turn.clone().skip(NAMED_MAX).copied().collect();
        *from = in_turn.copied().nth(NAMED_MAX).unwrap_or(*from);
        let is_later = |log: &LogId| later.contains(log);
        Self {
            dirs: self.dirs.extract_if(.., |log, _| is_later(log)).collect(),
            ranges: self.ranges.extract_if(.., |(log, _), _| is_later(log)).collect(),
            acks: self.acks.extract_if(.., |ack| is_later(&ack.log)).collect(),
            rest: Rest {
                checkpoint: None,
                removals: self.rest.removals.extract_if(.., |log, _| is_later(log)).collect(),
            },
        }
    }

    pub(crate) fn add(&mut self, range: Range) {
        match self.ranges.get_mut(&range.key) {
            Some(known) => {
                known.from = known.from.min(range.from);
                known.to = known.to.max(range.to);
                known.is_closed |= range.is_closed;
            }
            None => {
                self.ranges.insert(range.key, range);
            }
        }
    }

    pub(crate) fn acknowledge(&mut self, ack: Ack) {
        match self.acks.last_mut() {
            Some(last) if last.says_the_same(&ack) => *last = Ack { earlier: last.earlier + 1, ..ack },
            _ => self.acks.push(ack),
        }
    }

    /// Takes in a later group.
    pub(crate) fn merge(&mut self, later: Self) {
        for (log, names) in later.dirs {
            self.dirs.entry(log).or_insert(names);
        }
        for (_, range) in later.ranges {
            self.add(range);
        }
        for ack in later.acks {
            self.acknowledge(ack);
        }
        if later.rest.checkpoint.is_some() {
            self.rest.checkpoint = later.rest.checkpoint;
        }
        self.rest.removals.extend(later.rest.removals);
    }
}

/// Makes groups durable, in the order in which they come. Knows segments and ranges of bytes; what is in them
/// is the shard's business.
pub(crate) struct Syncer {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    pub(crate) journal: Journal,
    /// Logs that a write or sync has failed for.
    broken: BTreeSet<LogId>,
    /// Those among them that nobody has been told of.
    newly_broken: Vec<LogId>,
    /// The most segments that the journal is to remember.
    journaled_max: usize,
}

impl Syncer {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf, journal: Journal, journaled_max: usize) -> Self {
        let (broken, newly_broken) = (BTreeSet::new(), Vec::new());
        Self { fs, dir, journal, broken, newly_broken, journaled_max }
    }

    /// Makes a group durable, and returns what is to be said about it, and what is left to do.
    ///
    /// One small range, or large ones, cost a sync of each segment. Two and more small ones go into the journal
    /// together, for one sync.
    pub(crate) fn run(&mut self, group: Group) -> (Vec<Ack>, Rest) {
        self.sync_names(&group.dirs);
        let is_small = |range: &&Range| !range.is_closed && range.to - range.from <= JOURNALED_BYTES_MAX;
        let live = group.ranges.values().filter(|range| !self.broken.contains(&range.key.0));
        let (mut small, mut direct): (Vec<&Range>, Vec<&Range>) = live.partition(is_small);
        let room = self.journaled_max.saturating_sub(self.journal.unsynced());
        direct.extend(small.drain(room.min(small.len())..));
        if small.len() < 2 || !self.write_journal(&small) {
            direct.append(&mut small);
        }
        for range in direct {
            if self.broken.contains(&range.key.0) {
                continue;
            }
            match range.file.sync_data() {
                Ok(()) => self.journal.synced(range.key),
                Err(error) => self.fail(range.key.0, &error),
            }
        }
        let mut acks = group.acks;
        for ack in &mut acks {
            if ack.outcome.is_ok() && self.broken.contains(&ack.log) {
                ack.outcome = Err(Error::Broken);
            }
        }
        (acks, group.rest)
    }

    fn sync_names(&mut self, dirs: &BTreeMap<LogId, NewNames>) {
        if dirs.values().any(|names| names.is_new)
            && let Err(error) = self.fs.sync_dir(&self.dir)
        {
            for (log, _) in dirs.iter().filter(|(_, names)| names.is_new) {
                self.fail(*log, &error);
            }
        }
        for (log, names) in dirs {
            if !self.broken.contains(log)
                && let Err(error) = self.fs.sync_dir(&names.dir)
            {
                self.fail(*log, &error);
            }
        }
    }

    /// Does what nobody waits for.
    pub(crate) fn rest(&mut self, Rest { checkpoint, removals }: Rest) {
        if !removals.is_empty()
            && let Err(error) = self.remove(&removals)
        {
            log::error!("{}: a removed log is left: {error}", self.dir.display());
        }
        if let Err(((log, _), error)) = self.journal.pace() {
            self.fail(log, &error);
        }
        if let Some(bytes) = checkpoint
            && let Err(error) = checkpoint::store(&*self.fs, &self.dir, &bytes)
        {
            log::warn!("{}: no checkpoint: {error}", self.dir.display());
        }
    }

    fn remove(&mut self, removals: &BTreeMap<LogId, Arc<str>>) -> io::Result<()> {
        for log in removals.keys() {
            // Should everything end now, the log is still whole.
            self.journal.settle_log(*log).map_err(|(_, error)| error)?;
            self.broken.remove(log);
        }
        let names: Vec<&str> = removals.values().map(|name| &**name).collect();
        self.discard(&names)
    }

    /// Removes what there is of logs, of which the segments do not need the journal.
    ///
    /// # Errors
    /// Some of them may be left.
    pub(crate) fn discard(&mut self, names: &[&str]) -> io::Result<()> {
        self.journal.forget(names)?;
        let mut outcome = Ok(());
        let mut set_aside = Vec::with_capacity(names.len());
        for name in names {
            let gone = self.dir.join(name::gone_dir(name));
            match self.set_aside(&self.dir.join(name::log_dir(name)), &gone) {
                Ok(()) => set_aside.push(gone),
                Err(error) => outcome = Err(error),
            }
        }
        self.fs.sync_dir(&self.dir)?;
        set_aside.iter().fold(outcome, |outcome, gone| outcome.and(remove_dir(&*self.fs, gone)))
    }

    /// A log that was set aside before, but not for good, need not be there.
    fn set_aside(&self, dir: &Path, gone: &Path) -> io::Result<()> {
        let was_set_aside = self.fs.list(gone).is_ok();
        if was_set_aside && self.fs.list(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        if was_set_aside {
            remove_dir(&*self.fs, gone)?;
        }
        self.fs.rename(dir, gone)
    }

    /// Syncs everything that the journal has and the segments have not.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        self.journal.settle_all().map_err(|((log, _), error)| {
            self.fail(log, &error);
            Error::Broken
        })
    }

    /// Takes the logs that have failed since this was last called.
    pub(crate) fn newly_broken(&mut self) -> Vec<LogId> {
        std::mem::take(&mut self.newly_broken)
    }

    /// Lets a log fail: what was written to it may or may not be on disk, and no later sync will tell.
    pub(crate) fn fail(&mut self, log: LogId, error: &io::Error) {
        if self.broken.insert(log) {
            self.journal.lost(log);
            log::error!("{}: log {}: {error}; it is read only now", self.dir.display(), log.0);
            self.newly_broken.push(log);
        }
    }

    /// Whether the journal has taken the ranges.
    fn write_journal(&mut self, ranges: &[&Range]) -> bool {
        match self.journal.write(ranges) {
            Ok(()) => true,
            Err(Refused::Unfit) => false,
            Err(Refused::Failed(error)) => {
                log::error!("{}: journal: {error}; segments are synced one by one now", self.dir.display());
                self.abandon_journal();
                false
            }
            Err(Refused::Segment(key, error)) => {
                self.fail(key.0, &error);
                false
            }
        }
    }

    /// Syncs all that the journal was needed for, and removes it. If that fails it stays, for the next recovery.
    fn abandon_journal(&mut self) {
        self.journal.give_up();
        if let Err((key, error)) = self.journal.settle_all() {
            self.fail(key.0, &error);
        }
        if let Err(error) = self.journal.remove() {
            log::error!("{}: journal: {error}", self.dir.display());
        }
    }
}

/// Removes a directory of files.
pub(crate) fn remove_dir(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    for file in fs.list(dir)? {
        fs.remove_file(&dir.join(file))?;
    }
    fs.remove_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(log: LogId) -> Ack {
        let end = Place::default();
        Ack { log, ticket: Some(Ticket(1)), end, is_synced: true, outcome: Ok(()), earlier: 0 }
    }

    #[test]
    fn many_new_logs_come_in_turn_and_hold_up_no_others() {
        let logs = 3 * NAMED_MAX as u32;
        let mut waiting = Group::default();
        for log in (0..logs).map(LogId) {
            waiting.note_names(log, Path::new("new"));
            waiting.acknowledge(ack(log));
        }
        let other = LogId(logs);
        let (mut seen, mut from) = (BTreeSet::new(), LogId(0));
        for round in 1..=3 {
            // Names of the first log come again and again.
            waiting.note_names(LogId(0), Path::new("new"));
            waiting.acknowledge(ack(other));
            let later = waiting.split_off(&mut from);
            let group = std::mem::replace(&mut waiting, later);
            assert!(group.acks.iter().any(|ack| ack.log == other), "round {round}");
            assert_eq!(group.dirs.len(), NAMED_MAX, "round {round}");
            let told: BTreeSet<LogId> = group.acks.iter().map(|ack| ack.log).collect();
            assert!(group.dirs.keys().all(|log| seen.contains(log) || told.contains(log)));
            seen.extend(group.dirs.into_keys());
        }
        assert_eq!(seen.len(), logs as usize);
    }

    #[test]
    fn a_removed_log_is_waited_for_by_nobody() {
        let mut group = Group::default();
        for log in [LogId(1), LogId(2)] {
            group.note_names(log, Path::new("new"));
            group.acknowledge(ack(log));
        }
        group.remove(LogId(1), "one".into());
        assert!(group.dirs.keys().eq([&LogId(2)]));
        assert!(group.acks.iter().all(|ack| ack.log == LogId(2)));
        assert!(group.rest.removals.keys().eq([&LogId(1)]));
    }
}
