//! State that the groups of a queue share: messages, configuration, and the recorder of events.

use std::collections::VecDeque;

use crate::config::{Config, Overflow};
use crate::event_recorder::Recorder;
use crate::messages::Messages;

/// A settled message that blocks its key until a flush is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRelease {
    /// The flush that records the settlement.
    pub(crate) flush: u64,
    pub(crate) group: u32,
    pub(crate) key: u64,
    pub(crate) offset: u64,
}

/// Shared state, passed to the methods of a group.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) messages: Messages,
    pub(crate) recorder: Recorder,
    /// Incarnation of new deliveries.
    pub(crate) incarnation: u32,
    pub(crate) key_releases: VecDeque<KeyRelease>,
    /// Groups in which a transfer has begun since the last flush.
    pub(crate) transferring: Vec<u32>,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            messages: Messages::new(config.ttl_ms),
            config,
            recorder: Recorder::default(),
            incarnation: 0,
            key_releases: VecDeque::new(),
            transferring: Vec::new(),
        }
    }

    /// Starts another incarnation, because a delivery count is used again: the next delivery needs a different
    /// receipt.
    pub(crate) fn resume_incarnation(&mut self) {
        self.incarnation = self.incarnation.wrapping_add(1).max(1);
    }

    /// Whether a message with this many deliveries has reached the limit.
    pub(crate) fn is_spent(&self, count: u32) -> bool {
        (1..=count).contains(&self.config.max_deliveries)
    }

    /// How many more messages and bytes fit; `None` if a limit is exceeded already.
    pub(crate) fn room(&self) -> Option<[u64; 2]> {
        let (length, size) = self.messages.staying();
        let room = |most: u64, there: u64| if most == 0 { Some(u64::MAX) } else { most.checked_sub(there) };
        Some([room(self.config.length_max, length)?, room(self.config.bytes_max, size)?])
    }

    /// If a limit is exceeded and the queue drops the oldest messages: the oldest one that no group holds.
    pub(crate) fn oldest_over_limit(&self) -> Option<u64> {
        let drops = self.config.overflow == Overflow::DropOldest && self.room().is_none();
        if drops { self.messages.oldest_free() } else { None }
    }
}
