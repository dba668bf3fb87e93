//! Pending requests of one shard, by number.
//!
//! A request that needs partitions of several shards becomes a job. The shards answer with the job's number; the last
//! answer completes it. An answer without a job is ignored: its connection has closed.

use hashbrown::HashMap;
use mainstem_kafka::ErrorCode;
use mainstem_queue_server::AppendTicket;

use crate::append_error::{AppendError, Produced};
use crate::division::Division;
use crate::fetch_job::{Fetch, FetchJob};
use crate::partition_message::{Fetched, PartitionQueryResult, is_short};
use crate::pending::{AfterChanges, AfterMarkers, AfterQueries};
use crate::produce_job::ProduceJob;
use crate::sinks::SinkJob;

/// Pending jobs by number.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    next: u64,
    by_number: HashMap<u64, Job, foldhash::fast::RandomState>,
    /// Bytes of records that other shards have not answered yet.
    mailed_bytes: usize,
}

/// A pending request.
#[derive(Debug)]
pub(crate) enum Job {
    Produce(ProduceJob),
    Fetch(FetchJob),
    Sink(SinkJob),
    QueueAppend(AppendTicket),
    /// Events of the audit log are being appended, see `audit_topic.rs`.
    Audit,
    Query(QueryJob),
    Mark(MarkJob),
    Changes(ChangesJob),
    Division(Box<Division>),
}

/// Concurrent changes, and what continues when all of them are done.
#[derive(Debug)]
pub(crate) struct ChangesJob {
    waiting: usize,
    outcomes: Vec<Result<(), AppendError>>,
    then: AfterChanges,
}

/// Queries to partitions, and what continues with their results.
#[derive(Debug)]
pub(crate) struct QueryJob {
    /// Shards without an answer.
    waiting: u32,
    results: Vec<PartitionQueryResult>,
    then: AfterQueries,
}

/// Transaction markers in flight, and what continues with their outcomes.
#[derive(Debug)]
pub(crate) struct MarkJob {
    waiting: usize,
    outcomes: Vec<Result<(), ErrorCode>>,
    then: AfterMarkers,
}

impl Job {
    fn mailed_bytes(&self) -> usize {
        if let Self::Produce(job) = self { job.mailed_bytes } else { 0 }
    }
}

impl Jobs {
    pub(crate) fn add(&mut self, job: Job) -> u64 {
        let number = self.reserve();
        self.put(number, job);
        number
    }

    /// A new number, for [`Self::put`].
    pub(crate) fn reserve(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn get(&mut self, job: u64) -> Option<&mut Job> {
        self.by_number.get_mut(&job)
    }

    pub(crate) fn take(&mut self, job: u64) -> Option<Job> {
        let job = self.by_number.remove(&job)?;
        self.mailed_bytes -= job.mailed_bytes();
        Some(job)
    }

    pub(crate) fn put(&mut self, number: u64, job: Job) {
        self.mailed_bytes += job.mailed_bytes();
        self.by_number.insert(number, job);
    }

    /// Takes a fetch, whatever its state.
    pub(crate) fn take_fetch(&mut self, number: u64) -> Option<FetchJob> {
        match self.take(number)? {
            Job::Fetch(job) => Some(job),
            other => {
                self.put(number, other);
                None
            }
        }
    }

    /// Takes a fetch if it is parked.
    pub(crate) fn take_parked_fetch(&mut self, number: u64) -> Option<Box<Fetch>> {
        let Some(Job::Fetch(FetchJob::Parked(_))) = self.by_number.get(&number) else { return None };
        let Some(Job::Fetch(FetchJob::Parked(fetch))) = self.take(number) else { return None };
        Some(fetch)
    }

    /// A partition that a fetch watches has new records. Takes the fetch if it is parked; otherwise notes that the
    /// attempt may have missed them.
    pub(crate) fn wake_fetch(&mut self, number: u64) -> Option<Box<Fetch>> {
        if let Some(Job::Fetch(FetchJob::Collecting { is_woken, .. } | FetchJob::Reading { is_woken, .. })) =
            self.by_number.get_mut(&number)
        {
            *is_woken = true;
            return None;
        }
        self.take_parked_fetch(number)
    }

    /// The deadline of a fetch has passed. Takes the fetch if it is parked.
    pub(crate) fn expire_fetch(&mut self, number: u64) -> Option<Box<Fetch>> {
        match self.by_number.get_mut(&number)? {
            Job::Fetch(FetchJob::Collecting { fetch, .. } | FetchJob::Reading { fetch, .. }) => {
                fetch.is_due = true;
                None
            }
            Job::Fetch(FetchJob::Parked(fetch)) => {
                fetch.is_due = true;
                self.take_parked_fetch(number)
            }
            _ => None,
        }
    }

    /// Adds what another shard has read for a fetch. After the last shard, takes the fetch, and whether a partition has
    /// received records in the meantime.
    pub(crate) fn add_fetched(&mut self, number: u64, all: Vec<Fetched>) -> Option<(Box<Fetch>, bool)> {
        let Some(Job::Fetch(FetchJob::Collecting { fetch, waiting, .. })) = self.by_number.get_mut(&number)
        else {
            return None;
        };
        let is_watched = is_short(&all, fetch.bytes_min);
        for fetched in all {
            let part = &mut fetch.parts[fetched.part as usize];
            part.fetched = Some(fetched);
            part.is_watched |= is_watched;
        }
        *waiting -= 1;
        if *waiting > 0 {
            return None;
        }
        let Some(FetchJob::Collecting { fetch, is_woken, .. }) = self.take_fetch(number) else { return None };
        Some((fetch, is_woken))
    }

    /// Records the result of one append of a Produce. Takes the request after the last one.
    pub(crate) fn end_append(&mut self, number: u64, produced: Produced) -> Option<ProduceJob> {
        let Some(Job::Produce(job)) = self.by_number.get_mut(&number) else { return None };
        job.parts[produced.part as usize].1 = produced.outcome;
        job.waiting -= 1;
        if job.waiting > 0 {
            return None;
        }
        let Some(Job::Produce(job)) = self.take(number) else { return None };
        Some(job)
    }

    /// The request that is handled in parts.
    pub(crate) fn division(&mut self, number: u64) -> Option<&mut Division> {
        match self.by_number.get_mut(&number)? {
            Job::Division(division) => Some(division),
            _ => None,
        }
    }

    /// Adds the response to a part of a request. Returns false if the whole response gets too long.
    pub(crate) fn add_part(&mut self, number: u64, response: &[u8]) -> bool {
        self.division(number).is_none_or(|division| division.add(response))
    }

    /// Takes a request that is handled in parts.
    pub(crate) fn take_division(&mut self, number: u64) -> Option<Box<Division>> {
        let Some(Job::Division(_)) = self.by_number.get(&number) else { return None };
        let Some(Job::Division(division)) = self.take(number) else { return None };
        Some(division)
    }

    /// Takes records of another protocol that have been appended, or not.
    pub(crate) fn take_sink(&mut self, number: u64) -> Option<SinkJob> {
        let Some(Job::Sink(_)) = self.by_number.get(&number) else { return None };
        let Some(Job::Sink(job)) = self.take(number) else { return None };
        Some(job)
    }

    /// Bytes of records that other shards have not answered yet.
    pub(crate) fn mailed_bytes(&self) -> usize {
        self.mailed_bytes
    }

    /// Adds a job of `waiting` changes. `outcomes` already holds the results of the others.
    pub(crate) fn add_changes(
        &mut self,
        outcomes: Vec<Result<(), AppendError>>,
        waiting: usize,
        then: AfterChanges,
    ) -> u64 {
        self.add(Job::Changes(ChangesJob { waiting, outcomes, then }))
    }

    /// Records the outcome of one change. Returns all outcomes after the last one.
    pub(crate) fn end_change(
        &mut self,
        job: u64,
        part: usize,
        outcome: Result<(), AppendError>,
    ) -> Option<(AfterChanges, Vec<Result<(), AppendError>>)> {
        let Some(Job::Changes(changes)) = self.by_number.get_mut(&job) else { return None };
        changes.outcomes[part] = outcome;
        changes.waiting -= 1;
        if changes.waiting > 0 {
            return None;
        }
        let Some(Job::Changes(ChangesJob { outcomes, then, .. })) = self.take(job) else { return None };
        Some((then, outcomes))
    }

    /// Adds a job of queries to `waiting` shards. `results` already holds the results of the others.
    pub(crate) fn add_queries(
        &mut self,
        results: Vec<PartitionQueryResult>,
        waiting: u32,
        then: AfterQueries,
    ) -> u64 {
        self.add(Job::Query(QueryJob { waiting, results, then }))
    }

    /// Records the results of one shard. Returns all results after the last shard.
    pub(crate) fn end_queries(
        &mut self,
        job: u64,
        of_shard: Vec<(u32, PartitionQueryResult)>,
    ) -> Option<(AfterQueries, Vec<PartitionQueryResult>)> {
        let Some(Job::Query(query)) = self.by_number.get_mut(&job) else { return None };
        for (part, result) in of_shard {
            query.results[part as usize] = result;
        }
        query.waiting -= 1;
        if query.waiting > 0 {
            return None;
        }
        let Some(Job::Query(QueryJob { results, then, .. })) = self.take(job) else { return None };
        Some((then, results))
    }

    /// Adds a job of `waiting` markers. `outcomes` already holds the outcomes of the others.
    pub(crate) fn add_markers(
        &mut self,
        outcomes: Vec<Result<(), ErrorCode>>,
        waiting: usize,
        then: AfterMarkers,
    ) -> u64 {
        self.add(Job::Mark(MarkJob { waiting, outcomes, then }))
    }

    /// Records the outcome of one marker. Returns all outcomes after the last one.
    pub(crate) fn end_marker(
        &mut self,
        job: u64,
        produced: Produced,
    ) -> Option<(AfterMarkers, Vec<Result<(), ErrorCode>>)> {
        let Some(Job::Mark(markers)) = self.by_number.get_mut(&job) else { return None };
        markers.outcomes[produced.part as usize] = produced.outcome.map(drop).map_err(|refused| refused.code);
        markers.waiting -= 1;
        if markers.waiting > 0 {
            return None;
        }
        let Some(Job::Mark(MarkJob { outcomes, then, .. })) = self.take(job) else { return None };
        Some((then, outcomes))
    }
}
