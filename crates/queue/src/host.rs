//! The store and its open queues; all access is under the lock of [`crate::common::Common`].
//!
//! Each queue is an [`Engine`] of the queue core. Callers of this crate enqueue, lease and settle on their own threads,
//! directly on the engine's queue; everything else is a request to the engine. The maintenance thread polls the
//! engines, and so does a caller that waits for the reply to its request. The host carries out the effects: it appends
//! transferred messages to their destination, truncates logs, and keeps replies for the callers.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;

use mainstem_compress::batch::decompress_records;
use mainstem_disk::SegmentStore;
use mainstem_log::{
    Appended, Batch, BatchBuilder, BatchHeader, Completion, Durability, LogAdmin, LogId, LogReader,
    LogWriter, Options, Origin, Store, Ticket, ValidBatch,
};
use mainstem_queue_core::{
    Config, Context, Effect, Engine, EngineOptions, EngineSettings, MessageLog, QueueError, Reply, Request,
    TransferredMessage, Tuning, WhenCrowded, transfer_batch,
};

use crate::error::Error;
use crate::message::Message;
use crate::pending_sends::PendingSends;
use crate::settings::Settings;
use crate::time::now_ms;

/// Limit of a decompressed batch, bytes.
pub(crate) const PLAIN_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Segment size of message logs.
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Limit of the keys, values and headers of one enqueue.
const BATCH_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Prefixes of log names: messages, and state.
const MESSAGES: &str = "m-";
const STATE: &str = "q-";

fn decompress(batch: &Batch<'_>) -> Option<Vec<u8>> {
    decompress_records(batch, PLAIN_BYTES_MAX).ok().map(std::borrow::Cow::into_owned)
}

/// The store and its queues.
pub(crate) struct Host {
    pub(crate) store: SegmentStore,
    pub(crate) queues: Vec<OpenQueue>,
    by_name: BTreeMap<String, usize>,
    /// The queue of each log.
    by_log: Vec<Option<usize>>,
    completions: Vec<Completion>,
    /// Replies by the number of their request, until their callers take them.
    replies: BTreeMap<u64, Reply>,
    requests: u64,
    /// Scratch memory for headers.
    spare: Vec<u8>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    pub(crate) engine: Engine<u64>,
    pub(crate) messages: LogId,
    pub(crate) builder: BatchBuilder,
    pub(crate) sent: PendingSends,
    /// When a consumer last ran the machine's timers, ms since 1970.
    pub(crate) maintained_ms: u64,
    /// The destination and the ticket of the transfers in flight.
    transfer: Option<(usize, Ticket)>,
}

/// A log of messages: consumers see those below this offset.
struct Committed(u64);

impl MessageLog for Committed {
    fn visible_to(&self, _: &dyn Store) -> u64 {
        self.0
    }

    fn skip(&self, _: Range<u64>) -> impl FnMut(&BatchHeader) -> bool {
        BatchHeader::is_control
    }
}

impl OpenQueue {
    /// Appends a batch, `bytes` in size without its overhead.
    fn append(
        &mut self,
        store: &mut SegmentStore,
        append: impl FnOnce(&mut BatchBuilder) -> ValidBatch<'_>,
        bytes: u64,
    ) -> Result<Appended, Error> {
        let records = u64::from(self.builder.records());
        let batch = append(&mut self.builder);
        let appended = store.append_valid(self.messages, batch)?;
        self.engine.queue_mut().appended(batch, appended.base_offset);
        self.sent.append(appended.ticket, appended.base_offset + records, bytes);
        Ok(appended)
    }
}

impl Host {
    pub(crate) fn new(store: SegmentStore) -> Self {
        Self {
            store,
            queues: Vec::new(),
            by_name: BTreeMap::new(),
            by_log: Vec::new(),
            completions: Vec::new(),
            replies: BTreeMap::new(),
            requests: 0,
            spare: Vec::new(),
        }
    }

    /// Names of all queues, open or not.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.store.names();
        names.iter().filter_map(|name| name.strip_prefix(MESSAGES)).map(str::to_owned).collect()
    }

    /// Opens or creates a queue, and applies these settings.
    pub(crate) fn open(&mut self, name: &str, settings: Settings) -> Result<usize, Error> {
        let Settings { config, durability } = settings;
        let options = Options { durability, segment_bytes: SEGMENT_BYTES, ..Options::default() };
        let settings = EngineSettings { config, durability, message_bytes_max: usize::MAX };
        // Applies the options to a log that is open already.
        let messages = self.store.open(&format!("{MESSAGES}{name}"), &options)?;
        if let Some(&at) = self.by_name.get(name) {
            self.queues[at].engine.configure(&mut self.store, settings, now_ms())?;
            return Ok(at);
        }
        let options = EngineOptions {
            name: name.into(),
            id: name,
            state_log: &format!("{STATE}{name}"),
            messages,
            settings,
            decompress,
            tuning: Tuning::default(),
            // `RandomState` has random keys, different for each instance.
            random: RandomState::new().hash_one(name),
            when_crowded: WhenCrowded::Proceed,
        };
        let mut engine = Engine::open(&mut self.store, options, now_ms())?;
        if let Some(batch) = engine.gap(&mut self.store, now_ms())? {
            self.store.append(messages, &batch)?;
        }
        let at = self.queues.len();
        self.by_name.insert(name.to_owned(), at);
        for log in [messages, engine.queue().state_log()] {
            let log = log.0 as usize;
            self.by_log.resize(self.by_log.len().max(log + 1), None);
            self.by_log[log] = Some(at);
        }
        self.queues.push(OpenQueue {
            engine,
            messages,
            builder: BatchBuilder::default(),
            sent: PendingSends::default(),
            maintained_ms: 0,
            transfer: None,
        });
        self.register(at, now_ms())?;
        Ok(at)
    }

    /// Handles completions and registers durable messages.
    pub(crate) fn look(&mut self, at: usize, now_ms: u64) -> Result<(), Error> {
        self.poll(now_ms);
        self.register(at, now_ms)
    }

    /// Registers durable messages.
    fn register(&mut self, at: usize, now_ms: u64) -> Result<(), Error> {
        let Self { store, queues, .. } = self;
        let OpenQueue { engine, messages, sent, .. } = &mut queues[at];
        let log = &Committed(store.status(*messages).committed);
        let mut cx = Context { store, log, now_ms };
        while engine.register(&mut cx)? {}
        sent.registered(engine.machine().registered_to());
        // Lagging groups catch up a step per call.
        engine.queue_mut().catch_up(cx.store, now_ms)?;
        Ok(())
    }

    /// Encodes messages into the queue's builder. Returns their number and the size of their keys, values and headers.
    /// After an error the caller must reset the builder.
    pub(crate) fn put_together<'a, M: Into<Message<'a>>>(
        &mut self,
        at: usize,
        now_ms: u64,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<(u64, u64), Error> {
        let Self { queues, spare, .. } = self;
        let builder = &mut queues[at].builder;
        if !builder.is_empty() {
            // The iterator of an earlier enqueue panicked.
            *builder = BatchBuilder::default();
        }
        let mut bytes = 0;
        for message in messages {
            let message = message.into();
            let headers = message.encode(spare)?;
            let Message { key, value, .. } = message;
            bytes += (key.map_or(0, <[u8]>::len) + value.len() + headers.len()) as u64;
            if bytes > BATCH_BYTES_MAX {
                return Err(QueueError::TooLarge { most: BATCH_BYTES_MAX as usize }.into());
            }
            builder.push_with_headers(now_ms.cast_signed(), key, Some(value), headers);
        }
        Ok((builder.records().into(), bytes))
    }

    /// Appends the contents of the queue's builder, `bytes` in size, if the limits of the queue admit them.
    pub(crate) fn append(&mut self, at: usize, count: u64, bytes: u64) -> Result<Appended, Error> {
        let one = &mut self.queues[at];
        if one.engine.queue().is_stuck() {
            return Err(QueueError::Storage.into());
        }
        let log = self.store.status(one.messages);
        if !one.engine.admits(&log, count, one.sent.bytes() + bytes) {
            return Err(QueueError::Full.into());
        }
        one.append(&mut self.store, |builder| builder.finish_as(&Origin::default()), bytes)
    }

    /// Appends a queue's events and commits the store.
    pub(crate) fn commit(&mut self, at: usize, now_ms: u64) {
        self.queues[at].engine.queue_mut().store_events(&mut self.store, now_ms);
        self.store.commit();
    }

    /// Appends the events of all queues and commits the store.
    pub(crate) fn commit_all(&mut self, now_ms: u64) {
        for one in &mut self.queues {
            one.engine.queue_mut().store_events(&mut self.store, now_ms);
        }
        self.store.commit();
    }

    /// Handles completions of the store. Returns whether there were any.
    pub(crate) fn poll(&mut self, now_ms: u64) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.store.completions(&mut completions);
        let has_any = !completions.is_empty();
        for completion in completions.drain(..) {
            let Some(&Some(at)) = self.by_log.get(completion.log.0 as usize) else { continue };
            let one = &mut self.queues[at];
            if one.messages == completion.log {
                one.sent.complete(completion.ticket, completion.outcome.is_ok());
            } else {
                one.engine.queue_mut().on_completion(&mut self.store, &completion, now_ms);
            }
        }
        self.completions = completions;
        has_any
    }

    /// Hands a request to a queue. Returns its number, for [`Host::take_reply`].
    pub(crate) fn handle(&mut self, at: usize, request: Request, now_ms: u64) -> u64 {
        self.requests += 1;
        let Self { store, queues, requests, .. } = self;
        let OpenQueue { engine, messages, .. } = &mut queues[at];
        let log = &Committed(store.status(*messages).committed);
        engine.handle(request, *requests, &mut Context { store, log, now_ms });
        self.requests
    }

    /// The reply to a request, once.
    pub(crate) fn take_reply(&mut self, number: u64) -> Option<Reply> {
        self.replies.remove(&number)
    }

    /// Polls a queue and carries out its effects. Returns whether it has more to do at once.
    pub(crate) fn poll_queue(&mut self, at: usize, now_ms: u64) -> bool {
        self.complete_transfer(at, now_ms);
        let Self { store, queues, .. } = self;
        let OpenQueue { engine, messages, sent, .. } = &mut queues[at];
        let log = &Committed(store.status(*messages).committed);
        let has_more = engine.poll(&mut Context { store, log, now_ms });
        sent.registered(engine.machine().registered_to());
        self.carry_out_effects(at, now_ms);
        has_more
    }

    fn carry_out_effects(&mut self, at: usize, now_ms: u64) {
        while let Some(effect) = self.queues[at].engine.poll_effect() {
            match effect {
                Effect::Reply { to, reply } => drop(self.replies.insert(to, reply)),
                Effect::Transfer { queue, messages, durability } => {
                    match self.append_transfer(&queue, &messages, durability, now_ms) {
                        Ok(transfer) => self.queues[at].transfer = Some(transfer),
                        Err(error) => {
                            log::warn!("queue {queue}: it takes no transfers: {error}");
                            let refused = Reply::Refused(QueueError::Storage);
                            self.queues[at].engine.on_transferred(&refused, now_ms);
                        }
                    }
                }
                Effect::Truncate(offset) => {
                    let one = &self.queues[at];
                    if let Err(error) = self.store.truncate_prefix(one.messages, offset) {
                        log::warn!("queue {}: settled messages are not removed: {error}", one.engine.name());
                    }
                }
                // Callers enqueue without a request.
                Effect::Append(batch) => {
                    let engine = &mut self.queues[at].engine;
                    engine.on_appended(batch.number(), &Err(QueueError::Storage));
                    engine.on_append_tried(batch);
                }
            }
        }
    }

    /// Appends transferred messages to the queue of this name. If the source asks for [`Durability::Fsync`], the append
    /// is synced even if the destination is configured for less: the source settles the messages as soon as they are
    /// here.
    fn append_transfer(
        &mut self,
        name: &str,
        messages: &[TransferredMessage],
        durability: Durability,
        now_ms: u64,
    ) -> Result<(usize, Ticket), Error> {
        let at = if let Some(at) = self.by_name.get(name) {
            *at
        } else {
            // Dead letters that fail again must not be lost.
            let config = Config { max_deliveries: 0, ..Config::default() };
            self.open(name, Settings { config, durability: Durability::Fsync })?
        };
        let len = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let size =
            |message: &TransferredMessage| len(&message.key) + len(&message.value) + message.headers.len();
        let bytes = messages.iter().map(size).sum::<usize>() as u64;
        let one = &mut self.queues[at];
        one.builder = BatchBuilder::default();
        let appended =
            one.append(&mut self.store, |builder| transfer_batch(messages, now_ms, builder), bytes)?;
        one.sent.wait();
        if durability == Durability::Fsync {
            self.store.force_sync(one.messages);
        }
        Ok((at, appended.ticket))
    }

    /// Tells a queue the outcome of its transfers in flight.
    fn complete_transfer(&mut self, at: usize, now_ms: u64) {
        let Some((to, ticket)) = self.queues[at].transfer else { return };
        let Some(is_durable) = self.queues[to].sent.outcome(ticket) else { return };
        let reply = if is_durable { Reply::Sent(Vec::new()) } else { Reply::Refused(QueueError::Storage) };
        let one = &mut self.queues[at];
        one.transfer = None;
        one.engine.on_transferred(&reply, now_ms);
    }

    /// Maintains all queues. Returns whether work is in flight, and the next deadline, ms since 1970.
    pub(crate) fn poll_queues(&mut self) -> (bool, u64) {
        let now_ms = now_ms();
        self.poll(now_ms);
        let (mut is_busy, mut due_ms) = (false, u64::MAX);
        for at in 0..self.queues.len() {
            is_busy |= self.poll_queue(at, now_ms);
            let one = &mut self.queues[at];
            one.engine.trim(&mut self.store, now_ms);
            is_busy |= one.transfer.is_some() || one.engine.machine().flush_is_due();
            due_ms = due_ms.min(one.engine.next_due(now_ms).unwrap_or(u64::MAX));
            self.carry_out_effects(at, now_ms);
        }
        self.commit_all(now_ms);
        let maintained = self.store.maintain(now_ms);
        (is_busy, due_ms.min(maintained.due_ms.unwrap_or(u64::MAX)))
    }
}
