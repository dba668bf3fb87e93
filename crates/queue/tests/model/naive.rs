//! The simple version of a queue: every question is answered by looking at all messages.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_queue::{Config, Lease, Meta, Overflow, Reason, Receipt, Settlement, Start, Verdict};

/// Messages that make way for one that comes.
const OUSTED_AT_ONCE: usize = 16;
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
    life: u32,
    first_ms: u64,
    not_before_ms: u64,
    pub(crate) state: State,
}

const NEW: Message = Message { count: 0, life: 0, first_ms: 0, not_before_ms: 0, state: State::Idle };

/// A message of a key that was settled, by an event of this flush.
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
    /// What it is still to be given, which was there before it or came since.
    pub(crate) late: BTreeSet<u64>,
    /// What it has to settle and does not know.
    pub(crate) unknown: BTreeMap<u64, Message>,
    /// It learns nothing until this flush is durable, if it is not 0.
    learns_behind: u64,
    /// It gives nobody anything until this flush is durable.
    begun_by: u64,
    /// Whether there may be nothing of that in spite of what the queue has still to look at.
    pub(crate) is_new: bool,
    last_number: u64,
    taken_to: u64,
    /// Which flush says that a number leaves.
    number_flush: BTreeMap<u64, u64>,
    awaiting: Vec<Awaiting>,
    /// Offsets for which it is not yet so, whether there is order by key, as the queue is set to.
    turning: BTreeSet<u64>,
    active: Option<(u64, u64)>,
    pub(crate) counters: Counters,
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    pub(crate) config: Config,
    /// All messages that were ever registered.
    metas: BTreeMap<u64, Meta>,
    pub(crate) groups: Vec<Group>,
    /// Groups that are removed, of which not all has been let go.
    pub(crate) remains: Vec<Group>,
    pub(crate) registered_to: u64,
    seen: Vec<(Box<[u8]>, u64)>,
    movers: BTreeMap<Box<str>, u64>,
    pub(crate) duplicates: u64,
    pub(crate) dropped: Vec<u64>,
    last_number: u64,
    pub(crate) flushed: u64,
    durable: u64,
    life: u32,
}

impl Naive {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            metas: BTreeMap::new(),
            groups: vec![Group { is_new: false, ..Group::new("default", 0) }],
            remains: Vec::new(),
            registered_to: 0,
            seen: Vec::new(),
            movers: BTreeMap::new(),
            duplicates: 0,
            dropped: Vec::new(),
            last_number: 0,
            flushed: 0,
            durable: 0,
            life: 0,
        }
    }

    pub(crate) fn begin_life(&mut self, life: u32) {
        self.life = life;
    }

    /// After a crash that left this much, with the messages that are still in the log. `is_unknown` says of which a group
    /// does not know then.
    pub(crate) fn made_again(
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
        again.remains.clear();
        for group in &mut again.groups {
            group.messages.clear();
            group.late.clear();
            group.unknown.clear();
            (group.learns_behind, group.begun_by) = (0, 0);
            group.is_new = false;
            group.awaiting.clear();
            group.turning.clear();
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
                let late = group.late.contains(&offset).then_some(&NEW);
                let here = group.messages.get(&offset).or(group.unknown.get(&offset));
                let Some(old) = here.or(late) else { continue };
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
                    again.depart(at, offset, Reason::MaxDeliveries, now_ms);
                }
            }
            again.settle_down(now_ms);
            again.enforce_limits(OUSTED_AT_ONCE, now_ms);
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

    /// The key of a message in a group, if order by that counts for it.
    fn key(&self, at: usize, offset: u64) -> Option<u64> {
        let has_order = self.config.fifo != self.groups[at].turning.contains(&offset);
        if has_order { self.metas[&offset].key } else { None }
    }

    /// Whether a message that does not leave waits for another of its key.
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

    /// What is out and not due waits for its time.
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

    // --- what goes in and out

    /// `is_unknown` says which groups do not know it.
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
            } else if group.late.is_empty() {
                group.messages.insert(meta.offset, NEW);
            } else {
                group.late.insert(meta.offset);
            }
        }
        self.settle_down(now_ms);
        self.enforce_limits(OUSTED_AT_ONCE, now_ms);
    }

    fn finish(&mut self, at: usize, offset: u64) {
        if let Some(key) = self.key(at, offset) {
            let flush = self.flushed + 1;
            self.groups[at].awaiting.retain(|awaiting| awaiting.offset != offset);
            self.groups[at].awaiting.push(Awaiting { flush, key, offset });
        }
        self.groups[at].messages.remove(&offset);
    }

    fn depart(&mut self, at: usize, offset: u64, reason: Reason, now_ms: u64) {
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

    /// Those too of which not all has been let go.
    fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().chain(&self.remains)
    }

    /// Whether some group has not settled a message, or is still to be given it.
    fn is_there(&self, offset: u64) -> bool {
        let mut all = self.all_groups();
        all.any(|group| {
            let is_known = group.messages.contains_key(&offset) || group.late.contains(&offset);
            is_known || group.unknown.contains_key(&offset)
        })
    }

    /// Whether some group does not know a message that it has to settle.
    fn is_missed(&self, offset: u64) -> bool {
        self.all_groups().any(|group| group.unknown.contains_key(&offset))
    }

    /// A group knows a message from now on.
    pub(crate) fn learn(&mut self, at: usize, offset: u64, now_ms: u64) {
        let Some(message) = self.groups[at].unknown.remove(&offset) else { return };
        let count = message.count;
        let is_spent = self.is_spent(count) && message.not_before_ms <= now_ms;
        self.groups[at].messages.insert(offset, message);
        if is_spent {
            self.depart(at, offset, Reason::MaxDeliveries, now_ms);
        } else if self.has_expired(offset, now_ms) {
            self.depart(at, offset, Reason::Expired, now_ms);
        }
        self.settle_down(now_ms);
    }

    /// A group does not know a message that it is still to be given.
    pub(crate) fn miss_late(&mut self, at: usize, offset: u64) {
        self.groups[at].late.remove(&offset);
        self.groups[at].unknown.insert(offset, NEW);
    }

    /// Messages that do not leave everywhere, and their bytes.
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
                self.depart(at, offset, reason, now_ms);
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
        let may = !(self.config.single_active_consumer && other) && self.groups[at].begun_by <= self.durable;
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
        if self.groups[at].begun_by > self.durable {
            return leases;
        }
        let until_ms = now_ms + lease_ms.unwrap_or(self.config.lease_ms).clamp(1, TWELVE_HOURS_MS);
        while leases.len() < max {
            let ready = self.groups[at].messages.keys().copied().filter(|&offset| self.is_ready(at, offset));
            let Some(offset) = ready.min_by_key(|offset| (9 - self.metas[offset].priority, *offset)) else {
                break;
            };
            if self.expires_ms(&self.metas[&offset]) <= now_ms {
                self.depart(at, offset, Reason::Expired, now_ms);
                continue;
            }
            let life = self.life;
            let message = self.message(at, offset);
            let is_again = message.count > 0;
            if !is_again {
                message.first_ms = now_ms;
            }
            message.count += 1;
            let life_before = std::mem::replace(&mut message.life, life);
            message.not_before_ms = 0;
            message.state = State::Leased { consumer, until_ms };
            let (count, first_delivered_ms) = (message.count, message.first_ms);
            let receipt = Receipt { offset, count, life };
            leases.push(Lease { receipt, life_before, first_delivered_ms, until_ms });
            let counters = &mut self.groups[at].counters;
            counters.delivered += 1;
            counters.redelivered += u64::from(is_again);
        }
        leases
    }

    /// Of a lease of just now.
    pub(crate) fn take_back(&mut self, at: usize, lease: &Lease, now_ms: u64) {
        self.uncount(at, lease.receipt.offset, lease.life_before, now_ms);
        self.settle_down(now_ms);
    }

    fn uncount(&mut self, at: usize, offset: u64, life_before: u32, now_ms: u64) {
        let message = self.message(at, offset);
        message.count -= 1;
        message.life = life_before;
        message.state = State::Idle;
        let is_again = message.count > 0;
        let counters = &mut self.groups[at].counters;
        counters.delivered -= 1;
        counters.redelivered -= u64::from(is_again);
        if self.expires_ms(&self.metas[&offset]) <= now_ms {
            self.depart(at, offset, Reason::Expired, now_ms);
        }
    }

    pub(crate) fn settle(&mut self, at: usize, settlement: Settlement, now_ms: u64, random: u32) -> bool {
        let Receipt { offset, count, life } = settlement.receipt;
        let is_it = |message: &&Message| (message.count, message.life) == (count, life) && count > 0;
        if self.groups[at].unknown.get(&offset).as_ref().is_some_and(is_it) {
            let is_acked = settlement.verdict == Verdict::Ack;
            if is_acked {
                self.groups[at].unknown.remove(&offset);
                self.groups[at].learns_behind = self.flushed + 1;
                self.groups[at].counters.acked += 1;
            }
            return is_acked;
        }
        let message = self.groups[at].messages.get(&offset).filter(is_it);
        let Some(message) = message.cloned() else { return false };
        let (is_leased, is_idle) =
            (matches!(message.state, State::Leased { .. }), message.state == State::Idle);
        match settlement.verdict {
            Verdict::Ack if is_leased || is_idle => {
                self.finish(at, offset);
                self.groups[at].counters.acked += 1;
            }
            Verdict::Reject if is_leased || is_idle => {
                self.depart(at, offset, Reason::Rejected, now_ms);
                self.groups[at].counters.nacked += 1;
            }
            Verdict::Nack(delay_ms) if is_leased => {
                let jitter = u64::from(self.config.backoff_jitter_percent);
                let backoff_ms = (self.config.backoff_ms << (count - 1)).min(self.config.backoff_max_ms);
                let backoff_ms = backoff_ms - (((backoff_ms * jitter / 100) * u64::from(random)) >> 32);
                self.groups[at].counters.nacked += 1;
                self.come_back(at, offset, delay_ms.unwrap_or(backoff_ms).min(TWELVE_HOURS_MS), now_ms);
            }
            Verdict::Release if is_leased => self.come_back(at, offset, 0, now_ms),
            Verdict::Unsent if is_leased => {
                self.life += 1;
                self.uncount(at, offset, if count > 1 { message.life } else { 0 }, now_ms);
            }
            Verdict::Extend(ms) if is_leased => {
                let State::Leased { consumer, .. } = message.state else { unreachable!() };
                let until_ms = now_ms + ms.clamp(1, TWELVE_HOURS_MS);
                self.message(at, offset).state = State::Leased { consumer, until_ms };
            }
            _ => return false,
        }
        self.settle_down(now_ms);
        true
    }

    fn come_back(&mut self, at: usize, offset: u64, delay_ms: u64, now_ms: u64) {
        let count = self.groups[at].messages[&offset].count;
        if self.is_spent(count) {
            return self.depart(at, offset, Reason::MaxDeliveries, now_ms);
        }
        if self.expires_ms(&self.metas[&offset]) <= now_ms {
            return self.depart(at, offset, Reason::Expired, now_ms);
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

    /// When something happens by itself for the first time.
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

    pub(crate) fn tend(&mut self, now_ms: u64) {
        self.line_up(usize::MAX, now_ms);
        self.join_all(now_ms);
        self.remains.clear();
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
                    self.come_back(at, offset, 0, now_ms);
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

    // --- lasting, leaving

    pub(crate) fn durable(&mut self, flush: u64, now_ms: u64) {
        self.durable = flush;
        for group in &mut self.groups {
            group.awaiting.retain(|awaiting| awaiting.flush > flush);
            if group.learns_behind <= flush {
                group.learns_behind = 0;
            }
        }
        self.settle_down(now_ms);
    }

    /// Group, number, offset, count and reason of what leaves.
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

    pub(crate) fn left(&mut self, at: usize, number: u64) {
        let is_it =
            |message: &Message| matches!(message.state, State::Leaving { number: of, .. } if of == number);
        self.groups[at].messages.retain(|_, message| !is_it(message));
    }

    // --- operators

    pub(crate) fn open_group(&mut self, name: &str) {
        if self.index(name).is_some() {
            return;
        }
        self.life += 1;
        let mut fresh = Group::new(name, self.last_number);
        fresh.begun_by = self.flushed + 1;
        if self.config.start == Start::Earliest {
            for group in &self.groups {
                let staying = group
                    .messages
                    .iter()
                    .filter(|(_, message)| !matches!(message.state, State::Leaving { .. }));
                fresh.late.extend(staying.map(|(&offset, _)| offset));
                fresh.late.extend(&group.late);
                fresh.late.extend(group.unknown.keys());
            }
        }
        self.groups.push(fresh);
    }

    /// Gives a group the first so many messages of those that it is still to be given.
    pub(crate) fn join(&mut self, at: usize, most: usize, now_ms: u64) {
        let offsets: Vec<u64> = self.groups[at].late.iter().copied().take(most).collect();
        for &offset in &offsets {
            self.groups[at].late.remove(&offset);
            self.groups[at].messages.insert(offset, NEW);
        }
        self.settle_down(now_ms);
        for offset in offsets {
            if self.expires_ms(&self.metas[&offset]) <= now_ms {
                self.depart(at, offset, Reason::Expired, now_ms);
            }
        }
        self.settle_down(now_ms);
    }

    /// Gives all groups all that they are still to be given.
    pub(crate) fn join_all(&mut self, now_ms: u64) {
        (0..self.groups.len()).for_each(|at| self.join(at, usize::MAX, now_ms));
        self.groups.iter_mut().for_each(|group| group.is_new = false);
    }

    /// Whether a message has expired.
    pub(crate) fn has_expired(&self, offset: u64, now_ms: u64) -> bool {
        self.expires_ms(&self.metas[&offset]) <= now_ms
    }

    pub(crate) fn remove_group(&mut self, at: usize) {
        let gone = self.groups.remove(at);
        self.last_number = self.last_number.max(gone.last_number);
        self.remains.push(gone);
    }

    pub(crate) fn purge(&mut self, group: Option<usize>) -> u64 {
        let before = self.staying().0;
        let mut purged = 0;
        for at in (0..self.groups.len()).filter(|&at| group.is_none_or(|group| group == at)) {
            let messages = self.groups[at].messages.iter();
            let staying = messages.filter(|(_, message)| !matches!(message.state, State::Leaving { .. }));
            let offsets: Vec<u64> = staying.map(|(&offset, _)| offset).collect();
            let mut late = std::mem::take(&mut self.groups[at].late);
            let unknown = std::mem::take(&mut self.groups[at].unknown);
            let first = unknown.keys().next().copied();
            let (first, is_last) = (first.unwrap_or(u64::MAX), self.groups[at].learns_behind > 0);
            if !unknown.is_empty() {
                self.groups[at].learns_behind = self.flushed + 1;
            }
            // What comes behind those that it does not know it does not know either.
            let last = self.groups[at].messages.keys().last().copied().unwrap_or(0);
            let before = late.len();
            late.retain(|offset| *offset < first && !(is_last && *offset > last));
            if late.len() < before {
                self.groups[at].learns_behind = self.flushed + 1;
            }
            purged += (unknown.len() + before - late.len()) as u64;
            for &offset in &late {
                self.groups[at].messages.insert(offset, NEW);
            }
            for offset in offsets.into_iter().chain(late) {
                self.finish(at, offset);
                purged += 1;
            }
        }
        if group.is_none() { before - self.staying().0 } else { purged }
    }

    /// Goes on to `most` messages.
    pub(crate) fn configure(&mut self, config: Config, most: usize, now_ms: u64) {
        let old = std::mem::replace(&mut self.config, config);
        for group in &mut self.groups {
            if old.fifo != self.config.fifo {
                let turning = (0..self.registered_to).filter(|offset| !group.turning.contains(offset));
                group.turning = turning.collect();
            }
            if old.single_active_consumer != self.config.single_active_consumer {
                group.active = None;
            }
        }
        self.line_up(most, now_ms);
        self.enforce_limits(most, now_ms);
    }

    /// For some messages order by key is no more, or comes to be.
    fn line_up(&mut self, mut most: usize, now_ms: u64) {
        for at in 0..self.groups.len() {
            while most > 0
                && let Some(&first) = self.groups[at].turning.first()
            {
                most -= 1;
                let group = &mut self.groups[at];
                let pending = group.messages.range(first..).next().map(|(&offset, _)| offset);
                let Some(offset) = pending else {
                    group.turning.clear();
                    break;
                };
                let turns = group.turning.contains(&offset);
                group.turning.retain(|&turning| turning > offset);
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

    /// Whether a change is to be gone on with.
    pub(crate) fn is_lining_up(&self) -> bool {
        self.groups.iter().any(|group| !group.turning.is_empty())
    }

    pub(crate) fn redrive(&mut self, max: u64, now_ms: u64) -> u64 {
        let offsets: Vec<u64> = self.groups[0].messages.keys().copied().collect();
        let mut moved = 0;
        for offset in offsets {
            let key = self.key(0, offset);
            let is_idle = self.groups[0].messages[&offset].state == State::Idle;
            let is_next = self.is_ready(0, offset) || key.is_some_and(|key| self.is_redriven(key));
            if moved < max && self.metas[&offset].moved_by.is_some() && is_idle && is_next {
                self.depart(0, offset, Reason::Redriven, now_ms);
                moved += 1;
            }
        }
        moved
    }

    /// Whether the first of a key in the group `default` is on its way back, which is not durable, and no other is out.
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

    /// Deliveries from here on have other receipts.
    pub(crate) fn live_on(&mut self) {
        self.life += 1;
    }

    pub(crate) fn replay_from(&mut self, at: usize, metas: &[Meta], now_ms: u64) -> u64 {
        self.life += 1;
        let mut again = 0;
        for meta in metas {
            let is_over = self.expires_ms(meta) <= now_ms
                || meta.offset >= self.registered_to
                || self.dropped.contains(&meta.offset);
            let group = &self.groups[at];
            let is_known = group.messages.contains_key(&meta.offset) || group.late.contains(&meta.offset);
            if !is_over && !is_known && !group.unknown.contains_key(&meta.offset) {
                self.metas.insert(meta.offset, meta.clone());
                again += 1;
                let is_last = group.messages.range(meta.offset..).next().is_none();
                let is_behind = group.unknown.range(..meta.offset).next().is_some();
                if is_behind || group.learns_behind > 0 && is_last {
                    self.groups[at].unknown.insert(meta.offset, NEW);
                    continue;
                }
                if group.late.first().is_some_and(|late| *late < meta.offset) {
                    self.groups[at].late.insert(meta.offset);
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
            let firsts = [group.messages.keys().next(), group.late.first(), group.unknown.keys().next()];
            let firsts = firsts.map(Option::<&u64>::copied);
            firsts.into_iter().flatten().min()
        };
        self.groups.iter().filter_map(firsts).min().unwrap_or(self.registered_to)
    }

    /// Unsettled messages and their bytes.
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
            late: BTreeSet::new(),
            unknown: BTreeMap::new(),
            learns_behind: 0,
            begun_by: 0,
            is_new: true,
            last_number,
            taken_to: 0,
            number_flush: BTreeMap::new(),
            awaiting: Vec::new(),
            turning: BTreeSet::new(),
            active: None,
            counters: Counters::default(),
        }
    }
}
