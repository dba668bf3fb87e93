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
//! A message is blocked while another one of its key is out; see [`Lines`].

mod consume;
mod leave;
mod order;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ask::{GroupName, Reason, Receipt};
use crate::event::Delivered;
use crate::lines::Lines;
use crate::runs::Runs;
use crate::shared::{Freeing, Shared};
use crate::thin::{thin, thin_set};

/// Consumers without a lease that are remembered: many of them take the next message soon.
const IDLE_HOLDERS_MAX: usize = 16;

/// State of a message that is not blocked, and not ready without ever having been leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is ready or blocked.
    Idle,
    /// A consumer has it.
    Leased { consumer: u64, until_ms: u64 },
    /// It waits for its time.
    Delayed { until_ms: u64 },
    /// It is on its way to another queue.
    Leaving { number: u64 },
}

/// What is known of a message beyond that it is pending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// How often it was delivered.
    pub(crate) count: u32,
    /// In which life of the queue that was the last time.
    pub(crate) life: u32,
    /// When it was for the first time.
    pub(crate) first_ms: u64,
    /// Since it was refused for the last time it waits until then.
    pub(crate) not_before_ms: u64,
    pub(crate) state: State,
}

impl Entry {
    pub(crate) const NEW: Self =
        Self { count: 0, life: 0, first_ms: 0, not_before_ms: 0, state: State::Idle };

    /// Whether a receipt is the one of its last delivery.
    pub(crate) fn is_of(&self, receipt: Receipt) -> bool {
        (self.count, self.life) == (receipt.count, receipt.life) && self.count > 0
    }

    /// What of its deliveries is to last.
    pub(crate) fn delivered(&self) -> Delivered {
        Delivered { count: self.count, life: self.life, first_ms: self.first_ms }
    }
}

/// A message that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(crate) offset: u64,
    pub(crate) reason: Reason,
    pub(crate) since_ms: u64,
}

/// The only one that gets messages.
#[derive(Clone, Copy, Debug)]
struct Active {
    consumer: u64,
    asked_ms: u64,
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) delivered: u64,
    pub(crate) redelivered: u64,
    pub(crate) acked: u64,
    pub(crate) nacked: u64,
    pub(crate) dead: u64,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: u32,
    pub(crate) name: GroupName,
    /// The flush that says that it is there, if that is of this queue's own: nobody is given anything before that is durable.
    pub(crate) begun_by: u64,
    /// Groups from this number on are opened when it is removed.
    pub(crate) removed_before: u32,
    /// All that it has not settled and knows.
    pub(crate) pending: Runs,
    /// What it has to settle besides, and does not know: of messages that are registered, because it is
    /// [behind](crate::behind). None of these leaves.
    pub(crate) unknown: Runs,
    /// It is to learn no more before this flush is durable, if it is not 0.
    pub(crate) learns_behind: u64,
    /// What may be leased, by priority.
    pub(crate) ready: [Runs; 10],
    pub(crate) entries: BTreeMap<u64, Entry>,
    lines: Lines,
    /// Those for which it is not yet so, whether there is order by key, as the queue is set to.
    turning: Runs,
    /// Ends of leases and delays.
    due: BTreeSet<(u64, u64)>,
    /// What leaves, by number.
    pub(crate) leaving: BTreeMap<u64, Gone>,
    pub(crate) last_number: u64,
    /// Numbers up to here have been taken by the caller.
    taken_to: u64,
    /// Numbers up to here are durable.
    durable_to: u64,
    /// Last number of each flush that is not durable yet.
    sealed: VecDeque<(u64, u64)>,
    pub(crate) leased: u64,
    pub(crate) delayed: u64,
    active: Option<Active>,
    /// Leases of each consumer, and of some that have none at the moment.
    held: BTreeMap<u64, u64>,
    pub(crate) counters: Counters,
}

impl Group {
    pub(crate) fn new(id: u32, name: GroupName, last_number: u64) -> Self {
        Self {
            id,
            name,
            begun_by: 0,
            removed_before: u32::MAX,
            pending: Runs::default(),
            unknown: Runs::default(),
            learns_behind: 0,
            ready: Default::default(),
            entries: BTreeMap::new(),
            lines: Lines::default(),
            turning: Runs::default(),
            due: BTreeSet::new(),
            leaving: BTreeMap::new(),
            last_number,
            taken_to: 0,
            durable_to: last_number,
            sealed: VecDeque::new(),
            leased: 0,
            delayed: 0,
            active: None,
            held: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// Whether it is durable that it is there, when all flushes up to this one are.
    pub(crate) fn has_begun(&self, durable_to: u64) -> bool {
        self.begun_by <= durable_to
    }

    /// The state of a pending message.
    pub(crate) fn state(&self, offset: u64) -> State {
        self.entries.get(&offset).map_or(State::Idle, |entry| entry.state)
    }

    /// Whether an idle message may be leased.
    pub(crate) fn is_ready(&self, shared: &Shared, offset: u64) -> bool {
        shared.pool.get(offset).is_some_and(|known| self.ready[usize::from(known.priority)].contains(offset))
    }

    /// When a lease or a delay ends, or the active consumer has been silent for too long.
    pub(crate) fn next_due(&self, shared: &Shared) -> Option<u64> {
        let due = self.due.first().map(|&(at, _)| at);
        let silent = self.active.filter(|active| !self.holds(active.consumer));
        let silent = silent.map(|active| active.asked_ms.saturating_add(shared.config.lease_ms));
        due.into_iter().chain(silent).min()
    }

    /// The line that a message stands in.
    pub(crate) fn line_of(&self, shared: &Shared, offset: u64) -> Option<u64> {
        let has_order = shared.config.fifo != self.turning.contains(offset);
        if has_order { shared.pool.get(offset)?.key() } else { None }
    }

    /// Whether something is remembered, by what it is.
    pub(crate) fn unfinished(&self) -> [(&'static str, bool); 9] {
        [
            ("pending messages", !self.pending.is_empty()),
            ("unknown messages", !self.unknown.is_empty()),
            ("ready messages", self.ready.iter().any(|ready| !ready.is_empty())),
            ("deliveries", !self.entries.is_empty()),
            ("lines", !self.lines.is_empty()),
            ("ends of leases and delays", !self.due.is_empty()),
            ("leaving messages", !self.leaving.is_empty() || !self.sealed.is_empty()),
            ("leases and delays", self.leased + self.delayed > 0),
            ("holders", self.held.values().any(|held| *held > 0) || self.held.len() > IDLE_HOLDERS_MAX + 1),
        ]
    }

    // --- coming in

    /// A message is to be settled here that the pool knows.
    pub(crate) fn add(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.pending.insert(offset);
        shared.pool.pend(offset);
        self.admit(shared, offset, now_ms);
    }

    /// Is given the next message from `from` on that was there before this group: which one.
    pub(crate) fn join(&mut self, shared: &mut Shared, from: u64, now_ms: u64) -> Option<u64> {
        let offset = shared.pool.take_late(self.id, from)?;
        if self.misses_behind_others(offset) {
            // Those before it come first.
            self.unknown.insert(offset);
            shared.pool.miss(offset);
            shared.pool.forget_if_settled(offset);
            return Some(offset);
        }
        self.add(shared, offset, now_ms);
        if shared.pool.has_expired(offset, now_ms) {
            self.expel(shared, offset, Reason::Expired, now_ms);
        }
        Some(offset)
    }

    /// The lowest offset from `from` on that it has not settled, but for what it is still to list.
    pub(crate) fn first_from(&self, shared: &Shared, from: u64) -> Option<u64> {
        let late = shared.pool.late(self.id).and_then(|late| late.listed.first_from(from));
        let unknown = self.unknown.first_from(from);
        self.pending.first_from(from).into_iter().chain(unknown).chain(late).min()
    }

    /// It knows a message that it has to settle, and that the pool knows.
    pub(crate) fn learn(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.unknown.remove(offset);
        self.pending.insert(offset);
        shared.pool.pend(offset);
        let entry = self.entries.get(&offset).copied().unwrap_or(Entry::NEW);
        if let State::Leaving { .. } = entry.state {
            return shared.pool.depart(offset);
        }
        self.admit(shared, offset, now_ms);
        if shared.is_spent(entry.count) && entry.not_before_ms <= now_ms {
            self.withdraw(shared, offset);
            self.depart(shared, offset, Reason::MaxDeliveries, now_ms);
        }
    }

    /// Lets an idle message out, or into its line.
    fn admit(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        let Some(key) = self.line_of(shared, offset) else { return self.place(shared, offset, now_ms) };
        if self.lines.enter(key, offset) {
            return self.place(shared, offset, now_ms);
        }
        let Some(later) = self.lines.out(key).filter(|&out| out > offset) else { return };
        if self.lines.is_settled(key, later) || self.unready(shared, later) {
            self.let_earlier_out(shared, key, now_ms);
        }
    }

    /// Makes a message that is ready not so; says whether it was.
    fn unready(&mut self, shared: &Shared, offset: u64) -> bool {
        let known = shared.pool.get(offset);
        known.is_some_and(|known| self.ready[usize::from(known.priority)].remove(offset))
    }

    /// Lets an earlier message of a key out if one waits, instead of the one that is out and idle.
    fn let_earlier_out(&mut self, shared: &Shared, key: u64, now_ms: u64) -> bool {
        let earlier = self.lines.give_way(key);
        if let Some(earlier) = earlier {
            self.let_out(shared, key, earlier, now_ms);
        }
        earlier.is_some()
    }

    /// A message comes out of its line, unless it is settled, or somebody has it.
    fn let_out(&mut self, shared: &Shared, key: u64, offset: u64, now_ms: u64) {
        if !self.lines.is_settled(key, offset) && self.state(offset) == State::Idle {
            self.place(shared, offset, now_ms);
        }
    }

    /// Makes an idle message that is out ready, or lets it wait for its time.
    fn place(&mut self, shared: &Shared, offset: u64, now_ms: u64) {
        let Some(known) = shared.pool.get(offset) else { return };
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

    /// A message that was out is idle: it is out again, unless an earlier one of its key is there by now.
    fn rejoin(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        let Some(key) = self.line_of(shared, offset) else { return self.place(shared, offset, now_ms) };
        if self.lines.enter(key, offset) && !self.let_earlier_out(shared, key, now_ms) {
            self.place(shared, offset, now_ms);
        }
    }

    // --- going out

    /// Makes a pending message idle, and neither ready nor blocked: something else is to become of it at once.
    pub(crate) fn withdraw(&mut self, shared: &mut Shared, offset: u64) {
        match self.state(offset) {
            State::Idle => {
                self.unready(shared, offset);
                return;
            }
            State::Leased { consumer, until_ms } => {
                self.end_lease(offset, consumer, until_ms);
                shared.pool.let_go(offset);
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

    /// A consumer has a message no more.
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

    /// Whether a consumer has messages.
    fn holds(&self, consumer: u64) -> bool {
        self.held.get(&consumer).is_some_and(|held| *held > 0)
    }

    /// A message that was withdrawn is settled.
    pub(crate) fn finish(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.quit(shared, offset, now_ms);
        shared.pool.settle(offset);
    }

    /// A message whose lease has ended, and that was not withdrawn, is settled.
    pub(crate) fn finish_leased(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        self.quit(shared, offset, now_ms);
        shared.pool.settle_held(offset);
    }

    fn quit(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        shared.pool.keep_for_late(offset);
        self.entries.remove(&offset);
        self.quit_line(shared, offset, now_ms);
        self.pending.remove(offset);
        shared.recorder.settled(self.id, offset);
    }

    /// A message is settled here, or leaves: it keeps its place in line until that is durable.
    fn quit_line(&mut self, shared: &mut Shared, offset: u64, now_ms: u64) {
        let Some(key) = self.line_of(shared, offset) else { return };
        let flush = shared.recorder.next_flush();
        self.lines.settle(key, offset, flush);
        shared.freeing.push_back(Freeing { flush, group: self.id, key, offset });
        if self.lines.out(key) == Some(offset) {
            self.let_earlier_out(shared, key, now_ms);
        }
    }

    /// Whether the message of a key that is out is on its way back to where it came from, which may not be durable: the
    /// others of that key may follow it.
    pub(crate) fn is_redriven(&self, key: u64) -> bool {
        let Some(State::Leaving { number }) = self.lines.out(key).map(|out| self.state(out)) else {
            return false;
        };
        self.leaving.get(&number).is_some_and(|gone| gone.reason == Reason::Redriven)
    }

    /// That a message is settled is durable: the next one of its key may come out.
    pub(crate) fn advance(&mut self, shared: &mut Shared, freeing: Freeing, now_ms: u64) {
        let Freeing { flush, key, offset, .. } = freeing;
        if let Some(next) = self.lines.depart(key, offset, flush) {
            self.let_out(shared, key, next, now_ms);
        }
    }

    /// A message has expired, or there are too many: it leaves if nobody has it.
    pub(crate) fn expel(&mut self, shared: &mut Shared, offset: u64, reason: Reason, now_ms: u64) {
        if self.pending.contains(offset) && matches!(self.state(offset), State::Idle | State::Delayed { .. })
        {
            self.withdraw(shared, offset);
            self.depart(shared, offset, reason, now_ms);
        }
    }

    /// It is removed: lets go of what it has, as long as `most` is not 0.
    pub(crate) fn let_all_go(&mut self, shared: &mut Shared, most: &mut usize) {
        while *most > 0
            && let Some(offset) = self.pending.first()
        {
            *most -= 1;
            self.pending.remove(offset);
            match self.state(offset) {
                State::Leaving { number } => {
                    self.leaving.remove(&number);
                    shared.pool.settle_departed(offset);
                }
                State::Leased { .. } => {
                    shared.pool.let_go(offset);
                    shared.pool.settle(offset);
                }
                State::Idle | State::Delayed { .. } => shared.pool.settle(offset),
            }
            self.entries.remove(&offset);
        }
        while *most > 0 && shared.pool.refuse_late(self.id) {
            *most -= 1;
        }
        if *most > 0 {
            self.thin(most);
        }
    }

    /// Forgets what it knows, as long as `most` is not 0: that takes a while.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        self.pending.thin(most);
        self.unknown.thin(most);
        self.ready.iter_mut().for_each(|ready| ready.thin(most));
        thin(&mut self.entries, most);
        thin(&mut self.leaving, most);
        thin_set(&mut self.due, most);
        self.lines.thin(most);
    }
}
