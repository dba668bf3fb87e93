//! What a committer thread has been given and has not done yet, and what of it comes next.
//!
//! Changes of directories are slow, and there may be thousands of them: a request may create as many logs, or remove
//! them. The logs without one must not wait for those. So the two take turns: groups without any alternate with groups
//! that have a few, in which the logs come round-robin. A log whose directory changes is taken as a whole, because
//! none of its appends is durable before that.

use std::collections::BTreeMap;

use mainstem_log::LogId;

use crate::deferred::Deferred;
use crate::group::Group;

/// Maximum number of logs with directory changes or removals per group. Each costs the disk some milliseconds, for
/// which all other logs wait.
const DIR_CHANGES_MAX: usize = 2;
/// Maximum number of deferred pieces of each kind per group. The next group waits for them, and creating a log takes a
/// millisecond or two. While there is no next group, this does not slow them down: then one follows the other.
const DEFERRED_MAX: usize = 1;

/// Submitted work, by how long it may take.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Logs whose directories change, each with everything else that was submitted for it.
    changing: BTreeMap<LogId, Group>,
    /// Ranges and acks of all other logs.
    plain: Group,
    deferred: Deferred,
    /// The log whose directory comes next.
    next: u32,
    /// Whether the last group left out slow work.
    was_plain: bool,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.changing.is_empty() && self.plain.is_empty() && self.deferred.is_empty()
    }

    /// Adds a group that was submitted after all others.
    pub(crate) fn add(&mut self, group: Group) {
        let Group { dirs, ranges, acks, retries, mut deferred } = group;
        for (log, name) in std::mem::take(&mut deferred.removals) {
            // Nobody waits for what else was submitted for the log.
            self.deferred.forget_log(log);
            let mut removal = Group::default();
            removal.deferred.removals.insert(log, name);
            self.changing.insert(log, removal);
        }
        for (log, names) in dirs {
            self.changing.entry(log).or_default().change_dir(log, names);
        }
        for log in retries {
            self.changing.entry(log).or_default().retry(log);
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

    fn part_of(&mut self, log: LogId) -> &mut Group {
        match self.changing.get_mut(&log) {
            Some(part) => part,
            None => &mut self.plain,
        }
    }

    /// Takes the next group.
    pub(crate) fn next(&mut self) -> Group {
        let is_slow = !self.changing.is_empty() || !self.deferred.is_empty();
        let mut group = std::mem::take(&mut self.plain);
        self.was_plain = is_slow && !group.is_empty() && !self.was_plain;
        if self.was_plain {
            return group;
        }
        let from = LogId(self.next);
        let in_turn = self.changing.range(from..).chain(self.changing.range(..from));
        let logs: Vec<LogId> = in_turn.map(|(log, _)| *log).take(DIR_CHANGES_MAX).collect();
        for log in logs {
            self.take_log(log, &mut group);
            self.next = log.0.wrapping_add(1);
        }
        group.deferred.merge(self.deferred.take_first(DEFERRED_MAX));
        group
    }

    /// Takes everything that concerns this log, if one is given, the checkpoint, and what is quick.
    pub(crate) fn take_urgent(&mut self, log: Option<LogId>) -> Group {
        let mut group = std::mem::take(&mut self.plain);
        if let Some(log) = log {
            self.take_log(log, &mut group);
            group.deferred.merge(self.deferred.take_log(log));
        }
        if let Some(checkpoint) = self.deferred.checkpoint.take() {
            group.deferred.checkpoint = Some(checkpoint);
        }
        group
    }

    fn take_log(&mut self, log: LogId, into: &mut Group) {
        if let Some(part) = self.changing.remove(&log) {
            into.merge(part);
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
    use crate::group::Ack;
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

    #[test]
    fn changes_of_directories_delay_no_other_log() {
        let logs = 3 * DIR_CHANGES_MAX as u32;
        let other = LogId(logs);
        let mut backlog = Backlog::default();
        backlog.add(changes(0..logs));
        let mut seen = BTreeSet::new();
        for round in 1..=6 {
            // The first log changes its directory in every round.
            let mut group = changes([0]);
            group.acknowledge(ack(other));
            backlog.add(group);
            let group = backlog.next();
            assert!(acked(&group).contains(&other), "round {round}");
            let most = if round % 2 == 1 { 0 } else { DIR_CHANGES_MAX };
            assert_eq!(group.dirs.len(), most, "round {round}");
            // A log is acknowledged once its directory has changed.
            assert!(acked(&group).iter().all(|log| *log == other || group.dirs.contains_key(log)));
            seen.extend(group.dirs.into_keys());
        }
        assert_eq!(seen.len(), logs as usize);
    }

    #[test]
    fn creations_of_logs_delay_no_other_log() {
        let logs = 10 * DEFERRED_MAX as u32;
        let other = LogId(logs);
        let mut backlog = Backlog::default();
        let mut creations = Group::default();
        for log in (0..logs).map(LogId) {
            let dir = LogDir::new(log, "log", "/log".into());
            creations.deferred.logs.insert(log, Arc::new(NewLog::of(&dir)));
        }
        backlog.add(creations);
        let (mut rounds, mut created) = (0, BTreeSet::new());
        while !backlog.is_empty() {
            rounds += 1;
            let mut group = Group::default();
            group.acknowledge(ack(other));
            backlog.add(group);
            let group = backlog.next();
            assert!(acked(&group).contains(&other), "round {rounds}");
            let most = if rounds % 2 == 1 { 0 } else { DEFERRED_MAX };
            assert_eq!(group.deferred.logs.len(), most, "round {rounds}");
            created.extend(group.deferred.logs.into_keys());
        }
        assert_eq!(created.len(), logs as usize);
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
        let group = backlog.take_urgent(Some(LogId(40)));
        assert!(group.dirs.keys().eq([&LogId(40)]) && group.deferred.segments.keys().eq([&LogId(40)]));
        assert_eq!((acked(&group), group.deferred.checkpoint.is_some()), ([LogId(40)].into(), true));
        let group = backlog.take_urgent(Some(LogId(40)));
        assert!(group.is_empty());
        let mut rest = BTreeSet::new();
        while !backlog.is_empty() {
            rest.extend(backlog.next().dirs.into_keys());
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
        let group = backlog.next();
        assert!(group.dirs.keys().eq([&LogId(2)]) && group.deferred.removals.keys().eq([&LogId(1)]));
        assert_eq!(acked(&group), [LogId(2)].into());
        assert!(backlog.is_empty());
    }
}
