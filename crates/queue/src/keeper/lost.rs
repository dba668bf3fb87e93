//! What a loss of power takes from the logs of a queue that does not sync what it confirms: of each another part. The log
//! of messages may end before the state does. What is put there next must not be taken for what the state speaks of.

use mainstem_log::{BatchHeader, Store, rebuild};

use super::Keeper;

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
    pub fn gap(&mut self, store: &dyn Store, now_ms: u64) -> Option<Vec<u8>> {
        let end = store.status(self.messages).end;
        let lost = self.queue.restored_to.checked_sub(end).filter(|lost| *lost > 0)?;
        log::warn!("the log of a queue has lost its last messages, from offset {end} on: {lost}");
        let most = i32::MAX.unsigned_abs();
        let header = BatchHeader {
            base_offset: 0,
            total_bytes: 0,
            leader_epoch: 0,
            checksum: 0,
            attributes: 0,
            last_offset_delta: u32::try_from(lost).map_or(most, |lost| lost.min(most)) - 1,
            base_timestamp_ms: now_ms.cast_signed(),
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
        Some(batch)
    }

    /// Lets what leaves from here on have numbers that nothing has had of which the state may have lost what it said: whoever
    /// has had something under a number throws away what comes under it.
    pub fn pass_over_numbers(&mut self, now_ms: u64) {
        self.queue.number_beyond(now_ms.saturating_mul(NUMBERS_PER_MS));
    }

    /// A batch has been read that stands for messages that were lost: their identifiers have not been seen.
    pub(super) fn register_gap(&mut self, header: &BatchHeader) {
        // Of what the state does not speak of it has seen nothing.
        if header.base_offset >= self.queue.restored_to {
            return;
        }
        self.queue.forget_lost_ids(header.base_timestamp_ms.cast_unsigned());
    }
}
