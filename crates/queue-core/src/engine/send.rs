//! Messages on their way into the log: batched for a turn, appended by the host, and registered when they are durable.
//!
//! The limits of the queue hold for all of them: a message counts from its admission until its registration, when the
//! state machine counts it. A batch may hold messages of several senders, and a sender's messages may span batches; a
//! sender gets its reply when the outcome of all its messages is known.

use std::collections::{BTreeMap, VecDeque};

use mainstem_log::{BatchBuilder, Status, Store};

use super::Engine;
use crate::request::{ItemResult, NewMessage, QueueError, Reply};

/// Limit of one batch, bytes, unless a single message is larger.
const BATCH_BYTES: usize = 256 * 1024;
/// Size of a record besides its key, value and headers, with a share of its batch's header; bytes, at most.
const RECORD_OVERHEAD_BYTES: usize = 61 + 40;
/// The encoding of no headers.
const NO_HEADERS: &[u8] = &[0];

/// A batch for the host to append.
#[derive(Debug)]
pub struct PendingBatch {
    number: u64,
    messages: u64,
    builder: BatchBuilder,
}

impl PendingBatch {
    /// Identifies the batch for [`Engine::on_appended`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The encoded batch.
    pub fn bytes(&mut self) -> &[u8] {
        self.builder.finish()
    }
}

/// The messages of one queue that are not registered.
#[derive(Debug)]
pub(super) struct Sends<R> {
    builder: BatchBuilder,
    /// The senders of the messages in `builder`.
    parts: Vec<Part>,
    batched: Load,
    /// Messages of batches that the host has not tried to append.
    unappended: u64,
    /// Batches that the host appends, by number.
    in_flight: BTreeMap<u64, InFlight>,
    next_batch: u64,
    /// Bytes of durable batches, and of those that the host has appended without the engine, by their end offset.
    durable: VecDeque<(u64, u64)>,
    /// Bytes of messages in `builder`, `in_flight` and `durable`.
    bytes: u64,
    senders: BTreeMap<u64, Sender<R>>,
    next_sender: u64,
}

/// A number of messages and their size.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    messages: u64,
    bytes: u64,
}

#[derive(Debug)]
struct InFlight {
    parts: Vec<Part>,
    load: Load,
}

/// The sender of a request.
#[derive(Debug)]
struct Sender<R> {
    to: R,
    /// For each message its offset, or its error.
    outcomes: Vec<ItemResult<u64>>,
    /// Messages without an outcome.
    left: usize,
}

/// Consecutive messages of one sender in a batch.
#[derive(Clone, Copy, Debug)]
struct Part {
    sender: u64,
    /// Index of the first one among the sender's messages.
    from: usize,
    /// Index of the first one in the batch.
    place: u64,
    count: usize,
}

impl<R> Default for Sends<R> {
    fn default() -> Self {
        Self {
            builder: BatchBuilder::default(),
            parts: Vec::new(),
            batched: Load::default(),
            unappended: 0,
            in_flight: BTreeMap::new(),
            next_batch: 0,
            durable: VecDeque::new(),
            bytes: 0,
            senders: BTreeMap::new(),
            next_sender: 0,
        }
    }
}

impl<R> Sends<R> {
    /// Adds a message to the batch.
    fn push(&mut self, sender: u64, at: usize, message: &NewMessage, timestamp_ms: i64) {
        let place = u64::from(self.builder.records());
        let (key, value) = (message.key.as_deref(), Some(message.value.as_slice()));
        self.builder.push_with_headers(timestamp_ms, key, value, headers(message));
        let bytes = size(message) as u64;
        self.batched.messages += 1;
        self.batched.bytes += bytes;
        self.bytes += bytes;
        match self.parts.last_mut() {
            Some(last) if last.sender == sender && last.from + last.count == at => last.count += 1,
            _ => self.parts.push(Part { sender, from: at, place, count: 1 }),
        }
    }

    /// Messages below this offset are registered.
    pub(super) fn registered(&mut self, to: u64) {
        while let Some((_, bytes)) = self.durable.pop_front_if(|(end, _)| *end <= to) {
            self.bytes -= bytes;
        }
    }

    pub(super) fn release_buffers(&mut self) {
        if self.builder.is_empty() {
            self.builder = BatchBuilder::default();
        }
    }

    /// Forgets all senders and returns them.
    pub(super) fn close(&mut self) -> Vec<R> {
        std::mem::take(&mut self.senders).into_values().map(|sender| sender.to).collect()
    }
}

/// The size that the state machine will count, bytes.
fn size(message: &NewMessage) -> usize {
    message.key.as_ref().map_or(0, Vec::len) + message.value.len() + headers(message).len()
}

fn headers(message: &NewMessage) -> &[u8] {
    if message.headers.is_empty() { NO_HEADERS } else { &message.headers }
}

impl<R: Copy> Engine<R> {
    /// Batches messages. The reply follows when all that are admitted are durable.
    pub(super) fn send(&mut self, messages: &[NewMessage], to: R, store: &dyn Store, now_ms: u64) {
        let number = self.sends.next_sender;
        self.sends.next_sender += 1;
        let mut outcomes = Vec::with_capacity(messages.len());
        let mut left = 0;
        for (at, message) in messages.iter().enumerate() {
            let admitted = self.admit_message(store, message);
            if admitted.is_ok() {
                self.sends.push(number, at, message, now_ms.cast_signed());
                left += 1;
            }
            outcomes.push(admitted.map(|()| 0));
        }
        if left == 0 {
            return self.reply(to, Reply::Sent(outcomes));
        }
        self.sends.senders.insert(number, Sender { to, outcomes, left });
    }

    /// Checks a message against the limits, and makes room for it in the batch.
    fn admit_message(&mut self, store: &dyn Store, message: &NewMessage) -> Result<(), QueueError> {
        let (size, most) = (size(message), self.message_bytes_max);
        if self.queue.is_stuck() {
            return Err(QueueError::Storage);
        }
        if size > most {
            return Err(QueueError::TooLarge { most });
        }
        if !self.admits(&store.status(self.queue.messages_log()), 1, size as u64) {
            return Err(QueueError::Full);
        }
        let builder = &self.sends.builder;
        if !builder.is_empty() && builder.len() + size + RECORD_OVERHEAD_BYTES > BATCH_BYTES.min(most) {
            self.end_batch();
        }
        Ok(())
    }

    /// Whether the limits of the queue admit so many more messages and bytes, with its log of messages in this state.
    pub fn admits(&self, log: &Status, messages: u64, bytes: u64) -> bool {
        let [before, before_bytes] = self.unregistered(log);
        self.machine().admits(before + messages, before_bytes + bytes)
    }

    /// How many more messages and bytes the limits of the queue admit, with its log of messages in this state.
    pub fn room(&self, log: &Status) -> [u64; 2] {
        let [before, before_bytes] = self.unregistered(log);
        let [messages, bytes] = self.machine().room().unwrap_or_default();
        [messages.saturating_sub(before), bytes.saturating_sub(before_bytes)]
    }

    /// Messages and bytes that are admitted and that the state machine does not count yet.
    fn unregistered(&self, log: &Status) -> [u64; 2] {
        let unregistered = log.end - self.machine().registered_to().clamp(log.start, log.end);
        // How many of the messages that were there at the start are settled is not known before they are registered.
        let unregistered = if self.is_ready { unregistered } else { 0 };
        [unregistered + self.sends.unappended + self.sends.batched.messages, self.sends.bytes]
    }

    /// The host has appended a batch of this size without the engine, and the log ends here.
    pub fn on_foreign_append(&mut self, end_offset: u64, bytes: u64) {
        self.sends.bytes += bytes;
        self.sends.durable.push_back((end_offset, bytes));
    }

    /// Appends have failed, and the log ends here: batches that the host appended beyond it count no longer.
    pub fn on_foreign_append_failed(&mut self, log_end: u64) {
        let Sends { durable, bytes, .. } = &mut self.sends;
        durable.retain(|(end, of_batch)| {
            let is_there = *end <= log_end;
            *bytes -= if is_there { 0 } else { *of_batch };
            is_there
        });
    }

    /// Hands the batched messages to the host. To be called before the commit of each turn.
    pub fn end_batch(&mut self) {
        let Sends { builder, parts, batched, unappended, in_flight, next_batch, .. } = &mut self.sends;
        if builder.is_empty() {
            return;
        }
        let number = *next_batch;
        *next_batch += 1;
        let load = std::mem::take(batched);
        *unappended += load.messages;
        in_flight.insert(number, InFlight { parts: std::mem::take(parts), load });
        let batch = PendingBatch { number, messages: load.messages, builder: std::mem::take(builder) };
        self.effects.push_back(super::Effect::Append(batch));
    }

    /// The host has tried to append a batch: from now on the end of the log counts its messages. Reuses its memory.
    pub fn on_append_tried(&mut self, batch: PendingBatch) {
        self.sends.unappended -= batch.messages;
        if self.sends.builder.is_empty() {
            self.sends.builder = batch.builder;
        }
    }

    /// A batch is durable from this offset on, or has failed.
    pub fn on_appended(&mut self, number: u64, base_offset: &ItemResult<u64>) {
        let Some(InFlight { parts, load }) = self.sends.in_flight.remove(&number) else { return };
        match base_offset {
            Ok(base) => self.sends.durable.push_back((base + load.messages, load.bytes)),
            Err(_) => self.sends.bytes -= load.bytes,
        }
        for Part { sender, from, place, count } in parts {
            let Some(waiting) = self.sends.senders.get_mut(&sender) else { continue };
            for (outcome, place) in waiting.outcomes[from..from + count].iter_mut().zip(place..) {
                *outcome = base_offset.clone().map(|base| base + place);
            }
            waiting.left -= count;
            if waiting.left == 0
                && let Some(Sender { to, outcomes, .. }) = self.sends.senders.remove(&sender)
            {
                self.reply(to, Reply::Sent(outcomes));
            }
        }
    }
}
