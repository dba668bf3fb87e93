//! When each log of a store is due for maintenance.
//!
//! A store may have tens of thousands of logs, of which few are due at a time. So nothing visits all of them: a log
//! has one due time at most, in an ordered set, and what changes that time puts the log into a queue. Logs in the queue
//! take turns, so that a long compaction does not delay the retention of the others.

use std::collections::{BTreeSet, VecDeque};

use mainstem_log::LogId;

/// Due times that move to the queue per call.
const MOVED_MAX: usize = 64;

/// When the next maintenance of a log is due. The earlier one is the smaller one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Now,
    /// Unix time in ms.
    At(u64),
    /// Not before something changes.
    #[default]
    Never,
}

/// Due times of the logs.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Indexed by [`LogId`].
    due: Vec<Due>,
    timers: BTreeSet<(u64, LogId)>,
    /// Logs that are due now, in the order of their turns. Those that are not any more are skipped.
    queue: VecDeque<LogId>,
}

impl Schedule {
    /// Replaces the due time of a log.
    pub(super) fn set(&mut self, log: LogId, due: Due) {
        let at = log.0 as usize;
        if self.due.len() <= at {
            self.due.resize(at + 1, Due::Never);
        }
        if self.due[at] == due {
            return;
        }
        if let Due::At(due_ms) = self.due[at] {
            self.timers.remove(&(due_ms, log));
        }
        self.due[at] = due;
        match due {
            Due::Now => self.queue.push_back(log),
            Due::At(due_ms) => {
                self.timers.insert((due_ms, log));
            }
            Due::Never => {}
        }
    }

    /// Sets the due time of a log, unless it is due earlier already.
    pub(super) fn set_no_later(&mut self, log: LogId, due: Due) {
        if self.due.get(log.0 as usize).is_none_or(|known| due < *known) {
            self.set(log, due);
        }
    }

    /// Takes the next log that is due. Its due time is [`Due::Never`] until it is set again.
    pub(super) fn next(&mut self, unix_ms: u64) -> Option<LogId> {
        for _ in 0..MOVED_MAX {
            let Some((due_ms, log)) = self.timers.first().copied() else { break };
            if due_ms > unix_ms {
                break;
            }
            self.set(log, Due::Now);
        }
        while let Some(log) = self.queue.pop_front() {
            let due = &mut self.due[log.0 as usize];
            if *due == Due::Now {
                *due = Due::Never;
                return Some(log);
            }
        }
        None
    }

    /// When the first log is due.
    pub(super) fn first(&self, unix_ms: u64) -> Option<u64> {
        let is_due = |log: &LogId| self.due[log.0 as usize] == Due::Now;
        if self.queue.iter().any(is_due) {
            return Some(unix_ms);
        }
        self.timers.first().map(|(due_ms, _)| *due_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(schedule: &mut Schedule, unix_ms: u64) -> Vec<u32> {
        std::iter::from_fn(|| schedule.next(unix_ms)).map(|log| log.0).collect()
    }

    #[test]
    fn logs_come_in_the_order_of_their_due_times() {
        let mut schedule = Schedule::default();
        for (log, due_ms) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
            schedule.set(LogId(log), Due::At(due_ms));
        }
        assert_eq!((schedule.first(0), taken(&mut schedule, 9)), (Some(10), vec![]));
        assert_eq!(taken(&mut schedule, 20), [1, 3, 2]);
        schedule.set(LogId(1), Due::At(40));
        assert_eq!(schedule.first(20), Some(30));
        assert_eq!((taken(&mut schedule, 40), schedule.first(40)), (vec![0, 1], None));
    }

    #[test]
    fn a_log_has_one_due_time() {
        let mut schedule = Schedule::default();
        let log = LogId(2);
        schedule.set(log, Due::At(10));
        schedule.set(log, Due::At(50));
        assert_eq!(taken(&mut schedule, 49), [0; 0]);
        schedule.set(log, Due::Now);
        schedule.set(log, Due::Now);
        assert_eq!((schedule.first(7), taken(&mut schedule, 7)), (Some(7), vec![2]));
        schedule.set(log, Due::Now);
        schedule.set(log, Due::Never);
        assert_eq!((schedule.first(90), taken(&mut schedule, 90)), (None, vec![]));
    }

    #[test]
    fn a_log_with_more_work_goes_behind_the_others() {
        let mut schedule = Schedule::default();
        for log in 0..3 {
            schedule.set(LogId(log), Due::At(5));
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            let log = schedule.next(5).expect("a log is due");
            order.push(log.0);
            schedule.set(log, Due::Now);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }
}
