//! Messages on their way into a queue's log: gathered for a turn, and appended like a producer's.

use std::collections::VecDeque;

use mainstem_coordinator::producer::Membership;
use mainstem_kafka::ErrorCode;
use mainstem_log::{BatchBuilder, BatchHeader, Durability, Origin};
use mainstem_queue::{Answered, MOVER, Moved, NewMessage, Refusal, Reply};
use mainstem_runtime::Io;

use super::Open;
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
    /// Which messages of whom those are that are gathered.
    parts: Vec<Part>,
    /// Bytes of messages that are gathered or in the log, and not registered.
    bytes: u64,
    /// What is gathered.
    gathered: Load,
    /// Bytes that are in the log, by the offset behind them.
    landed: VecDeque<(u64, u64)>,
}

/// How much is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    messages: u64,
    bytes: u64,
}

/// Somebody who has sent messages. They may be in several batches.
#[derive(Debug)]
pub(super) struct Sender {
    to: ReplyTo,
    /// For each message its offset, or why it has none.
    answers: Vec<Answered<u64>>,
    /// Messages of which that is not known yet.
    left: usize,
}

/// Messages of a sender that follow one another in a batch.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Which sender, by its place in [`super::Queues::senders`].
    sender: usize,
    /// The first one among the sender's messages.
    from: usize,
    /// The first one among the batch's.
    place: u64,
    count: usize,
}

/// Messages that are being appended.
#[derive(Debug)]
pub(crate) struct SendJob {
    id: PartitionId,
    parts: Vec<Part>,
    /// What of it counts as on its way.
    load: Load,
}

impl Sends {
    pub(super) fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Puts in a message that a sender has as its number `at`.
    fn gather(&mut self, sender: usize, at: usize, message: &NewMessage, timestamp_ms: i64) {
        let place = u64::from(self.builder.records());
        let (key, value) = (message.key.as_deref(), Some(message.value.as_slice()));
        self.builder.push_with_headers(timestamp_ms, key, value, headers(message));
        let bytes = size(message) as u64;
        self.gathered.messages += 1;
        self.gathered.bytes += bytes;
        self.bytes += bytes;
        match self.parts.last_mut() {
            Some(last) if last.sender == sender && last.from + last.count == at => last.count += 1,
            _ => self.parts.push(Part { sender, from: at, place, count: 1 }),
        }
    }

    /// Gives back memory that is not in use.
    pub(super) fn rest(&mut self) {
        if self.builder.is_empty() {
            self.builder = BatchBuilder::default();
        }
    }

    /// What lies below this offset is registered.
    pub(super) fn registered(&mut self, to: u64) {
        while let Some((_, bytes)) = self.landed.pop_front_if(|(end, _)| *end <= to) {
            self.bytes -= bytes;
        }
    }
}

/// What a message takes, bytes: as much as when it is registered.
fn size(message: &NewMessage) -> usize {
    message.key.as_ref().map_or(0, Vec::len) + message.value.len() + headers(message).len()
}

/// As its record has them.
fn headers(message: &NewMessage) -> &[u8] {
    if message.headers.is_empty() { NO_HEADERS } else { &message.headers }
}

impl Shard {
    /// Gathers messages for a queue. They are answered when they are durable.
    pub(super) fn send_to_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        messages: &[NewMessage],
        to: ReplyTo,
    ) {
        let timestamp_ms = io.clock.unix_ms.cast_signed();
        // It is not to be answered before all its messages have been looked at.
        let sender = Sender { to, answers: Vec::with_capacity(messages.len()), left: 1 };
        let sender = self.queues.senders.insert(sender);
        for (at, message) in messages.iter().enumerate() {
            let admitted = self.admit(io, id, message);
            let senders = &mut self.queues.senders[sender];
            senders.left += usize::from(admitted.is_ok());
            senders.answers.push(admitted.map(|()| 0));
            if let Some(open) = self.queues.open.get_mut(&id)
                && senders.answers[at].is_ok()
            {
                open.sends.gather(sender, at, message, timestamp_ms);
            }
        }
        self.answered(io, sender, 1);
    }

    /// What has come to a queue and is not registered yet. Its messages are in the log, whoever they are from, or gathered.
    fn on_their_way(&self, open: &Open) -> Load {
        let Sends { gathered, bytes, .. } = &open.sends;
        let log = self.stores[open.store].store.status(open.keeper.messages_log());
        let unregistered = log.end - open.keeper.queue().registered_to().clamp(log.start, log.end);
        // What was there when it was opened is not known yet, nor how much of it is settled.
        let unregistered = if open.is_ready { unregistered } else { 0 };
        Load { messages: unregistered + gathered.messages, bytes: *bytes }
    }

    /// Makes room for a message in the batch of the queue.
    ///
    /// # Errors
    /// The queue does not take it.
    fn admit(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, message: &NewMessage) -> Result<(), Refusal> {
        let Some(open) = self.queues.open.get(&id) else { return Err(Refusal::UnknownQueue) };
        let most = open.topic.config.message_bytes_max.saturating_sub(RECORD_OVERHEAD_BYTES);
        let size = size(message);
        let builder = &open.sends.builder;
        if open.keeper.is_stuck() {
            return Err(Refusal::Storage);
        }
        if size > most {
            return Err(Refusal::TooLarge { most });
        }
        let Load { messages, bytes } = self.on_their_way(open);
        if !open.keeper.queue().admits(messages + 1, bytes + size as u64) {
            return Err(Refusal::Full);
        }
        if !builder.is_empty() && builder.len() + size + RECORD_OVERHEAD_BYTES > BATCH_BYTES.min(most) {
            self.append_sends(io, id);
        }
        Ok(())
    }

    /// Sets what has been gathered for a queue on its way.
    pub(super) fn append_sends(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let Some(open) = self.queues.open.get_mut(&id).filter(|open| !open.sends.is_empty()) else { return };
        let parts = std::mem::take(&mut open.sends.parts);
        let mut builder = std::mem::take(&mut open.sends.builder);
        let load = std::mem::take(&mut open.sends.gathered);
        let number = self.jobs.add(Job::Send(SendJob { id, parts, load }));
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
        let more = self.on_their_way(open);
        if open.keeper.queue().admits(more.messages + messages, more.bytes + bytes) {
            return Ok(());
        }
        Err(Refused::new(ErrorCode::PolicyViolation, "the queue is full"))
    }

    /// A batch of a producer has come into a partition that may be a queue's.
    pub(crate) fn queue_has_taken(&mut self, id: PartitionId, records: &[u8]) {
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let end = self.stores[open.store].store.status(open.keeper.messages_log()).end;
        let bytes = records.len() as u64;
        open.sends.bytes += bytes;
        open.sends.landed.push_back((end, bytes));
    }

    /// Takes in messages of another queue, which forgets them when it is answered: they are at least as durable then as that asks
    /// for. Otherwise a loss of power could take them, and with `durability` here that promises less even let their numbers stay.
    pub(super) fn take_in(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        moved: &[Moved],
        durability: Durability,
        to: ReplyTo,
    ) {
        let timestamp_ms = io.clock.unix_ms.cast_signed();
        let mut builder = BatchBuilder::default();
        for Moved { key, value, headers } in moved {
            builder.push_with_headers(timestamp_ms, key.as_deref(), value.as_deref(), headers);
        }
        let count = moved.len();
        let sender = Sender { to, answers: vec![Ok(0); count], left: count };
        if count == 0 {
            return self.answer_queue(io, sender.to, Reply::Sent(sender.answers));
        }
        let part = Part { sender: self.queues.senders.insert(sender), from: 0, place: 0, count };
        let job = SendJob { id, parts: vec![part], load: Load::default() };
        let number = self.jobs.add(Job::Send(job));
        let job = JobId { shard: self.me, job: number };
        let origin = Origin { producer_id: MOVER, ..Origin::default() };
        let batch = builder.finish_as(&origin).bytes();
        if let Err(refused) = self.append_here(io, (job, 0, id), batch, Membership::Unknown) {
            return self.work_done(io, job, Done::Produced(Produced { part: 0, outcome: Err(refused) }));
        }
        if durability == Durability::Fsync
            && let Ok((partition, store)) = self.partition(id)
        {
            store.sync_next(partition.log);
        }
    }

    /// Messages have been appended, or not.
    pub(crate) fn sent(&mut self, io: &mut Io<'_, Mail>, number: u64, produced: &Produced) {
        let Some(Job::Send(job)) = self.jobs.take(number) else { return };
        let base = match &produced.outcome {
            Ok(placed) => Ok(placed.base_offset.max(0).cast_unsigned()),
            Err(refused) => Err(match refused.code {
                ErrorCode::UnknownTopicOrPartition => Refusal::UnknownQueue,
                // It could be larger when it was gathered.
                ErrorCode::MessageTooLarge => Refusal::Invalid("a message that is too large".into()),
                _ => Refusal::Storage,
            }),
        };
        if let Some(open) = self.queues.open.get_mut(&job.id) {
            match &base {
                Ok(base) => open.sends.landed.push_back((base + job.load.messages, job.load.bytes)),
                Err(_) => open.sends.bytes -= job.load.bytes,
            }
        }
        self.answer_parts(io, &job.parts, &base);
    }

    /// What has become of a batch is known, which begins at that offset.
    fn answer_parts(&mut self, io: &mut Io<'_, Mail>, parts: &[Part], base: &Answered<u64>) {
        for &Part { sender, from, place, count } in parts {
            let answers = &mut self.queues.senders[sender].answers[from..from + count];
            for (answer, place) in answers.iter_mut().zip(place..) {
                *answer = base.clone().map(|base| base + place);
            }
            self.answered(io, sender, count);
        }
    }

    /// So much more of what a sender waits for is known.
    fn answered(&mut self, io: &mut Io<'_, Mail>, sender: usize, count: usize) {
        let waiting = &mut self.queues.senders[sender];
        waiting.left -= count;
        if waiting.left == 0 {
            let Sender { to, answers, .. } = self.queues.senders.remove(sender);
            self.answer_queue(io, to, Reply::Sent(answers));
        }
    }

    /// The queue is gone, and what was gathered for it.
    pub(super) fn refuse_sends(&mut self, io: &mut Io<'_, Mail>, sends: &Sends) {
        self.answer_parts(io, &sends.parts, &Err(Refusal::UnknownQueue));
    }
}
