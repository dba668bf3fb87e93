//! What shards tell each other about partitions: requests to the owner, and its responses.
//!
//! A connection stays on its shard while its partitions may belong to any. The requests have what the owner needs and
//! nothing of the protocol's versions; the responses have results and error codes, which the handler encodes. Requests
//! within a shard use the same types without a message.
//!
//! Records read from files cross as ranges with an open file, not as bytes, so a fetch through another shard copies no
//! more than one on its own.

use std::sync::Arc;

use mainstem_coordinator::producer::{Marker, ProducerState};
use mainstem_kafka::ErrorCode;
use mainstem_log::batches;
use mainstem_partition::{Isolation, JobId, Watermarks};
use mainstem_runtime::FileBytes;

use crate::append_error::Produced;
use crate::catalogue::PartitionId;
use crate::unverified_batches::Transactional;

/// Most bytes that a record takes in a batch besides its key, value and headers.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 61 + 40;

/// A request to the shard that owns the partitions.
#[derive(Debug)]
pub(crate) enum PartitionRequest {
    /// Append batches. Each part gets its own response.
    Produce(Vec<ProducePart>),
    /// Write transaction markers. Each part gets its own response.
    WriteMarkers(Vec<MarkPart>),
    /// Read.
    Fetch(FetchPartitions),
    /// Anything else, with one response for all.
    Query(Vec<(u32, PartitionId, PartitionQuery)>),
    /// A fetch has ended: remove the watcher.
    Unwatch { watcher: JobId, partitions: Vec<PartitionId> },
}

/// One batch for one partition.
#[derive(Debug)]
pub(crate) struct ProducePart {
    pub(crate) part: u32,
    pub(crate) id: PartitionId,
    pub(crate) records: Vec<u8>,
    /// The transaction that the request names.
    pub(crate) transactional: Option<Transactional>,
}

/// A query to a partition.
#[derive(Clone, Debug)]
pub(crate) enum PartitionQuery {
    /// The offset for a timestamp of `ListOffsets`.
    Offset { timestamp_ms: i64, isolation: Isolation },
    /// Delete the records before this offset; -1 for all.
    DeleteBefore(i64),
    /// The readable range.
    Watermarks,
    /// Size on disk.
    Size,
    /// The producers with state in the partition.
    Producers,
}

/// The result of a query.
#[derive(Clone, Debug)]
pub(crate) enum PartitionQueryResult {
    Offset { offset: i64, timestamp_ms: i64 },
    DeletedBefore(i64),
    Watermarks(Watermarks),
    Size { bytes: u64 },
    Producers(Vec<ProducerState>),
    Failed(ErrorCode),
}

/// The response to a [`PartitionRequest`].
#[derive(Debug)]
pub(crate) enum PartitionResponse {
    Produced(Produced),
    Fetched(Vec<Fetched>),
    Asked(Vec<(u32, PartitionQueryResult)>),
}

/// One marker for one partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkPart {
    pub(crate) part: u32,
    pub(crate) id: PartitionId,
    pub(crate) marker: Marker,
}

/// Partitions of one shard that a fetch reads.
#[derive(Debug)]
pub(crate) struct FetchPartitions {
    pub(crate) parts: Vec<FetchPart>,
    pub(crate) isolation: Isolation,
    /// Limit of all partitions together. The first batch is returned whatever its size.
    pub(crate) bytes_max: usize,
    /// With fewer bytes the fetch may wait.
    pub(crate) bytes_min: usize,
    /// The fetch to wake when a partition gets records, if it may wait.
    pub(crate) watcher: Option<JobId>,
}

/// One partition to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchPart {
    pub(crate) part: u32,
    pub(crate) id: PartitionId,
    pub(crate) offset: i64,
    pub(crate) bytes_max: usize,
}

/// What was read of one partition.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) part: u32,
    pub(crate) outcome: Result<Watermarks, ErrorCode>,
    /// Aborted transactions among the records: producer id and first offset.
    pub(crate) aborted: Vec<(i64, i64)>,
    pub(crate) records: Records,
    /// See [`Records::available`].
    pub(crate) available: usize,
}

impl Fetched {
    pub(crate) fn failed(part: u32, code: ErrorCode) -> Self {
        Self { part, outcome: Err(code), aborted: Vec::new(), records: Records::default(), available: 0 }
    }
}

/// Batches of a log: copied bytes, followed by ranges of files.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) bytes: Vec<u8>,
    pub(crate) files: Vec<FileRange>,
}

/// Batches in a file.
#[derive(Clone, Debug)]
pub(crate) struct FileRange {
    pub(crate) file: Arc<dyn FileBytes>,
    pub(crate) position: u64,
    pub(crate) len: usize,
    /// Offset after the last record.
    pub(crate) end: u64,
}

impl Records {
    /// Offset after the last record, if there are records.
    fn end(&self) -> Option<u64> {
        let of_files = self.files.last().map(|range| range.end);
        of_files.or_else(|| batches(&self.bytes).last().map(|batch| batch.header.end_offset()))
    }

    /// Bytes that the partition has for a consumer that takes `bytes_max`, if it is readable to `end`. Whole batches
    /// rarely add up to `bytes_max`. If more batches follow, this counts as `bytes_max`: a fetch that waits for all it
    /// takes must not wait for more.
    pub(crate) fn available(&self, end: u64, bytes_max: usize) -> usize {
        let has_more = self.end().is_some_and(|own| own < end);
        if has_more { self.len().max(bytes_max) } else { self.len() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.file_bytes()
    }

    pub(crate) fn file_bytes(&self) -> usize {
        self.files.iter().map(|range| range.len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How much a read may return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimit {
    pub(crate) bytes_max: usize,
    /// With fewer bytes the fetch may wait.
    pub(crate) bytes_min: usize,
    /// Nothing was read before, so the first batch is returned whatever its size (KIP-74).
    pub(crate) is_first: bool,
}

/// Whether what a shard has read does not suffice for a fetch that waits for `bytes_min`. An error always suffices.
/// The shard that reads registers the watcher if so, and the shard of the fetch later removes it if so.
pub(crate) fn is_short(all: &[Fetched], bytes_min: usize) -> bool {
    let bytes: usize = all.iter().map(|fetched| fetched.available).sum();
    bytes < bytes_min && all.iter().all(|fetched| fetched.outcome.is_ok())
}

/// The transactions that a request sees.
pub(crate) fn isolation(level: i8) -> Isolation {
    if level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted }
}
