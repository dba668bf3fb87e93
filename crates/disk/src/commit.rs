//! Group commit: what the shard has written becomes durable with as few syncs as possible.
//!
//! The shard submits a [`Group`] per turn. While the disk is busy, groups merge into one. How a group is made
//! durable is decided when its turn comes: see [`Syncer::run`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::{Error, LogId, Ticket};

use crate::checkpoint;
use crate::files::SegmentKey;
use crate::fs::{File, Fs};
use crate::journal::{Journal, Refused};
use crate::scan::Place;

/// Up to so many bytes of one segment go by way of the journal. Beyond, writing them twice costs more than a
/// sync of their own.
const JOURNALED_BYTES_MAX: u64 = 64 * 1024;

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

/// What was written in one or more turns.
#[derive(Default)]
pub(crate) struct Group {
    /// Directories in which there are new names, and the logs that need them.
    pub(crate) dirs: BTreeMap<LogId, PathBuf>,
    pub(crate) ranges: BTreeMap<SegmentKey, Range>,
    pub(crate) acks: Vec<Ack>,
    /// A checkpoint to be written when all else is done.
    pub(crate) checkpoint: Option<Vec<u8>>,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.ranges.is_empty() && self.acks.is_empty() && self.checkpoint.is_none()
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
        self.dirs.extend(later.dirs);
        for (_, range) in later.ranges {
            self.add(range);
        }
        for ack in later.acks {
            self.acknowledge(ack);
        }
        if later.checkpoint.is_some() {
            self.checkpoint = later.checkpoint;
        }
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

    /// Makes a group durable, and returns what is to be said about it.
    ///
    /// One small range, or large ones, cost a sync of each segment. Two and more small ones go into the journal
    /// together, for one sync.
    pub(crate) fn run(&mut self, group: Group) -> (Vec<Ack>, Option<Vec<u8>>) {
        for (log, dir) in &group.dirs {
            if !self.broken.contains(log)
                && let Err(error) = self.fs.sync_dir(dir)
            {
                self.fail(*log, &error);
            }
        }
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
        (acks, group.checkpoint)
    }

    /// Does what nobody waits for.
    pub(crate) fn rest(&mut self, checkpoint: Option<Vec<u8>>) {
        if let Err(((log, _), error)) = self.journal.pace() {
            self.fail(log, &error);
        }
        if let Some(bytes) = checkpoint
            && let Err(error) = checkpoint::store(&*self.fs, &self.dir, &bytes)
        {
            log::warn!("{}: no checkpoint: {error}", self.dir.display());
        }
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
