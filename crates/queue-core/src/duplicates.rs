//! Duplicates: which messages a queue drops because it has seen them before.
//!
//! A message is a duplicate if its identifier was seen within the window, or if another queue has already sent its
//! transfer number. A dropped duplicate stays in the log of messages for a while, and must not be replayed from there.

use std::ops::Range;

use crate::dedup::DedupIndex;
use crate::event::Event;
use crate::event_recorder::Recorder;
use crate::meta::Meta;
use crate::offset_ranges::OffsetRanges;

/// The duplicates of a queue.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    index: DedupIndex,
    /// Duplicates that were dropped and may still be on disk.
    dropped: OffsetRanges,
    /// Number of duplicates since the start of the process.
    count: u64,
    newest: NewestMessages,
}

impl Duplicates {
    pub(crate) fn index(&self) -> &DedupIndex {
        &self.index
    }

    pub(crate) fn index_mut(&mut self) -> &mut DedupIndex {
        &mut self.index
    }

    /// Duplicates that were dropped and may still be on disk.
    pub(crate) fn dropped(&self) -> &OffsetRanges {
        &self.dropped
    }

    /// Number of duplicates since the start of the process.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Number of identifiers and ranges that a snapshot contains.
    pub(crate) fn entries(&self) -> usize {
        self.dropped.count() + self.index.ids_len()
    }

    /// Checks a message that is new to the queue, and drops it if it is a duplicate. Returns whether it is one.
    pub(crate) fn drop_if_seen(&mut self, meta: &Meta, window_ms: u64, recorder: &mut Recorder) -> bool {
        let is_seen = self.is_seen(meta, window_ms, recorder);
        if is_seen {
            let offset = meta.offset;
            self.count += 1;
            self.dropped.insert(offset);
            recorder.record_lazily(&Event::Dropped { offsets: offset..offset + 1 });
        }
        is_seen
    }

    /// A message that another queue moved here may carry an identifier that is known: its own, from when it was here
    /// before. So only its transfer number counts.
    fn is_seen(&mut self, meta: &Meta, window_ms: u64, recorder: &mut Recorder) -> bool {
        if let Some((who, number)) = &meta.moved_by {
            let is_repeated = self.index.is_repeated_transfer(who, *number);
            recorder.record_transfer(who, *number);
            return is_repeated;
        }
        let Some(id) = meta.dedup_id.as_deref().filter(|_| window_ms > 0) else { return false };
        let timestamp_ms = meta.timestamp_ms;
        let is_seen = self.index.is_duplicate(id, timestamp_ms, window_ms);
        if !is_seen {
            recorder.record_lazily(&Event::Known { id, timestamp_ms });
        }
        is_seen
    }

    /// Restores dropped duplicates from their event.
    pub(crate) fn restore_dropped(&mut self, offsets: Range<u64>) {
        self.dropped.insert_range(offsets);
    }

    /// Messages below `to` are deleted from disk, and a crash does not bring them back.
    pub(crate) fn deleted_to(&mut self, to: u64) {
        self.dropped.remove_range(0..to);
    }

    /// A restarted queue has registered this message again.
    pub(crate) fn registered_again(&mut self, meta: &Meta) {
        self.newest.note(meta);
    }

    /// A restarted queue has registered all messages again.
    pub(crate) fn all_registered_again(&mut self) {
        self.newest = NewestMessages::default();
    }

    /// Forgets identifiers of lost messages: a publisher that sends such a message again must not be told that it is a
    /// duplicate. They are newer than `from_ms`, the time of the last message that is left, and older than `to_ms`,
    /// the time of the restart.
    pub(crate) fn forget_lost(&mut self, [from_ms, to_ms]: [u64; 2]) {
        let NewestMessages { timestamp_ms, ids } = &self.newest;
        if *timestamp_ms == from_ms {
            self.index.forget_between(from_ms..to_ms);
            for id in ids {
                self.index.record_if_new(id, from_ms);
            }
        } else {
            // The last message is settled and deleted, and identifiers of its millisecond were forgotten before.
            self.index.forget_between(from_ms.saturating_add(1)..to_ms);
        }
    }

    /// Drops entries, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        self.index.drop_some(budget);
        self.dropped.drop_some(budget);
    }
}

/// The newest messages that were registered again after a restart: those with the highest timestamp.
#[derive(Debug, Default)]
struct NewestMessages {
    timestamp_ms: u64,
    ids: Vec<Box<[u8]>>,
}

impl NewestMessages {
    fn note(&mut self, meta: &Meta) {
        if meta.timestamp_ms > self.timestamp_ms {
            self.timestamp_ms = meta.timestamp_ms;
            self.ids.clear();
        }
        if meta.timestamp_ms == self.timestamp_ms {
            self.ids.extend(meta.dedup_id.clone());
        }
    }
}
