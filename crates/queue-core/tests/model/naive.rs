//! A naive implementation of a queue: it answers every question by examining all messages.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_queue_core::{
    Config, Disposition, Lease, Meta, Overflow, Reason, Receipt, Redriven, Settlement, Start,
};

/// Messages that a new one evicts at most.
const EVICTED_AT_ONCE: usize = 16;
const TWELVE_HOURS_MS: u64 = 43_200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Leased { consumer: u64, until_ms: u64 },
    Delayed { until_ms: u64 },
    Leaving { number: u64, reason: Reason, since_ms: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) count: u32,
    incarnation: u32,
    first_ms: u64,
    not_before_ms: u64,
    pub(crate) state: State,
}

const NEW: Message = Message { count: 0, incarnation: 0, first_ms: 0, not_before_ms: 0, state: State::Idle };

/// A settled message that blocks its key until this flush is durable.
#[derive(Clone, Debug)]
struct Awaiting {
    flush: u64,
    key: u64,
    offset: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    pub(crate) delivered: u64,
    pub(crate) redelivered: u64,
    pub(crate) acked: u64,
    pub(crate) nacked: u64,
    pub(crate) dead: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) messages: BTreeMap<u64, Message>,
    /// Messages that a new group has still to take over.
    pub(crate) joining: BTreeSet<u64>,
    /// Messages that it has to settle and has not loaded.
    pub(crate) unknown: BTreeMap<u64, Message>,
    /// It loads nothing until this flush is durable; 0 for no such limit.
    loads_after_flush: u64,
    /// It delivers nothing until this flush is durable.
    created_by_flush: u64,
    /// Whether it may have nothing to take over although the queue has still to examine some messages.
    pub(crate) is_new: bool,
    last_number: u64,
    taken_to: u64,
    /// The flush that records a transfer number.
    number_flush: BTreeMap<u64, u64>,
    awaiting: Vec<Awaiting>,
    /// Offsets to which a change of the `fifo` setting has not been applied.
    fifo_pending: BTreeSet<u64>,
    active: Option<(u64, u64)>,
    pub(crate) counters: Counters,
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    pub(crate) config: Config,
    /// All messages that were ever registered.
    metas: BTreeMap<u64, Meta>,
    pub(crate) groups: Vec<Group>,
    /// Removed groups whose messages are not released.
    pub(crate) removed_groups: Vec<Group>,
    pub(crate) registered_to: u64,
    seen: Vec<(Box<[u8]>, u64)>,
    movers: BTreeMap<Box<str>, u64>,
    pub(crate) duplicates: u64,
    pub(crate) dropped: Vec<u64>,
    last_number: u64,
    pub(crate) flushed: u64,
    durable: u64,
    incarnation: u32,
}

impl Naive {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            metas: BTreeMap::new(),
            groups: vec![Group { is_new: false, ..Group::new("default", 0) }],
            removed_groups: Vec::new(),
            registered_to: 0,
            seen: Vec::new(),
            movers: BTreeMap::new(),
            duplicates: 0,
            dropped: Vec::new(),
            last_number: 0,
            flushed: 0,
            durable: 0,
            incarnation: 0,
        }
    }

    pub(crate) fn begin_incarnation(&mut self, incarnation: u32) {
        self.incarnation = incarnation;
    }

    /// The state after a crash that left this much, with the messages that are still in the log. `is_unknown` tells
    /// which messages a group has not loaded.
    pub(crate) fn restored(
        &self,
        config: &Config,
        log: &BTreeMap<u64, Meta>,
        to: u64,
        now_ms: u64,
        is_unknown: impl Fn(&str, u64) -> bool,
    ) -> Self {
        let mut again = self.clone();
        again.config = config.clone();
        (again.flushed, again.durable, again.duplicates) = (0, 0, 0);
        again.metas.clear();
        again.removed_groups.clear();
        for group in &mut again.groups {
            group.messages.clear();
            group.joining.clear();
            group.unknown.clear();
            (group.loads_after_flush, group.created_by_flush) = (0, 0);
            group.is_new = false;
            group.awaiting.clear();
            group.fifo_pending.clear();
            group.number_flush.clear();
            (group.taken_to, group.active, group.counters) = (0, None, Counters::default());
        }
        for (&offset, meta) in log {
            if offset >= self.registered_to {
                again.register(meta, now_ms, |group| is_unknown(group, offset));
                continue;
            }
            again.metas.insert(offset, meta.clone());
            for at in 0..again.groups.len() {
                let group = &self.groups[at];
                let joining = group.joining.contains(&offset).then_some(&NEW);
                let here = group.messages.get(&offset).or(group.unknown.get(&offset));
                let Some(old) = here.or(joining) else { continue };
                let mut message = old.clone();
                if !matches!(message.state, State::Leaving { .. }) {
                    message.state = State::Idle;
                }
                if is_unknown(&group.name, offset) {
                    again.groups[at].unknown.insert(offset, message);
                    continue;
                }
                again.groups[at].messages.insert(offset, message.clone());
                let is_spent = again.is_spent(message.count) && message.not_before_ms <= now_ms;
                if message.state == State::Idle && is_spent {
                    again.begin_transfer(at, offset, Reason::MaxDeliveries, now_ms);
                }
            }
            again.settle_down(now_ms);
            again.enforce_limits(EVICTED_AT_ONCE, now_ms);
        }
        again.registered_to = to;
        again
    }

    pub(crate) fn index(&self, group: &str) -> Option<usize> {
        self.groups.iter().position(|other| other.name == group)
    }

    fn is_spent(&self, count: u32) -> bool {
        self.config.max_deliveries > 0 && count >= self.config.max_deliveries
    }

    fn expires_ms(&self, meta: &Meta) -> u64 {
        match self.config.ttl_ms {
            0 => meta.expires_ms,
            ttl_ms => meta.expires_ms.min(meta.timestamp_ms + ttl_ms),
        }
    }

    /// The key of a message in a group that orders it by key.
    fn key(&self, at: usize, offset: u64) -> Option<u64> {
        let has_order = self.config.fifo != self.groups[at].fifo_pending.contains(&offset);
        if has_order { self.metas[&offset].key } else { None }
    }

    /// Whether a message that does not leave waits for another one of its key.
    fn is_blocked(&self, at: usize, offset: u64) -> bool {
        let group = &self.groups[at];
        let Some(key) = self.key(at, offset) else { return false };
        if matches!(group.messages[&offset].state, State::Leased { .. } | State::Delayed { .. }) {
            return false;
        }
        let of_key =
            group.messages.iter().filter(|&(&other, _)| other != offset && self.key(at, other) == Some(key));
        let mut others = of_key.filter(|(_, message)| !matches!(message.state, State::Leaving { .. }));
        group.awaiting.iter().any(|awaiting| awaiting.key == key && awaiting.offset < offset)
            || others.any(|(&other, message)| other < offset || message.state != State::Idle)
    }

    pub(crate) fn is_ready(&self, at: usize, offset: u64) -> bool {
        self.groups[at].messages[&offset].state == State::Idle && !self.is_blocked(at, offset)
    }

    /// Delays available messages that are not due.
    pub(crate) fn settle_down(&mut self, now_ms: u64) {
        for at in 0..self.groups.len() {
            let offsets: Vec<u64> = self.groups[at].messages.keys().copied().collect();
            for offset in offsets {
                let until_ms =
                    self.metas[&offset].due_ms.max(self.groups[at].messages[&offset].not_before_ms);
                if until_ms > now_ms && self.is_ready(at, offset) {
                    self.message(at, offset).state = State::Delayed { until_ms };
                }
            }
        }
    }

    fn message(&mut self, at: usize, offset: u64) -> &mut Message {
        self.groups[at].messages.get_mut(&offset).expect("it is pending")
    }

    // --- messages enter and leave groups

    /// `is_unknown` tells which groups do not load the message.
    pub(crate) fn register(&mut self, meta: &Meta, now_ms: u64, is_unknown: impl Fn(&str) -> bool) {
        self.registered_to = meta.offset + 1;
        let is_duplicate = match (&meta.moved_by, &meta.dedup_id) {
            (Some((who, number)), _) => {
                let highest = self.movers.get(who).copied().unwrap_or(0);
                self.movers.insert(who.clone(), highest.max(*number));
                *number <= highest
            }
            (None, Some(id)) if self.config.dedup_window_ms > 0 => {
                let last = self.seen.iter().rev().find(|(seen, _)| seen == id);
                let is_duplicate = last.is_some_and(|(_, seen_ms)| {
                    meta.timestamp_ms.saturating_sub(*seen_ms) < self.config.dedup_window_ms
                });
                if !is_duplicate {
                    self.seen.push((id.clone(), meta.timestamp_ms));
                }
                is_duplicate
            }
            _ => false,
        };
        if is_duplicate {
            self.duplicates += 1;
            self.dropped.push(meta.offset);
            return;
        }
        self.metas.insert(meta.offset, meta.clone());
        for group in &mut self.groups {
            if is_unknown(&group.name) {
                group.unknown.insert(meta.offset, NEW);
            } else if group.joining.is_empty() {
                group.messages.insert(meta.offset, NEW);
            } else {
                group.joining.insert(meta.offset);
            }
        }
        self.settle_down(now_ms);
        self.enforce_limits(EVICTED_AT_ONCE, now_ms);
    }

    fn finish(&mut self, at: usize, offset: u64) {
        if let Some(key) = self.key(at, offset) {
            let flush = self.flushed + 1;
            self.groups[at].awaiting.retain(|awaiting| awaiting.offset != offset);
            self.groups[at].awaiting.push(Awaiting { flush, key, offset });
        }
        self.groups[at].messages.remove(&offset);
    }

    fn begin_transfer(&mut self, at: usize, offset: u64, reason: Reason, now_ms: u64) {
        if reason != Reason::Redriven {
            self.groups[at].counters.dead += 1;
            if !self.config.dead_letters {
                return self.finish(at, offset);
            }
        }
        let mut message = self.groups[at].messages[&offset].clone();
        self.finish(at, offset);
        let flush = self.flushed + 1;
        let group = &mut self.groups[at];
        group.last_number += 1;
        group.number_flush.insert(group.last_number, flush);
        message.state = State::Leaving { number: group.last_number, reason, since_ms: now_ms };
        group.messages.insert(offset, message);
    }

    /// Removed groups with messages included.
    fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().chain(&self.removed_groups)
    }

    /// Whether some group has the message to settle or to take over.
    fn is_there(&self, offset: u64) -> bool {
        let mut all = self.all_groups();
        all.any(|group| {
            let is_known = group.messages.contains_key(&offset) || group.joining.contains(&offset);
            is_known || group.unknown.contains_key(&offset)
        })
    }

    /// Whether some group has to settle the message without having loaded it.
    fn is_missed(&self, offset: u64) -> bool {
        self.all_groups().any(|group| group.unknown.contains_key(&offset))
    }

    /// A group loads a message.
    pub(crate) fn load_missed(&mut self, at: usize, offset: u64, now_ms: u64) {
        let Some(message) = self.groups[at].unknown.remove(&offset) else { return };
        let count = message.count;
        let is_spent = self.is_spent(count) && message.not_before_ms <= now_ms;
        self.groups[at].messages.insert(offset, message);
        if is_spent {
            self.begin_transfer(at, offset, Reason::MaxDeliveries, now_ms);
        } else if self.has_expired(offset, now_ms) {
            self.begin_transfer(at, offset, Reason::Expired, now_ms);
        }
        self.settle_down(now_ms);
    }

    /// A group does not load a message that it takes over.
    pub(crate) fn miss_joining(&mut self, at: usize, offset: u64) {
        self.groups[at].joining.remove(&offset);
        self.groups[at].unknown.insert(offset, NEW);
    }

    /// Number and bytes of messages that do not leave every group.
    fn staying(&self) -> (u64, u64) {
        let stays = |offset: &u64| {
            let mut states = self.all_groups().filter_map(|group| group.messages.get(offset));
            states.any(|message| !matches!(message.state, State::Leaving { .. })) || self.is_missed(*offset)
        };
        let staying = self.metas.iter().filter(|(offset, _)| stays(offset));
        staying.fold((0, 0), |(count, bytes), (_, meta)| (count + 1, bytes + u64::from(meta.bytes)))
    }

    pub(crate) fn exceeds(&self, messages: u64, bytes: u64) -> bool {
        let (length, size) = self.staying();
        let over = |most: u64, there: u64| most > 0 && there > most;
        over(self.config.length_max, length + messages) || over(self.config.bytes_max, size + bytes)
    }

    fn enforce_limits(&mut self, most: usize, now_ms: u64) {
        for _ in 0..most {
            if self.config.overflow == Overflow::Reject || !self.exceeds(0, 0) {
                return;
            }
            let is_free = |offset: &u64| {
                let mut states = self.all_groups().filter_map(|group| group.messages.get(offset));
                self.is_there(*offset)
                    && !self.is_missed(*offset)
                    && states.all(|message| matches!(message.state, State::Idle | State::Delayed { .. }))
            };
            let Some(oldest) = self.metas.keys().copied().find(is_free) else { return };
            self.expel(oldest, Reason::Overflow, now_ms);
            self.settle_down(now_ms);
        }
    }

    fn expel(&mut self, offset: u64, reason: Reason, now_ms: u64) {
        for at in 0..self.groups.len() {
            let state = self.groups[at].messages.get(&offset).map(|message| message.state);
            if matches!(state, Some(State::Idle | State::Delayed { .. })) {
                self.begin_transfer(at, offset, reason, now_ms);
            }
        }
    }

    // --- consuming

    fn is_silent(&self, at: usize, (consumer, asked_ms): (u64, u64), now_ms: u64) -> bool {
        let holds =
            |message: &Message| matches!(message.state, State::Leased { consumer: of, .. } if of == consumer);
        asked_ms + self.config.lease_ms <= now_ms && !self.groups[at].messages.values().any(holds)
    }

    pub(crate) fn can_lease(&self, at: usize, consumer: u64) -> bool {
        let other = self.groups[at].active.is_some_and(|(active, _)| active != consumer);
        let mut offsets = self.groups[at].messages.keys();
        let may = !(self.config.single_active_consumer && other)
            && self.groups[at].created_by_flush <= self.durable;
        may && offsets.any(|&offset| self.is_ready(at, offset))
    }

    pub(crate) fn lease(
        &mut self,
        at: usize,
        consumer: u64,
        max: usize,
        lease_ms: Option<u64>,
        now_ms: u64,
    ) -> Vec<Lease> {
        let mut leases = Vec::new();
        if self.config.single_active_consumer {
            let active = self.groups[at].active.filter(|&active| !self.is_silent(at, active, now_ms));
            if active.is_some_and(|(active, _)| active != consumer) {
                return leases;
            }
            self.groups[at].active = Some((consumer, now_ms));
        }
        if self.groups[at].created_by_flush > self.durable {
            return leases;
        }
        let until_ms = now_ms + lease_ms.unwrap_or(self.config.lease_ms).clamp(1, TWELVE_HOURS_MS);
        while leases.len() < max {
            let ready = self.groups[at].messages.keys().copied().filter(|&offset| self.is_ready(at, offset));
            let Some(offset) = ready.min_by_key(|offset| (9 - self.metas[offset].priority, *offset)) else {
                break;
            };
            if self.expires_ms(&self.metas[&offset]) <= now_ms {
                self.begin_transfer(at, offset, Reason::Expired, now_ms);
                continue;
            }
            let incarnation = self.incarnation;
            let message = self.message(at, offset);
            let is_again = message.count > 0;
            if !is_again {
                message.first_ms = now_ms;
            }
            message.count += 1;
            let previous_incarnation = std::mem::replace(&mut message.incarnation, incarnation);
            message.not_before_ms = 0;
            message.state = State::Leased { consumer, until_ms };
            let (count, first_delivered_ms) = (message.count, message.first_ms);
            let receipt = Receipt { offset, count, incarnation };
            leases.push(Lease { receipt, previous_incarnation, first_delivered_ms, until_ms });
            let counters = &mut self.groups[at].counters;
            counters.delivered += 1;
            counters.redelivered += u64::from(is_again);
        }
        leases
    }

    /// Cancels a lease that was just made.
    pub(crate) fn cancel_lease(&mut self, at: usize, lease: &Lease, now_ms: u64) {
        self.undo_delivery(at, lease.receipt.offset, lease.previous_incarnation, now_ms);
        self.settle_down(now_ms);
    }

    fn undo_delivery(&mut self, at: usize, offset: u64, previous_incarnation: u32, now_ms: u64) {
        let message = self.message(at, offset);
        message.count -= 1;
        message.incarnation = previous_incarnation;
        message.state = State::Idle;
        let is_again = message.count > 0;
        let counters = &mut self.groups[at].counters;
        counters.delivered -= 1;
        counters.redelivered -= u64::from(is_again);
        if self.expires_ms(&self.metas[&offset]) <= now_ms {
            self.begin_transfer(at, offset, Reason::Expired, now_ms);
        }
    }

    pub(crate) fn settle(&mut self, at: usize, settlement: Settlement, now_ms: u64, random: u32) -> bool {
        let Receipt { offset, count, incarnation } = settlement.receipt;
        let is_it =
            |message: &&Message| (message.count, message.incarnation) == (count, incarnation) && count > 0;
        if self.groups[at].unknown.get(&offset).as_ref().is_some_and(is_it) {
            let is_acked = settlement.disposition == Disposition::Ack;
            if is_acked {
                self.groups[at].unknown.remove(&offset);
                self.groups[at].loads_after_flush = self.flushed + 1;
                self.groups[at].counters.acked += 1;
            }
            return is_acked;
        }
        let message = self.groups[at].messages.get(&offset).filter(is_it);
        let Some(message) = message.cloned() else { return false };
        let (is_leased, is_idle) =
            (matches!(message.state, State::Leased { .. }), message.state == State::Idle);
        match settlement.disposition {
            Disposition::Ack if is_leased || is_idle => {
                self.finish(at, offset);
                self.groups[at].counters.acked += 1;
            }
            Disposition::Reject if is_leased || is_idle => {
                self.begin_transfer(at, offset, Reason::Rejected, now_ms);
                self.groups[at].counters.nacked += 1;
            }
            Disposition::Nack(delay_ms) if is_leased => {
                let jitter = u64::from(self.config.backoff_jitter_percent);
                let backoff_ms = (self.config.backoff_ms << (count - 1)).min(self.config.backoff_max_ms);
                let backoff_ms = backoff_ms - (((backoff_ms * jitter / 100) * u64::from(random)) >> 32);
                self.groups[at].counters.nacked += 1;
                self.return_message(at, offset, delay_ms.unwrap_or(backoff_ms).min(TWELVE_HOURS_MS), now_ms);
            }
            Disposition::Release if is_leased => self.return_message(at, offset, 0, now_ms),
            Disposition::Unsent if is_leased => {
                self.incarnation += 1;
                self.undo_delivery(at, offset, if count > 1 { message.incarnation } else { 0 }, now_ms);
            }
            Disposition::Extend(ms) if is_leased => {
                let State::Leased { consumer, .. } = message.state else { unreachable!() };
                let until_ms = now_ms + ms.clamp(1, TWELVE_HOURS_MS);
                self.message(at, offset).state = State::Leased { consumer, until_ms };
            }
            _ => return false,
        }
        self.settle_down(now_ms);
        true
    }

    fn return_message(&mut self, at: usize, offset: u64, delay_ms: u64, now_ms: u64) {
        let count = self.groups[at].messages[&offset].count;
        if self.is_spent(count) {
            return self.begin_transfer(at, offset, Reason::MaxDeliveries, now_ms);
        }
        if self.expires_ms(&self.metas[&offset]) <= now_ms {
            return self.begin_transfer(at, offset, Reason::Expired, now_ms);
        }
        let message = self.message(at, offset);
        message.state = State::Idle;
        if delay_ms > 0 {
            message.not_before_ms = now_ms + delay_ms;
        }
    }

    pub(crate) fn leave(&mut self, at: usize, consumer: u64) {
        let active = &mut self.groups[at].active;
        *active = active.filter(|&(active, _)| active != consumer);
    }

    /// The first time when something happens by itself.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let mut due: Vec<u64> = Vec::new();
        for group in &self.groups {
            for (offset, message) in &group.messages {
                match message.state {
                    State::Leased { until_ms, .. } => due.push(until_ms),
                    State::Delayed { until_ms } => {
                        due.extend([until_ms, self.expires_ms(&self.metas[offset])]);
                    }
                    State::Idle => due.push(self.expires_ms(&self.metas[offset])),
                    State::Leaving { .. } => {}
                }
            }
        }
        due.into_iter().filter(|&at| at != u64::MAX).min()
    }

    pub(crate) fn maintain(&mut self, now_ms: u64) {
        self.apply_fifo(usize::MAX, now_ms);
        self.join_all(now_ms);
        self.removed_groups.clear();
        for at in 0..self.groups.len() {
            let mut due: Vec<(u64, u64)> = Vec::new();
            for (&offset, message) in &self.groups[at].messages {
                if let State::Leased { until_ms, .. } | State::Delayed { until_ms } = message.state
                    && until_ms <= now_ms
                {
                    due.push((until_ms, offset));
                }
            }
            due.sort_unstable();
            for (_, offset) in due {
                if let State::Leased { .. } = self.message(at, offset).state {
                    self.groups[at].counters.nacked += 1;
                    self.return_message(at, offset, 0, now_ms);
                } else {
                    self.message(at, offset).state = State::Idle;
                }
            }
            let active = self.groups[at].active;
            self.groups[at].active = active.filter(|&active| !self.is_silent(at, active, now_ms));
        }
        self.settle_down(now_ms);
        let times = self.metas.iter().map(|(&offset, meta)| (self.expires_ms(meta), offset));
        let mut expired: Vec<(u64, u64)> = times.filter(|&(at, _)| at <= now_ms).collect();
        expired.sort_unstable();
        for (_, offset) in expired {
            self.expel(offset, Reason::Expired, now_ms);
        }
        self.settle_down(now_ms);
        self.enforce_limits(usize::MAX, now_ms);
    }

    // --- durability, transfers

    pub(crate) fn durable(&mut self, flush: u64, now_ms: u64) {
        self.durable = flush;
        for group in &mut self.groups {
            group.awaiting.retain(|awaiting| awaiting.flush > flush);
            if group.loads_after_flush <= flush {
                group.loads_after_flush = 0;
            }
        }
        self.settle_down(now_ms);
    }

    /// Group, number, offset, count and reason of leaving messages.
    pub(crate) fn take_leaving(&mut self, max: usize) -> Vec<(String, u64, u64, u32, Reason, u64)> {
        let mut taken = Vec::new();
        for group in &mut self.groups {
            let mut leaving: Vec<(u64, u64, u32, Reason, u64)> = Vec::new();
            for (&offset, message) in &group.messages {
                if let State::Leaving { number, reason, since_ms } = message.state {
                    leaving.push((number, offset, message.count, reason, since_ms));
                }
            }
            leaving.sort_unstable_by_key(|leaving| leaving.0);
            for (number, offset, count, reason, since_ms) in leaving {
                let is_durable = group.number_flush.get(&number).is_none_or(|&flush| flush <= self.durable);
                if number > group.taken_to && is_durable && taken.len() < max {
                    group.taken_to = number;
                    taken.push((group.name.clone(), number, offset, count, reason, since_ms));
                }
            }
        }
        taken
    }

    pub(crate) fn give_back(&mut self, at: usize, from_number: u64) {
        let taken_to = &mut self.groups[at].taken_to;
        *taken_to = (*taken_to).min(from_number - 1);
    }

    pub(crate) fn complete_transfer(&mut self, at: usize, number: u64) {
        let is_it =
            |message: &Message| matches!(message.state, State::Leaving { number: of, .. } if of == number);
        self.groups[at].messages.retain(|_, message| !is_it(message));
    }

    // --- operators

    pub(crate) fn open_group(&mut self, name: &str) {
        if self.index(name).is_some() {
            return;
        }
        self.incarnation += 1;
        let mut fresh = Group::new(name, self.last_number);
        fresh.created_by_flush = self.flushed + 1;
        if self.config.start == Start::Earliest {
            for group in &self.groups {
                let staying = group
                    .messages
                    .iter()
                    .filter(|(_, message)| !matches!(message.state, State::Leaving { .. }));
                fresh.joining.extend(staying.map(|(&offset, _)| offset));
                fresh.joining.extend(&group.joining);
                fresh.joining.extend(group.unknown.keys());
            }
        }
        self.groups.push(fresh);
    }

    /// A group takes over the first `most` messages.
    pub(crate) fn join(&mut self, at: usize, most: usize, now_ms: u64) {
        let offsets: Vec<u64> = self.groups[at].joining.iter().copied().take(most).collect();
        for &offset in &offsets {
            self.groups[at].joining.remove(&offset);
            self.groups[at].messages.insert(offset, NEW);
        }
        self.settle_down(now_ms);
        for offset in offsets {
            if self.expires_ms(&self.metas[&offset]) <= now_ms {
                self.begin_transfer(at, offset, Reason::Expired, now_ms);
            }
        }
        self.settle_down(now_ms);
    }

    /// All groups take over all messages.
    pub(crate) fn join_all(&mut self, now_ms: u64) {
        (0..self.groups.len()).for_each(|at| self.join(at, usize::MAX, now_ms));
        self.groups.iter_mut().for_each(|group| group.is_new = false);
    }

    pub(crate) fn has_expired(&self, offset: u64, now_ms: u64) -> bool {
        self.expires_ms(&self.metas[&offset]) <= now_ms
    }

    pub(crate) fn remove_group(&mut self, at: usize) {
        let gone = self.groups.remove(at);
        self.last_number = self.last_number.max(gone.last_number);
        self.removed_groups.push(gone);
    }

    pub(crate) fn purge(&mut self, group: Option<usize>) -> u64 {
        let before = self.staying().0;
        let mut purged = 0;
        for at in (0..self.groups.len()).filter(|&at| group.is_none_or(|group| group == at)) {
            let messages = self.groups[at].messages.iter();
            let staying = messages.filter(|(_, message)| !matches!(message.state, State::Leaving { .. }));
            let offsets: Vec<u64> = staying.map(|(&offset, _)| offset).collect();
            let mut joining = std::mem::take(&mut self.groups[at].joining);
            let unknown = std::mem::take(&mut self.groups[at].unknown);
            let first = unknown.keys().next().copied();
            let (first, is_last) = (first.unwrap_or(u64::MAX), self.groups[at].loads_after_flush > 0);
            if !unknown.is_empty() {
                self.groups[at].loads_after_flush = self.flushed + 1;
            }
            // Messages after those that it has not loaded are not loaded either.
            let last = self.groups[at].messages.keys().last().copied().unwrap_or(0);
            let before = joining.len();
            joining.retain(|offset| *offset < first && !(is_last && *offset > last));
            if joining.len() < before {
                self.groups[at].loads_after_flush = self.flushed + 1;
            }
            purged += (unknown.len() + before - joining.len()) as u64;
            for &offset in &joining {
                self.groups[at].messages.insert(offset, NEW);
            }
            for offset in offsets.into_iter().chain(joining) {
                self.finish(at, offset);
                purged += 1;
            }
        }
        if group.is_none() { before - self.staying().0 } else { purged }
    }

    /// Applies the change to `most` messages.
    pub(crate) fn configure(&mut self, config: Config, most: usize, now_ms: u64) {
        let old = std::mem::replace(&mut self.config, config);
        for group in &mut self.groups {
            if old.fifo != self.config.fifo {
                let fifo_pending =
                    (0..self.registered_to).filter(|offset| !group.fifo_pending.contains(offset));
                group.fifo_pending = fifo_pending.collect();
            }
            if old.single_active_consumer != self.config.single_active_consumer {
                group.active = None;
            }
        }
        self.apply_fifo(most, now_ms);
        self.enforce_limits(most, now_ms);
    }

    /// Applies the `fifo` setting to some messages.
    fn apply_fifo(&mut self, mut most: usize, now_ms: u64) {
        for at in 0..self.groups.len() {
            while most > 0
                && let Some(&first) = self.groups[at].fifo_pending.first()
            {
                most -= 1;
                let group = &mut self.groups[at];
                let pending = group.messages.range(first..).next().map(|(&offset, _)| offset);
                let Some(offset) = pending else {
                    group.fifo_pending.clear();
                    break;
                };
                let turns = group.fifo_pending.contains(&offset);
                group.fifo_pending.retain(|&fifo_pending| fifo_pending > offset);
                let state = group.messages[&offset].state;
                let lines_up = turns && self.key(at, offset).is_some();
                if lines_up && !matches!(state, State::Leaving { .. }) {
                    self.groups[at].awaiting.retain(|awaiting| awaiting.offset != offset);
                    if let State::Delayed { .. } = state {
                        self.message(at, offset).state = State::Idle;
                    }
                }
                self.settle_down(now_ms);
            }
        }
    }

    /// Whether the setting has still to be applied to some messages.
    pub(crate) fn is_applying_fifo(&self) -> bool {
        self.groups.iter().any(|group| !group.fifo_pending.is_empty())
    }

    pub(crate) fn redrive(&mut self, max: u64, now_ms: u64) -> Redriven {
        let offsets: Vec<u64> = self.groups[0].messages.keys().copied().collect();
        let mut redriven = Redriven::default();
        for offset in offsets {
            if redriven.moved == max {
                break;
            }
            let key = self.key(0, offset);
            let can_go = match self.groups[0].messages[&offset].state {
                State::Idle => self.is_ready(0, offset) || key.is_some_and(|key| self.is_redriven(key)),
                State::Delayed { .. } => !key.is_some_and(|key| self.is_leased(key)),
                State::Leased { .. } => false,
                State::Leaving { .. } => continue,
            };
            if self.metas[&offset].moved_by.is_none() {
                continue;
            }
            if can_go {
                self.begin_transfer(0, offset, Reason::Redriven, now_ms);
                redriven.moved += 1;
            } else {
                redriven.skipped += 1;
            }
        }
        redriven
    }

    /// Whether a consumer has a message of a key in the oldest group.
    fn is_leased(&self, key: u64) -> bool {
        let mut all = self.groups[0].messages.iter();
        all.any(|(&offset, message)| {
            matches!(message.state, State::Leased { .. }) && self.key(0, offset) == Some(key)
        })
    }

    /// Whether the first message of a key in the oldest group is being redriven, not durably, and no other one is
    /// leased or delayed.
    fn is_redriven(&self, key: u64) -> bool {
        let group = &self.groups[0];
        let of_key = || group.messages.iter().filter(|&(&offset, _)| self.key(0, offset) == Some(key));
        let is_out = |state| !matches!(state, State::Idle | State::Leaving { .. });
        let idle = of_key().filter(|(_, message)| message.state == State::Idle).map(|(&offset, _)| offset);
        let awaiting = group.awaiting.iter().filter(|awaiting| awaiting.key == key);
        let first = idle.chain(awaiting.map(|awaiting| awaiting.offset)).min();
        let first = first.and_then(|first| group.messages.get(&first));
        !of_key().any(|(_, message)| is_out(message.state))
            && first
                .is_some_and(|first| matches!(first.state, State::Leaving { reason: Reason::Redriven, .. }))
    }

    /// Future deliveries get other receipts.
    pub(crate) fn next_incarnation(&mut self) {
        self.incarnation += 1;
    }

    pub(crate) fn replay_from(&mut self, at: usize, metas: &[Meta], now_ms: u64) -> u64 {
        self.incarnation += 1;
        let mut again = 0;
        for meta in metas {
            let is_over = self.expires_ms(meta) <= now_ms
                || meta.offset >= self.registered_to
                || self.dropped.contains(&meta.offset);
            let group = &self.groups[at];
            let is_known = group.messages.contains_key(&meta.offset) || group.joining.contains(&meta.offset);
            if !is_over && !is_known && !group.unknown.contains_key(&meta.offset) {
                self.metas.insert(meta.offset, meta.clone());
                again += 1;
                let is_last = group.messages.range(meta.offset..).next().is_none();
                let is_lagging = group.unknown.range(..meta.offset).next().is_some();
                if is_lagging || group.loads_after_flush > 0 && is_last {
                    self.groups[at].unknown.insert(meta.offset, NEW);
                    continue;
                }
                if group.joining.first().is_some_and(|joining| *joining < meta.offset) {
                    self.groups[at].joining.insert(meta.offset);
                    continue;
                }
                self.groups[at].messages.insert(meta.offset, NEW);
                if self.key(at, meta.offset).is_some() {
                    self.groups[at].awaiting.retain(|awaiting| awaiting.offset != meta.offset);
                }
                self.settle_down(now_ms);
            }
        }
        again
    }

    pub(crate) fn needed_from(&self) -> u64 {
        let firsts = |group: &'_ Group| {
            let firsts = [group.messages.keys().next(), group.joining.first(), group.unknown.keys().next()];
            let firsts = firsts.map(Option::<&u64>::copied);
            firsts.into_iter().flatten().min()
        };
        self.groups.iter().filter_map(firsts).min().unwrap_or(self.registered_to)
    }

    /// Number and bytes of unsettled messages.
    pub(crate) fn size(&self) -> (u64, u64) {
        let there = self.metas.iter().filter(|(offset, _)| self.is_there(**offset));
        there.fold((0, 0), |(count, bytes), (_, meta)| (count + 1, bytes + u64::from(meta.bytes)))
    }
}

impl Group {
    fn new(name: &str, last_number: u64) -> Self {
        Self {
            name: name.into(),
            messages: BTreeMap::new(),
            joining: BTreeSet::new(),
            unknown: BTreeMap::new(),
            loads_after_flush: 0,
            created_by_flush: 0,
            is_new: true,
            last_number,
            taken_to: 0,
            number_flush: BTreeMap::new(),
            awaiting: Vec::new(),
            fifo_pending: BTreeSet::new(),
            active: None,
            counters: Counters::default(),
        }
    }
}
