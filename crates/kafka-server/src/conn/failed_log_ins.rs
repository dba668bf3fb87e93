//! Failed log-ins, which are answered after a delay, so that guessing passwords takes long. All have the same delay, so
//! the one that failed first is due first.

use std::collections::VecDeque;

use crate::shard_message::Caller;

/// The failed log-ins of a shard that are not answered yet. There are at most as many as connections.
#[derive(Debug, Default)]
pub(super) struct FailedLogIns {
    waiting: VecDeque<FailedLogIn>,
}

/// A failed log-in.
#[derive(Debug)]
pub(super) struct FailedLogIn {
    due_ms: u64,
    pub(super) caller: Caller,
    /// The encoded response; it may be empty.
    pub(super) response: Vec<u8>,
}

impl FailedLogIns {
    /// Adds one. Returns when to call [`Self::take_due`], unless there is a timer already.
    pub(super) fn add(&mut self, due_ms: u64, caller: Caller, response: Vec<u8>) -> Option<u64> {
        let is_first = self.waiting.is_empty();
        self.waiting.push_back(FailedLogIn { due_ms, caller, response });
        is_first.then_some(due_ms)
    }

    /// Takes the next that is due.
    pub(super) fn take_due(&mut self, now_ms: u64) -> Option<FailedLogIn> {
        self.waiting.pop_front_if(|first| first.due_ms <= now_ms)
    }

    /// When the next is due.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        Some(self.waiting.front()?.due_ms)
    }
}

#[cfg(test)]
mod tests {
    use mainstem_runtime::ConnId;

    use super::*;

    #[test]
    fn they_are_due_in_order_with_one_timer() {
        let mut failed = FailedLogIns::default();
        let caller = |request| Caller { shard: 0, conn: ConnId::from_parts(1, 1), request };
        assert_eq!(failed.add(100, caller(1), Vec::new()), Some(100));
        assert_eq!(failed.add(150, caller(2), Vec::new()), None);
        assert!(failed.take_due(99).is_none());
        assert_eq!(failed.take_due(149).map(|log_in| log_in.caller.request), Some(1));
        assert!(failed.take_due(149).is_none());
        assert_eq!(failed.next_due_ms(), Some(150));
        assert_eq!(failed.take_due(150).map(|log_in| log_in.caller.request), Some(2));
        assert_eq!(failed.next_due_ms(), None);
    }
}
