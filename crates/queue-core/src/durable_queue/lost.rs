//! Recovery from a loss of power, for queues whose logs are not synced before a confirmation.
//!
//! Each of the two logs may lose its last entries. If the log of messages has lost more than the state log, the state
//! refers to offsets that new messages would take. So the queue first appends a *gap*: a batch without records that
//! covers the lost offsets.

use mainstem_log::{BatchHeader, Error, Status, Store, batches, rebuild};

use super::{DurableQueue, GAP, meta_of};

/// Transfer numbers per millisecond.
const NUMBERS_PER_MS: u64 = 256;

impl DurableQueue {
    /// Messages below this offset existed before the restart. Some may be lost.
    pub fn restored_to(&self) -> u64 {
        self.queue.restored_to()
    }

    /// A gap for the offsets that the log of messages has lost. The caller must append it before anything else.
    /// `None` if nothing is lost. The queue has registered all its messages only when the gap is durable.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn gap(&mut self, store: &mut dyn Store, now_ms: u64) -> Result<Option<Vec<u8>>, Error> {
        let end = store.status(self.messages).end;
        let lost = self.queue.restored_to().saturating_sub(end);
        if lost == 0 {
            return Ok(None);
        }
        let last_ms = self.last_timestamp_ms(store)?;
        let most = i32::MAX.unsigned_abs();
        let header = BatchHeader {
            base_offset: 0,
            total_bytes: 0,
            leader_epoch: 0,
            checksum: 0,
            attributes: GAP,
            last_offset_delta: u32::try_from(lost).map_or(most, |lost| lost.min(most)) - 1,
            base_timestamp_ms: last_ms,
            max_timestamp_ms: now_ms.cast_signed(),
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            records: 0,
        };
        let mut batch = Vec::new();
        rebuild(&header, std::iter::empty(), &mut batch);
        // A snapshot corrects the state soon.
        self.events_bytes = usize::MAX / 2;
        Ok(Some(batch))
    }

    /// The largest timestamp of the last batch of messages; 0 if the log is empty.
    fn last_timestamp_ms(&mut self, store: &mut dyn Store) -> Result<i64, Error> {
        let Status { start, end, .. } = store.status(self.messages);
        let mut bytes = Vec::new();
        if start < end {
            store.read(self.messages, end - 1..end, 1, &mut bytes)?;
        }
        Ok(batches(&bytes).last().map_or(0, |last| last.header.max_timestamp_ms))
    }

    /// Skips transfer numbers that may have been used before the crash and forgotten: a target queue discards a
    /// number that it has seen.
    pub fn skip_numbers(&mut self, now_ms: u64) {
        self.queue.skip_numbers_to(now_ms.saturating_mul(NUMBERS_PER_MS));
    }

    /// Registers a gap: identifiers of the lost messages count as not seen. Messages with a copy are not lost. They
    /// are registered now, as they would be once the log begins after them: their fate must not depend on that.
    pub(super) fn register_gap(&mut self, header: &BatchHeader, from: u64, now_ms: u64) {
        // The state knows nothing of messages at or above `restored_to`.
        if header.base_offset >= self.queue.restored_to() {
            return;
        }
        let times_ms =
            [header.base_timestamp_ms, header.max_timestamp_ms].map(|ms| ms.max(0).cast_unsigned());
        self.queue.forget_lost_ids(times_ms);
        let offsets = header.base_offset.max(from)..header.end_offset();
        for payload in self.relocated.range(offsets).map(|(_, payload)| payload) {
            self.queue.register_copy(meta_of(payload), now_ms);
        }
    }
}
