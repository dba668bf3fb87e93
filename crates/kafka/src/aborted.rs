//! Which batches of a partition readers of committed records do not see (KIP-98).

use mainstem_log::BatchHeader;

/// Aborted transactions, followed from batch to batch.
#[derive(Clone, Debug)]
pub struct Aborted {
    /// Producer and first offset of those of which no batch has come yet.
    ahead: Vec<(i64, i64)>,
    /// Producers in whose aborted transactions one is.
    open: Vec<i64>,
}

impl Aborted {
    /// Of the transactions with these producers and first offsets, as a response to a fetch names them.
    pub fn new(transactions: impl IntoIterator<Item = (i64, i64)>) -> Self {
        Self { ahead: transactions.into_iter().collect(), open: Vec::new() }
    }

    /// Whether the next batch is none for reading: a marker, or part of an aborted transaction.
    pub fn passes_over(&mut self, header: &BatchHeader) -> bool {
        let producer = header.producer_id;
        if header.is_control() {
            // A producer has one transaction at a time, and whatever the marker says, it is over.
            self.open.retain(|known| *known != producer);
            return true;
        }
        if !header.is_transactional() {
            return false;
        }
        let begun = header.base_offset.cast_signed();
        if let Some(at) = self.ahead.iter().position(|(known, first)| *known == producer && *first <= begun) {
            self.ahead.swap_remove(at);
            self.open.push(producer);
        }
        self.open.contains(&producer)
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Batch, BatchBuilder, BatchKind, Origin};

    use super::*;
    use crate::record::{Marker, Outcome};

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
        let marker = Marker { outcome, coordinator_epoch: 0 };
        let mut bytes = marker.batch(&mut builder, 0, producer_id, 0).to_vec();
        Batch::place(&mut bytes, base_offset, 0);
        bytes
    }

    #[test]
    fn aborted_records_are_passed_over_until_their_marker() {
        // The first has begun before what is read.
        let mut aborted = Aborted::new([(9, -5), (7, 1), (7, 6)]);
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
        for (bytes, is_passed) in steps {
            let header = Batch::parse(&bytes).unwrap().header;
            assert_eq!(aborted.passes_over(&header), is_passed, "at {}", header.base_offset);
        }
    }
}
