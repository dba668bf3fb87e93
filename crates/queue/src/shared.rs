//! What the groups of a queue share: the messages, the configuration, and what is to last.

use std::collections::VecDeque;

use crate::config::{Config, Overflow};
use crate::pool::Pool;
use crate::recorder::Recorder;

/// A message that stands in the line of its key no more as soon as a flush is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freeing {
    /// The flush that says so.
    pub(crate) flush: u64,
    pub(crate) group: u32,
    pub(crate) key: u64,
    pub(crate) offset: u64,
}

/// What the transitions of a group are called with.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) recorder: Recorder,
    /// What tells deliveries of one life of the queue from those of another.
    pub(crate) life: u32,
    /// In the order of their flushes.
    pub(crate) freeing: VecDeque<Freeing>,
    /// Groups that messages have begun to leave since the last flush.
    pub(crate) departed: Vec<u32>,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            pool: Pool::new(config.ttl_ms),
            config,
            recorder: Recorder::default(),
            life: 0,
            freeing: VecDeque::new(),
            departed: Vec::new(),
        }
    }

    /// Deliveries that are counted from one again have other receipts than those before.
    pub(crate) fn go_on_living(&mut self) {
        self.life = self.life.wrapping_add(1).max(1);
    }

    /// Whether a message was delivered as often as it may be.
    pub(crate) fn is_spent(&self, count: u32) -> bool {
        (1..=count).contains(&self.config.max_deliveries)
    }

    /// Whether more messages, or bytes of them, are there than there may be with so many more.
    pub(crate) fn exceeds(&self, messages: u64, bytes: u64) -> bool {
        let (length, size) = self.pool.staying();
        let over = |most: u64, there: u64, more: u64| most > 0 && there.saturating_add(more) > most;
        over(self.config.length_max, length, messages) || over(self.config.bytes_max, size, bytes)
    }

    /// The oldest message that nobody holds, if there are too many and such make way.
    pub(crate) fn oldest_too_many(&self) -> Option<u64> {
        let drops = self.config.overflow == Overflow::DropOldest && self.exceeds(0, 0);
        if drops { self.pool.oldest_free() } else { None }
    }
}
