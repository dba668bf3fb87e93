//! Requests that wait for work on partitions, on the shard of their connection.

use hashbrown::HashMap;
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::handlers::fetch::FetchJob;
use crate::handlers::produce::ProduceJob;
use crate::mail::{JobId, Letter, Mail};
use crate::markers::MarkJob;
use crate::partition::Refused;
use crate::queues::SendJob;
use crate::shard::Shard;
use crate::sink::{Sank, SinkJob};
use crate::work::{Done, PartAnswer, PartAsk, Work};

/// Requests that wait, by number.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    next: u64,
    jobs: HashMap<u64, Job, foldhash::fast::RandomState>,
}

/// What a request waits for.
#[derive(Debug)]
pub(crate) enum Job {
    Produce(ProduceJob),
    Fetch(Box<FetchJob>),
    Sink(SinkJob),
    Send(SendJob),
    Ask(AskJob),
    Mark(MarkJob),
    Changes(ChangesJob),
}

/// Changes that go on at once, and what follows when all of them are done.
pub(crate) struct ChangesJob {
    waiting: usize,
    outcomes: Vec<Result<(), Refused>>,
    then: ThenOutcomes,
}

type ThenOutcomes = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Vec<Result<(), Refused>>) + Send>;

impl std::fmt::Debug for ChangesJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChangesJob {{ waiting: {} }}", self.waiting)
    }
}

/// Questions about partitions, and what follows from their answers.
pub(crate) struct AskJob {
    /// Shards that have not answered.
    waiting: u32,
    answers: Vec<PartAnswer>,
    then: Then,
}

type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Vec<PartAnswer>) + Send>;

impl std::fmt::Debug for AskJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AskJob {{ waiting: {} }}", self.waiting)
    }
}

impl Jobs {
    pub(crate) fn add(&mut self, job: Job) -> u64 {
        self.next += 1;
        self.jobs.insert(self.next, job);
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
    /// The shard that has a partition.
    ///
    /// # Errors
    /// There is no such partition.
    pub(crate) fn owner_of(&self, id: PartitionId) -> Result<usize, ErrorCode> {
        let topic = self.catalogue.topic_by_id(id.topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let home = topic.home(id.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        Ok(self.shared.owner(home))
    }

    /// Gives work to the shard that is to do it, which may be this one.
    pub(crate) fn give_work(&mut self, io: &mut Io<'_, Mail>, shard: usize, job: u64, work: Work) {
        let job = JobId { shard: self.me, job };
        if shard == self.me {
            self.begin_work(io, job, work);
        } else {
            io.send(shard, Mail(Letter::Work { job, work }));
        }
    }

    /// Asks partitions, wherever they are, and goes on with their answers, in the order of the questions.
    pub(crate) fn ask_partitions(
        &mut self,
        io: &mut Io<'_, Mail>,
        asks: Vec<(PartitionId, PartAsk)>,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Vec<PartAnswer>) + Send + 'static,
    ) {
        let mut answers = Vec::with_capacity(asks.len());
        let mut by_shard: Vec<Vec<_>> = (0..self.shared.shards).map(|_| Vec::new()).collect();
        for (part, (id, ask)) in asks.into_iter().enumerate() {
            match self.owner_of(id) {
                Ok(shard) => {
                    by_shard[shard].push((part as u32, id, ask));
                    answers.push(PartAnswer::Failed(ErrorCode::UnknownServerError));
                }
                Err(code) => answers.push(PartAnswer::Failed(code)),
            }
        }
        let waiting = by_shard.iter().filter(|asks| !asks.is_empty()).count() as u32;
        if waiting == 0 {
            return then(self, io, answers);
        }
        let job = self.jobs.add(Job::Ask(AskJob { waiting, answers, then: Box::new(then) }));
        for (shard, asks) in by_shard.into_iter().enumerate().filter(|(_, asks)| !asks.is_empty()) {
            self.give_work(io, shard, job, Work::Ask(asks));
        }
    }

    /// Begins changes, each of which tells its outcome to [`Shard::change_done`], under the number that is returned.
    /// Those that have failed before they began are in `outcomes`, with all that have nothing to do; `waiting`
    /// counts the others.
    pub(crate) fn begin_changes(
        &mut self,
        io: &mut Io<'_, Mail>,
        outcomes: Vec<Result<(), Refused>>,
        waiting: usize,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Vec<Result<(), Refused>>) + Send + 'static,
    ) -> u64 {
        if waiting == 0 {
            then(self, io, outcomes);
            return 0;
        }
        self.jobs.add(Job::Changes(ChangesJob { waiting, outcomes, then: Box::new(then) }))
    }

    /// One of several changes is done.
    pub(crate) fn change_done(
        &mut self,
        io: &mut Io<'_, Mail>,
        job: u64,
        part: usize,
        outcome: Result<(), Refused>,
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

    /// Part of what a request waits for is done.
    pub(crate) fn finish_part(&mut self, io: &mut Io<'_, Mail>, number: u64, done: Done) {
        match (self.jobs.get(number), done) {
            (Some(Job::Produce(_)), Done::Produced(produced)) => self.produced(io, number, produced),
            (Some(Job::Sink(_)), Done::Produced(produced)) => self.sank(number, Sank::of(&produced.outcome)),
            (Some(Job::Send(_)), Done::Produced(produced)) => self.sent(io, number, &produced),
            (Some(Job::Mark(_)), Done::Produced(produced)) => self.marked(io, number, produced),
            (Some(Job::Fetch(_)), Done::Fetched(fetched)) => self.fetched(io, number, fetched),
            (Some(Job::Ask(ask)), Done::Asked(answers)) => {
                for (part, answer) in answers {
                    ask.answers[part as usize] = answer;
                }
                ask.waiting -= 1;
                if ask.waiting == 0
                    && let Some(Job::Ask(ask)) = self.jobs.take(number)
                {
                    (ask.then)(self, io, ask.answers);
                }
            }
            // The connection has gone, and its job with it.
            _ => {}
        }
    }
}
