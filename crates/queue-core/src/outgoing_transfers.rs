//! The transfers of one group to other queues: their numbers, and how far each of them is.
//!
//! ```text
//!  begin ──► seal ──► flush_durable ──► take ──► complete
//!                                        ▲  │
//!                                        └──┘ return_from
//! ```
//! A transfer gets the next number when it begins. The flush that records the number is sealed; only when that flush is
//! durable is the transfer handed to the caller. Numbers ascend and are never used again, because the target queue
//! discards a number that it has seen.

use std::collections::{BTreeMap, VecDeque};

use crate::deferred_drop::drop_some;
use crate::request::Reason;

/// A message on its way to another queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeavingMessage {
    pub(crate) offset: u64,
    pub(crate) reason: Reason,
    pub(crate) since_ms: u64,
}

/// The messages of a group that are on their way to other queues, by transfer number.
#[derive(Debug)]
pub(crate) struct OutgoingTransfers {
    by_number: BTreeMap<u64, LeavingMessage>,
    last_number: u64,
    /// Transfers up to this number have been handed to the caller.
    taken_to: u64,
    /// Transfers up to this number are durable.
    durable_to: u64,
    /// Flush and highest transfer number in it, for flushes that are not durable yet.
    sealed: VecDeque<(u64, u64)>,
}

impl OutgoingTransfers {
    /// For a group whose numbers up to `last_number` may have been used.
    pub(crate) fn new(last_number: u64) -> Self {
        Self {
            by_number: BTreeMap::new(),
            last_number,
            taken_to: 0,
            durable_to: last_number,
            sealed: VecDeque::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether a flush is sealed and not durable.
    pub(crate) fn is_sealing(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// The highest number that may have been used.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_number
    }

    pub(crate) fn get(&self, number: u64) -> Option<&LeavingMessage> {
        self.by_number.get(&number)
    }

    /// All transfers, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &LeavingMessage)> {
        self.by_number.iter().map(|(&number, leaving)| (number, leaving))
    }

    /// Starts a transfer and returns its number.
    pub(crate) fn begin(&mut self, leaving: LeavingMessage) -> u64 {
        self.last_number += 1;
        let before = self.by_number.insert(self.last_number, leaving);
        debug_assert!(before.is_none(), "a transfer number is used once");
        self.last_number
    }

    /// Restores a transfer from its event.
    pub(crate) fn restore(&mut self, number: u64, leaving: LeavingMessage) {
        self.skip_to(number);
        self.by_number.insert(number, leaving);
    }

    /// Numbers up to this one are not used for new transfers.
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
    }

    /// The transfer is complete or canceled.
    pub(crate) fn remove(&mut self, number: u64) -> Option<LeavingMessage> {
        self.by_number.remove(&number)
    }

    /// Returns the next durable transfer that was not handed out.
    pub(crate) fn take(&mut self) -> Option<(u64, LeavingMessage)> {
        let (&number, &leaving) = self.by_number.range(self.taken_to + 1..).next()?;
        if number > self.durable_to {
            return None;
        }
        self.taken_to = number;
        Some((number, leaving))
    }

    /// This transfer and those after it are handed out again.
    pub(crate) fn return_from(&mut self, number: u64) {
        self.taken_to = self.taken_to.min(number.saturating_sub(1));
    }

    /// The numbers given so far are recorded in this flush.
    pub(crate) fn seal(&mut self, flush: u64) {
        debug_assert!(
            self.sealed.back().is_none_or(|(last, _)| *last <= flush),
            "flushes are sealed in order"
        );
        self.sealed.push_back((flush, self.last_number));
    }

    /// Flushes up to this one are durable.
    pub(crate) fn flush_durable(&mut self, flush: u64) {
        while let Some((_, number)) = self.sealed.pop_front_if(|sealed| sealed.0 <= flush) {
            self.durable_to = number;
        }
    }

    /// All numbers given so far are durable.
    pub(crate) fn all_durable(&mut self) {
        self.durable_to = self.last_number;
    }

    /// Drops entries, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        drop_some(&mut self.by_number, budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(offset: u64) -> LeavingMessage {
        LeavingMessage { offset, reason: Reason::Rejected, since_ms: 1 }
    }

    #[test]
    fn a_transfer_is_handed_out_once_and_after_its_flush() {
        let mut transfers = OutgoingTransfers::new(7);
        assert_eq!((transfers.begin(leaving(0)), transfers.begin(leaving(1))), (8, 9));
        transfers.seal(1);
        assert_eq!(transfers.begin(leaving(2)), 10);
        transfers.seal(2);
        assert!(transfers.take().is_none(), "nothing is durable");
        transfers.flush_durable(1);
        let mut taken = || transfers.take().map(|(number, leaving)| (number, leaving.offset));
        assert_eq!([taken(), taken(), taken()], [Some((8, 0)), Some((9, 1)), None]);
        transfers.return_from(9);
        assert_eq!(transfers.take().map(|(number, _)| number), Some(9));
        assert!(transfers.remove(9).is_some() && transfers.remove(9).is_none());
        transfers.flush_durable(2);
        assert!(!transfers.is_sealing());
        assert_eq!(transfers.take().map(|(number, _)| number), Some(10));
        transfers.skip_to(100);
        assert_eq!(transfers.begin(leaving(3)), 101);
    }
}
