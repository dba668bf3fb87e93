//! Records from other doors: gathered for a turn, one batch for each partition, and appended like a producer's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mainstem_kafka::{ErrorCode, partition_of};
use mainstem_log::BatchBuilder;
use mainstem_queue::{Answered, NewMessage, Refusal, Reply, Request};
use mainstem_runtime::Io;

use crate::catalogue::{PartitionId, Topic};
use crate::controller::NewTopic;
use crate::jobs::Job;
use crate::mail::{JobId, Letter, Mail};
use crate::partition::{Placed, Refused};
use crate::queues::{Errand, ReplyTo, Wanted, Whom};
use crate::shard::Shard;
use crate::work::{ProducePart, RECORD_OVERHEAD_BYTES, Work};

/// Bytes of one batch, at most, unless a single record is larger.
const BATCH_BYTES: usize = 256 * 1024;
/// Bytes under way beyond which other doors are to hold back.
const BEHIND_BYTES: usize = 32 * 1024 * 1024;
/// The same for records whose topic is yet to be made.
const UNPLACED_BYTES: usize = 1024 * 1024;

/// A topic that another door writes to: it is made if it is not there.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundTopic {
    /// Its name.
    pub name: Arc<str>,
    /// How many partitions it gets.
    pub partitions: i32,
    /// What it is set to when it is made; keys and values as [`check_topic`] allows.
    pub config: BTreeMap<String, String>,
}

/// Why a topic cannot be one.
///
/// # Errors
/// In words for whoever configured it.
pub fn check_topic(topic: &BoundTopic) -> Result<(), String> {
    if let Some(fault) = crate::catalogue::name_fault(&topic.name) {
        return Err(fault);
    }
    for (key, value) in &topic.config {
        let known = crate::topic_config::find(key).ok_or_else(|| format!("a topic has no {key:?}"))?;
        known.check(value)?;
    }
    Ok(())
}

/// A record from another door.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Which topic it is for: the number of it in [`crate::Config::bound_topics`], or what
    /// [`crate::Shared::bind_topic`] said.
    pub bound: usize,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// What decides the partition: records with the same go to the same, in order.
    pub spread: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its headers, encoded behind their count.
    pub headers: &'a [u8],
    /// Ms since 1970. A work queue gives it the time at which it takes it.
    pub timestamp_ms: i64,
    /// What [`Shard::take_settled`] names it by.
    pub token: u64,
}

/// What became of a record from another door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sank {
    /// It is as durable as its topic is set to.
    Kept,
    /// It cannot be, or it is not known whether it is: it may be tried again.
    NotKept,
    /// There is no room for it, or it is larger than its topic takes.
    NoRoom,
    /// Its topic does not take such a record.
    Invalid,
}

impl Sank {
    /// Of the batch that it was in.
    pub(crate) fn of(outcome: &Result<Placed, Refused>) -> Self {
        match outcome {
            Ok(_) => Self::Kept,
            Err(refused) => match refused.code {
                ErrorCode::PolicyViolation | ErrorCode::MessageTooLarge => Self::NoRoom,
                ErrorCode::InvalidRecord | ErrorCode::InvalidTimestamp => Self::Invalid,
                _ => Self::NotKept,
            },
        }
    }

    /// Of a message that a queue was sent.
    fn of_message(answer: &Answered<u64>) -> Self {
        match answer {
            Ok(_) => Self::Kept,
            Err(Refusal::Full | Refusal::TooLarge { .. } | Refusal::TooMany) => Self::NoRoom,
            Err(Refusal::Invalid(_)) => Self::Invalid,
            Err(_) => Self::NotKept,
        }
    }
}

/// Records of other doors on one shard.
#[derive(Debug, Default)]
pub(crate) struct Sinks {
    gathering: BTreeMap<PartitionId, Gathering>,
    /// What is for queues, by their names. A queue that has not room for all has it for some.
    for_queues: BTreeMap<Arc<str>, ForQueue>,
    /// Records whose topic is yet to be made.
    unplaced: VecDeque<Unplaced>,
    unplaced_bytes: usize,
    /// Bound topics that have been asked for.
    asked: Vec<usize>,
    /// Appends under way, bytes.
    bytes: usize,
    settled: Vec<(u64, Sank)>,
}

#[derive(Debug, Default)]
struct Gathering {
    builder: BatchBuilder,
    tokens: Vec<u64>,
}

#[derive(Debug, Default)]
struct ForQueue {
    messages: Vec<NewMessage>,
    tokens: Vec<u64>,
    bytes: usize,
}

#[derive(Debug)]
struct Unplaced {
    bound: usize,
    key: Option<Vec<u8>>,
    spread: Vec<u8>,
    value: Vec<u8>,
    headers: Vec<u8>,
    timestamp_ms: i64,
    token: u64,
}

/// A batch of other doors' records that is under way.
#[derive(Debug)]
pub(crate) struct SinkJob {
    tokens: Vec<u64>,
    bytes: usize,
}

impl Shard {
    /// Takes a record of another door. Its end is told by [`Shard::take_settled`].
    pub fn sink(&mut self, io: &mut Io<'_, Mail>, record: &Incoming<'_>) {
        self.shared.refresh(&mut self.catalogue);
        self.shared.bound.refresh(&mut self.bound);
        let topic = self.bound_topic(record.bound);
        match topic {
            // Those that came before it go first.
            Some(topic) if self.sinks.unplaced.is_empty() => self.gather(io, &topic, record),
            _ => {
                let Incoming { bound, key, spread, value, headers, timestamp_ms, token } = *record;
                self.sinks.unplaced_bytes += value.len() + headers.len() + RECORD_OVERHEAD_BYTES;
                self.sinks.unplaced.push_back(Unplaced {
                    bound,
                    key: key.map(<[u8]>::to_vec),
                    spread: spread.to_vec(),
                    value: value.to_vec(),
                    headers: headers.to_vec(),
                    timestamp_ms,
                    token,
                });
                self.place(io);
            }
        }
    }

    /// Takes the tokens of records that have come to their end, and what has become of them.
    pub fn take_settled(&mut self) -> Vec<(u64, Sank)> {
        std::mem::take(&mut self.sinks.settled)
    }

    /// Whether other doors should hold back for a while.
    pub fn is_sink_behind(&self) -> bool {
        self.sinks.bytes > BEHIND_BYTES || self.sinks.unplaced_bytes > UNPLACED_BYTES
    }

    fn bound_topic(&self, bound: usize) -> Option<Arc<Topic>> {
        self.catalogue.topic(&self.bound.topics.get(bound)?.name).cloned()
    }

    /// Puts records to where they belong as far as their topics are there; asks for the next that is not.
    pub(crate) fn place(&mut self, io: &mut Io<'_, Mail>) {
        self.shared.refresh(&mut self.catalogue);
        while let Some(first) = self.sinks.unplaced.front() {
            let bound = first.bound;
            let Some(topic) = self.bound_topic(bound) else {
                if !self.sinks.asked.contains(&bound) {
                    self.sinks.asked.push(bound);
                    self.ask_for_topic(io, bound);
                }
                return;
            };
            self.sinks.asked.retain(|asked| *asked != bound);
            if let Some(record) = self.sinks.unplaced.pop_front() {
                let Unplaced { bound, key, spread, value, headers, timestamp_ms, token } = &record;
                self.sinks.unplaced_bytes -= value.len() + headers.len() + RECORD_OVERHEAD_BYTES;
                let record = Incoming {
                    bound: *bound,
                    key: key.as_deref(),
                    spread,
                    value,
                    headers,
                    timestamp_ms: *timestamp_ms,
                    token: *token,
                };
                self.gather(io, &topic, &record);
            }
        }
    }

    /// Asks again for topics that have not come.
    pub(crate) fn ask_again(&mut self, io: &mut Io<'_, Mail>) {
        self.sinks.asked.clear();
        self.place(io);
    }

    fn ask_for_topic(&mut self, io: &mut Io<'_, Mail>, bound: usize) {
        if self.is_controller() {
            self.make_bound(io, bound);
        } else {
            io.send(0, Mail(Letter::Make { bound }));
        }
    }

    /// Makes a bound topic, on the controller, if it is not there.
    pub(crate) fn make_bound(&mut self, io: &mut Io<'_, Mail>, bound: usize) {
        self.shared.bound.refresh(&mut self.bound);
        let Some(topic) = self.bound.topics.get(bound) else { return };
        let BoundTopic { name, partitions, config } = topic.clone();
        self.shared.refresh(&mut self.catalogue);
        if self.catalogue.topic(&name).is_some() {
            return;
        }
        let new = NewTopic { name: Arc::clone(&name), partitions, config };
        self.make_topic(io, new, move |shard, io, outcome| match outcome {
            Ok(_) => shard.place(io),
            Err(refused) => log::warn!("topic {name}, which a binding needs, is not made: {refused:?}"),
        });
    }

    fn gather(&mut self, io: &mut Io<'_, Mail>, topic: &Topic, record: &Incoming<'_>) {
        if topic.config.queue.is_some() {
            return self.gather_for_queue(io, topic, record);
        }
        let index = partition_of(record.spread, topic.partitions());
        let id = topic.partition(index);
        let size = record.key.map_or(0, <[u8]>::len)
            + record.value.len()
            + record.headers.len()
            + RECORD_OVERHEAD_BYTES;
        let batch_max = BATCH_BYTES.min(topic.config.message_bytes_max);
        let known = self.sinks.gathering.get(&id);
        if known.is_some_and(|known| known.builder.len() + size > batch_max) {
            self.append_gathered(io, id);
        }
        let gathering = self.sinks.gathering.entry(id).or_default();
        gathering.builder.push_with_headers(
            record.timestamp_ms,
            record.key,
            Some(record.value),
            record.headers,
        );
        gathering.tokens.push(record.token);
    }

    fn gather_for_queue(&mut self, io: &mut Io<'_, Mail>, topic: &Topic, record: &Incoming<'_>) {
        let new = NewMessage {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.to_vec(),
            headers: record.headers.to_vec(),
        };
        let size =
            record.key.map_or(0, <[u8]>::len) + new.value.len() + new.headers.len() + RECORD_OVERHEAD_BYTES;
        let known = self.sinks.for_queues.get(&topic.name);
        if known.is_some_and(|known| known.bytes + size > BATCH_BYTES) {
            self.send_gathered(io, &topic.name);
        }
        let messages = self.sinks.for_queues.entry(Arc::clone(&topic.name)).or_default();
        messages.bytes += size;
        messages.messages.push(new);
        messages.tokens.push(record.token);
    }

    fn send_gathered(&mut self, io: &mut Io<'_, Mail>, queue: &Arc<str>) {
        let Some(ForQueue { messages, tokens, bytes }) = self.sinks.for_queues.remove(queue) else { return };
        self.sinks.bytes += bytes;
        let job = self.jobs.add(Job::Sink(SinkJob { tokens, bytes }));
        let to = ReplyTo { shard: self.me, whom: Whom::Sink(job) };
        let wanted = Wanted::Request(Request::Send(messages));
        self.run_errand(io, Errand { queue: Arc::clone(queue), wanted, to });
    }

    /// Sets what this turn has gathered on its way to the partitions and queues.
    pub(crate) fn append_all_gathered(&mut self, io: &mut Io<'_, Mail>) {
        while let Some((queue, _)) = self.sinks.for_queues.first_key_value() {
            let queue = Arc::clone(queue);
            self.send_gathered(io, &queue);
        }
        while let Some((id, _)) = self.sinks.gathering.first_key_value() {
            let id = *id;
            self.append_gathered(io, id);
        }
    }

    fn append_gathered(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let Some(Gathering { mut builder, tokens }) = self.sinks.gathering.remove(&id) else { return };
        let bytes = builder.len();
        self.sinks.bytes += bytes;
        let job = self.jobs.add(Job::Sink(SinkJob { tokens, bytes }));
        match self.owner_of(id) {
            Ok(owner) if owner == self.me => {
                let job = JobId { shard: self.me, job };
                self.produce_here(io, (job, 0, id), builder.finish(), None);
            }
            Ok(owner) => {
                let parts = vec![ProducePart {
                    part: 0,
                    id,
                    records: builder.finish().to_vec(),
                    transactional: None,
                }];
                self.give_work(io, owner, job, Work::Produce(parts));
            }
            Err(_) => self.sank(job, Sank::NotKept),
        }
    }

    /// A batch has come to its end.
    pub(crate) fn sank(&mut self, number: u64, sank: Sank) {
        let Some(Job::Sink(job)) = self.jobs.take(number) else { return };
        self.sinks.bytes -= job.bytes;
        self.sinks.settled.extend(job.tokens.into_iter().map(|token| (token, sank)));
    }

    /// A queue says what has become of what it was sent.
    pub(crate) fn sank_in_queue(&mut self, number: u64, reply: &Reply) {
        let Reply::Sent(answers) = reply else { return self.sank(number, Sank::NotKept) };
        let Some(Job::Sink(job)) = self.jobs.take(number) else { return };
        self.sinks.bytes -= job.bytes;
        let settled = job.tokens.into_iter().zip(answers);
        self.sinks.settled.extend(settled.map(|(token, answer)| (token, Sank::of_message(answer))));
    }
}
