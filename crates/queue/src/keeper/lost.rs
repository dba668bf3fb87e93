//! What a loss of power takes from the logs of a queue that does not sync what it confirms: of each another part. The log
//! of messages may end before the state does. What is put there next must not be taken for what the state speaks of.

use mainstem_log::{BatchHeader, Error, Status, Store, batches, rebuild};

use super::{Keeper, meta_of};

/// A producer id that no client can have: of a batch without messages, in the place of those that were lost.
pub(super) const GAP: i64 = -3;
/// Numbers of messages that leave, for each ms.
const NUMBERS_PER_MS: u64 = 256;

impl Keeper {
    /// Offsets below have been given to messages, some of which may be lost.
    pub fn restored_to(&self) -> u64 {
        self.queue.restored_to
    }

    /// A batch without messages that stands for those that the log of messages has lost, to be appended to it before anything
    /// else; nothing if it has them all. Until that is durable the queue does not know all it has.
    ///
    /// # Errors
    /// What the store says.
    pub fn gap(&mut self, store: &mut dyn Store, now_ms: u64) -> Result<Option<Vec<u8>>, Error> {
        let end = store.status(self.messages).end;
        let lost = self.queue.restored_to.saturating_sub(end);
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
            attributes: 0,
            last_offset_delta: u32::try_from(lost).map_or(most, |lost| lost.min(most)) - 1,
            base_timestamp_ms: last_ms,
            max_timestamp_ms: now_ms.cast_signed(),
            producer_id: GAP,
            producer_epoch: -1,
            base_sequence: -1,
            records: 0,
        };
        let mut batch = Vec::new();
        rebuild(&header, std::iter::empty(), &mut batch);
        // A snapshot stands for what the state says wrongly.
        self.events_bytes = usize::MAX / 2;
        Ok(Some(batch))
    }

    /// The largest timestamp of the last batch of messages; 0 if there is none.
    fn last_timestamp_ms(&mut self, store: &mut dyn Store) -> Result<i64, Error> {
        let Status { start, end, .. } = store.status(self.messages);
        let mut bytes = Vec::new();
        if start < end {
            store.read(self.messages, end - 1..end, 1, &mut bytes)?;
        }
        Ok(batches(&bytes).last().map_or(0, |last| last.header.max_timestamp_ms))
    }

    /// Lets what leaves from here on have numbers that nothing has had of which the state may have lost what it said: whoever
    /// has had something under a number throws away what comes under it.
    pub fn pass_over_numbers(&mut self, now_ms: u64) {
        self.queue.number_beyond(now_ms.saturating_mul(NUMBERS_PER_MS));
    }

    /// A batch has been read that stands for messages that were lost: their identifiers have not been seen. Those of which there is
    /// a copy are not lost. They are registered now, as they would be once the log begins behind them: what becomes
    /// of them must not depend on that.
    pub(super) fn register_gap(&mut self, header: &BatchHeader, from: u64, now_ms: u64) {
        // Of what the state does not speak of it has seen nothing.
        if header.base_offset >= self.queue.restored_to {
            return;
        }
        let times_ms =
            [header.base_timestamp_ms, header.max_timestamp_ms].map(|ms| ms.max(0).cast_unsigned());
        self.queue.forget_lost_ids(times_ms);
        let offsets = header.base_offset.max(from)..header.end_offset();
        for payload in self.asides.range(offsets).map(|(_, payload)| payload) {
            self.queue.register_copy(meta_of(payload), now_ms);
        }
    }
}
