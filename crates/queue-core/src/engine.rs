//! One queue as its host runs it: requests in, effects out.
//!
//! The broker and the embedded library need the same sequence around a [`DurableQueue`]: register durable messages, run
//! timers, give messages to waiting consumers, run long operations in steps, move dead letters, hold replies until the
//! events behind them are durable, and truncate the log. [`Engine`] is that sequence. A host routes requests to it,
//! tells it about completions, polls it once per turn while it has work, and carries out its [`Effect`]s in order.
//!
//! Invariant: a reply that promises a change leaves the engine after the change is durable, and a message that moves to
//! another queue is settled here after the host has confirmed that it is durable there.
//!
//! Reads, and appends to the log of the queue's state, go through the [`Store`] of each call instead of effects: both
//! are calls into memory on the path of each message, and an effect would cost a buffer per message. Everything that
//! needs more than the store is an effect: replies, appends that pass through a partition, transfers and truncation.

mod background_ops;
mod receive;
mod requests;
mod send;
mod transfer;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mainstem_log::{BatchHeader, Durability, Error, LogId, Store};

use crate::config::Config;
use crate::durable_queue::{Decompress, DurableQueue};
use crate::machine::{GroupId, Queue};
use crate::request::{Info, QueueError, Reply, Request, Settlement};
use crate::transferred::TransferredMessage;
use crate::tuning::Tuning;
use background_ops::BackgroundOp;
use receive::Wait;
pub use send::PendingBatch;
use send::Sends;
use transfer::TransferState;

/// Requests that may wait in one queue, of each kind.
const WAITING_MAX: usize = 100_000;
/// Reads of messages in one call of [`Engine::register`].
const READS_MAX: usize = 8;
/// Messages registered by one call of [`Engine::register`], after which it reads no more.
const REGISTERED_MAX: u64 = 4_000;

/// The log of a queue's messages, as its owner sees it.
pub trait MessageLog {
    /// Messages below this offset are durable and visible to consumers.
    fn visible_to(&self, store: &dyn Store) -> u64;

    /// A filter for the batches in a range of offsets: whether to skip the next batch, because it holds no messages or
    /// was aborted. It gets the batches in order.
    fn skip(&self, offsets: Range<u64>) -> impl FnMut(&BatchHeader) -> bool;
}

/// The resources of one call.
pub struct Context<'a, L> {
    /// The store of the queue's logs.
    pub store: &'a mut dyn Store,
    /// The log of messages.
    pub log: &'a L,
    /// Ms since 1970.
    pub now_ms: u64,
}

/// Something for the host to carry out.
#[derive(Debug)]
pub enum Effect<R> {
    /// Reply to a request.
    Reply {
        /// The requester.
        to: R,
        /// The reply.
        reply: Reply,
    },
    /// Append a batch to the log of messages. Call [`Engine::on_append_tried`] at once, and [`Engine::on_appended`]
    /// when the batch is durable or has failed.
    Append(PendingBatch),
    /// Append messages to another queue, and call [`Engine::on_transferred`] when they are durable there.
    Transfer {
        /// The name of the other queue. The host creates it if it does not exist.
        queue: String,
        /// In order.
        messages: Vec<TransferredMessage>,
        /// The durability that these messages need, whatever the other queue is configured for.
        durability: Durability,
    },
    /// Remove messages below this offset from the log of messages.
    Truncate(u64),
}

/// What an operation does that needs messages which a full queue cannot register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenCrowded {
    /// It waits until consumers have settled messages.
    Wait,
    /// It goes on without them: its caller may be the only consumer.
    Proceed,
}

/// Settings of a queue that can change while it is open.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Leases, retries, limits.
    pub config: Config,
    /// When messages and settlements count as durable.
    pub durability: Durability,
    /// Limit of a message's key, value and headers, bytes.
    pub message_bytes_max: usize,
}

/// How to open a queue.
#[derive(Debug)]
pub struct EngineOptions<'a> {
    /// The queue's name.
    pub name: Arc<str>,
    /// An identifier that no other queue ever has.
    pub id: &'a str,
    /// The name of the log of its state.
    pub state_log: &'a str,
    /// The log of its messages.
    pub messages: LogId,
    /// Its settings.
    pub settings: EngineSettings,
    /// Decompresses batches.
    pub decompress: Decompress,
    /// Thresholds.
    pub tuning: Tuning,
    /// A number that nobody can guess, different each time.
    pub random: u64,
    /// What operations do in a full queue.
    pub when_crowded: WhenCrowded,
}

/// A queue with its waiting requests. `R` identifies a requester.
#[derive(Debug)]
pub struct Engine<R> {
    name: Arc<str>,
    id: Box<str>,
    queue: DurableQueue,
    durability: Durability,
    message_bytes_max: usize,
    when_crowded: WhenCrowded,
    random: u64,
    /// All messages that were in the log when it was opened are registered.
    is_ready: bool,
    /// Requests that wait for that.
    held: Vec<(Request, R)>,
    waits: Vec<Wait<R>>,
    background_ops: VecDeque<BackgroundOp<R>>,
    /// Replies by the number of the event that must be durable first.
    awaiting_durability: VecDeque<(u64, R, Reply)>,
    sends: Sends<R>,
    transfers: TransferState,
    effects: VecDeque<Effect<R>>,
    /// Reading the log failed, and the failure has been logged.
    is_unreadable: bool,
    /// Messages that the most lagging group had to settle when the log last warned about it.
    lag_warning: Option<u64>,
}

impl<R: Copy> Engine<R> {
    /// Opens a queue. [`Engine::gap`] and [`Engine::register`] come next.
    ///
    /// # Errors
    /// Those of [`DurableQueue::open`].
    pub fn open(store: &mut dyn Store, options: EngineOptions<'_>, now_ms: u64) -> Result<Self, Error> {
        let EngineSettings { config, durability, message_bytes_max } = options.settings;
        let (state_log, messages) = (options.state_log, options.messages);
        let decompress = options.decompress;
        let mut queue = DurableQueue::open(store, state_log, messages, durability, config, decompress)?;
        queue.tune(options.tuning);
        queue.begin_incarnation((options.random >> 32) as u32);
        if durability != Durability::Fsync {
            queue.skip_numbers(now_ms);
        }
        Ok(Self {
            name: options.name,
            id: options.id.into(),
            queue,
            durability,
            message_bytes_max,
            when_crowded: options.when_crowded,
            random: options.random,
            is_ready: false,
            held: Vec::new(),
            waits: Vec::new(),
            background_ops: VecDeque::new(),
            awaiting_durability: VecDeque::new(),
            sends: Sends::default(),
            transfers: TransferState::default(),
            effects: VecDeque::new(),
            is_unreadable: false,
            lag_warning: None,
        })
    }

    /// Changes the settings, for messages in the queue too.
    ///
    /// # Errors
    /// The log of the queue's state keeps its old durability; the other settings apply.
    pub fn configure(
        &mut self,
        store: &mut dyn Store,
        settings: EngineSettings,
        now_ms: u64,
    ) -> Result<(), Error> {
        let EngineSettings { config, durability, message_bytes_max } = settings;
        self.message_bytes_max = message_bytes_max;
        self.queue.machine_mut().configure(config, now_ms);
        if std::mem::replace(&mut self.durability, durability) == durability {
            return Ok(());
        }
        self.queue.set_durability(store, durability)
    }

    /// The queue's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The state machine.
    pub fn machine(&self) -> &Queue {
        self.queue.machine()
    }

    /// The queue and its logs.
    pub fn queue(&self) -> &DurableQueue {
        &self.queue
    }

    /// The queue and its logs, for hosts that lease and settle within the caller's thread.
    pub fn queue_mut(&mut self) -> &mut DurableQueue {
        &mut self.queue
    }

    /// Settles a delivery; durable when [`DurableQueue::durable`] reaches [`DurableQueue::number`].
    ///
    /// # Errors
    /// [`QueueError::Stale`].
    pub fn settle(&mut self, group: GroupId, settlement: &Settlement, now_ms: u64) -> Result<(), QueueError> {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.queue.settle(group, settlement, now_ms, (self.random >> 32) as u32)
    }

    /// A batch for offsets that the log of messages has lost, which must be the next append; `None` if it has lost
    /// none.
    ///
    /// # Errors
    /// Those of the store.
    pub fn gap(&mut self, store: &mut dyn Store, now_ms: u64) -> Result<Option<Vec<u8>>, Error> {
        if self.is_ready {
            return Ok(None);
        }
        let gap = self.queue.gap(store, now_ms)?;
        if gap.is_some() && !self.is_unreadable {
            log::warn!("queue {}: its log lost messages that its state knows", self.name);
        }
        Ok(gap)
    }

    /// The log of messages cannot be read, or a gap in it cannot be filled.
    pub fn on_unreadable(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.is_unreadable, true) {
            log::error!("queue {}: its log of messages fails: {error}", self.name);
        }
    }

    /// Whether all messages that were in the log when it was opened are registered.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Registers messages that have become visible, a bounded number of them. Returns whether there are more.
    ///
    /// # Errors
    /// Those of the store.
    pub fn register<L: MessageLog>(&mut self, cx: &mut Context<'_, L>) -> Result<bool, Error> {
        let to = cx.log.visible_to(cx.store);
        let mut has_more = true;
        let mut left = REGISTERED_MAX;
        for _ in 0..READS_MAX {
            let from = self.machine().registered_to();
            has_more = from < to && self.queue.register(cx.store, to, cx.now_ms, cx.log.skip(from..to))?;
            left = left.saturating_sub(self.machine().registered_to() - from);
            if !has_more || left == 0 {
                break;
            }
        }
        self.sends.registered(self.machine().registered_to());
        self.is_ready |= !has_more;
        Ok(has_more)
    }

    /// Serves requests, timers, operations and transfers as far as they can go. Returns whether there is more to do at
    /// once; otherwise the next call is due after a request, a completion, or at [`Engine::next_due`].
    pub fn poll<L: MessageLog>(&mut self, cx: &mut Context<'_, L>) -> bool {
        let registered = self.register(cx);
        let caught_up = registered.and_then(|has_more| {
            let catches_up = self.is_ready && self.queue.catch_up(cx.store, cx.now_ms)?;
            Ok(has_more || catches_up)
        });
        let has_more = match caught_up {
            Ok(has_more) => {
                self.is_unreadable = false;
                has_more
            }
            Err(error) => {
                self.on_unreadable(&error);
                self.is_ready = true;
                false
            }
        };
        if !self.is_ready {
            return true;
        }
        for (request, from) in std::mem::take(&mut self.held) {
            self.handle(request, from, cx);
        }
        self.warn_if_lagging();
        self.keep_waiters_active(cx.now_ms);
        self.queue.maintain(cx.now_ms);
        self.run_background_op(cx);
        self.serve_waits(cx);
        self.start_transfers(cx);
        self.send_durable_replies();
        let queue = self.queue.machine();
        has_more
            || queue.is_busy()
            || !self.is_unreadable && queue.next_to_load().is_some()
            || self.next_background_op().is_some()
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect<R>> {
        self.effects.pop_front()
    }

    /// When the engine is to be polled without any other reason, ms since 1970, and after `now_ms`.
    pub fn next_due(&self, now_ms: u64) -> Option<u64> {
        // A wait that is over and still there waits for the disk.
        let waits = self.waits.iter().map(|wait| wait.until_ms);
        let waits = waits.filter(|until_ms| (now_ms + 1..u64::MAX).contains(until_ms)).min();
        let due_ms =
            [waits, self.machine().next_due(), self.transfers.retry_ms()].into_iter().flatten().min();
        due_ms.map(|due_ms| due_ms.max(now_ms + 1))
    }

    /// Decides which messages the log no longer needs. Returns whether to call this again later, even if nothing
    /// happens until then.
    pub fn trim(&mut self, store: &mut dyn Store, now_ms: u64) -> bool {
        if !self.is_ready {
            return true;
        }
        let retention_ms = self.machine().config().retention_ms;
        let mut keep_from = u64::MAX;
        if retention_ms > 0 {
            let oldest_ms = now_ms.saturating_sub(retention_ms).cast_signed();
            match store.find_time(self.queue.messages_log(), oldest_ms) {
                Ok(Some(found)) => keep_from = found.offset,
                Ok(None) => {}
                Err(_) => return false,
            }
        }
        let trimmed = self.queue.take_trim(store, keep_from);
        self.effects.extend(trimmed.map(Effect::Truncate));
        retention_ms > 0 || self.queue.is_trimming() || trimmed.is_some()
    }

    /// Frees buffers that are not in use, and keeps at most so many bytes of recently read messages.
    pub fn release_buffers(&mut self, cache_bytes: usize) {
        self.queue.release_buffers(cache_bytes);
        self.sends.release_buffers();
    }

    /// Memory of the queue's messages, bytes, about: their state, and recent batches.
    pub fn memory(&self) -> u64 {
        self.queue.memory()
    }

    /// The host shuts down: consumers that wait get no messages.
    pub fn drain(&mut self) {
        for wait in self.waits.drain(..) {
            self.effects.push_back(Effect::Reply { to: wait.to, reply: Reply::Received(Vec::new()) });
        }
    }

    /// The queue has been deleted: all requesters get [`QueueError::UnknownQueue`].
    pub fn close(&mut self) {
        let waits = self.waits.drain(..).map(|wait| wait.to);
        let held = self.held.drain(..).map(|(_, to)| to);
        let durable = self.awaiting_durability.drain(..).map(|(_, to, _)| to);
        let ops = self.background_ops.drain(..).map(|op| op.to());
        let all: Vec<R> = waits.chain(held).chain(durable).chain(ops).collect();
        for to in all.into_iter().chain(self.sends.close()) {
            self.reply(to, Reply::Refused(QueueError::UnknownQueue));
        }
    }

    /// Frees some of a closed queue. Returns whether there is more; otherwise it may be dropped.
    pub fn drop_step(&mut self) -> bool {
        self.queue.machine_mut().drop_step()
    }

    /// The state of the queue, except its name and settings.
    pub fn info(&self, info: &mut Info, visible_to: u64) {
        self.queue.info(info);
        // Messages that are not registered because the queue is full of others.
        let unregistered = visible_to.saturating_sub(self.machine().registered_to());
        info.messages += unregistered;
        for group in &mut info.groups {
            group.ready += unregistered;
            group.waiting = self.waits.iter().filter(|wait| *wait.group == *group.name).count() as u64;
        }
    }

    fn reply(&mut self, to: R, reply: Reply) {
        self.effects.push_back(Effect::Reply { to, reply });
    }

    /// Replies when everything up to now is durable.
    fn reply_when_durable(&mut self, to: R, reply: Reply) {
        let number = self.queue.number();
        if number <= self.queue.durable() {
            return self.reply(to, reply);
        }
        self.awaiting_durability.push_back((number, to, reply));
    }

    fn send_durable_replies(&mut self) {
        let (durable, is_stuck) = (self.queue.durable(), self.queue.is_stuck());
        while let Some((_, to, reply)) =
            self.awaiting_durability.pop_front_if(|(number, ..)| *number <= durable || is_stuck)
        {
            let reply = if is_stuck { Reply::Refused(QueueError::Storage) } else { reply };
            self.reply(to, reply);
        }
    }

    /// Warns once when there are more messages than the queue keeps in memory.
    fn warn_if_lagging(&mut self) {
        let queue = self.queue.machine();
        let (is_crowded, is_lagging) = (queue.is_crowded(), queue.is_lagging());
        if !is_crowded && !is_lagging && self.lag_warning.is_none() {
            return;
        }
        let Some((group, pending)) = queue.most_lagging() else { return };
        match self.lag_warning {
            // A tenth has been settled: the next warning is about another backlog.
            Some(warned) if pending < warned / 10 * 9 => self.lag_warning = None,
            Some(_) => {}
            None => {
                let (name, scope) = (&self.name, if is_crowded { "all groups" } else { "this group" });
                log::warn!(
                    "queue {name}: group {group} has {pending} messages to settle; later messages wait, for {scope}"
                );
                self.lag_warning = Some(pending);
            }
        }
    }
}
