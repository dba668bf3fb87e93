//! Messages that the group has not loaded, because it [lags](crate::Queue::is_lagging).

use std::ops::Range;

use super::{Entry, Group, State};
use crate::event::Event;
use crate::offset_ranges::OffsetRanges;
use crate::request::{Disposition, QueueError, Reason, Settlement};
use crate::shared::Shared;

impl Group {
    /// Unsettled messages that are registered, but not loaded. None of them is on its way to another queue, except
    /// between a restart and its registration.
    pub(crate) fn unknown(&self) -> &OffsetRanges {
        &self.unknown
    }

    /// The group has to settle this message, and does not load it now.
    pub(crate) fn add_unloaded(&mut self, offset: u64) {
        debug_assert!(!self.pending.contains(offset), "a message is loaded or not");
        self.unknown.insert(offset);
    }

    /// The group has to settle these messages, and does not load them now.
    pub(crate) fn add_unloaded_ranges(&mut self, offsets: OffsetRanges) {
        self.unknown.add(offsets);
    }

    /// A removed group releases these messages, which it has not loaded.
    pub(crate) fn remove_unloaded(&mut self, offsets: Range<u64>) {
        self.unknown.remove_range(offsets);
    }

    /// Whether the group loads no more messages before a flush is durable.
    pub(crate) fn awaits_flush(&self) -> bool {
        self.loads_after_flush > 0
    }

    /// Loads a message that the group had to settle without knowing it. The message is in memory.
    pub(crate) fn load(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.unknown.remove(offset);
        self.pending.insert(offset);
        shared.messages.add_pending(offset);
        let entry = self.entries.get(&offset).copied().unwrap_or(Entry::NEW);
        if let State::Leaving { .. } = entry.state {
            return shared.messages.begin_transfer(offset);
        }
        self.admit(shared, offset, now_ms);
        if shared.is_spent(entry.count) && entry.not_before_ms <= now_ms {
            self.withdraw(shared, offset);
            self.begin_transfer(shared, offset, Reason::MaxDeliveries, now_ms);
        }
    }

    /// Whether the group has registered messages that it has not loaded.
    pub(crate) fn is_lagging(&self, registered_to: u64) -> bool {
        self.unknown.first().is_some_and(|first| first < registered_to)
    }

    /// Whether the group does not load newly registered messages.
    pub(crate) fn skips_new_messages(&self) -> bool {
        !self.unknown.is_empty() || self.loads_after_flush > 0
    }

    /// Whether the group does not load this older message, because it has not loaded an earlier one.
    pub(crate) fn skips_older_message(&self, offset: u64) -> bool {
        let is_last = || self.pending.first_from(offset).is_none();
        self.unknown.first().is_some_and(|first| first < offset) || self.loads_after_flush > 0 && is_last()
    }

    pub(crate) fn is_leaving(&self, offset: u64) -> bool {
        matches!(self.state(offset), State::Leaving { .. })
    }

    /// Settles the unloaded messages of a range, and returns their offsets.
    pub(crate) fn purge_unknown(&mut self, shared: &mut Shared, range: Range<u64>) -> Vec<Range<u64>> {
        let purged: Vec<Range<u64>> = self.unknown.ranges_within(range).collect();
        for run in &purged {
            self.forget(run.clone());
            shared.recorder.record(&Event::Settled { group: self.id, offsets: run.clone() });
            // Otherwise a later message of the key could become available before this settlement is durable.
            self.loads_after_flush = shared.recorder.next_flush();
        }
        purged
    }

    /// Counts the acknowledgement of a message that is not loaded. The caller settles it with
    /// [`Group::purge_unknown`].
    ///
    /// # Errors
    /// [`QueueError::Stale`]: the message is leaving, the receipt is not of its last delivery, or it is not an
    /// acknowledgement.
    pub(crate) fn acknowledge_unloaded(&mut self, settlement: &Settlement) -> Result<(), QueueError> {
        let offset = settlement.receipt.offset;
        let is_it = self.entries.get(&offset).is_some_and(|entry| entry.is_of(settlement.receipt));
        if !is_it || self.is_leaving(offset) || settlement.disposition != Disposition::Ack {
            return Err(QueueError::Stale);
        }
        self.counters.acked += 1;
        Ok(())
    }
}
