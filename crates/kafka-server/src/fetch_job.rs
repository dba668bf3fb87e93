//! The state of a fetch that has not been answered, see `handlers/fetch.rs`.
//!
//! The handler moves a fetch between the states of [`FetchJob`]; this file has what each state knows and the questions
//! about it: is there enough to answer, what is left of the response's room, which partitions must be watched. Records
//! read by an attempt that finds too little are dropped, so a parked fetch holds no records, however many consumers
//! wait.

use std::slice::SliceIndex;

use mainstem_kafka::ErrorCode;
use mainstem_partition::Isolation;

use crate::catalogue::PartitionId;
use crate::environment::Environment;
use crate::fetch_session::{CachedPartition, PartKey};
use crate::partition_message::{FetchPartitions, Fetched, ReadLimit, Records};
use crate::shard_message::{JobId, RequestContext};
use crate::storage::Storage;

/// Bytes of records in memory beyond which a response reads no more partitions.
const COPIED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A fetch that has not been answered.
#[derive(Debug)]
pub(crate) enum FetchJob {
    /// Other shards are reading.
    Collecting {
        fetch: Box<Fetch>,
        /// Number of shards that have not answered.
        waiting: u32,
        /// Whether a partition has received records in the meantime.
        is_woken: bool,
    },
    /// The partitions of this shard are read, in slices of several turns.
    Reading {
        fetch: Box<Fetch>,
        budget: ReadBudget,
        /// Index of the next part to read.
        next: usize,
        /// Whether a partition has received records in the meantime.
        is_woken: bool,
    },
    /// The attempt found too little. New records or the deadline start the next one.
    Parked(Box<Fetch>),
}

/// The request of a fetch, and what has been read for it.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) call: RequestContext,
    pub(crate) deadline_ms: u64,
    pub(crate) bytes_min: usize,
    pub(crate) bytes_max: usize,
    pub(crate) isolation: Isolation,
    pub(crate) session_id: i32,
    pub(crate) is_incremental: bool,
    pub(crate) parts: Vec<Part>,
    /// Whether the deadline has passed, or the fetch does not wait.
    pub(crate) is_due: bool,
    /// Whether the fetch was parked: its timer is set, and it may be a watcher of partitions of this shard.
    pub(crate) has_parked: bool,
}

/// A partition of the request.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) key: PartKey,
    pub(crate) cached: CachedPartition,
    pub(crate) location: Result<Location, ErrorCode>,
    /// The result of the read; `None` until then.
    pub(crate) fetched: Option<Fetched>,
    /// Whether the fetch may be a watcher of the partition before it is parked: at another shard, or because it reads
    /// in slices.
    pub(crate) is_watched: bool,
}

/// A partition and the shard that owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) id: PartitionId,
    pub(crate) shard: usize,
}

impl Part {
    pub(crate) fn fetched_bytes(&self) -> usize {
        self.fetched.as_ref().map_or(0, |fetched| fetched.records.len())
    }

    /// Whether the partition has records for the consumer, as of the last read.
    pub(crate) fn has_records(&self, isolation: Isolation) -> bool {
        let watermarks = self.fetched.as_ref().and_then(|fetched| fetched.outcome.ok());
        let offset = u64::try_from(self.cached.offset);
        watermarks.zip(offset.ok()).is_some_and(|(watermarks, offset)| offset < watermarks.end(isolation))
    }

    /// Whether the partition does not exist. Such an error waits with the rest of the response, as in Kafka; any other
    /// error is returned at once.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.location, Err(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId))
    }

    /// Whether an incremental response lists the partition (KIP-227).
    pub(crate) fn has_changed(&self, isolation: Isolation) -> bool {
        let outcome = self.fetched.as_ref().and_then(|fetched| fetched.outcome.ok());
        outcome.is_none() || self.cached.last_sent != outcome || self.has_records(isolation)
    }
}

impl Fetch {
    pub(crate) fn watcher(&self, number: u64) -> JobId {
        JobId { shard: self.call.caller.shard, job: number }
    }

    /// For each shard, the partitions to read there; empty if all partitions belong to the shard `me`.
    pub(crate) fn remote_requests(&self, number: u64, me: usize, shards: usize) -> Vec<FetchPartitions> {
        let watcher = (!self.is_due).then(|| self.watcher(number));
        let mut requests: Vec<FetchPartitions> = Vec::new();
        for (part, Part { cached, location, .. }) in self.parts.iter().enumerate() {
            let Ok(Location { id, shard }) = *location else { continue };
            if shard == me {
                continue;
            }
            if requests.is_empty() {
                let work = |_| FetchPartitions {
                    parts: Vec::new(),
                    isolation: self.isolation,
                    bytes_max: self.bytes_max,
                    bytes_min: self.bytes_min,
                    watcher,
                };
                requests.extend((0..shards).map(work));
            }
            requests[shard].parts.push(cached.part(part as u32, id));
        }
        // All shards together should read about as much as the response can hold.
        for work in &mut requests {
            let share = self.bytes_max * work.parts.len() / self.parts.len();
            work.bytes_max = share.max(self.bytes_min);
        }
        requests
    }

    /// Watches those of these parts that belong to this shard.
    pub(crate) fn watch_own(
        &self,
        number: u64,
        parts: impl SliceIndex<[Part], Output = [Part]>,
        storage: &mut Storage,
        env: &mut Environment,
    ) {
        let watcher = self.watcher(number);
        for part in &self.parts[parts] {
            if let Ok(Location { id, shard }) = part.location
                && shard == env.me()
            {
                storage.watch(env, id, watcher);
            }
        }
    }

    /// Whether the response need not wait: there are enough bytes, no more would fit, or there is an error.
    pub(crate) fn has_enough(&self, budget: &ReadBudget) -> bool {
        let mut existing = self.parts.iter().filter(|part| !part.is_unknown()).peekable();
        if existing.peek().is_none() || existing.any(|part| part.location.is_err()) {
            return true;
        }
        let fetched = || {
            self.parts.iter().filter(|part| part.location.is_ok()).filter_map(|part| part.fetched.as_ref())
        };
        let available: usize = fetched().map(|fetched| fetched.available).sum();
        available >= self.bytes_min.max(1)
            || budget.copied_bytes >= COPIED_BYTES_MAX
            || fetched().any(|fetched| fetched.outcome.is_err())
    }
}

/// Remaining room for records in a response.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    pub(crate) left: usize,
    /// Bytes that other shards have read for later partitions.
    pub(crate) remote_left: usize,
    pub(crate) copied_bytes: usize,
    /// Whether no records have been read yet. The first batch is returned whatever its size.
    pub(crate) is_first: bool,
}

impl ReadBudget {
    /// The room before the partitions of this shard are read.
    pub(crate) fn of(fetch: &Fetch) -> Self {
        Self {
            left: fetch.bytes_max,
            remote_left: fetch.parts.iter().map(Part::fetched_bytes).sum(),
            copied_bytes: 0,
            is_first: true,
        }
    }

    /// The limit for a partition of this shard, for which the consumer allows `bytes_max`.
    pub(crate) fn limit(&self, bytes_max: usize, bytes_min: usize) -> ReadLimit {
        let room = self.left.saturating_sub(self.remote_left);
        let room = if self.copied_bytes < COPIED_BYTES_MAX { room } else { 0 };
        ReadLimit { bytes_max: bytes_max.min(room), bytes_min, is_first: self.is_first }
    }

    /// Drops records of another shard that do not fit. Every shard returns its first batch whole, and only one of them
    /// may exceed the limit (KIP-74).
    pub(crate) fn trim_remote(&mut self, mut fetched: Fetched) -> Fetched {
        self.remote_left -= fetched.records.len();
        if !self.is_first && fetched.records.len() > self.left {
            (fetched.records, fetched.aborted) = Default::default();
        }
        fetched
    }

    pub(crate) fn spend(&mut self, records: &Records) {
        self.left = self.left.saturating_sub(records.len());
        self.is_first &= records.is_empty();
        self.copied_bytes += records.bytes.len();
    }
}
