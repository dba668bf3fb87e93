//! Work of requests that takes several turns.
//!
//! One request may name thousands of partitions, and each may have to be opened, which reads or creates files. All that
//! in one turn would stall every other client of the shard. A request therefore does a bounded part at once. The rest
//! waits here, and each turn continues with a part of it, see `work_slices.rs`.
//!
//! Requests take turns, one partition each, so a small request does not wait for a large one. What waits for the same
//! partition keeps its order: batches, transaction markers, and the work on the records of large batches before them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use hashbrown::HashMap;
use mainstem_coordinator::producer::Marker;
use mainstem_coordinator::transaction::Markers;
use mainstem_kafka::Uuid;
use mainstem_partition::{Preparation, Prepared, RecordsWork, Waiter};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;
use crate::division::{Divisible, Division};
use crate::environment::Environment;
use crate::jobs::{Job, Jobs};
use crate::partition_message::{FetchPartitions, Fetched, PartitionQuery, PartitionQueryResult};
use crate::shard_message::{JobId, RequestContext};
use crate::unverified_batches::Transactional;

/// Work that one request does at once, in units of [`mainstem_runtime::Io::charge`].
const REQUEST_UNITS: u64 = 5_000;

/// Most batches of a shard whose records are worked on at the same time, because codecs take memory: up to tens of MiB.
const PREPARING_MAX: usize = 4;

/// The bytes of a batch, shared with the work on its records.
#[derive(Clone, Debug)]
pub(crate) struct BatchBytes(pub(crate) Arc<Vec<u8>>);

impl AsRef<[u8]> for BatchBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What is done next with a batch that is held.
#[derive(Debug)]
pub(crate) enum BatchState {
    /// It is appended.
    Append,
    /// This is begun, once few enough other batches are prepared.
    AwaitsPreparation(Preparation),
    /// Its records are worked on.
    Preparing(RecordsWork<'static>),
}

/// Something to append to a partition.
#[derive(Debug)]
pub(crate) enum HeldAppend {
    Batch {
        waiter: Waiter,
        records: BatchBytes,
        transactional: Option<Transactional>,
        prepared: Prepared,
        state: BatchState,
    },
    Marker {
        waiter: Waiter,
        marker: Marker,
    },
}

impl HeldAppend {
    pub(crate) fn waiter(&self) -> Waiter {
        match self {
            Self::Batch { waiter, .. } | Self::Marker { waiter, .. } => *waiter,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Batch { records, prepared, .. } => records.0.len() + prepared.bytes(),
            Self::Marker { .. } => 0,
        }
    }

    fn is_preparing(&self) -> bool {
        matches!(self, Self::Batch { state: BatchState::Preparing(_), .. })
    }
}

/// The read of partitions for a fetch of another shard.
#[derive(Debug)]
pub(crate) struct RemoteRead {
    pub(crate) job: JobId,
    pub(crate) request: FetchPartitions,
    /// The partitions read so far.
    pub(crate) all: Vec<Fetched>,
    /// Bytes of records that may still be read.
    pub(crate) left: usize,
    /// Whether no records have been read yet.
    pub(crate) is_first: bool,
    /// Whether it takes several turns, and the watcher of the request therefore watches what was read.
    pub(crate) is_sliced: bool,
}

impl RemoteRead {
    pub(crate) fn new(job: JobId, request: FetchPartitions) -> Self {
        let (left, all) = (request.bytes_max, Vec::with_capacity(request.parts.len()));
        Self { job, request, all, left, is_first: true, is_sliced: false }
    }
}

/// The rest of a request.
#[derive(Debug)]
pub(crate) enum Task {
    /// Append to these partitions what is held for them.
    Append { job: JobId, partitions: VecDeque<PartitionId> },
    /// Answer these queries to partitions.
    Query {
        job: JobId,
        queries: vec::IntoIter<(u32, PartitionId, PartitionQuery)>,
        answers: Vec<(u32, PartitionQueryResult)>,
    },
    /// Read further partitions of this shard for one of its fetches.
    ReadFetch { number: u64 },
    /// Read further partitions for a fetch of another shard.
    ReadForShard(Box<RemoteRead>),
    /// Handle the next part of a request.
    Divided { number: u64 },
    /// Remove these partitions of deleted topics.
    Remove { partitions: vec::IntoIter<PartitionId> },
    /// Remove the offsets of deleted topics from the groups.
    ForgetTopics,
    /// Answer a request that has deleted topics, once their offsets are removed.
    AnswerDeletion(Box<Deletion>),
    /// Write the markers of a transaction for its participants from `next` on.
    WriteMarkers { markers: Arc<Markers>, next: usize },
}

/// A request that has deleted topics.
#[derive(Debug)]
pub(crate) struct Deletion {
    pub(crate) call: RequestContext,
    /// Name and identifier of each topic.
    pub(crate) topics: Vec<(Option<String>, Uuid)>,
    pub(crate) outcomes: Vec<Result<(), AppendError>>,
    /// Which removal of offsets it waits for.
    pub(crate) removal: u64,
}

/// The work of requests that has not been done.
#[derive(Debug, Default)]
pub(crate) struct PendingWork {
    tasks: VecDeque<Task>,
    appends: HashMap<PartitionId, VecDeque<HeldAppend>, foldhash::fast::RandomState>,
    /// Bytes of the held batches.
    bytes: usize,
    /// Batches whose records are worked on.
    preparing: usize,
    /// Units of the turn that were charged when the current request began.
    charged_before: u64,
}

impl PendingWork {
    /// A request begins when `charged` units of the turn are charged.
    pub(crate) fn begin_request(&mut self, charged: u64) {
        self.charged_before = charged;
    }

    /// Whether the current request may do more at once.
    pub(crate) fn has_room(&self, charged: u64) -> bool {
        charged.saturating_sub(self.charged_before) < REQUEST_UNITS
    }

    /// Whether the current request may append to a partition at once.
    pub(crate) fn may_append(&self, id: PartitionId, charged: u64) -> bool {
        !self.holds(id) && self.has_room(charged)
    }

    /// Whether the work on the records of another batch may begin.
    pub(crate) fn may_prepare(&self) -> bool {
        self.preparing < PREPARING_MAX
    }

    /// Bytes of the held batches.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether an append to the partition must queue behind others.
    fn holds(&self, id: PartitionId) -> bool {
        !self.appends.is_empty() && self.appends.contains_key(&id)
    }

    /// Queues an append behind those held for its partition.
    pub(crate) fn push(&mut self, id: PartitionId, append: HeldAppend) {
        self.bytes += append.bytes();
        let job = append.waiter().job;
        let held = self.appends.entry(id).or_default();
        held.push_back(append);
        if held.len() > 1 {
            // A task of an earlier request continues with this partition.
            return;
        }
        if let Some(Task::Append { job: last, partitions }) = self.tasks.back_mut()
            && *last == job
        {
            partitions.push_back(id);
        } else {
            self.tasks.push_back(Task::Append { job, partitions: [id].into() });
        }
    }

    /// Holds a batch for a later turn.
    pub(crate) fn hold_batch<M>(
        &mut self,
        io: &mut Io<'_, M>,
        (waiter, id): (Waiter, PartitionId),
        records: &[u8],
        transactional: Option<&Transactional>,
    ) {
        let (records, transactional) = (BatchBytes(Arc::new(records.to_vec())), transactional.cloned());
        let (prepared, state) = (Prepared::default(), BatchState::Append);
        self.push(id, HeldAppend::Batch { waiter, records, transactional, prepared, state });
        io.request_turn();
    }

    /// Returns a request that is short enough to be handled now, or a part of another one. Otherwise the request is
    /// handled in parts, see `division.rs`.
    pub(crate) fn divide<M, R: Divisible>(
        &mut self,
        io: &mut Io<'_, M>,
        (env, jobs): (&Environment, &mut Jobs),
        call: &RequestContext,
        request: R,
    ) -> Option<R> {
        match Division::of(call, request, &env.response_meter()) {
            Ok(division) => {
                self.add_division(io, jobs, division);
                None
            }
            Err(request) => Some(request),
        }
    }

    /// Answers a request in parts.
    pub(crate) fn add_division<M>(&mut self, io: &mut Io<'_, M>, jobs: &mut Jobs, division: Division) {
        let number = jobs.add(Job::Division(Box::new(division)));
        self.add(Task::Divided { number });
        io.request_turn();
    }

    /// Removes partitions of a deleted topic in the next turns.
    pub(crate) fn add_removal<M>(&mut self, io: &mut Io<'_, M>, partitions: Vec<PartitionId>) {
        self.add(Task::Remove { partitions: partitions.into_iter() });
        io.request_turn();
    }

    /// Takes the next append to a partition.
    pub(crate) fn pop(&mut self, id: PartitionId) -> Option<HeldAppend> {
        let held = self.appends.get_mut(&id)?;
        let append = held.pop_front()?;
        self.bytes -= append.bytes();
        self.preparing -= usize::from(append.is_preparing());
        Some(append)
    }

    /// Puts an append back that is not done.
    pub(crate) fn put_back(&mut self, id: PartitionId, append: HeldAppend) {
        self.bytes += append.bytes();
        self.preparing += usize::from(append.is_preparing());
        self.appends.entry(id).or_default().push_front(append);
    }

    /// Ends the appends to a partition, if none is left. Returns whether that is so.
    pub(crate) fn end_appends(&mut self, id: PartitionId) -> bool {
        if self.appends.get(&id).is_some_and(|held| !held.is_empty()) {
            return false;
        }
        self.appends.remove(&id);
        true
    }

    /// Drops what is held for a deleted partition and returns the waiters.
    pub(crate) fn remove(&mut self, id: PartitionId) -> Vec<Waiter> {
        let held = self.appends.remove(&id).unwrap_or_default();
        self.bytes -= held.iter().map(HeldAppend::bytes).sum::<usize>();
        self.preparing -= held.iter().filter(|append| append.is_preparing()).count();
        held.iter().map(HeldAppend::waiter).collect()
    }

    pub(crate) fn add(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Takes the task to continue. It ends unless it is [added](Self::add) again, behind the others.
    pub(crate) fn next(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::TopicId;

    fn id(index: i32) -> PartitionId {
        PartitionId { topic: TopicId([1; 16]), index }
    }

    fn batch(job: u64, part: u32, bytes: usize) -> HeldAppend {
        let waiter = Waiter { job: JobId { shard: 0, job }, part };
        let records = BatchBytes(Arc::new(vec![0; bytes]));
        let (prepared, state) = (Prepared::default(), BatchState::Append);
        HeldAppend::Batch { waiter, records, transactional: None, prepared, state }
    }

    #[test]
    fn appends_to_a_partition_keep_their_order_and_requests_take_turns() {
        let mut work = PendingWork::default();
        for index in 0..3 {
            work.push(id(index), batch(1, index.unsigned_abs(), 10));
        }
        work.push(id(1), batch(2, 0, 10));
        work.push(id(9), batch(2, 1, 10));
        assert_eq!(work.bytes(), 50);
        let mut served = Vec::new();
        while let Some(Task::Append { job, mut partitions }) = work.next() {
            let id = partitions.pop_front().unwrap();
            while let Some(append) = work.pop(id) {
                let waiter = append.waiter();
                served.push((id.index, waiter.job.job, waiter.part));
            }
            assert!(work.end_appends(id));
            if !partitions.is_empty() {
                work.add(Task::Append { job, partitions });
            }
        }
        assert_eq!(served, [(0, 1, 0), (9, 2, 1), (1, 1, 1), (1, 2, 0), (2, 1, 2)]);
        assert_eq!(work.bytes(), 0);
        assert!(work.is_empty() && !work.holds(id(1)));
    }

    #[test]
    fn few_batches_are_prepared_at_the_same_time() {
        let mut work = PendingWork::default();
        let mut builder = mainstem_log::BatchBuilder::default();
        builder.push(1, None, Some(b"value"));
        let sent = builder.finish().to_vec();
        for index in 0..5 {
            work.push(id(index), batch(1, 0, 10));
        }
        for index in 0..4 {
            assert!(work.may_prepare());
            let Some(HeldAppend::Batch { waiter, records, transactional, prepared, .. }) =
                work.pop(id(index))
            else {
                panic!("a batch is held")
            };
            let begun = RecordsWork::new(Preparation::Check, sent.clone()).unwrap();
            let state = BatchState::Preparing(begun);
            work.put_back(id(index), HeldAppend::Batch { waiter, records, transactional, prepared, state });
        }
        assert!(!work.may_prepare());
        work.remove(id(0));
        assert!(work.may_prepare(), "that of a deleted partition has ended");
        assert!(work.pop(id(1)).is_some());
        assert_eq!(work.preparing, 2);
    }

    #[test]
    fn an_append_that_is_put_back_stays_first_and_deletion_drops_all() {
        let mut work = PendingWork::default();
        work.push(id(0), batch(1, 0, 10));
        work.push(id(0), batch(2, 5, 10));
        let first = work.pop(id(0)).unwrap();
        work.put_back(id(0), first);
        assert!(!work.end_appends(id(0)));
        let parts: Vec<u32> = work.remove(id(0)).iter().map(|waiter| waiter.part).collect();
        assert_eq!((parts, work.bytes()), (vec![0, 5], 0));
        assert!(work.end_appends(id(0)));
    }
}
