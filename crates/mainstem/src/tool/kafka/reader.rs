//! Reads partitions from given offsets: fetches batches, decompresses them and passes on their records.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use mainstem_compress::batch;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use mainstem_log::{Batch, Record, Records, batches};
use mainstem_partition::AbortedFilter;

use super::cluster::{Cluster, Partition};
use super::errors::{check, retry};
use crate::cli::Position;
use crate::tool::failure::Failure;

/// Longest time that the broker holds a fetch while it has no records, in ms.
const WAIT_MS: i32 = 500;
/// The same if several brokers are fetched from in turn.
const SHORT_WAIT_MS: i32 = 50;
const FETCH_BYTES_MAX: i32 = 16 * 1024 * 1024;
const PARTITION_BYTES_MAX: i32 = 1024 * 1024;
/// Largest batch after decompression, in bytes.
const BATCH_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Receives the records. Returns `Break` to stop.
pub(super) type Sink<'a> = dyn FnMut(&Partition, &Record<'_>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Which records to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    /// All records.
    Uncommitted,
    /// Records of committed transactions, and records outside of transactions.
    Committed,
}

/// Where to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Never,
    /// At the current end of each partition.
    Empty,
    /// At these offsets.
    Offsets(BTreeMap<Partition, i64>),
}

/// Reads a set of partitions.
#[derive(Debug)]
pub(super) struct PartitionReader {
    isolation: Isolation,
    until: Until,
    /// Next offset of each partition.
    next: BTreeMap<Partition, i64>,
    ended: BTreeSet<Partition>,
}

impl PartitionReader {
    /// Reads from the offsets in `next`.
    pub(super) fn new(isolation: Isolation, until: Until, next: BTreeMap<Partition, i64>) -> Self {
        let mut reader = Self { isolation, until, next, ended: BTreeSet::new() };
        if let Until::Offsets(ends) = &reader.until {
            let is_finished =
                |(partition, next): &(&Partition, &i64)| ends.get(*partition).is_some_and(|end| *next >= end);
            reader.ended =
                reader.next.iter().filter(is_finished).map(|(partition, _)| partition.clone()).collect();
        }
        reader
    }

    /// Next offset of each partition.
    pub(super) fn next(&self) -> &BTreeMap<Partition, i64> {
        &self.next
    }

    /// Whether all partitions have been read to their ends.
    pub(super) fn is_finished(&self) -> bool {
        self.until != Until::Never && self.ended.len() == self.next.len()
    }

    /// Fetches once from all leaders and passes the records to `sink`, until it returns `Break`.
    ///
    /// # Errors
    /// If a broker returns an error or malformed records, or `sink` fails.
    pub(super) fn fetch(
        &mut self,
        cluster: &mut Cluster,
        sink: &mut Sink<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        let mut by_leader: BTreeMap<i32, Vec<Partition>> = BTreeMap::new();
        for partition in self.next.keys().filter(|partition| !self.ended.contains(*partition)) {
            by_leader.entry(cluster.leader(partition)?).or_default().push(partition.clone());
        }
        let max_wait_ms = if by_leader.len() > 1 { SHORT_WAIT_MS } else { WAIT_MS };
        for (leader, partitions) in by_leader {
            let response = cluster.node(leader)?.call(&self.request(&partitions, max_wait_ms))?;
            check("fetch", response.error_code, None)?;
            for topic in response.responses {
                for data in topic.partitions {
                    let partition = (topic.topic.clone(), data.partition_index);
                    if self.partition(cluster, &partition, &data, sink)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn request(&self, partitions: &[Partition], max_wait_ms: i32) -> FetchRequest {
        let mut topics: BTreeMap<&str, Vec<FetchPartition>> = BTreeMap::new();
        for partition in partitions {
            topics.entry(&partition.0).or_default().push(FetchPartition {
                partition: partition.1,
                fetch_offset: self.next[partition],
                partition_max_bytes: PARTITION_BYTES_MAX,
                ..FetchPartition::default()
            });
        }
        let topics = topics.into_iter();
        FetchRequest {
            max_wait_ms,
            min_bytes: 1,
            max_bytes: FETCH_BYTES_MAX,
            isolation_level: i8::from(self.isolation == Isolation::Committed),
            topics: topics
                .map(|(topic, partitions)| FetchTopic {
                    topic: topic.into(),
                    partitions,
                    ..FetchTopic::default()
                })
                .collect(),
            ..FetchRequest::default()
        }
    }

    /// Handles the fetch response of one partition.
    fn partition(
        &mut self,
        cluster: &mut Cluster,
        partition: &Partition,
        data: &PartitionData,
        sink: &mut Sink<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        let context = format!("{} [{}]", partition.0, partition.1);
        if data.error_code == ErrorCode::OffsetOutOfRange.code() {
            return self.reset_to_beginning(cluster, partition).map(ControlFlow::Continue);
        }
        match check(&context, data.error_code, None) {
            Err(failure) if failure.is_transient() => {
                let timeout = cluster.timeout();
                retry(timeout, || cluster.topic(&partition.0))?;
                return Ok(ControlFlow::Continue(()));
            }
            outcome => outcome?,
        }
        let bytes = data.records.as_deref().unwrap_or_default();
        let aborted = data.aborted_transactions.iter().flatten();
        let mut aborted = AbortedFilter::new(
            aborted.map(|transaction| (transaction.producer_id, transaction.first_offset)),
        );
        let mut parsed_bytes = 0;
        for batch in batches(bytes) {
            parsed_bytes += batch.bytes().len();
            let is_visible = !aborted.should_skip(&batch.header);
            if is_visible && self.batch(partition, &batch, sink)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if self.ended.contains(partition) {
                return Ok(ControlFlow::Continue(()));
            }
            self.advance(partition, batch.header.end_offset());
        }
        if parsed_bytes == 0 && !bytes.is_empty() {
            return Err(Failure::new(format!("{context}: records are damaged or in an unsupported format")));
        }
        let end = match self.isolation {
            Isolation::Committed if data.last_stable_offset >= 0 => data.last_stable_offset,
            _ => data.high_watermark,
        };
        if self.until == Until::Empty && self.next[partition] >= end {
            self.ended.insert(partition.clone());
        }
        Ok(ControlFlow::Continue(()))
    }

    fn batch(
        &mut self,
        partition: &Partition,
        batch: &Batch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        let unreadable = |error: &dyn std::fmt::Display| {
            Failure::new(format!(
                "{} [{}] at {}: {error}",
                partition.0, partition.1, batch.header.base_offset
            ))
        };
        let plain = batch::decompress_records(batch, BATCH_BYTES_MAX).map_err(|error| unreadable(&error))?;
        for record in Records::of(batch.header, &plain) {
            let record = record.map_err(|error| unreadable(&error))?;
            // The broker sends whole batches, so the first one may start before the requested offset.
            if record.offset < self.next[partition].cast_unsigned() {
                continue;
            }
            if self.is_at_end(partition, record.offset) {
                self.ended.insert(partition.clone());
                break;
            }
            let flow = sink(partition, &record)?;
            self.advance(partition, record.offset + 1);
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn advance(&mut self, partition: &Partition, offset: u64) {
        self.next.insert(partition.clone(), offset.cast_signed());
        if self.is_at_end(partition, offset) {
            self.ended.insert(partition.clone());
        }
    }

    fn is_at_end(&self, partition: &Partition, offset: u64) -> bool {
        let Until::Offsets(ends) = &self.until else { return false };
        ends.get(partition).is_some_and(|end| offset.cast_signed() >= *end)
    }

    /// Continues at the start of the log after the requested offset has been deleted.
    fn reset_to_beginning(&mut self, cluster: &mut Cluster, partition: &Partition) -> Result<(), Failure> {
        let next = self.next[partition];
        let begin = cluster.offsets(std::slice::from_ref(partition), Position::Beginning)?[partition];
        if next >= begin {
            let (topic, index) = partition;
            return Err(Failure::new(format!("{topic} [{index}]: offset {next} is after the end")));
        }
        self.next.insert(partition.clone(), begin);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::BatchBuilder;

    use super::*;

    #[test]
    fn stops_at_the_given_offsets() {
        let partition = ("t".to_owned(), 0);
        let ends: BTreeMap<_, _> = [(partition.clone(), 3)].into();
        let reader = |next| {
            PartitionReader::new(
                Isolation::Committed,
                Until::Offsets(ends.clone()),
                [(partition.clone(), next)].into(),
            )
        };
        assert!(reader(3).is_finished() && !reader(2).is_finished());

        let mut builder = BatchBuilder::default();
        for value in [b"0", b"1", b"2", b"3", b"4"] {
            builder.push(0, None, Some(value));
        }
        let bytes = builder.finish().to_vec();
        let mut seen = Vec::new();
        let mut reader = reader(1);
        let mut sink = |_: &Partition, record: &Record<'_>| {
            seen.extend_from_slice(record.value.unwrap());
            Ok(ControlFlow::Continue(()))
        };
        reader
            .batch(&partition, &Batch::parse(&bytes).unwrap(), &mut sink)
            .unwrap()
            .is_continue()
            .then_some(())
            .unwrap();
        assert_eq!(seen, b"12");
        assert!(reader.is_finished());
        assert_eq!(reader.next()[&partition], 3);
    }
}
