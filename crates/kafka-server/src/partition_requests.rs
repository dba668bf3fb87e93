//! Requests to the shard that owns a partition, from any shard: appends, markers, reads, queries.
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
use crate::partition_message::{PartitionRequest, PartitionResponse, ProducePart};
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
        let store_index = partition.store_index();
        if partition.awaits_manager(store) {
            self.prepare_partition(io, id);
        }
        match self.storage.append((id, store_index), incoming, verification, waiter)? {
            Accepted::Unverified(producer) => return Ok(Appended::Unverified(producer)),
            Accepted::Unprepared(preparation) => return Ok(Appended::Unprepared(preparation)),
            Accepted::Durable(info) => self.send_produced(io, waiter, Ok(info)),
            Accepted::Pending { .. } => {}
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
}
