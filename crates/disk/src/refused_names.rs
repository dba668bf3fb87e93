//! Work of logs whose next segment cannot get its name for lack of space.
//!
//! Nothing in a segment may be acknowledged before the segment has its name. A rename that fails for lack of space
//! changes nothing, so it can be repeated, unlike a failed sync. Until it succeeds, the committer keeps everything that
//! was submitted for the log, in order, and goes on with the other logs. The shard refuses appends to the log
//! meanwhile, which bounds what is kept, and asks for another attempt now and then ([`Group::retry`]).

use std::collections::BTreeMap;

use mainstem_log::{Error, LogId};

use crate::group::Group;

/// What waits for the names of segments, by log.
#[derive(Default)]
pub(crate) struct RefusedNames {
    waiting: BTreeMap<LogId, Group>,
    /// Refusals that were not reported to the shard yet.
    unreported: Vec<(LogId, Error)>,
}

impl RefusedNames {
    /// Keeps what concerns the waiting logs, and returns the rest of the group. The logs that it names for another
    /// attempt wait no longer.
    pub(crate) fn divide(&mut self, group: Group) -> Group {
        if self.waiting.is_empty() {
            return group;
        }
        let Group { dirs, ranges, acks, retries, deferred } = group;
        let mut rest = Group { deferred, ..Group::default() };
        for (log, names) in dirs {
            self.waiting.get_mut(&log).unwrap_or(&mut rest).change_dir(log, names);
        }
        for (key, range) in ranges {
            self.waiting.get_mut(&key.0).unwrap_or(&mut rest).add(range);
        }
        for ack in acks {
            self.waiting.get_mut(&ack.log).unwrap_or(&mut rest).acknowledge(ack);
        }
        for log in retries {
            if let Some(waited) = self.waiting.remove(&log) {
                rest.merge(waited);
            }
        }
        rest
    }

    /// From now on these logs wait, and with them what the group has for them. Returns the rest of it.
    pub(crate) fn refuse(&mut self, refusals: Vec<(LogId, Error)>, mut group: Group) -> Group {
        // An attempt that fails must not repeat itself.
        group.retries.clear();
        for (log, error) in refusals {
            self.waiting.entry(log).or_default();
            self.unreported.push((log, error));
        }
        self.divide(group)
    }

    /// Takes what waits for a log, which is then as if it had not been submitted.
    pub(crate) fn take(&mut self, log: LogId) -> Option<Group> {
        self.waiting.remove(&log)
    }

    /// Drains the refusals since the last call.
    pub(crate) fn take_unreported(&mut self) -> Vec<(LogId, Error)> {
        std::mem::take(&mut self.unreported)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mainstem_log::Ticket;

    use super::*;
    use crate::group::Ack;
    use crate::scan::Place;

    fn group(log: u32, ticket: u64) -> Group {
        let mut group = Group::default();
        group.add_segment(LogId(log), Path::new("dir"), ticket, "new".into());
        group.acknowledge(Ack { ticket: Some(Ticket(ticket)), ..Ack::of(LogId(log), Place::default()) });
        group
    }

    fn bases(group: &Group, log: u32) -> Vec<u64> {
        let dir = group.dirs.get(&LogId(log));
        dir.into_iter().flat_map(|names| names.segments.iter().map(|(base, _)| *base)).collect()
    }

    #[test]
    fn work_of_a_waiting_log_stays_in_order_and_others_go_on() {
        let mut names = RefusedNames::default();
        let mut first = group(1, 1);
        first.merge(group(2, 1));
        let rest = names.refuse(vec![(LogId(1), Error::Full)], first);
        assert_eq!((bases(&rest, 1), bases(&rest, 2)), (vec![], vec![1]));
        assert!(rest.acks.iter().all(|ack| ack.log == LogId(2)), "{:?}", rest.acks);
        assert_eq!(names.take_unreported(), [(LogId(1), Error::Full)]);

        let rest = names.divide(group(1, 2));
        assert!(rest.is_empty());

        let mut retry = group(1, 3);
        retry.retry(LogId(1));
        retry.retry(LogId(7));
        let rest = names.divide(retry);
        assert_eq!(bases(&rest, 1), [1, 2, 3]);
        assert_eq!(rest.acks.last().and_then(|ack| ack.ticket), Some(Ticket(3)));
        assert!(names.waiting.is_empty());
    }

    #[test]
    fn a_refused_attempt_waits_for_the_next() {
        let mut names = RefusedNames::default();
        let mut again = group(1, 1);
        again.retry(LogId(1));
        assert!(names.refuse(vec![(LogId(1), Error::Full)], again).is_empty());
        assert!(!names.waiting.is_empty());
        assert_eq!(names.take(LogId(1)).map(|waited| bases(&waited, 1)), Some(vec![1]));
    }
}
