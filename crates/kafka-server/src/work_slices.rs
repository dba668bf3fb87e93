//! Continues the work of requests that takes several turns, see `pending_work.rs`.
//!
//! A batch takes this way from its first try on: [`Shard::produce_local`] appends it at once if its request has done
//! little in this turn and nothing is held for its partition. Otherwise it is held, and so is everything behind it in
//! that partition, so that batches never overtake each other. Each turn gives every task one partition in turn, within
//! the share of the turn.

use mainstem_kafka::ErrorCode;
use mainstem_partition::{IncomingBatch, RecordsWork, Waiter};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;
use crate::division::Divisible;
use crate::handlers::delete_topics;
use crate::partition_message::{MarkPart, PartitionQuery, PartitionResponse};
use crate::pending_work::{BatchState, HeldAppend, Task};
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, RequestContext};
use crate::storage::{LOOKUP_UNITS, units};
use crate::unverified_batches::Transactional;

/// Handling a part of a request over many topics or groups, see `division.rs`.
const PART_UNITS: u32 = 5_000;

/// Whether an append is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Done,
    /// It continues in a later turn.
    More,
}

impl Shard {
    /// Appends a batch of a client. `waiter` is answered when it is durable, or has failed.
    pub(crate) fn produce_local(
        &mut self,
        io: &mut Io<'_, Mail>,
        waiter: Waiter,
        id: PartitionId,
        records: &[u8],
        transactional: Option<&Transactional>,
    ) {
        if !self.pending_work.may_append(id, io.charged()) {
            return self.pending_work.hold_batch(io, (waiter, id), records, transactional);
        }
        let produced = IncomingBatch::parse(records).map_err(AppendError::from).and_then(|incoming| {
            self.storage.charge_batch(io, id, &incoming);
            self.produce_incoming(io, waiter, id, &incoming, transactional)
        });
        match produced {
            Ok(None) => {}
            Ok(Some(_)) => self.pending_work.hold_batch(io, (waiter, id), records, transactional),
            Err(error) => self.send_produced(io, waiter, Err(error)),
        }
    }

    /// Appends a marker. Its waiter is answered when it is durable, or has failed.
    pub(crate) fn write_marker_local(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: JobId,
        MarkPart { part, id, marker }: MarkPart,
    ) {
        let waiter = Waiter { job, part };
        if !self.pending_work.may_append(id, io.charged()) {
            self.pending_work.push(id, HeldAppend::Marker { waiter, marker });
            return io.request_turn();
        }
        self.storage.charge_marker(io, id);
        if let Err(error) = self.try_write_marker(io, waiter, id, &marker) {
            self.send_produced(io, waiter, Err(error));
        }
    }

    /// Answers queries to partitions, and holds those that do not fit into the turn.
    pub(crate) fn answer_queries(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: JobId,
        queries: Vec<(u32, PartitionId, PartitionQuery)>,
    ) {
        let answers = Vec::with_capacity(queries.len());
        let (mut queries, mut answers) = (queries.into_iter(), answers);
        while self.pending_work.has_room(io.charged()) {
            if !self.storage.query_next(&mut self.env, io, &mut queries, &mut answers) {
                return self.send_partition_response(io, job, PartitionResponse::Asked(answers));
            }
        }
        self.pending_work.add(Task::Query { job, queries, answers });
        io.request_turn();
    }

    /// Returns a request that is short enough to be handled now, or a part of another one. Otherwise the request is
    /// handled in parts, see `division.rs`.
    pub(crate) fn divide<R: Divisible>(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: &RequestContext,
        request: R,
    ) -> Option<R> {
        self.pending_work.divide(io, (&self.env, &mut self.jobs), call, request)
    }

    /// Continues the work of requests, each with one partition in turn, within the share of the turn.
    pub(crate) fn continue_work(&mut self, io: &mut Io<'_, Mail>) {
        loop {
            let Some(task) = self.pending_work.next() else { return };
            if let Some(rest) = self.continue_task(io, task) {
                self.pending_work.add(rest);
            }
            if io.is_exhausted() {
                break;
            }
        }
        if !self.pending_work.is_empty() {
            io.request_turn();
        }
    }

    /// Continues a task with one partition. Returns the rest.
    fn continue_task(&mut self, io: &mut Io<'_, Mail>, task: Task) -> Option<Task> {
        match task {
            Task::Append { job, mut partitions } => {
                let id = partitions.pop_front()?;
                if self.continue_appends(io, id) == Progress::More {
                    partitions.push_front(id);
                }
                (!partitions.is_empty()).then_some(Task::Append { job, partitions })
            }
            Task::Query { job, mut queries, mut answers } => {
                if self.storage.query_next(&mut self.env, io, &mut queries, &mut answers) {
                    return Some(Task::Query { job, queries, answers });
                }
                self.send_partition_response(io, job, PartitionResponse::Asked(answers));
                None
            }
            Task::ReadFetch { number } => {
                self.continue_fetch(io, number).then_some(Task::ReadFetch { number })
            }
            Task::ReadForShard(read) => {
                self.pending_work.begin_request(io.charged());
                self.read_for_shard(io, read).map(Task::ReadForShard)
            }
            Task::Divided { number } => {
                io.charge(PART_UNITS);
                self.pending_work.begin_request(io.charged());
                self.continue_division(io, number);
                None
            }
            Task::ForgetTopics => self.continue_forgetting(io).then_some(Task::ForgetTopics),
            Task::AnswerDeletion(deletion) => {
                io.charge(LOOKUP_UNITS);
                delete_topics::answer_deletion(self, io, deletion).map(Task::AnswerDeletion)
            }
            Task::WriteMarkers { markers, next } => {
                self.pending_work.begin_request(io.charged());
                let next = self.write_next_markers(io, &markers, next)?;
                Some(Task::WriteMarkers { markers, next })
            }
            Task::Remove { mut partitions } => {
                let id = partitions.next()?;
                io.charge(LOOKUP_UNITS);
                self.remove_partition(io, id);
                Some(Task::Remove { partitions })
            }
        }
    }

    /// Continues the appends that are held for a partition, until one takes longer or the turn has no room.
    fn continue_appends(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> Progress {
        while let Some(append) = self.pending_work.pop(id) {
            let waiter = append.waiter();
            match self.continue_append(io, id, append) {
                Ok(None) => {}
                Ok(Some(rest)) => {
                    self.pending_work.put_back(id, rest);
                    return Progress::More;
                }
                Err(error) => self.send_produced(io, waiter, Err(error)),
            }
            if io.is_exhausted() {
                break;
            }
        }
        if self.pending_work.end_appends(id) { Progress::Done } else { Progress::More }
    }

    /// Continues an append. Returns it if it is not done.
    fn continue_append(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        append: HeldAppend,
    ) -> Result<Option<HeldAppend>, AppendError> {
        match append {
            HeldAppend::Marker { waiter, marker } => {
                self.storage.charge_marker(io, id);
                self.try_write_marker(io, waiter, id, &marker)?;
                Ok(None)
            }
            HeldAppend::Batch { waiter, records, transactional, mut prepared, state } => {
                let hold = |state, prepared| {
                    let (records, transactional) = (records.clone(), transactional.clone());
                    Ok(Some(HeldAppend::Batch { waiter, records, transactional, prepared, state }))
                };
                let work = match state {
                    BatchState::Append => None,
                    BatchState::AwaitsPreparation(preparation) => {
                        io.charge(LOOKUP_UNITS);
                        if !self.pending_work.may_prepare() {
                            return hold(BatchState::AwaitsPreparation(preparation), prepared);
                        }
                        Some(RecordsWork::new(preparation, records.clone())?)
                    }
                    BatchState::Preparing(work) => Some(work),
                };
                if let Some(mut work) = work {
                    io.charge(units(work.step_ns()));
                    if !work.step(&mut prepared)? {
                        return hold(BatchState::Preparing(work), prepared);
                    }
                }
                let incoming = IncomingBatch::parse(&records.0)?.with_prepared(prepared.clone());
                self.storage.charge_batch(io, id, &incoming);
                match self.produce_incoming(io, waiter, id, &incoming, transactional.as_ref())? {
                    None => Ok(None),
                    Some(preparation) => hold(BatchState::AwaitsPreparation(preparation), prepared),
                }
            }
        }
    }

    /// Removes a partition of a deleted topic.
    fn remove_partition(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        self.with_queues(io, |queues, cx| queues.remove(cx, id));
        let mut results = Vec::new();
        let watchers = self.storage.remove(id, &mut results);
        let held = self.pending_work.remove(id);
        for waiter in held.into_iter().chain(self.unverified.remove(id)) {
            self.send_produced(io, waiter, Err(ErrorCode::UnknownTopicOrPartition.into()));
        }
        self.deliver_appends(io, results, watchers);
    }
}
