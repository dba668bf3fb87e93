//! Pending requests, on the shard of their connection.
//!
//! A request that needs partitions of several shards becomes a job. The shards answer with the job's number; the last
//! answer completes it. An answer without a job is ignored: its connection has closed.

use hashbrown::HashMap;
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::PartitionId;
use crate::handlers::fetch::FetchJob;
use crate::handlers::produce::ProduceJob;
use crate::markers::MarkJob;
use crate::partition_message::{PartitionQuery, PartitionQueryResult, PartitionRequest, PartitionResponse};
use crate::queues::SendJob;
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, ShardMessage};
use crate::sinks::{SinkJob, SinkResult};

/// Pending jobs by number.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    next: u64,
    jobs: HashMap<u64, Job, foldhash::fast::RandomState>,
}

/// A pending request.
#[derive(Debug)]
pub(crate) enum Job {
    Produce(ProduceJob),
    Fetch(FetchJob),
    Sink(SinkJob),
    Send(SendJob),
    Query(QueryJob),
    Mark(MarkJob),
    Changes(ChangesJob),
}

/// Concurrent changes, and the continuation when all of them are done.
pub(crate) struct ChangesJob {
    waiting: usize,
    outcomes: Vec<Result<(), AppendError>>,
    then: ThenOutcomes,
}

type ThenOutcomes = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Vec<Result<(), AppendError>>) + Send>;

impl std::fmt::Debug for ChangesJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChangesJob {{ waiting: {} }}", self.waiting)
    }
}

/// Queries to partitions, and the continuation with their results.
pub(crate) struct QueryJob {
    /// Shards without an answer.
    waiting: u32,
    answers: Vec<PartitionQueryResult>,
    then: Then,
}

type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Vec<PartitionQueryResult>) + Send>;

impl std::fmt::Debug for QueryJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueryJob {{ waiting: {} }}", self.waiting)
    }
}

impl Jobs {
    pub(crate) fn add(&mut self, job: Job) -> u64 {
        let number = self.reserve();
        self.jobs.insert(number, job);
        number
    }

    /// A new number, for [`Self::put`].
    pub(crate) fn reserve(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn get(&mut self, job: u64) -> Option<&mut Job> {
        self.jobs.get_mut(&job)
    }

    pub(crate) fn take(&mut self, job: u64) -> Option<Job> {
        self.jobs.remove(&job)
    }

    pub(crate) fn put(&mut self, number: u64, job: Job) {
        self.jobs.insert(number, job);
    }
}

impl Shard {
    /// The shard that owns a partition.
    ///
    /// # Errors
    /// The partition does not exist.
    pub(crate) fn owner_of(&self, id: PartitionId) -> Result<usize, ErrorCode> {
        let topic = self.catalogue.topic_by_id(id.topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let home = topic.store_id(id.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        Ok(self.shared.owner(home))
    }

    /// Sends a request to the shard that owns the partitions, which may be this one.
    pub(crate) fn send_partition_request(
        &mut self,
        io: &mut Io<'_, Mail>,
        shard: usize,
        job: u64,
        work: PartitionRequest,
    ) {
        let job = JobId { shard: self.me, job };
        if shard == self.me {
            self.handle_partition_request(io, job, work);
        } else {
            io.send(shard, Mail(ShardMessage::PartitionRequest { job, work }));
        }
    }

    /// Queries partitions of any shard and continues with their results, in the order of the queries.
    pub(crate) fn query_partitions(
        &mut self,
        io: &mut Io<'_, Mail>,
        asks: Vec<(PartitionId, PartitionQuery)>,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Vec<PartitionQueryResult>) + Send + 'static,
    ) {
        let mut answers = Vec::with_capacity(asks.len());
        let mut by_shard: Vec<Vec<_>> = (0..self.shared.shards).map(|_| Vec::new()).collect();
        for (part, (id, ask)) in asks.into_iter().enumerate() {
            match self.owner_of(id) {
                Ok(shard) => {
                    by_shard[shard].push((part as u32, id, ask));
                    answers.push(PartitionQueryResult::Failed(ErrorCode::UnknownServerError));
                }
                Err(code) => answers.push(PartitionQueryResult::Failed(code)),
            }
        }
        let waiting = by_shard.iter().filter(|asks| !asks.is_empty()).count() as u32;
        if waiting == 0 {
            return then(self, io, answers);
        }
        let job = self.jobs.add(Job::Query(QueryJob { waiting, answers, then: Box::new(then) }));
        for (shard, asks) in by_shard.into_iter().enumerate().filter(|(_, asks)| !asks.is_empty()) {
            self.send_partition_request(io, shard, job, PartitionRequest::Query(asks));
        }
    }

    /// Begins changes and returns their job number. Each of the `waiting` changes reports its outcome to
    /// [`Shard::change_done`]; `outcomes` already holds the results of the others.
    pub(crate) fn begin_changes(
        &mut self,
        io: &mut Io<'_, Mail>,
        outcomes: Vec<Result<(), AppendError>>,
        waiting: usize,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Vec<Result<(), AppendError>>) + Send + 'static,
    ) -> u64 {
        if waiting == 0 {
            then(self, io, outcomes);
            return 0;
        }
        self.jobs.add(Job::Changes(ChangesJob { waiting, outcomes, then: Box::new(then) }))
    }

    /// Records the outcome of one change.
    pub(crate) fn change_done(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: u64,
        part: usize,
        outcome: Result<(), AppendError>,
    ) {
        let Some(Job::Changes(changes)) = self.jobs.get(job) else { return };
        changes.outcomes[part] = outcome;
        changes.waiting -= 1;
        if changes.waiting == 0
            && let Some(Job::Changes(changes)) = self.jobs.take(job)
        {
            self.publish_changes(io);
            (changes.then)(self, io, changes.outcomes);
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
                self.on_part_produced(io, number, produced);
            }
            (Some(Job::Sink(_)), PartitionResponse::Produced(produced)) => {
                self.on_sink_appended(number, SinkResult::of(&produced.outcome));
            }
            (Some(Job::Send(_)), PartitionResponse::Produced(produced)) => {
                self.on_queue_append(io, number, &produced);
            }
            (Some(Job::Mark(_)), PartitionResponse::Produced(produced)) => self.marked(io, number, produced),
            (Some(Job::Fetch(_)), PartitionResponse::Fetched(fetched)) => self.fetched(io, number, fetched),
            (Some(Job::Query(ask)), PartitionResponse::Asked(answers)) => {
                for (part, answer) in answers {
                    ask.answers[part as usize] = answer;
                }
                ask.waiting -= 1;
                if ask.waiting == 0
                    && let Some(Job::Query(ask)) = self.jobs.take(number)
                {
                    (ask.then)(self, io, ask.answers);
                }
            }
            // The connection has closed.
            _ => {}
        }
    }
}
