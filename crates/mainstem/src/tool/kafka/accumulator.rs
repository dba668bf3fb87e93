//! Accumulates records into a batch per partition, as Kafka's producer does.
//!
//! A record with a key goes to the partition of the key's hash. Records without a key go to one partition until its
//! batch is sent, then to the next one, so that batches fill up.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_compress::batch::recompress;
use mainstem_kafka::partition_for_key;
use mainstem_log::{Batch, BatchBuilder, Compression, Origin};

use crate::tool::failure::Failure;

/// Size of a batch before compression, in bytes. By default, brokers accept 1 MiB.
const BATCH_BYTES: usize = 256 * 1024;

/// Encoding of batches.
#[derive(Clone, Debug)]
pub(super) struct BatchOptions {
    pub(super) compression: Compression,
    pub(super) level: Option<i32>,
    /// Encoded headers of all records, with their count.
    pub(super) headers: Vec<u8>,
}

/// Producer id and epoch, with which brokers detect duplicates (KIP-98). Both are -1 without idempotence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProducerIdAndEpoch {
    pub(super) id: i64,
    pub(super) epoch: i16,
}

/// Records that have not been sent.
#[derive(Debug)]
pub(super) struct RecordAccumulator {
    options: BatchOptions,
    producer: ProducerIdAndEpoch,
    partitions: i32,
    /// Partition of all records, if the user chose one.
    fixed_partition: Option<i32>,
    /// Current partition of records without a key.
    keyless_partition: i32,
    pending: BTreeMap<i32, PendingBatch>,
}

#[derive(Debug, Default)]
struct PendingBatch {
    builder: BatchBuilder,
    /// Sequence number of the first record.
    sequence: i32,
}

/// A batch to send.
#[derive(Debug)]
pub(super) struct ReadyBatch {
    pub(super) partition: i32,
    pub(super) records: u32,
    pub(super) bytes: Vec<u8>,
}

impl RecordAccumulator {
    /// For a topic with `partitions` partitions.
    pub(super) fn new(
        options: BatchOptions,
        producer: ProducerIdAndEpoch,
        partitions: i32,
        fixed_partition: Option<i32>,
    ) -> Self {
        Self {
            options,
            producer,
            partitions,
            fixed_partition,
            keyless_partition: 0,
            pending: BTreeMap::new(),
        }
    }

    /// Adds a record. Returns the batch if that filled it.
    ///
    /// # Errors
    /// If the batch cannot be compressed.
    pub(super) fn add(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<Option<ReadyBatch>, Failure> {
        let partition = match (self.fixed_partition, key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_for_key(key, self.partitions),
            (None, None) => self.keyless_partition,
        };
        let pending = self.pending.entry(partition).or_default();
        pending.builder.push_with_headers(now_ms(), key, value, &self.options.headers);
        if pending.builder.len() < BATCH_BYTES { Ok(None) } else { self.take(partition) }
    }

    /// Returns the next batch that is not empty, even if it is not full.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(super) fn drain_next(&mut self) -> Result<Option<ReadyBatch>, Failure> {
        let nonempty = self.pending.iter().find(|(_, pending)| !pending.builder.is_empty());
        match nonempty.map(|(partition, _)| *partition) {
            Some(partition) => self.take(partition),
            None => Ok(None),
        }
    }

    fn take(&mut self, partition: i32) -> Result<Option<ReadyBatch>, Failure> {
        let Some(pending) = self.pending.get_mut(&partition) else { return Ok(None) };
        let records = pending.builder.records();
        let ProducerIdAndEpoch { id: producer_id, epoch: producer_epoch } = self.producer;
        let base_sequence = if producer_id < 0 { -1 } else { pending.sequence };
        let origin = Origin { producer_id, producer_epoch, base_sequence, ..Origin::default() };
        let bytes = self.options.compressed(pending.builder.finish_as(&origin).bytes())?;
        // Sequence numbers wrap around to zero.
        pending.sequence =
            ((pending.sequence.cast_unsigned() + records) & i32::MAX.cast_unsigned()).cast_signed();
        self.keyless_partition = (self.keyless_partition + 1) % self.partitions.max(1);
        Ok(Some(ReadyBatch { partition, records, bytes }))
    }
}

impl BatchOptions {
    fn compressed(&self, plain: &[u8]) -> Result<Vec<u8>, Failure> {
        if self.compression == Compression::None {
            return Ok(plain.to_vec());
        }
        let batch = Batch::parse_unchecked(plain).expect("encoded above");
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

    const NO_PRODUCER: ProducerIdAndEpoch = ProducerIdAndEpoch { id: -1, epoch: -1 };

    fn options(compression: Compression) -> BatchOptions {
        BatchOptions { compression, level: None, headers: vec![0] }
    }

    #[test]
    fn partitions_by_key_and_rotates_without_one() {
        let mut batches = RecordAccumulator::new(options(Compression::None), NO_PRODUCER, 3, None);
        for _ in 0..2 {
            assert!(batches.add(Some(b"foobar"), Some(b"1")).unwrap().is_none());
        }
        let ready = batches.drain_next().unwrap().unwrap();
        assert_eq!((ready.partition, ready.records), (partition_for_key(b"foobar", 3), 2));
        let mut turns = Vec::new();
        for _ in 0..3 {
            assert!(batches.add(None, Some(b"1")).unwrap().is_none());
            turns.push(batches.drain_next().unwrap().unwrap().partition);
        }
        turns.sort_unstable();
        assert_eq!(turns, [0, 1, 2]);
        assert!(batches.drain_next().unwrap().is_none());
    }

    #[test]
    fn full_batches_are_returned_with_consecutive_sequences() {
        let producer = ProducerIdAndEpoch { id: 7, epoch: 1 };
        let mut batches = RecordAccumulator::new(options(Compression::Zstd), producer, 1, Some(0));
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
        batches.drain_next().unwrap();
        assert_eq!(batches.pending[&0].sequence, 0);
    }
}
