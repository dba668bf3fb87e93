//! Reading partitions from where one wants to begin: fetches, and the records that come with them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use mainstem_compress::batch;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use mainstem_kafka::{Aborted, ErrorCode};
use mainstem_log::{Batch, Record, Records, batches};

use super::cluster::{Cluster, Partition};
use super::errors::{check, persist};
use crate::cli::Position;
use crate::tool::failure::Failure;

/// Longest time that a broker may wait for records.
const WAIT_MS: i32 = 500;
/// The same where several brokers are asked one after the other.
const SHORT_WAIT_MS: i32 = 50;
const FETCH_BYTES_MAX: i32 = 16 * 1024 * 1024;
const PARTITION_BYTES_MAX: i32 = 1024 * 1024;
/// Largest batch, once it is decompressed.
const BATCH_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What takes the records; it says whether it wants more.
pub(super) type Sink<'a> = dyn FnMut(&Partition, &Record<'_>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Which records are for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    /// All.
    Uncommitted,
    /// Those of transactions that were committed, and those of none.
    Committed,
}

/// When a partition is read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Never.
    Never,
    /// When there is nothing more for now.
    Empty,
    /// At these offsets.
    Offsets(BTreeMap<Partition, i64>),
}

/// Partitions that are being read.
#[derive(Debug)]
pub(super) struct PartitionReader {
    isolation: Isolation,
    until: Until,
    /// The next offset of each.
    next: BTreeMap<Partition, i64>,
    ended: BTreeSet<Partition>,
}

impl PartitionReader {
    /// Reads from these offsets on.
    pub(super) fn new(isolation: Isolation, until: Until, next: BTreeMap<Partition, i64>) -> Self {
        let mut reader = Self { isolation, until, next, ended: BTreeSet::new() };
        if let Until::Offsets(ends) = &reader.until {
            let is_over =
                |(partition, next): &(&Partition, &i64)| ends.get(*partition).is_some_and(|end| *next >= end);
            reader.ended =
                reader.next.iter().filter(is_over).map(|(partition, _)| partition.clone()).collect();
        }
        reader
    }

    /// The next offset of each partition.
    pub(super) fn next(&self) -> &BTreeMap<Partition, i64> {
        &self.next
    }

    /// Whether all partitions are read to their ends.
    pub(super) fn is_over(&self) -> bool {
        self.until != Until::Never && self.ended.len() == self.next.len()
    }

    /// Fetches once from all leaders and gives the records to `sink`, until it wants no more.
    ///
    /// # Errors
    /// If a broker refuses, what it sends cannot be read, or `sink` fails.
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
            let answer = cluster.node(leader)?.call(&self.request(&partitions, max_wait_ms))?;
            check("fetch", answer.error_code, None)?;
            for topic in answer.responses {
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

    /// What came of one partition.
    fn partition(
        &mut self,
        cluster: &mut Cluster,
        partition: &Partition,
        data: &PartitionData,
        sink: &mut Sink<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        let what = format!("{} [{}]", partition.0, partition.1);
        if data.error_code == ErrorCode::OffsetOutOfRange.code() {
            return self.come_back(cluster, partition).map(ControlFlow::Continue);
        }
        match check(&what, data.error_code, None) {
            Err(failure) if failure.is_passing() => {
                let patience = cluster.patience();
                persist(patience, || cluster.topic(&partition.0))?;
                return Ok(ControlFlow::Continue(()));
            }
            outcome => outcome?,
        }
        let bytes = data.records.as_deref().unwrap_or_default();
        let aborted = data.aborted_transactions.iter().flatten();
        let mut aborted = Aborted::new(aborted.map(|known| (known.producer_id, known.first_offset)));
        let mut whole = 0;
        for batch in batches(bytes) {
            whole += batch.bytes().len();
            let is_wanted = !aborted.passes_over(&batch.header);
            if is_wanted && self.batch(partition, &batch, sink)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if self.ended.contains(partition) {
                return Ok(ControlFlow::Continue(()));
            }
            self.advance(partition, batch.header.end_offset());
        }
        if whole == 0 && !bytes.is_empty() {
            return Err(Failure::new(format!("{what}: records in a format that is no more, or damaged")));
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
        let plain = batch::plain(batch, BATCH_BYTES_MAX).map_err(|error| unreadable(&error))?;
        for record in Records::of(batch.header, &plain) {
            let record = record.map_err(|error| unreadable(&error))?;
            // A batch comes whole, though one may want only its end.
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

    /// What the reader wanted has been deleted: it goes on with what is left.
    fn come_back(&mut self, cluster: &mut Cluster, partition: &Partition) -> Result<(), Failure> {
        let next = self.next[partition];
        let begin = cluster.offsets(std::slice::from_ref(partition), Position::Beginning)?[partition];
        if next >= begin {
            let (topic, index) = partition;
            return Err(Failure::new(format!("{topic} [{index}]: offset {next} is behind the end")));
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
    fn a_partition_ends_where_it_is_told() {
        let partition = ("t".to_owned(), 0);
        let ends: BTreeMap<_, _> = [(partition.clone(), 3)].into();
        let reader = |next| {
            PartitionReader::new(
                Isolation::Committed,
                Until::Offsets(ends.clone()),
                [(partition.clone(), next)].into(),
            )
        };
        assert!(reader(3).is_over() && !reader(2).is_over());

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
        assert!(reader.is_over());
        assert_eq!(reader.next()[&partition], 3);
    }
}
