//! State of one producer: epoch, last batches, open transaction.
//!
//! Idempotence needs only the last few batches: a client has at most five requests in flight, so a retry is always
//! among them.

use super::{BatchInfo, Marker, ProducerState};
use crate::Error;

/// Number of recent batches in which a duplicate is detected. Clients have at most this many requests in flight.
const BATCHES_MAX: usize = 5;
/// No epoch, or no sequence number.
const NONE: i16 = -1;

/// A batch that a producer has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrittenBatch {
    pub(super) last_sequence: i32,
    pub(super) last_offset: u64,
    pub(super) last_offset_delta: u32,
    /// Latest timestamp in the batch.
    pub(super) timestamp_ms: i64,
}

impl WrittenBatch {
    pub(super) fn base_offset(&self) -> u64 {
        self.last_offset - u64::from(self.last_offset_delta)
    }

    fn is(&self, batch: &BatchInfo) -> bool {
        self.last_offset_delta == batch.last_offset_delta
            && self.last_sequence == sequence_after(batch.base_sequence, batch.last_offset_delta)
    }
}

/// State of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) epoch: i16,
    pub(super) coordinator_epoch: i32,
    pub(super) last_timestamp_ms: i64,
    /// Last write by the broker's clock: a client's clock must not affect expiry.
    pub(super) seen_ms: u64,
    /// Offset of its last record or marker.
    pub(super) last_offset: u64,
    /// First offset of its open transaction.
    pub(super) open_from: Option<u64>,
    /// The last batches of this epoch, oldest first; only the first `count` are valid.
    pub(super) batches: [WrittenBatch; BATCHES_MAX],
    pub(super) count: u8,
    /// Only markers of this epoch are known, and earlier batches may have been deleted, so the next batch may have any
    /// sequence number.
    pub(super) accepts_any_sequence: bool,
    /// Whether it is among the idle producers, or was when its transaction began.
    pub(super) is_listed: bool,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            epoch: NONE,
            coordinator_epoch: i32::from(NONE),
            last_timestamp_ms: i64::from(NONE),
            seen_ms: 0,
            last_offset: 0,
            open_from: None,
            batches: [WrittenBatch::default(); BATCHES_MAX],
            count: 0,
            accepts_any_sequence: false,
            is_listed: false,
        }
    }
}

impl Entry {
    pub(super) fn batches(&self) -> &[WrittenBatch] {
        &self.batches[..usize::from(self.count)]
    }

    pub(super) fn push(&mut self, written: WrittenBatch) {
        if usize::from(self.count) == BATCHES_MAX {
            self.batches.rotate_left(1);
            self.batches[BATCHES_MAX - 1] = written;
        } else {
            self.batches[usize::from(self.count)] = written;
            self.count += 1;
        }
    }

    /// Its epoch and the first known sequence number of that epoch.
    pub(super) fn first_known_sequence(&self) -> Option<(i16, i32)> {
        let WrittenBatch { last_sequence, last_offset_delta, .. } = *self.batches().first()?;
        let first = last_sequence.cast_unsigned().wrapping_sub(last_offset_delta) & i32::MAX.cast_unsigned();
        Some((self.epoch, first.cast_signed()))
    }

    pub(super) fn duplicate_of(&self, batch: &BatchInfo) -> Option<&WrittenBatch> {
        if batch.producer_epoch != self.epoch {
            return None;
        }
        self.batches().iter().find(|written| written.is(batch))
    }

    /// Why a batch that is not a duplicate cannot be appended.
    pub(super) fn append_error(&self, batch: &BatchInfo) -> Option<Error> {
        if batch.producer_epoch < self.epoch {
            return Some(Error::InvalidProducerEpoch);
        }
        let is_of_epoch = batch.producer_epoch == self.epoch;
        let next = match self.batches().last() {
            Some(last) if is_of_epoch => sequence_after(last.last_sequence, 1),
            None if is_of_epoch && self.accepts_any_sequence => batch.base_sequence,
            // A new epoch begins at 0.
            _ => 0,
        };
        if batch.base_sequence != next {
            return Some(Error::OutOfOrderSequenceNumber);
        }
        (self.open_from.is_some() && !batch.is_transactional).then_some(Error::InvalidTxnState)
    }

    pub(super) fn write(&mut self, batch: &BatchInfo, base_offset: u64, now_ms: u64) {
        self.advance_epoch(batch.producer_epoch);
        self.accepts_any_sequence = false;
        self.last_offset = base_offset + u64::from(batch.last_offset_delta);
        self.last_timestamp_ms = batch.max_timestamp_ms;
        self.seen_ms = now_ms;
        self.push(WrittenBatch {
            last_sequence: sequence_after(batch.base_sequence, batch.last_offset_delta),
            last_offset: self.last_offset,
            last_offset_delta: batch.last_offset_delta,
            timestamp_ms: batch.max_timestamp_ms,
        });
    }

    /// Ends the open transaction and returns its first offset.
    pub(super) fn end(&mut self, marker: &Marker, offset: u64, now_ms: u64) -> Option<u64> {
        if self.epoch == NONE {
            self.accepts_any_sequence = true;
            self.epoch = marker.producer_epoch;
        }
        self.advance_epoch(marker.producer_epoch);
        self.coordinator_epoch = marker.coordinator_epoch;
        self.last_offset = offset;
        self.last_timestamp_ms = marker.timestamp_ms;
        self.seen_ms = now_ms;
        self.open_from.take()
    }

    /// Switches to another epoch, in which sequence numbers start again at 0.
    fn advance_epoch(&mut self, epoch: i16) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.count = 0;
            self.accepts_any_sequence = false;
        }
    }

    pub(super) fn describe(&self, producer_id: i64) -> ProducerState {
        ProducerState {
            producer_id,
            producer_epoch: self.epoch,
            last_sequence: self.batches().last().map_or(i32::from(NONE), |last| last.last_sequence),
            last_timestamp_ms: self.last_timestamp_ms,
            coordinator_epoch: self.coordinator_epoch,
            transaction_start_offset: self.open_from.map_or(i64::from(NONE), u64::cast_signed),
        }
    }
}

/// The sequence number `steps` after another. They wrap from 2³¹ - 1 to 0.
fn sequence_after(sequence: i32, steps: u32) -> i32 {
    (sequence.cast_unsigned().wrapping_add(steps) & i32::MAX.cast_unsigned()).cast_signed()
}
