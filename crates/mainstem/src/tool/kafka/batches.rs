//! Records on their way into a topic: which partition they go to, and the batches they leave in.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_compress::batch::recompress;
use mainstem_kafka::partition_of;
use mainstem_log::{Batch, BatchBuilder, Compression, Origin};

use crate::tool::failure::Failure;

/// Length from which on a batch leaves, before compression; brokers take 1 MiB by default.
const BATCH_BYTES: usize = 256 * 1024;

/// How batches are made.
#[derive(Clone, Debug)]
pub(super) struct Making {
    pub(super) compression: Compression,
    pub(super) level: Option<i32>,
    /// Headers of all records, encoded with their count.
    pub(super) headers: Vec<u8>,
}

/// Producer id and epoch, by which brokers know what is sent again (KIP-98); -1 without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) id: i64,
    pub(super) epoch: i16,
}

/// Records that wait for their batch.
#[derive(Debug)]
pub(super) struct Batches {
    making: Making,
    producer: Producer,
    partitions: i32,
    /// Where all records go.
    fixed: Option<i32>,
    /// Where those without key go for now.
    turn: i32,
    pending: BTreeMap<i32, Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    builder: BatchBuilder,
    /// Number of the first record among those of the producer.
    sequence: i32,
}

/// A batch that can leave.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) partition: i32,
    pub(super) records: u32,
    pub(super) bytes: Vec<u8>,
}

impl Batches {
    /// For a topic of so many partitions; all records go to `fixed` if there is one.
    pub(super) fn new(making: Making, producer: Producer, partitions: i32, fixed: Option<i32>) -> Self {
        Self { making, producer, partitions, fixed, turn: 0, pending: BTreeMap::new() }
    }

    /// Takes in a record. The batch it fills comes back.
    ///
    /// # Errors
    /// If it cannot be compressed.
    pub(super) fn add(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Option<Ready>, Failure> {
        let partition = match (self.fixed, key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_of(key, self.partitions),
            (None, None) => self.turn,
        };
        let pending = self.pending.entry(partition).or_default();
        pending.builder.push_with_headers(now_ms(), key, value, &self.making.headers);
        if pending.builder.len() < BATCH_BYTES { Ok(None) } else { self.take(partition) }
    }

    /// The next batch of those that are not full.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(super) fn take_any(&mut self) -> Result<Option<Ready>, Failure> {
        let waiting = self.pending.iter().find(|(_, pending)| !pending.builder.is_empty());
        match waiting.map(|(partition, _)| *partition) {
            Some(partition) => self.take(partition),
            None => Ok(None),
        }
    }

    fn take(&mut self, partition: i32) -> Result<Option<Ready>, Failure> {
        let Some(pending) = self.pending.get_mut(&partition) else { return Ok(None) };
        let records = pending.builder.records();
        let Producer { id: producer_id, epoch: producer_epoch } = self.producer;
        let base_sequence = if producer_id < 0 { -1 } else { pending.sequence };
        let origin = Origin { producer_id, producer_epoch, base_sequence, ..Origin::default() };
        let bytes = self.making.compressed(pending.builder.finish_as(&origin).bytes())?;
        // Behind the highest number comes zero.
        pending.sequence =
            ((pending.sequence.cast_unsigned() + records) & i32::MAX.cast_unsigned()).cast_signed();
        self.turn = (self.turn + 1) % self.partitions.max(1);
        Ok(Some(Ready { partition, records, bytes }))
    }
}

impl Making {
    fn compressed(&self, plain: &[u8]) -> Result<Vec<u8>, Failure> {
        if self.compression == Compression::None {
            return Ok(plain.to_vec());
        }
        let batch = Batch::parse_unchecked(plain).expect("it was made here");
        recompress(&batch, self.compression, self.level, usize::MAX)
            .map_err(|error| Failure::new(error.to_string()))
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Producer = Producer { id: -1, epoch: -1 };

    fn making(compression: Compression) -> Making {
        Making { compression, level: None, headers: vec![0] }
    }

    #[test]
    fn a_key_has_one_partition_and_records_without_take_turns() {
        let mut batches = Batches::new(making(Compression::None), NOBODY, 3, None);
        for _ in 0..2 {
            assert!(batches.add(Some(b"foobar"), Some(b"1")).unwrap().is_none());
        }
        let ready = batches.take_any().unwrap().unwrap();
        assert_eq!((ready.partition, ready.records), (partition_of(b"foobar", 3), 2));
        let mut turns = Vec::new();
        for _ in 0..3 {
            assert!(batches.add(None, Some(b"1")).unwrap().is_none());
            turns.push(batches.take_any().unwrap().unwrap().partition);
        }
        turns.sort_unstable();
        assert_eq!(turns, [0, 1, 2]);
        assert!(batches.take_any().unwrap().is_none());
    }

    #[test]
    fn a_full_batch_leaves_and_sequences_count_on() {
        let producer = Producer { id: 7, epoch: 1 };
        let mut batches = Batches::new(making(Compression::Zstd), producer, 1, Some(0));
        let value = vec![b'v'; BATCH_BYTES / 4];
        let mut sequences = Vec::new();
        for _ in 0..8 {
            if let Some(ready) = batches.add(Some(b"k"), Some(&value)).unwrap() {
                let header = Batch::parse(&ready.bytes).unwrap().header;
                assert_eq!(header.compression(), Compression::Zstd);
                assert_eq!((header.producer_id, header.producer_epoch), (7, 1));
                assert_eq!(header.records, ready.records);
                sequences.push(header.base_sequence);
            }
        }
        assert_eq!(sequences, [0, 4]);
        batches.pending.get_mut(&0).unwrap().sequence = i32::MAX;
        batches.add(None, None).unwrap();
        batches.take_any().unwrap();
        assert_eq!(batches.pending[&0].sequence, 0);
    }
}
