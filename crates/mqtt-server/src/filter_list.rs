//! A SUBSCRIBE or UNSUBSCRIBE with many filters, handled over several turns.
//!
//! First all filters are checked, so that a malformed packet changes nothing, and counted: more than a session can have
//! end the connection. Then they are handled one by one, and the acknowledgement has a reason code for each. Meanwhile
//! the packet stays in the input of its connection, whose next packets wait behind it. What must be known between two
//! turns is here, as plain data.

use mainstem_mqtt::{DecodeError, FilterReader, SubscribeFilter, Version};

use crate::pending_acks::AckCondition;

/// Filters of one packet that are handled, or more if a session may have more subscriptions.
pub(crate) const FILTERS_MAX: usize = 128 * 1024;
/// Filters that are checked for one unit of work.
const CHECKED_PER_UNIT: usize = 4;
/// Bytes of filters that are checked for one unit of work.
const BYTES_PER_UNIT: usize = 512;

/// Progress of one SUBSCRIBE or UNSUBSCRIBE.
#[derive(Debug)]
pub(crate) struct FilterList {
    filters: FilterReader,
    is_checked: bool,
    /// Number of filters checked.
    count: usize,
    /// The reason codes so far.
    reasons: Vec<u8>,
    /// What the acknowledgement waits for.
    condition: AckCondition,
    /// New consumers of queues, with the indexes of their reason codes.
    consumers: Vec<(u64, usize)>,
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) is_complete: bool,
    pub(crate) units: u32,
}

/// A packet that has been handled, for its acknowledgement.
#[derive(Debug)]
pub(crate) struct HandledFilters {
    pub(crate) packet_id: u16,
    pub(crate) reasons: Box<[u8]>,
    pub(crate) condition: AckCondition,
    pub(crate) consumers: Vec<(u64, usize)>,
}

impl FilterList {
    /// Begins with a whole packet.
    ///
    /// # Errors
    /// If what precedes its filters is not well formed.
    pub(crate) fn new(version: Version, frame: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            filters: FilterReader::new(version, frame)?,
            is_checked: false,
            count: 0,
            reasons: Vec::new(),
            condition: AckCondition::default(),
            consumers: Vec::new(),
        })
    }

    /// Checks some of the filters, for a few units of work, until all are known to be well formed.
    ///
    /// # Errors
    /// If one is not.
    pub(crate) fn check(&mut self, frame: &[u8]) -> Result<Checked, DecodeError> {
        let (mut count, mut bytes) = (0, 0);
        while !self.is_checked && count < 16 * CHECKED_PER_UNIT && bytes < 16 * BYTES_PER_UNIT {
            if let Some(asked) = self.filters.next(frame)? {
                bytes += asked.filter.len();
                count += 1;
            } else {
                self.is_checked = true;
                self.filters.rewind();
            }
        }
        self.count += count;
        let units = (count / CHECKED_PER_UNIT + bytes / BYTES_PER_UNIT) as u32;
        Ok(Checked { is_complete: self.is_checked, units })
    }

    /// Number of filters, once all have been checked.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Subscription Identifier; 0 is none.
    pub(crate) fn subscription_id(&self) -> u32 {
        self.filters.subscription_id().unwrap_or(0)
    }

    /// The next filter that is to be handled.
    ///
    /// # Errors
    /// None, since all have been checked.
    pub(crate) fn next<'a>(&mut self, frame: &'a [u8]) -> Result<Option<SubscribeFilter<'a>>, DecodeError> {
        debug_assert!(self.is_checked);
        self.filters.next(frame)
    }

    /// A filter has been handled.
    pub(crate) fn push(&mut self, reason: u8) {
        self.reasons.push(reason);
    }

    /// The filter that is being handled has made a consumer of a queue.
    pub(crate) fn add_consumer(&mut self, consumer: u64) {
        self.consumers.push((consumer, self.reasons.len()));
    }

    /// The acknowledgement also waits for what this turn has appended.
    pub(crate) fn wait_for(&mut self, condition: AckCondition) {
        self.condition.commit = self.condition.commit.max(condition.commit);
        self.condition.receipts += condition.receipts;
    }

    /// All filters have been handled.
    pub(crate) fn finish(self) -> HandledFilters {
        let Self { filters, reasons, condition, consumers, .. } = self;
        HandledFilters { packet_id: filters.packet_id(), reasons: reasons.into(), condition, consumers }
    }
}
