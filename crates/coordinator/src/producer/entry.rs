//! One producer: its epoch, its last batches, its open transaction.

use super::{Active, Data, Marker};
use crate::Error;

/// Batches of which a repetition is recognised. A client has no more requests under way than this.
const BATCHES: usize = 5;
/// Stands for no epoch, and for no sequence number.
const NONE: i16 = -1;

/// A batch that a producer has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) last_sequence: i32,
    pub(super) last_offset: u64,
    pub(super) last_offset_delta: u32,
    /// The latest in it.
    pub(super) timestamp_ms: i64,
}

impl Written {
    pub(super) fn base_offset(&self) -> u64 {
        self.last_offset - u64::from(self.last_offset_delta)
    }

    fn is(&self, batch: &Data) -> bool {
        self.last_offset_delta == batch.last_offset_delta
            && self.last_sequence == sequence_after(batch.base_sequence, batch.last_offset_delta)
    }
}

/// What is known of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) epoch: i16,
    pub(super) coordinator_epoch: i32,
    pub(super) last_timestamp_ms: i64,
    /// When it wrote last, by the broker's clock: a client's clock must not let it expire.
    pub(super) seen_ms: u64,
    /// Offset of the last record that it, or a marker for it, has written.
    pub(super) last_offset: u64,
    /// Where its open transaction begins.
    pub(super) open_from: Option<u64>,
    /// The last batches of this epoch, oldest first; the first `count` mean something.
    pub(super) batches: [Written; BATCHES],
    pub(super) count: u8,
    /// Nothing but ends of transactions is known of this epoch, and what was before them may be gone: it may go on
    /// with any sequence number.
    pub(super) may_go_on: bool,
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
            batches: [Written::default(); BATCHES],
            count: 0,
            may_go_on: false,
        }
    }
}

impl Entry {
    pub(super) fn batches(&self) -> &[Written] {
        &self.batches[..usize::from(self.count)]
    }

    pub(super) fn push(&mut self, written: Written) {
        if usize::from(self.count) == BATCHES {
            self.batches.rotate_left(1);
            self.batches[BATCHES - 1] = written;
        } else {
            self.batches[usize::from(self.count)] = written;
            self.count += 1;
        }
    }

    /// Its epoch and the first sequence number that is known of that.
    pub(super) fn begins_with(&self) -> Option<(i16, i32)> {
        let Written { last_sequence, last_offset_delta, .. } = *self.batches().first()?;
        let first = last_sequence.cast_unsigned().wrapping_sub(last_offset_delta) & i32::MAX.cast_unsigned();
        Some((self.epoch, first.cast_signed()))
    }

    pub(super) fn duplicate_of(&self, batch: &Data) -> Option<&Written> {
        if batch.producer_epoch != self.epoch {
            return None;
        }
        self.batches().iter().find(|written| written.is(batch))
    }

    /// Why a batch, which is no duplicate, must not follow.
    pub(super) fn fault_of(&self, batch: &Data) -> Option<Error> {
        if batch.producer_epoch < self.epoch {
            return Some(Error::InvalidProducerEpoch);
        }
        let is_of_epoch = batch.producer_epoch == self.epoch;
        let next = match self.batches().last() {
            Some(last) if is_of_epoch => sequence_after(last.last_sequence, 1),
            None if is_of_epoch && self.may_go_on => batch.base_sequence,
            // A new epoch begins at 0.
            _ => 0,
        };
        if batch.base_sequence != next {
            return Some(Error::OutOfOrderSequenceNumber);
        }
        (self.open_from.is_some() && !batch.is_transactional).then_some(Error::InvalidTxnState)
    }

    pub(super) fn write(&mut self, batch: &Data, base_offset: u64, now_ms: u64) {
        self.adopt(batch.producer_epoch);
        self.may_go_on = false;
        self.last_offset = base_offset + u64::from(batch.last_offset_delta);
        self.last_timestamp_ms = batch.max_timestamp_ms;
        self.seen_ms = now_ms;
        self.push(Written {
            last_sequence: sequence_after(batch.base_sequence, batch.last_offset_delta),
            last_offset: self.last_offset,
            last_offset_delta: batch.last_offset_delta,
            timestamp_ms: batch.max_timestamp_ms,
        });
    }

    /// Ends the open transaction; here is where it began.
    pub(super) fn end(&mut self, marker: &Marker, offset: u64, now_ms: u64) -> Option<u64> {
        if self.epoch == NONE {
            self.may_go_on = true;
            self.epoch = marker.producer_epoch;
        }
        self.adopt(marker.producer_epoch);
        self.coordinator_epoch = marker.coordinator_epoch;
        self.last_offset = offset;
        self.last_timestamp_ms = marker.timestamp_ms;
        self.seen_ms = now_ms;
        self.open_from.take()
    }

    /// Sequence numbers begin again with each epoch.
    fn adopt(&mut self, epoch: i16) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.count = 0;
            self.may_go_on = false;
        }
    }

    pub(super) fn describe(&self, producer_id: i64) -> Active {
        Active {
            producer_id,
            producer_epoch: self.epoch,
            last_sequence: self.batches().last().map_or(i32::from(NONE), |last| last.last_sequence),
            last_timestamp_ms: self.last_timestamp_ms,
            coordinator_epoch: self.coordinator_epoch,
            transaction_start_offset: self.open_from.map_or(i64::from(NONE), u64::cast_signed),
        }
    }
}

/// The sequence number so many steps behind another. They run from 0 to 2³¹ - 1 and begin again.
fn sequence_after(sequence: i32, steps: u32) -> i32 {
    (sequence.cast_unsigned().wrapping_add(steps) & i32::MAX.cast_unsigned()).cast_signed()
}
