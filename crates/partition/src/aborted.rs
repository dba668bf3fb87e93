//! Filter for `read_committed` readers: which batches to skip (KIP-98).
//!
//! The log contains the batches of aborted transactions, and a `read_committed` reader must not see them. A read
//! therefore also returns the aborted transactions by producer id and first offset. From that offset on, the filter
//! skips the producer's transactional batches until its next marker.

use mainstem_log::BatchHeader;

/// Tracks aborted transactions from batch to batch.
#[derive(Clone, Debug)]
pub struct AbortedFilter {
    /// Producer id and first offset of transactions that have not started yet.
    upcoming: Vec<(i64, i64)>,
    /// Producers whose current transaction is aborted.
    open: Vec<i64>,
}

impl AbortedFilter {
    /// Creates the filter from producer ids and first offsets, as [`crate::Partition::aborted`] or a fetch response
    /// lists them.
    pub fn new(transactions: impl IntoIterator<Item = (i64, i64)>) -> Self {
        Self { upcoming: transactions.into_iter().collect(), open: Vec::new() }
    }

    /// Whether to skip the next batch: it is a marker, or part of an aborted transaction. Call it for each batch in
    /// order.
    pub fn should_skip(&mut self, header: &BatchHeader) -> bool {
        let producer = header.producer_id;
        if header.is_control() {
            // A producer has one transaction at a time, so any marker ends it.
            self.open.retain(|known| *known != producer);
            return true;
        }
        if !header.is_transactional() {
            return false;
        }
        let base_offset = header.base_offset.cast_signed();
        if let Some(at) =
            self.upcoming.iter().position(|(known, first)| *known == producer && *first <= base_offset)
        {
            self.upcoming.swap_remove(at);
            self.open.push(producer);
        }
        self.open.contains(&producer)
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Batch, BatchBuilder, BatchKind, Origin};

    use super::*;
    use crate::marker::MarkerRecord;
    use mainstem_coordinator::producer::Outcome;

    fn batch(base_offset: u64, producer_id: i64, kind: BatchKind) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.push(0, None, Some(b"value"));
        let origin = Origin { producer_id, producer_epoch: 0, base_sequence: 0, kind };
        let mut bytes = builder.finish_as(&origin).bytes().to_vec();
        Batch::place(&mut bytes, base_offset, 0);
        bytes
    }

    fn marker(base_offset: u64, producer_id: i64, outcome: Outcome) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        let marker = MarkerRecord { outcome, coordinator_epoch: 0 };
        let mut bytes = marker.batch(&mut builder, 0, producer_id, 0).bytes().to_vec();
        Batch::place(&mut bytes, base_offset, 0);
        bytes
    }

    #[test]
    fn skips_aborted_batches_until_their_marker() {
        // The first transaction began before the first batch that is read.
        let mut aborted = AbortedFilter::new([(9, -5), (7, 1), (7, 6)]);
        let steps = [
            (batch(0, 7, BatchKind::Plain), false),
            (batch(1, 7, BatchKind::Transactional), true),
            (batch(2, 8, BatchKind::Transactional), false),
            (marker(3, 7, Outcome::Abort), true),
            (batch(4, 7, BatchKind::Transactional), false),
            (marker(5, 7, Outcome::Commit), true),
            (batch(6, 7, BatchKind::Transactional), true),
            (batch(7, 9, BatchKind::Transactional), true),
            (marker(8, 7, Outcome::Abort), true),
            (batch(9, 7, BatchKind::Plain), false),
            (batch(10, 9, BatchKind::Transactional), true),
        ];
        for (bytes, is_skipped) in steps {
            let header = Batch::parse(&bytes).unwrap().header;
            assert_eq!(aborted.should_skip(&header), is_skipped, "at {}", header.base_offset);
        }
    }
}
