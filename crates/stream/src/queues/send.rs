//! Messages on their way into a queue's log: gathered for a turn, and appended like a producer's.

use std::collections::VecDeque;

use mainstem_coordinator::producer::Membership;
use mainstem_kafka::ErrorCode;
use mainstem_log::{BatchBuilder, BatchHeader, Origin};
use mainstem_queue::{Answered, MOVER, Moved, NewMessage, Refusal, Reply};
use mainstem_runtime::Io;

use super::errand::ReplyTo;
use crate::catalogue::PartitionId;
use crate::jobs::Job;
use crate::mail::{JobId, Mail};
use crate::partition::{Produced, Refused};
use crate::shard::Shard;
use crate::work::{Done, RECORD_OVERHEAD_BYTES};

/// Bytes of one batch, at most, unless a single message is larger.
const BATCH_BYTES: usize = 256 * 1024;
/// Encoded headers of a message that has none.
const NO_HEADERS: &[u8] = &[0];

/// Messages of one queue on their way.
#[derive(Debug, Default)]
pub(super) struct Sends {
    builder: BatchBuilder,
    /// Who has sent those that are gathered.
    senders: Vec<Sender>,
    /// Messages that are gathered or appended, and not registered.
    messages: u64,
    bytes: u64,
    /// Those of them that are gathered.
    gathered: Load,
    /// Those of them that are durable, by the offset behind them.
    landed: VecDeque<(u64, Load)>,
}

/// How much is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    messages: u64,
    bytes: u64,
}

/// Somebody who has sent messages.
#[derive(Debug)]
struct Sender {
    to: ReplyTo,
    /// For each message its place in the batch, or why it is not there.
    places: Vec<Answered<u64>>,
}

/// Messages that are being appended.
#[derive(Debug)]
pub(crate) struct SendJob {
    id: PartitionId,
    senders: Vec<Sender>,
    /// What of it counts as on its way.
    load: Load,
}

impl Sends {
    pub(super) fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }

    /// Gives back memory that is not in use.
    pub(super) fn rest(&mut self) {
        if self.builder.is_empty() {
            self.builder = BatchBuilder::default();
        }
    }

    /// What lies below this offset is registered.
    pub(super) fn registered(&mut self, to: u64) {
        while let Some((_, load)) = self.landed.pop_front_if(|(end, _)| *end <= to) {
            self.arrived(load);
        }
    }

    /// So much is not on its way any more.
    fn arrived(&mut self, load: Load) {
        self.messages -= load.messages;
        self.bytes -= load.bytes;
    }
}

/// What a message takes, bytes.
fn size(message: &NewMessage) -> usize {
    message.key.as_ref().map_or(0, Vec::len) + message.value.len() + message.headers.len()
}

impl Shard {
    /// Gathers messages for a queue. They are answered when they are durable.
    pub(super) fn send_to_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        messages: Vec<NewMessage>,
        to: ReplyTo,
    ) {
        let timestamp_ms = io.clock.unix_ms.cast_signed();
        let Some(open) = self.queues.open.get_mut(&id) else {
            return self.answer_queue(io, to, Reply::Refused(Refusal::UnknownQueue));
        };
        let most = open.topic.config.message_bytes_max.saturating_sub(RECORD_OVERHEAD_BYTES);
        let batch_max = BATCH_BYTES.min(most);
        let is_stuck = open.keeper.is_stuck();
        let mut places = Vec::with_capacity(messages.len());
        let mut is_cut = false;
        for message in messages {
            let size = size(&message);
            let sends = &mut open.sends;
            if !sends.builder.is_empty() && sends.builder.len() + size + RECORD_OVERHEAD_BYTES > batch_max {
                is_cut = true;
            }
            let admitted = if is_stuck {
                Err(Refusal::Storage)
            } else if size > most {
                Err(Refusal::TooLarge { most })
            } else if !open.keeper.queue().admits(sends.messages + 1, sends.bytes + size as u64) {
                Err(Refusal::Full)
            } else {
                Ok(u64::from(sends.builder.records()))
            };
            if admitted.is_ok() {
                let headers = if message.headers.is_empty() { NO_HEADERS } else { &message.headers };
                let key = message.key.as_deref();
                sends.builder.push_with_headers(timestamp_ms, key, Some(&message.value), headers);
                sends.messages += 1;
                sends.bytes += size as u64;
                sends.gathered.messages += 1;
                sends.gathered.bytes += size as u64;
            }
            places.push(admitted);
        }
        open.sends.senders.push(Sender { to, places });
        if is_cut || open.sends.builder.len() > batch_max {
            self.append_sends(io, id);
        }
    }

    /// Sets what has been gathered for a queue on its way.
    pub(super) fn append_sends(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let Some(open) = self.queues.open.get_mut(&id).filter(|open| !open.sends.is_empty()) else { return };
        let senders = std::mem::take(&mut open.sends.senders);
        if open.sends.builder.is_empty() {
            return self.answer_senders(io, senders, &Ok(0));
        }
        let mut builder = std::mem::take(&mut open.sends.builder);
        let load = std::mem::take(&mut open.sends.gathered);
        let number = self.jobs.add(Job::Send(SendJob { id, senders, load }));
        let job = JobId { shard: self.me, job: number };
        let appended = self.append_here(io, (job, 0, id), builder.finish(), Membership::Unknown);
        if let Some(open) = self.queues.open.get_mut(&id) {
            open.sends.builder = builder;
        }
        if let Err(refused) = appended {
            self.work_done(io, job, Done::Produced(Produced { part: 0, outcome: Err(refused) }));
        }
    }

    /// Whether a batch of a producer may come into a partition that may be a queue's.
    ///
    /// # Errors
    /// The queue is full; or the batch is marked as only those are that queues send one another.
    pub(crate) fn queue_takes(&self, id: PartitionId, records: &[u8]) -> Result<(), Refused> {
        let header = BatchHeader::parse(records).ok();
        if header.is_some_and(|header| header.producer_id < -1) {
            return Err(Refused::new(ErrorCode::InvalidRecord, "there is no such producer id"));
        }
        let (Some(header), Some(open)) = (header, self.queues.open.get(&id)) else { return Ok(()) };
        let (messages, bytes) = (u64::from(header.records), header.total_bytes as u64);
        let Sends { messages: more, bytes: more_bytes, .. } = &open.sends;
        if open.keeper.queue().admits(more + messages, more_bytes + bytes) {
            return Ok(());
        }
        Err(Refused::new(ErrorCode::PolicyViolation, "the queue is full"))
    }

    /// Takes in messages of other queues.
    pub(super) fn take_in(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, moved: &[Moved], to: ReplyTo) {
        let timestamp_ms = io.clock.unix_ms.cast_signed();
        let mut builder = BatchBuilder::default();
        for Moved { key, value, headers } in moved {
            builder.push_with_headers(timestamp_ms, key.as_deref(), value.as_deref(), headers);
        }
        let places = (0..moved.len() as u64).map(Ok).collect();
        let senders = vec![Sender { to, places }];
        if builder.is_empty() {
            return self.answer_senders(io, senders, &Ok(0));
        }
        let number = self.jobs.add(Job::Send(SendJob { id, senders, load: Load::default() }));
        let job = JobId { shard: self.me, job: number };
        let origin = Origin { producer_id: MOVER, ..Origin::default() };
        let batch = builder.finish_as(&origin).bytes();
        if let Err(refused) = self.append_here(io, (job, 0, id), batch, Membership::Unknown) {
            self.work_done(io, job, Done::Produced(Produced { part: 0, outcome: Err(refused) }));
        }
    }

    /// Messages have been appended, or not.
    pub(crate) fn sent(&mut self, io: &mut Io<'_, Mail>, number: u64, produced: &Produced) {
        let Some(Job::Send(job)) = self.jobs.take(number) else { return };
        let base = match &produced.outcome {
            Ok(placed) => Ok(placed.base_offset.max(0).cast_unsigned()),
            Err(refused) => Err(match refused.code {
                ErrorCode::UnknownTopicOrPartition => Refusal::UnknownQueue,
                ErrorCode::MessageTooLarge => {
                    Refusal::Invalid("messages that are larger together than a batch may be".into())
                }
                _ => Refusal::Storage,
            }),
        };
        if let Some(open) = self.queues.open.get_mut(&job.id) {
            match &base {
                Ok(base) => open.sends.landed.push_back((base + job.load.messages, job.load)),
                Err(_) => open.sends.arrived(job.load),
            }
        }
        self.answer_senders(io, job.senders, &base);
    }

    fn answer_senders(&mut self, io: &mut Io<'_, Mail>, senders: Vec<Sender>, base: &Answered<u64>) {
        for Sender { to, places } in senders {
            let place = |place: Answered<u64>| match (place, base) {
                (Ok(at), Ok(base)) => Ok(base + at),
                (Ok(_), Err(refusal)) => Err(refusal.clone()),
                (Err(refusal), _) => Err(refusal),
            };
            self.answer_queue(io, to, Reply::Sent(places.into_iter().map(place).collect()));
        }
    }

    /// The queue is gone, and what was gathered for it.
    pub(super) fn refuse_sends(&mut self, io: &mut Io<'_, Mail>, sends: Sends) {
        self.answer_senders(io, sends.senders, &Err(Refusal::UnknownQueue));
    }
}
