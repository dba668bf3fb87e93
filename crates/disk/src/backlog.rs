//! What a committer thread has been given and has not done yet, and what of it comes next.
//!
//! Changes of directories are slow, and there may be thousands of them: a request may create as many logs, or remove
//! them. The logs without one must not wait for those. So the committer keeps only the appends to logs that exist. The
//! rest goes to a thread of its own, a [`Batch`] at a time. A log whose directory changes goes there as a whole, since
//! none of its appends is durable before that; what is submitted for it meanwhile waits for its return.
//!
//! Batches are of three kinds in turn. So a log that rolls waits for a few others at most, and not for thousands of
//! creations and removals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_log::LogId;

use crate::batch::Batch;
use crate::deferred::Deferred;
use crate::group::Group;
use crate::journal::Unsynced;

/// Maximum number of logs per batch whose segments get their names. The appends of each wait for all of them.
const ROLLING_MAX: usize = 2;
/// Maximum number of new logs per batch: those to create, and as many to sync.
const NEW_MAX: usize = 4;
/// Maximum number of logs to remove per batch.
const REMOVALS_MAX: usize = 4;
/// Maximum number of deferred pieces of each other kind per batch.
const DEFERRED_MAX: usize = 1;

/// What a batch consists of.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    /// Logs whose segments get their names.
    Rolls,
    /// Deferred work of logs that exist, and syncs that make room in the journal.
    Upkeep,
    /// Creations and removals of logs.
    #[default]
    Logs,
}

/// Submitted work, by how long it may take.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Ranges and acks of logs whose directories do not change.
    plain: Group,
    /// Logs whose segments get their names, each with everything else that was submitted for it, and what was submitted
    /// for logs that are away.
    rolling: BTreeMap<LogId, Group>,
    /// New logs to sync, each with everything else that was submitted for it.
    new: BTreeMap<LogId, Group>,
    /// Logs to remove, with their names.
    removals: BTreeMap<LogId, Arc<str>>,
    deferred: Deferred,
    /// The log that rolls next.
    next: u32,
    /// Kind of the last batch.
    last: Kind,
    away: Option<Away>,
    /// Whether files that exist must stay: no segment or log is removed, no segment replaced.
    is_held: bool,
}

/// What the batch concerns that was given away and has not come back.
struct Away {
    logs: BTreeSet<LogId>,
    /// Those of them whose directories change.
    changing: BTreeSet<LogId>,
    has_checkpoint: bool,
    /// Whether it removes or replaces files.
    is_removing: bool,
}

impl Backlog {
    /// Whether there is nothing to do and nothing to wait for.
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && !self.has_slow() && self.away.is_none()
    }

    fn has_slow(&self) -> bool {
        let Self { rolling, new, removals, deferred, .. } = self;
        !(rolling.is_empty() && new.is_empty() && removals.is_empty() && deferred.is_empty())
    }

    /// Whether there is slow work that may be done now.
    fn may_give(&self) -> bool {
        let Self { rolling, new, deferred, .. } = self;
        let is_left = if self.is_held { deferred.keeps_files() } else { self.has_slow() };
        is_left || !(rolling.is_empty() && new.is_empty())
    }

    /// Whether the committer has something to do before another batch comes back.
    pub(crate) fn is_ready(&self) -> bool {
        !self.plain.is_empty() || (self.away.is_none() && self.may_give())
    }

    /// Whether files that exist must stay from now on. What removes them, and is not away, waits.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether files are being removed or replaced just now.
    pub(crate) fn is_removing(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.is_removing)
    }

    /// Whether neither a checkpoint nor this log, if one is given, is away.
    pub(crate) fn has(&self, log: Option<LogId>) -> bool {
        let concerns = |away: &Away| away.has_checkpoint || log.is_some_and(|log| away.logs.contains(&log));
        !self.away.as_ref().is_some_and(concerns)
    }

    /// Adds a group that was submitted after all others.
    pub(crate) fn add(&mut self, group: Group) {
        let Group { dirs, ranges, acks, retries, mut deferred } = group;
        for (log, name) in std::mem::take(&mut deferred.removals) {
            // Nobody waits for what else was submitted for the log.
            self.deferred.forget_log(log);
            self.rolling.remove(&log);
            self.new.remove(&log);
            self.removals.insert(log, name);
        }
        for (log, names) in dirs {
            let is_known = self.rolling.contains_key(&log) || self.is_changing(log);
            let is_new = self.new.contains_key(&log) || (names.is_new && !is_known);
            let lane = if is_new { &mut self.new } else { &mut self.rolling };
            lane.entry(log).or_default().change_dir(log, names);
        }
        for log in retries {
            self.rolling.entry(log).or_default().retry(log);
        }
        for (key, range) in ranges {
            if range.is_closed {
                self.deferred.forget_reservation(key);
            }
            self.part_of(key.0).add(range);
        }
        for ack in acks {
            self.part_of(ack.log).acknowledge(ack);
        }
        self.deferred.merge(deferred);
    }

    /// Whether the directory of a log changes just now.
    fn is_changing(&self, log: LogId) -> bool {
        self.away.as_ref().is_some_and(|away| away.changing.contains(&log))
    }

    fn part_of(&mut self, log: LogId) -> &mut Group {
        if self.new.contains_key(&log) {
            self.new.entry(log).or_default()
        } else if self.rolling.contains_key(&log) || self.is_changing(log) {
            self.rolling.entry(log).or_default()
        } else {
            &mut self.plain
        }
    }

    /// Takes what the committer does itself.
    pub(crate) fn take_plain(&mut self) -> Group {
        std::mem::take(&mut self.plain)
    }

    /// Takes everything that concerns this log, if one is given, the checkpoint, and what is quick. None of it may be
    /// away.
    pub(crate) fn take_urgent(&mut self, log: Option<LogId>) -> Group {
        let mut group = self.take_plain();
        if let Some(log) = log {
            for part in self.new.remove(&log).into_iter().chain(self.rolling.remove(&log)) {
                group.merge(part);
            }
            group.deferred.merge(self.deferred.take_log(log, self.is_held));
            group.deferred.removals.extend(self.removals.remove_entry(&log));
        }
        group.deferred.checkpoint = self.deferred.checkpoint.take();
        group
    }

    /// Takes the next batch, unless one is away. `due` returns segments to sync, so that the journal has room.
    ///
    /// Whatever of it is really given away must be [noted](Self::give).
    pub(crate) fn take_batch(&mut self, due: impl FnOnce() -> Vec<Unsynced>) -> Batch {
        let mut batch = Batch::default();
        if self.away.is_some() {
            return batch;
        }
        let mut due = Some(due);
        for _ in 0..3 {
            self.last = match self.last {
                Kind::Logs => {
                    self.take_rolls(&mut batch);
                    Kind::Rolls
                }
                Kind::Rolls => {
                    batch.deferred = self.deferred.take_first(DEFERRED_MAX, self.is_held);
                    batch.relieved = due.take().map(|due| due()).unwrap_or_default();
                    Kind::Upkeep
                }
                Kind::Upkeep => {
                    self.take_logs(&mut batch);
                    Kind::Logs
                }
            };
            if !batch.is_empty() {
                break;
            }
        }
        batch
    }

    fn take_rolls(&mut self, batch: &mut Batch) {
        let from = LogId(self.next);
        let in_turn = self.rolling.range(from..).chain(self.rolling.range(..from));
        let logs: Vec<LogId> = in_turn.map(|(log, _)| *log).take(ROLLING_MAX).collect();
        for log in logs {
            batch.changing.merge(self.rolling.remove(&log).unwrap_or_default());
            self.next = log.0.wrapping_add(1);
        }
    }

    fn take_logs(&mut self, batch: &mut Batch) {
        for _ in 0..NEW_MAX {
            let Some((_, part)) = self.new.pop_first() else { break };
            batch.changing.merge(part);
        }
        batch.deferred = self.deferred.take_creations(NEW_MAX);
        if self.is_held {
            return;
        }
        for _ in 0..REMOVALS_MAX {
            batch.removals.extend(self.removals.pop_first());
        }
    }

    /// Notes what is given away.
    pub(crate) fn give(&mut self, batch: &Batch) {
        let changing: BTreeSet<LogId> = batch.changing.logs().collect();
        let mut logs = changing.clone();
        logs.extend(batch.removals.keys().copied().chain(batch.deferred.logs()));
        self.away = Some(Away {
            logs,
            changing,
            has_checkpoint: batch.deferred.checkpoint.is_some(),
            is_removing: !batch.removals.is_empty() || batch.deferred.removes_files(),
        });
    }

    /// What was given away has come back, and is done or belongs to the caller.
    pub(crate) fn take_back(&mut self) {
        for log in self.away.take().into_iter().flat_map(|away| away.changing) {
            let is_quick = |part: &Group| part.dirs.is_empty() && part.retries.is_empty();
            if self.rolling.get(&log).is_some_and(is_quick) {
                let part = self.rolling.remove(&log).unwrap_or_default();
                self.plain.merge(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use mainstem_log::Ticket;

    use super::*;
    use crate::deferred::CheckpointRequest;
    use crate::group::{Ack, DirSync};
    use crate::log_dir::LogDir;
    use crate::new_log::NewLog;
    use crate::scan::Place;

    fn ack(log: LogId) -> Ack {
        Ack { ticket: Some(Ticket(1)), is_synced: true, ..Ack::of(log, Place::default()) }
    }

    /// A group in which the directories of these logs change.
    fn changes(logs: impl IntoIterator<Item = u32>) -> Group {
        let mut group = Group::default();
        for log in logs.into_iter().map(LogId) {
            group.add_segment(log, Path::new("dir"), 0, "new".into());
            group.acknowledge(ack(log));
        }
        group
    }

    fn acked(group: &Group) -> BTreeSet<LogId> {
        group.acks.iter().map(|ack| ack.log).collect()
    }

    /// The next batch, which comes back at once.
    fn batch(backlog: &mut Backlog) -> Batch {
        let batch = backlog.take_batch(Vec::new);
        backlog.give(&batch);
        backlog.take_back();
        batch
    }

    fn creations(logs: impl IntoIterator<Item = u32>) -> Group {
        let mut group = Group::default();
        for log in logs.into_iter().map(LogId) {
            let dir = LogDir::new(log, "log", "/log".into());
            group.deferred.logs.insert(log, Arc::new(NewLog::of(&dir)));
        }
        group
    }

    /// New logs to sync.
    fn new_logs(logs: impl IntoIterator<Item = u32>) -> Group {
        let mut group = Group::default();
        for log in logs.into_iter().map(LogId) {
            let names = DirSync { dir: "dir".into(), is_new: true, segments: Vec::new() };
            group.change_dir(log, names);
            group.acknowledge(ack(log));
        }
        group
    }

    #[test]
    fn slow_work_delays_no_other_log() {
        let other = LogId(1000);
        let mut backlog = Backlog::default();
        backlog.add(changes(0..30));
        backlog.add(new_logs(100..130));
        backlog.add(creations(200..230));
        let (mut seen, mut batches) = (BTreeSet::new(), 0);
        while !backlog.is_empty() {
            let mut group = Group::default();
            group.acknowledge(ack(other));
            backlog.add(group);
            assert_eq!(acked(&backlog.take_plain()), [other].into());
            let batch = batch(&mut backlog);
            assert!(!batch.is_empty());
            batches += 1;
            // A log is acknowledged once its directory has changed.
            assert!(acked(&batch.changing).iter().eq(batch.changing.dirs.keys()));
            let is_roll = batch.changing.dirs.keys().any(|log| log.0 < 100);
            let most = if is_roll { ROLLING_MAX } else { NEW_MAX };
            assert!(batch.changing.dirs.len() <= most && batch.deferred.logs.len() <= NEW_MAX);
            assert!(!is_roll || batch.deferred.is_empty());
            seen.extend(batch.changing.dirs.into_keys().chain(batch.deferred.logs.into_keys()));
        }
        // Rolls and the rest alternate.
        assert_eq!((seen.len(), batches), (90, 15 + 8));
    }

    #[test]
    fn a_log_that_rolls_waits_for_two_batches_at_most() {
        let mut backlog = Backlog::default();
        backlog.add(new_logs(0..1000));
        for log in 0..1000 {
            backlog.removals.insert(LogId(5000 + log), "gone".into());
            backlog.deferred.remove_segment(LogId(2000 + log), Path::new("/"), 0, None);
        }
        for round in 0..20 {
            backlog.add(changes([9000]));
            let rolled: Vec<bool> =
                (0..3).map(|_| batch(&mut backlog).changing.dirs.contains_key(&LogId(9000))).collect();
            assert!(rolled.contains(&true), "{round}");
        }
    }

    #[test]
    fn work_for_a_log_that_is_away_waits_in_order() {
        let mut backlog = Backlog::default();
        backlog.add(changes([1]));
        let first = backlog.take_batch(Vec::new);
        backlog.give(&first);
        assert!(!backlog.has(Some(LogId(1))) && backlog.has(Some(LogId(2))) && backlog.has(None));
        let later = |ticket| {
            let mut group = Group::default();
            for log in [1, 2] {
                group.acknowledge(Ack { ticket: Some(Ticket(ticket)), ..ack(LogId(log)) });
            }
            group
        };
        backlog.add(later(2));
        backlog.add(later(3));
        assert_eq!(acked(&backlog.take_plain()), [LogId(2)].into());
        // None is given away while another one is.
        assert!(backlog.take_batch(Vec::new).is_empty() && !backlog.is_ready() && !backlog.is_empty());
        backlog.take_back();
        let plain = backlog.take_plain();
        assert_eq!(acked(&plain), [LogId(1)].into());
        let last = plain.acks.last().map(|ack| (ack.ticket, ack.earlier));
        assert_eq!((last, backlog.is_empty()), (Some((Some(Ticket(3)), 1)), true));

        // What names another segment goes away, too.
        backlog.add(changes([1]));
        let first = backlog.take_batch(Vec::new);
        backlog.give(&first);
        backlog.add(later(4));
        backlog.add(changes([1]));
        backlog.take_plain();
        backlog.take_back();
        assert_eq!(acked(&backlog.take_plain()), [].into());
        assert_eq!(acked(&batch(&mut backlog).changing), [LogId(1)].into());
        assert!(backlog.is_empty());
    }

    #[test]
    fn an_urgent_log_comes_with_all_that_is_submitted_for_it() {
        let mut backlog = Backlog::default();
        let mut group = changes(0..50);
        group.deferred.checkpoint = Some(CheckpointRequest::default());
        for log in 0..50 {
            group.deferred.remove_segment(LogId(log), Path::new("dir"), 0, None);
        }
        backlog.add(group);
        backlog.removals.insert(LogId(70), "gone".into());
        let group = backlog.take_urgent(Some(LogId(40)));
        assert!(group.dirs.keys().eq([&LogId(40)]) && group.deferred.segments.keys().eq([&LogId(40)]));
        assert_eq!((acked(&group), group.deferred.checkpoint.is_some()), ([LogId(40)].into(), true));
        assert!(group.deferred.removals.is_empty());
        assert!(backlog.take_urgent(Some(LogId(40))).is_empty());
        assert!(backlog.take_urgent(Some(LogId(70))).deferred.removals.contains_key(&LogId(70)));
        let mut rest = BTreeSet::new();
        while !backlog.is_empty() {
            rest.extend(batch(&mut backlog).changing.dirs.into_keys());
        }
        assert_eq!(rest.len(), 49);
    }

    #[test]
    fn removal_drops_what_was_submitted_before() {
        let mut backlog = Backlog::default();
        backlog.add(changes([1, 2]));
        let mut removal = Group::default();
        removal.remove(LogId(1), "one".into());
        backlog.add(removal);
        let first = batch(&mut backlog);
        assert!(first.changing.dirs.keys().eq([&LogId(2)]) && first.removals.is_empty());
        assert_eq!(acked(&first.changing), [LogId(2)].into());
        assert!(batch(&mut backlog).removals.keys().eq([&LogId(1)]));
        assert!(backlog.is_empty());
    }
}
