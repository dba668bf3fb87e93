//! Requests of this shard to partitions of any shard, and the responses.

use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;
use crate::jobs::Job;
use crate::partition_message::{PartitionQuery, PartitionQueryResult, PartitionRequest, PartitionResponse};
use crate::pending::{AfterChanges, AfterQueries};
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, ShardMessage};
use crate::sinks::SinkResult;

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

    /// Delivers the response of a shard to its job.
    pub(crate) fn on_partition_response(
        &mut self,
        io: &mut Io<'_, Mail>,
        number: u64,
        done: PartitionResponse,
    ) {
        match (self.jobs.get(number), done) {
            (Some(Job::Produce(_)), PartitionResponse::Produced(produced)) => {
                if let Some(job) = self.jobs.end_append(number, produced) {
                    self.answer_produce(io, &job);
                }
            }
            (Some(Job::Sink(_)), PartitionResponse::Produced(produced)) => {
                if let Some(job) = self.jobs.take_sink(number) {
                    self.bindings.settle(job, SinkResult::of(&produced.outcome));
                }
            }
            (Some(Job::QueueAppend(_)), PartitionResponse::Produced(produced)) => {
                self.on_queue_append(io, number, &produced);
            }
            (Some(Job::Mark(_)), PartitionResponse::Produced(produced)) => {
                if let Some((then, outcomes)) = self.jobs.end_marker(number, produced) {
                    self.resume_markers(io, then, outcomes);
                }
            }
            (Some(Job::Fetch(_)), PartitionResponse::Fetched(fetched)) => {
                if let Some((fetch, is_woken)) = self.jobs.add_fetched(number, fetched) {
                    self.finish_attempt(io, number, fetch, is_woken);
                }
            }
            (Some(Job::Query(_)), PartitionResponse::Asked(results)) => {
                if let Some((then, results)) = self.jobs.end_queries(number, results) {
                    self.resume_queries(io, then, results);
                }
            }
            // The connection has closed.
            _ => {}
        }
    }
}
