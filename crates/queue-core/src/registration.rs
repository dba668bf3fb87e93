//! How far the messages of a queue are registered.

/// Messages below `to` are registered. Those below `restored_to` were registered before the last restart: the queue
/// knows their state from its events, and the messages themselves once they are registered again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registration {
    to: u64,
    restored_to: u64,
}

impl Registration {
    pub(crate) fn to(self) -> u64 {
        self.to
    }

    pub(crate) fn restored_to(self) -> u64 {
        self.restored_to
    }

    /// The end of the messages that are registered now or were before the restart.
    pub(crate) fn known_to(self) -> u64 {
        self.to.max(self.restored_to)
    }

    /// Whether messages from before the restart are not registered again yet.
    pub(crate) fn is_restoring(self) -> bool {
        self.to < self.restored_to
    }

    /// Whether the queue had no state for this message when it restarted.
    pub(crate) fn is_new(self, offset: u64) -> bool {
        offset >= self.restored_to
    }

    /// Offsets below `to` are registered or are no messages.
    pub(crate) fn advance(&mut self, to: u64) {
        self.to = self.to.max(to);
    }

    /// Events that were replayed register messages below `to`.
    pub(crate) fn restore(&mut self, to: u64) {
        debug_assert!(self.to == 0, "events are replayed before any message is registered");
        debug_assert!(to >= self.restored_to, "events follow each other");
        self.restored_to = to;
    }
}
