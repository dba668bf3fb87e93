//! Requests to the shard that owns a partition, from any shard: appends, markers, reads, queries.
//!
//! If what a shard has read for a fetch of another shard [is short](is_short) of what the fetch waits for, it registers
//! the fetch as a watcher at once, so that no record can arrive between the read and the registration.
//!
//! A managed partition belongs to a component of the broker, see [`mainstem_partition::Partitions`]. The partition
//! itself checks what its manager admits. All that appends do for it is to let the manager act first if the partition
//! awaits it.

use mainstem_coordinator::producer::{Marker, TxnVerification};
use mainstem_coordinator::transaction::Producer;
use mainstem_kafka::ErrorCode;
use mainstem_log::Completion;
use mainstem_partition::{Accepted, AppendInfo, AppendResult, IncomingBatch, Preparation, Waiter};
use mainstem_runtime::Io;

use crate::append_error::{AppendError, Produced};
use crate::catalogue::PartitionId;
use crate::partition_message::{
    PartitionQuery, PartitionQueryResult, PartitionRequest, PartitionResponse, ProducePart, ReadLimit,
    is_short,
};
use crate::pending::{AfterChanges, AfterQueries};
use crate::pending_work::{RemoteRead, Task};
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, ShardMessage};
use crate::unverified_batches::Transactional;

/// Whether a batch was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// It was, now or before.
    Yes,
    /// No: the coordinator must verify the transaction of this producer first.
    Unverified(Producer),
    /// No: this must be done first.
    Unprepared(Preparation),
}

impl Shard {
    /// Handles a request for partitions of this shard.
    pub(crate) fn handle_partition_request(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: JobId,
        work: PartitionRequest,
    ) {
        self.pending_work.begin_request(io.charged());
        match work {
            PartitionRequest::Produce(parts) => {
                for ProducePart { part, id, records, transactional } in parts {
                    self.produce_local(io, Waiter { job, part }, id, &records, transactional.as_ref());
                }
            }
            PartitionRequest::WriteMarkers(parts) => {
                for part in parts {
                    self.write_marker_local(io, job, part);
                }
            }
            PartitionRequest::Fetch(work) => {
                if let Some(read) = self.read_for_shard(io, Box::new(RemoteRead::new(job, work))) {
                    self.pending_work.add(Task::ReadForShard(read));
                    io.request_turn();
                }
            }
            PartitionRequest::Query(queries) => self.answer_queries(io, job, queries),
            PartitionRequest::Unwatch { watcher, partitions } => {
                for id in partitions {
                    self.storage.unwatch(id, watcher);
                }
            }
        }
    }

    /// Sends a response to the shard that made the request.
    pub(crate) fn send_partition_response(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: JobId,
        done: PartitionResponse,
    ) {
        if job.shard == self.env.me() {
            self.on_partition_response(io, job.job, done);
        } else {
            io.send(job.shard, Mail(ShardMessage::PartitionResponse { job: job.job, done }));
        }
    }

    /// Appends a batch of a client. Returns what must be done with its records first, if anything.
    ///
    /// # Errors
    /// The batch was not appended.
    pub(crate) fn produce_incoming(
        &mut self,
        io: &mut Io<'_, Mail>,
        waiter: Waiter,
        id: PartitionId,
        incoming: &IncomingBatch<'_>,
        transactional: Option<&Transactional>,
    ) -> Result<Option<Preparation>, AppendError> {
        let mut producer = incoming.producer();
        if transactional.is_none() || !self.unverified.has(id, producer.id) {
            match self.append_incoming(io, waiter, id, incoming, TxnVerification::Unknown)? {
                Appended::Yes => return Ok(None),
                Appended::Unprepared(preparation) => return Ok(Some(preparation)),
                Appended::Unverified(unverified) => producer = unverified,
            }
        }
        let Some(transactional) = transactional else {
            return Err(ErrorCode::TransactionalIdAuthorizationFailed.into());
        };
        // The append follows the verification in the same turn, so the preparation must come first.
        let partition = self.storage.partition(&mut self.env, id)?.0;
        if let Some(preparation) = partition.needed_preparation(incoming, io.clock.unix_ms)? {
            return Ok(Some(preparation));
        }
        self.hold(io, waiter, id, producer, incoming, transactional).map(|()| None)
    }

    /// Appends a batch, unless something must happen first.
    ///
    /// # Errors
    /// The batch was not appended.
    pub(crate) fn append_incoming(
        &mut self,
        io: &mut Io<'_, Mail>,
        waiter: Waiter,
        id: PartitionId,
        incoming: &IncomingBatch<'_>,
        verification: TxnVerification,
    ) -> Result<Appended, AppendError> {
        let (partition, store) = self.storage.partition(&mut self.env, id)?;
        let (store_index, end_before) = (partition.store_index(), store.status(partition.log()).end);
        if partition.awaits_manager(store) {
            self.prepare_partition(io, id);
        }
        match self.storage.append((id, store_index), incoming, verification, waiter)? {
            Accepted::Unverified(producer) => return Ok(Appended::Unverified(producer)),
            Accepted::Unprepared(preparation) => return Ok(Appended::Unprepared(preparation)),
            Accepted::Durable(info) => self.send_produced(io, waiter, Ok(info)),
            // A repeated batch that is in flight ends before.
            Accepted::Pending { end } if end <= end_before => {}
            Accepted::Pending { .. } => {
                let header = incoming.header();
                self.env.counters().count_append(u64::from(header.records), header.total_bytes);
            }
        }
        Ok(Appended::Yes)
    }

    /// Answers the waiter of an append.
    pub(crate) fn send_produced(
        &mut self,
        io: &mut Io<'_, Mail>,
        waiter: Waiter,
        outcome: Result<AppendInfo, AppendError>,
    ) {
        let produced = Produced { part: waiter.part, outcome };
        self.send_partition_response(io, waiter.job, PartitionResponse::Produced(produced));
    }

    /// Appends a marker.
    ///
    /// # Errors
    /// The marker was not appended.
    pub(crate) fn try_write_marker(
        &mut self,
        io: &mut Io<'_, Mail>,
        waiter: Waiter,
        id: PartitionId,
        marker: &Marker,
    ) -> Result<(), AppendError> {
        let (partition, store) = self.storage.partition(&mut self.env, id)?;
        if partition.awaits_manager(store) {
            self.prepare_partition(io, id);
        }
        self.storage.mark(&mut self.env, id, marker, waiter)
    }

    /// Delivers the results of appends that a store has completed.
    pub(crate) fn on_partition_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        store_index: usize,
        completion: &Completion,
    ) {
        let mut results = Vec::new();
        let watchers = self.storage.on_completion(store_index, completion, &mut results);
        self.deliver_appends(io, results, watchers);
    }

    /// Answers the waiters of appends, and wakes the fetches that watch their partition.
    pub(crate) fn deliver_appends(
        &mut self,
        io: &mut Io<'_, Mail>,
        results: Vec<AppendResult>,
        watchers: Vec<JobId>,
    ) {
        for AppendResult { waiter, outcome } in results {
            self.send_produced(io, waiter, outcome.map_err(AppendError::from));
        }
        for watcher in watchers {
            if watcher.shard == self.env.me() {
                self.on_fetch_wakeup(io, watcher.job);
            } else {
                io.send(watcher.shard, Mail(ShardMessage::FetchWakeup { watcher }));
            }
        }
    }

    /// Reads partitions of this shard for a fetch of another shard, as far as the turn lasts. Returns what is left.
    pub(crate) fn read_for_shard(
        &mut self,
        io: &mut Io<'_, Mail>,
        mut read: Box<RemoteRead>,
    ) -> Option<Box<RemoteRead>> {
        let begin = if read.is_sliced { read.all.len() } else { 0 };
        while let Some(part) = read.request.parts.get(read.all.len()) {
            if !self.pending_work.has_room(io.charged()) {
                // Records may arrive before the last partition is read.
                self.storage.watch_parts(&mut self.env, &read.request, begin..read.all.len());
                read.is_sliced = true;
                return Some(read);
            }
            let bytes_max = part.bytes_max.min(read.left);
            let limit = ReadLimit { bytes_max, bytes_min: read.request.bytes_min, is_first: read.is_first };
            let fetched = self.storage.read(&mut self.env, io, part, read.request.isolation, limit);
            read.left = read.left.saturating_sub(fetched.records.len());
            read.is_first &= fetched.records.is_empty();
            read.all.push(fetched);
        }
        let RemoteRead { job, request, all, is_sliced, .. } = *read;
        if is_short(&all, request.bytes_min) {
            self.storage.watch_parts(&mut self.env, &request, begin..all.len());
        } else if is_sliced && let Some(watcher) = request.watcher {
            request.parts.iter().for_each(|part| self.storage.unwatch(part.id, watcher));
        }
        self.send_partition_response(io, job, PartitionResponse::Fetched(all));
        None
    }
}

/// What this shard requests of others.
impl Shard {
    /// Sends a request to the shard that owns the partitions, which may be this one.
    pub(crate) fn send_partition_request(
        &mut self,
        io: &mut Io<'_, Mail>,
        shard: usize,
        job: u64,
        work: PartitionRequest,
    ) {
        let job = JobId { shard: self.env.me(), job };
        if shard == self.env.me() {
            self.handle_partition_request(io, job, work);
        } else {
            io.send(shard, Mail(ShardMessage::PartitionRequest { job, work }));
        }
    }

    /// Queries partitions of any shard; `then` continues with their results, in the order of the queries.
    pub(crate) fn query_partitions(
        &mut self,
        io: &mut Io<'_, Mail>,
        queries: Vec<(PartitionId, PartitionQuery)>,
        then: AfterQueries,
    ) {
        let mut results = Vec::with_capacity(queries.len());
        let mut by_shard: Vec<Vec<_>> = (0..self.env.shared().shards).map(|_| Vec::new()).collect();
        for (part, (id, query)) in queries.into_iter().enumerate() {
            match self.env.owner_of(id) {
                Ok(shard) => {
                    by_shard[shard].push((part as u32, id, query));
                    results.push(PartitionQueryResult::Failed(ErrorCode::UnknownServerError));
                }
                Err(code) => results.push(PartitionQueryResult::Failed(code)),
            }
        }
        let waiting = by_shard.iter().filter(|queries| !queries.is_empty()).count() as u32;
        if waiting == 0 {
            return self.resume_queries(io, then, results);
        }
        let job = self.jobs.add_queries(results, waiting, then);
        for (shard, queries) in by_shard.into_iter().enumerate().filter(|(_, queries)| !queries.is_empty()) {
            self.send_partition_request(io, shard, job, PartitionRequest::Query(queries));
        }
    }

    /// Begins changes and returns their job number. Each of the `waiting` changes reports its outcome to
    /// [`Shard::change_done`]; `outcomes` already holds the results of the others.
    pub(crate) fn begin_changes(
        &mut self,
        io: &mut Io<'_, Mail>,
        outcomes: Vec<Result<(), AppendError>>,
        waiting: usize,
        then: AfterChanges,
    ) -> u64 {
        if waiting == 0 {
            self.resume_changes(io, then, outcomes);
            return 0;
        }
        self.jobs.add_changes(outcomes, waiting, then)
    }

    /// Records the outcome of one change.
    pub(crate) fn change_done(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: u64,
        part: usize,
        outcome: Result<(), AppendError>,
    ) {
        if let Some((then, outcomes)) = self.jobs.end_change(job, part, outcome) {
            self.publish_changes(io);
            self.resume_changes(io, then, outcomes);
        }
    }
}
