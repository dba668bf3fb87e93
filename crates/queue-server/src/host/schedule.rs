//! Which queues of a host have something to do, and when.
//!
//! A shard may have thousands of queues, of which few have work in a turn. Each is in the set of what it needs, so that
//! a turn costs nothing for the others. A queue that has more than a turn's share is polled again in the next turn,
//! after the others.

use std::collections::BTreeSet;

use mainstem_partition::PartitionId;

/// The queues with work in this turn, in the next one, and at a time.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Queues to poll.
    ready: BTreeSet<PartitionId>,
    /// Queues to poll in the next turn.
    ready_next: BTreeSet<PartitionId>,
    /// Queues with events that the stores have not been handed.
    changed: BTreeSet<PartitionId>,
    /// Queues that may have messages to truncate.
    untrimmed: BTreeSet<PartitionId>,
    /// Deadlines, ms since 1970. Each queue has one at most.
    due: BTreeSet<(u64, PartitionId)>,
    /// Deadline of the timer.
    timer_ms: Option<u64>,
}

impl Schedule {
    /// Something has happened to a queue: it is to be polled.
    pub(super) fn mark_ready(&mut self, id: PartitionId) {
        self.ready.insert(id);
    }

    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes a queue to poll, which may have events to append afterwards.
    pub(super) fn take_ready(&mut self) -> Option<PartitionId> {
        let id = self.ready.pop_first()?;
        self.changed.insert(id);
        Some(id)
    }

    /// A queue has more to do: it is polled again in the next turn.
    pub(super) fn continue_in_next_turn(&mut self, id: PartitionId) {
        self.ready_next.insert(id);
    }

    /// All queues were polled in this turn.
    pub(super) fn end_turn(&mut self) {
        self.ready.append(&mut self.ready_next);
    }

    /// A queue may have events to append.
    pub(super) fn mark_changed(&mut self, id: PartitionId) {
        self.changed.insert(id);
    }

    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Queues that may have messages or events to append.
    pub(super) fn changed(&self) -> Vec<PartitionId> {
        self.changed.iter().copied().collect()
    }

    /// Takes the queues whose events are appended now. They may have messages to truncate later.
    pub(super) fn take_changed(&mut self) -> BTreeSet<PartitionId> {
        let changed = std::mem::take(&mut self.changed);
        self.untrimmed.extend(&changed);
        changed
    }

    /// A queue may have more messages to truncate.
    pub(super) fn mark_untrimmed(&mut self, id: PartitionId) {
        self.untrimmed.insert(id);
    }

    pub(super) fn take_untrimmed(&mut self) -> BTreeSet<PartitionId> {
        std::mem::take(&mut self.untrimmed)
    }

    /// Moves the deadline of a queue, which its owner keeps, to `due_ms`.
    #[inline]
    pub(super) fn move_deadline(&mut self, id: PartitionId, kept: &mut Option<u64>, due_ms: Option<u64>) {
        if *kept == due_ms {
            return;
        }
        if let Some(before_ms) = std::mem::replace(kept, due_ms) {
            let was_scheduled = self.due.remove(&(before_ms, id));
            debug_assert!(was_scheduled, "the deadline of a queue is scheduled");
        }
        if let Some(due_ms) = due_ms {
            self.due.insert((due_ms, id));
        }
    }

    /// Takes a queue whose deadline has passed. Its owner keeps none from now on.
    pub(super) fn take_due(&mut self, now_ms: u64) -> Option<PartitionId> {
        let (due_ms, id) = *self.due.first()?;
        if due_ms > now_ms {
            return None;
        }
        self.due.pop_first();
        Some(id)
    }

    /// The timer has fired.
    pub(super) fn on_timer(&mut self) {
        self.timer_ms = None;
    }

    /// The time until the next deadline, ms, if it is earlier than that of the timer.
    pub(super) fn next_timer(&mut self, now_ms: u64) -> Option<u64> {
        let (due_ms, _) = *self.due.first()?;
        if self.timer_ms.is_some_and(|timer_ms| timer_ms <= due_ms) {
            return None;
        }
        self.timer_ms = Some(due_ms);
        Some(due_ms.saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use mainstem_partition::TopicId;

    use super::*;

    fn queue(byte: u8) -> PartitionId {
        PartitionId { topic: TopicId([byte; 16]), index: 0 }
    }

    #[test]
    fn a_queue_that_has_more_to_do_is_polled_once_per_turn() {
        let mut schedule = Schedule::default();
        schedule.mark_ready(queue(1));
        assert_eq!(schedule.take_ready(), Some(queue(1)));
        schedule.continue_in_next_turn(queue(1));
        assert!(!schedule.has_ready(), "not again in this turn");
        schedule.end_turn();
        assert_eq!(schedule.take_ready(), Some(queue(1)));
    }

    #[test]
    fn a_polled_queue_appends_its_events_and_is_trimmed_later() {
        let mut schedule = Schedule::default();
        schedule.mark_ready(queue(1));
        schedule.take_ready();
        assert_eq!(schedule.changed(), [queue(1)]);
        assert!(schedule.take_untrimmed().is_empty(), "nothing is appended yet");
        assert!(schedule.take_changed().contains(&queue(1)));
        assert!(!schedule.has_changed());
        assert!(schedule.take_untrimmed().contains(&queue(1)));
    }

    #[test]
    fn the_timer_is_set_for_earlier_deadlines_only() {
        let mut schedule = Schedule::default();
        let (mut first, mut second) = (None, None);
        schedule.move_deadline(queue(1), &mut first, Some(100));
        assert_eq!(schedule.next_timer(40), Some(60));
        schedule.move_deadline(queue(2), &mut second, Some(150));
        assert_eq!(schedule.next_timer(40), None, "the timer comes first");
        schedule.move_deadline(queue(2), &mut second, Some(50));
        assert_eq!(schedule.next_timer(40), Some(10));

        schedule.on_timer();
        assert_eq!(schedule.take_due(50), Some(queue(2)));
        assert_eq!(schedule.take_due(50), None, "the other one is not due, and the old deadline is gone");
        assert_eq!(schedule.next_timer(50), Some(50));
        schedule.move_deadline(queue(1), &mut first, None);
        assert_eq!(schedule.take_due(1_000), None);
    }
}
