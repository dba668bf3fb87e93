//! One group of a queue: what state each message has for it, and how that changes.
//!
//! ```text
//!                    ┌────────────── release, lease ends ─────────────┐
//!                    ▼                                                │
//!  registered ──► ready ────────────────── lease ─────────────────► leased ── ack ──► settled
//!      │  ▲  ▲       │                                                │  │               ▲
//!      │  │  └─time─ delayed ◄──────────── nack ──────────────────────┘  │ reject,       │
//!      ▼  │          │                                                   │ too often     │ arrived
//!   blocked          └──────────── expired, overflow, redriven ──► leaving ──────────────┘
//! ```
//! A message is blocked while another message is the head of its key; see [`KeyOrder`].
//!
//! The fields of a group are private to this file and its folder. What a message is for the group stands in several of
//! them: an unsettled message is in `pending` or in `unknown`, never in both; a message in `ready` is pending and idle;
//! `due`, `held`, `leased` and `delayed` follow from the states in `entries`.
//!
//! | file | contents |
//! |---|---|
//! | `consume.rs` | leases, and settlements of deliveries |
//! | `events.rs` | replay of events, and snapshots |
//! | `loading.rs` | messages that are not loaded |
//! | `operations.rs` | purge, redrive, peek, information |
//! | `order.rs` | changes of the `fifo` setting |
//! | `takeover.rs` | what new groups take over from older ones |
//! | `transfer.rs` | messages that leave for another queue |

mod consume;
mod events;
mod loading;
mod operations;
mod order;
mod takeover;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};

use crate::deferred_drop::{drop_some, drop_some_of_set};
use crate::event::Delivered;
use crate::key_order::KeyOrder;
use crate::offset_ranges::OffsetRanges;
use crate::outgoing_transfers::OutgoingTransfers;
use crate::request::{GroupName, Reason, Receipt};
use crate::shared::{KeyRelease, Shared};

/// How many consumers without a lease keep their counter: most of them lease again soon.
const IDLE_HOLDERS_MAX: usize = 16;

/// State of a pending message. A message without an entry is `Idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Ready, or blocked behind another message of its key.
    Idle,
    Leased {
        consumer: u64,
        until_ms: u64,
    },
    /// Not deliverable before this time.
    Delayed {
        until_ms: u64,
    },
    /// On its way to another queue, under this transfer number.
    Leaving {
        number: u64,
    },
}

/// What the group knows of a pending message beyond that it is pending.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of deliveries so far.
    count: u32,
    /// Incarnation of the queue at the last delivery.
    incarnation: u32,
    first_ms: u64,
    /// Earliest redelivery after the last negative acknowledgement.
    not_before_ms: u64,
    state: State,
}

impl Entry {
    const NEW: Self = Self { count: 0, incarnation: 0, first_ms: 0, not_before_ms: 0, state: State::Idle };

    /// Whether the receipt belongs to the last delivery.
    fn is_of(&self, receipt: Receipt) -> bool {
        (self.count, self.incarnation) == (receipt.count, receipt.incarnation) && self.count > 0
    }

    /// The part that is written as an event.
    fn delivered(&self) -> Delivered {
        Delivered { count: self.count, incarnation: self.incarnation, first_ms: self.first_ms }
    }
}

/// The single active consumer.
#[derive(Clone, Copy, Debug)]
struct Active {
    consumer: u64,
    asked_ms: u64,
}

/// Counts since the start of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    delivered: u64,
    redelivered: u64,
    acked: u64,
    nacked: u64,
    dead: u64,
}

/// One group of consumers, with its own state for every pending message.
#[derive(Debug)]
pub(crate) struct Group {
    id: u32,
    name: GroupName,
    /// Flush that records the creation of the group. Nobody gets a message before it is durable. 0 for a group that
    /// was restored.
    created_by_flush: u64,
    /// Set when the group is removed: groups with this number or a higher one were created afterwards.
    removed_before: u32,
    /// Unsettled messages that are loaded.
    pending: OffsetRanges,
    /// Unsettled messages that are registered, but not loaded, because the group is
    /// [lagging](crate::Queue::is_lagging). None of them is on its way to another queue.
    unknown: OffsetRanges,
    /// The group loads no more messages before this flush is durable; 0 for no such limit.
    loads_after_flush: u64,
    /// Messages that can be leased, by priority.
    ready: [OffsetRanges; 10],
    entries: BTreeMap<u64, Entry>,
    key_order: KeyOrder,
    /// Offsets to which a change of the `fifo` setting has not been applied yet.
    fifo_pending: OffsetRanges,
    /// Ends of leases and delays: time and offset.
    due: BTreeSet<(u64, u64)>,
    transfers: OutgoingTransfers,
    leased: u64,
    delayed: u64,
    active: Option<Active>,
    /// Number of leases by consumer. Some consumers without a lease stay in it.
    held: BTreeMap<u64, u64>,
    counters: Counters,
}

impl Group {
    /// A group whose creation is durable. Its transfer numbers are above `last_number`.
    pub(crate) fn new(id: u32, name: GroupName, last_number: u64) -> Self {
        Self {
            id,
            name,
            created_by_flush: 0,
            removed_before: u32::MAX,
            pending: OffsetRanges::default(),
            unknown: OffsetRanges::default(),
            loads_after_flush: 0,
            ready: Default::default(),
            entries: BTreeMap::new(),
            key_order: KeyOrder::default(),
            fifo_pending: OffsetRanges::default(),
            due: BTreeSet::new(),
            transfers: OutgoingTransfers::new(last_number),
            leased: 0,
            delayed: 0,
            active: None,
            held: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// A group whose creation this flush records.
    pub(crate) fn created_by(flush: u64, id: u32, name: GroupName, last_number: u64) -> Self {
        Self { created_by_flush: flush, ..Self::new(id, name, last_number) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn name(&self) -> &GroupName {
        &self.name
    }

    /// Unsettled messages that are loaded.
    pub(crate) fn pending(&self) -> &OffsetRanges {
        &self.pending
    }

    /// Number of messages that can be leased.
    pub(crate) fn ready(&self) -> u64 {
        self.ready.iter().map(OffsetRanges::len).sum()
    }

    /// Whether a message can be leased.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.iter().any(|ready| !ready.is_empty())
    }

    /// Whether the creation of the group is durable, given that flushes up to `durable_to` are.
    pub(crate) fn is_created(&self, durable_to: u64) -> bool {
        self.created_by_flush <= durable_to
    }

    fn state(&self, offset: u64) -> State {
        self.entries.get(&offset).map_or(State::Idle, |entry| entry.state)
    }

    /// Whether an idle message may be leased.
    fn is_ready(&self, shared: &Shared, offset: u64) -> bool {
        shared
            .messages
            .get(offset)
            .is_some_and(|known| self.ready[usize::from(known.priority)].contains(offset))
    }

    /// When the next lease or delay ends, or the active consumer has been silent for too long.
    pub(crate) fn next_due(&self, shared: &Shared) -> Option<u64> {
        let due = self.due.first().map(|&(at, _)| at);
        let silent = self.active.filter(|active| !self.holds(active.consumer));
        let silent = silent.map(|active| active.asked_ms.saturating_add(shared.config.lease_ms));
        due.into_iter().chain(silent).min()
    }

    /// The key that orders this message. `None` if it has no key or the group does not order by key.
    fn key_of(&self, shared: &Shared, offset: u64) -> Option<u64> {
        let has_order = shared.config.fifo != self.fifo_pending.contains(offset);
        if has_order { shared.messages.get(offset)?.key() } else { None }
    }

    /// What the group still remembers, as pairs of a name and whether there is any.
    pub(crate) fn unfinished(&self) -> [(&'static str, bool); 9] {
        [
            ("pending messages", !self.pending.is_empty()),
            ("unknown messages", !self.unknown.is_empty()),
            ("ready messages", self.has_ready()),
            ("deliveries", !self.entries.is_empty()),
            ("order by key", !self.key_order.is_empty()),
            ("ends of leases and delays", !self.due.is_empty()),
            ("leaving messages", !self.transfers.is_empty() || self.transfers.is_sealing()),
            ("leases and delays", self.leased + self.delayed > 0),
            ("holders", self.held.values().any(|held| *held > 0) || self.held.len() > IDLE_HOLDERS_MAX + 1),
        ]
    }

    // --- messages enter the group

    /// Adds a pending message that is in memory.
    pub(crate) fn add(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.pending.insert(offset);
        shared.messages.add_pending(offset);
        self.admit(shared, offset, now_ms);
    }

    /// Makes an idle message ready, or blocks it behind its key.
    fn admit(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        let Some(key) = self.key_of(shared, offset) else { return self.place(shared, offset, now_ms) };
        if self.key_order.enter(key, offset) {
            return self.place(shared, offset, now_ms);
        }
        let Some(later) = self.key_order.head(key).filter(|&head| head > offset) else { return };
        if self.key_order.is_settled(key, later) || self.unready(shared, later) {
            self.unblock_earlier(shared, key, now_ms);
        }
    }

    /// Removes a message from the ready set. Returns whether it was in it.
    fn unready(&mut self, shared: &Shared, offset: u64) -> bool {
        let known = shared.messages.get(offset);
        known.is_some_and(|known| self.ready[usize::from(known.priority)].remove(offset))
    }

    /// Replaces the idle head of a key by an earlier message of that key, if there is one.
    fn unblock_earlier(&mut self, shared: &Shared, key: u64, now_ms: u64) -> bool {
        let earlier = self.key_order.swap_head(key);
        if let Some(earlier) = earlier {
            self.unblock(shared, key, earlier, now_ms);
        }
        earlier.is_some()
    }

    /// Makes the new head of a key available, unless it is settled or a consumer has it.
    fn unblock(&mut self, shared: &Shared, key: u64, offset: u64, now_ms: u64) {
        if !self.key_order.is_settled(key, offset) && self.state(offset) == State::Idle {
            self.place(shared, offset, now_ms);
        }
    }

    /// Makes an idle message ready, or delays it until it is due.
    fn place(&mut self, shared: &Shared, offset: u64, now_ms: u64) {
        let Some(known) = shared.messages.get(offset) else { return };
        let not_before_ms = self.entries.get(&offset).map_or(0, |entry| entry.not_before_ms);
        let until_ms = known.due_ms.max(not_before_ms);
        if until_ms > now_ms {
            self.entries.entry(offset).or_insert(Entry::NEW).state = State::Delayed { until_ms };
            self.due.insert((until_ms, offset));
            self.delayed += 1;
        } else {
            self.ready[usize::from(known.priority)].insert(offset);
        }
    }

    /// A message that had been available is idle again. It becomes available, unless an earlier message of its key
    /// has arrived.
    fn rejoin(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        let Some(key) = self.key_of(shared, offset) else { return self.place(shared, offset, now_ms) };
        if self.key_order.enter(key, offset) && !self.unblock_earlier(shared, key, now_ms) {
            self.place(shared, offset, now_ms);
        }
    }

    // --- messages leave the group

    /// Takes a pending message out of its state: afterwards it is idle, and neither ready nor blocked. The caller
    /// decides at once what happens to it.
    fn withdraw(&mut self, shared: &mut Shared, offset: u64) {
        match self.state(offset) {
            State::Idle => {
                self.unready(shared, offset);
                return;
            }
            State::Leased { consumer, until_ms } => {
                self.end_lease(offset, consumer, until_ms);
                shared.messages.release_hold(offset);
            }
            State::Delayed { until_ms } => {
                self.due.remove(&(until_ms, offset));
                self.delayed -= 1;
            }
            State::Leaving { .. } => return,
        }
        if let Some(entry) = self.entries.get_mut(&offset) {
            entry.state = State::Idle;
            if entry.count == 0 && entry.not_before_ms == 0 {
                self.entries.remove(&offset);
            }
        }
    }

    fn end_lease(&mut self, offset: u64, consumer: u64, until_ms: u64) {
        self.due.remove(&(until_ms, offset));
        self.leased -= 1;
        let idle = self.held.len() > IDLE_HOLDERS_MAX;
        if let Some(held) = self.held.get_mut(&consumer) {
            *held -= 1;
            if *held == 0 && idle {
                self.held.remove(&consumer);
            }
        }
    }

    fn holds(&self, consumer: u64) -> bool {
        self.held.get(&consumer).is_some_and(|held| *held > 0)
    }

    /// Settles a withdrawn message.
    fn finish(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.remove_pending(shared, offset, now_ms);
        shared.messages.settle(offset);
    }

    /// Settles a message whose lease has ended and that was not withdrawn.
    fn finish_leased(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.remove_pending(shared, offset, now_ms);
        shared.messages.settle_held(offset);
    }

    fn remove_pending(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        shared.messages.keep_for_joining(offset);
        self.entries.remove(&offset);
        self.settle_key(shared, offset, now_ms);
        self.pending.remove(offset);
        shared.recorder.settled(self.id, offset);
    }

    /// A message is settled or begins to leave. It blocks its key until that is durable.
    fn settle_key(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        let Some(key) = self.key_of(shared, offset) else { return };
        let flush = shared.recorder.next_flush();
        self.key_order.settle(key, offset, flush);
        shared.key_releases.push_back(KeyRelease { flush, group: self.id, key, offset });
        if self.key_order.head(key) == Some(offset) {
            self.unblock_earlier(shared, key, now_ms);
        }
    }

    /// Whether no consumer has the message or an earlier one of its key that stays.
    pub(crate) fn can_redrive(&self, shared: &Shared, offset: u64) -> bool {
        let key = self.key_of(shared, offset);
        match self.state(offset) {
            State::Idle => self.is_ready(shared, offset) || key.is_some_and(|key| self.is_redriven(key)),
            // A delayed message is the head of its key.
            State::Delayed { .. } => key.is_none_or(|key| !self.key_order.has_extra_leased(key)),
            State::Leased { .. } | State::Leaving { .. } => false,
        }
    }

    /// Whether the head of the key is being redriven and that is not durable yet. Later messages of the key may
    /// follow it.
    fn is_redriven(&self, key: u64) -> bool {
        let Some(State::Leaving { number }) = self.key_order.head(key).map(|head| self.state(head)) else {
            return false;
        };
        self.transfers.get(number).is_some_and(|gone| gone.reason == Reason::Redriven)
    }

    /// The settlement of a key's head is durable: the next message of the key may become available.
    pub(crate) fn advance(&mut self, shared: &mut Shared, release: KeyRelease, now_ms: u64) {
        let KeyRelease { flush, key, offset, .. } = release;
        if let Some(next) = self.key_order.release(key, offset, flush) {
            self.unblock(shared, key, next, now_ms);
        }
    }

    /// A message has expired or exceeds a limit. It leaves the queue unless a consumer has it.
    pub(crate) fn expel(&mut self, shared: &mut Shared, offset: u64, reason: Reason, now_ms: u64) {
        if self.pending.contains(offset) && matches!(self.state(offset), State::Idle | State::Delayed { .. })
        {
            self.withdraw(shared, offset);
            self.begin_transfer(shared, offset, reason, now_ms);
        }
    }

    /// Releases all messages of a removed group, while `budget` lasts.
    pub(crate) fn release_all(&mut self, shared: &mut Shared, budget: &mut usize) {
        while *budget > 0
            && let Some(offset) = self.pending.first()
        {
            *budget -= 1;
            self.pending.remove(offset);
            match self.state(offset) {
                State::Leaving { number } => {
                    self.transfers.remove(number);
                    shared.messages.settle_transferred(offset);
                }
                State::Leased { .. } => {
                    shared.messages.release_hold(offset);
                    shared.messages.settle(offset);
                }
                State::Idle | State::Delayed { .. } => shared.messages.settle(offset),
            }
            self.entries.remove(&offset);
        }
        while *budget > 0 && shared.messages.refuse_joining(self.id) {
            *budget -= 1;
        }
        if *budget > 0 {
            self.drop_some(budget);
        }
    }

    /// Drops entries of collections, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        self.pending.drop_some(budget);
        self.unknown.drop_some(budget);
        self.ready.iter_mut().for_each(|ready| ready.drop_some(budget));
        drop_some(&mut self.entries, budget);
        self.transfers.drop_some(budget);
        drop_some_of_set(&mut self.due, budget);
        self.key_order.drop_some(budget);
    }
}
