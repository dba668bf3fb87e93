//! The machine of one queue: [`Queue`].

use std::collections::BTreeMap;

use crate::ask::{DEFAULT_GROUP, GroupName, Reason, Receipt, Refusal, Settlement};
use crate::config::Config;
use crate::dedup::Seen;
use crate::event::Event;
use crate::group::Group;
use crate::keeper::Tuning;
use crate::lost::Newest;
use crate::runs::Runs;
use crate::shared::Shared;

/// Most groups.
pub(crate) const GROUPS_MAX: usize = 256;
/// A message that is let out of its line, or into it, or out of the queue, takes as long as so many that are looked at.
pub(crate) const THINGS_PER_MOVE: usize = 4;
/// Longest name of a group, bytes.
const GROUP_NAME_BYTES_MAX: usize = 255;
/// The longest lease, and the longest wait that a consumer can ask for: twelve hours.
pub(crate) const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1000;

/// A group of a queue, for as long as the queue is in memory. It stands in the queue's events too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub(crate) u32);

impl GroupId {
    /// The group of consumers that name none.
    pub const DEFAULT: Self = Self(0);
}

/// A message that a consumer has from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What to settle it with.
    pub receipt: Receipt,
    /// The life of the delivery before, if there was one.
    pub life_before: u32,
    /// When it was delivered for the first time, ms since 1970.
    pub first_delivered_ms: u64,
    /// Until when the consumer has it, ms since 1970.
    pub until_ms: u64,
}

/// A message that is to be brought to another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The group that it leaves.
    pub group: GroupId,
    /// The how manieth it is that leaves this group. Numbers rise, and none is used for two messages.
    pub number: u64,
    /// Its place.
    pub offset: u64,
    /// How often it was delivered.
    pub count: u32,
    /// Why it leaves.
    pub reason: Reason,
    /// Since when, ms since 1970.
    pub since_ms: u64,
}

/// A queue: messages by their offsets, and what each group makes of them. It knows no contents, reads no clock and does
/// no IO: times are ms since 1970, and what must last comes out of [`Queue::flush`].
///
/// # What lasts
/// Each flush is one batch of events. The caller appends it to a log, says when it is [durable](Queue::durable), and
/// promises nothing to anybody that stands in a flush which is not. If a flush cannot be written, the queue is to be
/// made again from what was: [`Queue::new`], then [`Queue::replay`] of each batch in order, then all messages are
/// [registered](Queue::register) anew. [`Queue::snapshot`] stands for all batches before it. Then a message is where it
/// was; what was leased is ready, with its count kept.
///
/// # Costs
/// What concerns one message costs O(log n). A message that nobody has had takes about 110 bytes, 35 more with a key, and
/// 35 more if it can expire; a further group adds next to nothing to one without a key, if it settles mostly in order. A
/// message that was delivered takes another 120 bytes in each group that has had it. Operators' calls, [long snapshots](Queue::walk) and
/// [changes of the configuration](Queue::configure) go on in steps.
#[derive(Debug)]
pub struct Queue {
    pub(crate) shared: Shared,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) names: BTreeMap<GroupName, GroupId>,
    pub(crate) next_group: u32,
    /// Highest number of a message that left a group which is no more.
    pub(crate) last_number: u64,
    pub(crate) seen: Seen,
    pub(crate) duplicates: u64,
    /// Messages that were thrown away as duplicates and may still be on disk.
    pub(crate) dropped: Runs,
    pub(crate) registered_to: u64,
    /// Offsets below were registered before the queue was made again.
    pub(crate) restored_to: u64,
    /// The newest of those that are there again.
    pub(crate) newest: Newest,
    /// Groups that are removed, whose messages have not all been let go.
    pub(crate) remains: Vec<Group>,
    /// Flushes up to this one are durable.
    pub(crate) durable_to: u64,
    /// The one that says that the newest group is there.
    begun_by: u64,
    pub(crate) at_once: usize,
    /// Unsettled messages that it wants to know at once.
    pub(crate) known_max: u64,
}

impl Queue {
    /// A queue without messages, and with the group `default`.
    pub fn new(config: Config) -> Self {
        let name: GroupName = DEFAULT_GROUP.into();
        Self {
            shared: Shared::new(config),
            groups: BTreeMap::from([(0, Group::new(0, name.clone(), 0))]),
            names: BTreeMap::from([(name, GroupId::DEFAULT)]),
            next_group: 1,
            last_number: 0,
            seen: Seen::default(),
            duplicates: 0,
            dropped: Runs::default(),
            registered_to: 0,
            restored_to: 0,
            newest: Newest::default(),
            remains: Vec::new(),
            durable_to: 0,
            begun_by: 0,
            at_once: Tuning::default().at_once,
            known_max: Tuning::default().known_max,
        }
    }

    /// Deliveries from here on are told from all before by this number, which should be one that nobody can guess: a crash
    /// may forget deliveries whose receipts somebody has. To be called once the queue is made again, before anything
    /// is leased.
    pub fn begin_life(&mut self, random: u32) {
        // Life 0 is that of what says nothing of it.
        self.shared.life = random.max(1);
    }

    /// Messages that a call concerns itself with, at most, where there is no other bound.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// Lets no call concern itself with more messages than this; 1,000 if nothing is said. More is done by later calls.
    pub fn set_at_once(&mut self, messages: usize) {
        self.at_once = messages.max(1);
    }

    /// Lets groups [fall behind](crate::behind) when so many unsettled messages are known; a million if nothing is said.
    pub fn set_known_max(&mut self, messages: u64) {
        self.known_max = messages.max(1);
    }

    /// What it is set to.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Sets it to something else, which holds for what is there too. Whatever that asks of every message is done in steps: by
    /// this call, by each [`Queue::tend`], and by calls with the same configuration. Until it has come to a message
    ///
    /// - whether there is order by key is for this message as it was before;
    /// - the message is not delivered if it has expired, but may not leave yet.
    pub fn configure(&mut self, config: Config, now_ms: u64) {
        let old = std::mem::replace(&mut self.shared.config, config);
        let Config { fifo, single_active_consumer, .. } = self.shared.config;
        for group in self.groups.values_mut() {
            if old.fifo != fifo {
                group.turn_order(self.registered_to);
            }
            if old.single_active_consumer != single_active_consumer {
                group.let_nobody_be_active();
            }
        }
        self.heed_config(now_ms);
        self.enforce_limits(self.moved_at_once(), now_ms);
    }

    /// Messages that are let out of lines or of the queue in one call.
    fn moved_at_once(&self) -> usize {
        (self.at_once / THINGS_PER_MOVE).max(1)
    }

    /// Goes on with what a change of the configuration asks of messages.
    fn heed_config(&mut self, now_ms: u64) {
        let mut most = self.moved_at_once();
        let Self { shared, groups, at_once, .. } = self;
        shared.pool.heed_ttl(shared.config.ttl_ms, *at_once);
        for group in groups.values_mut() {
            group.line_up(shared, &mut most, now_ms);
        }
    }

    // --- groups

    /// The group of this name.
    pub fn group(&self, name: &str) -> Option<GroupId> {
        self.names.get(name).copied()
    }

    /// The name of a group.
    ///
    /// # Panics
    /// If it has been removed.
    pub fn group_name(&self, group: GroupId) -> &GroupName {
        &self.groups[&group.0].name
    }

    /// All groups, in the order in which they were made.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().map(|&id| GroupId(id))
    }

    /// The group of this name, which is made if it is not there. It [begins](Self::begins) when that is durable: otherwise the
    /// end of the process could let it begin anew behind messages that somebody has had.
    ///
    /// # Errors
    /// The name has no byte or more than 255, or has control characters, `/`, `+` or `#` in it; or there are 256
    /// groups.
    pub fn open_group(&mut self, name: &GroupName, now_ms: u64) -> Result<GroupId, Refusal> {
        if let Some(group) = self.group(name) {
            return Ok(group);
        }
        check_name(name)?;
        if self.groups.len() >= GROUPS_MAX {
            return Err(Refusal::TooMany);
        }
        let id = self.next_group;
        self.next_group += 1;
        // There may have been one of this name before.
        self.shared.go_on_living();
        let mut group = Group::new(id, name.clone(), self.last_number);
        group.begun_by = self.shared.recorder.next_flush();
        self.begun_by = group.begun_by;
        self.shared.recorder.record(&Event::Group { group: id, name, last_number: group.last_number });
        self.groups.insert(id, group);
        self.names.insert(name.clone(), GroupId(id));
        self.begin_to_join(id);
        // What is registered from here on is pending for the new group too, what was before is not.
        self.shared.recorder.part(self.registered_to);
        self.let_join(&mut { self.at_once }, now_ms);
        Ok(GroupId(id))
    }

    /// Removes a group, with all that only it had not settled.
    ///
    /// # Errors
    /// It is the only one, without which nobody would be given what comes; or it is not there.
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), Refusal> {
        if self.groups.len() == 1 && self.groups.contains_key(&group.0) {
            return Err(Refusal::Invalid(
                "the only group of a queue cannot be removed: purge it, or let another one begin first"
                    .into(),
            ));
        }
        let mut gone = self.groups.remove(&group.0).ok_or(Refusal::UnknownGroup)?;
        gone.removed_before = self.next_group;
        self.names.remove(&gone.name);
        self.last_number = self.last_number.max(gone.last_number);
        self.shared.recorder.record(&Event::GroupRemoved { group: group.0 });
        self.remains.push(gone);
        self.clear_remains(&mut { self.at_once });
        Ok(())
    }

    /// Lets go of what groups had that are removed, as long as `most` is not 0. Not while a new group is to list it.
    fn clear_remains(&mut self, most: &mut usize) {
        if self.is_listing() {
            return;
        }
        while let Some(mut gone) = self.remains.pop() {
            self.miss_nothing(&mut gone, most);
            gone.let_all_go(&mut self.shared, most);
            if *most == 0 {
                return self.remains.push(gone);
            }
        }
    }

    /// Whether it is not durable yet that a group is there, and so nobody is given anything of it.
    pub fn begins(&self, group: GroupId) -> bool {
        // Nearly always all have begun.
        self.begun_by > self.durable_to
            && self.groups.get(&group.0).is_some_and(|group| !group.has_begun(self.durable_to))
    }

    // --- consuming

    /// Leases up to `max` messages to a consumer, in order, and appends them to `out`; none of a group that
    /// [begins](Self::begins). If one consumer is the active one,
    /// another gets nothing, until that has [left](Self::leave), or has neither leases nor asked for the queue's lease
    /// time: a consumer that waits for messages is to ask again within that, be it for none.
    pub fn lease(
        &mut self,
        group: GroupId,
        consumer: u64,
        max: usize,
        lease_ms: Option<u64>,
        now_ms: u64,
        out: &mut Vec<Lease>,
    ) {
        let Some(group) = self.groups.get_mut(&group.0) else { return };
        let lease_ms = lease_ms.unwrap_or(self.shared.config.lease_ms).clamp(1, LEASE_MS_MAX);
        // Whoever asks is heard all the same.
        let max = if group.has_begun(self.durable_to) { max } else { 0 };
        group.lease(&mut self.shared, consumer, max, lease_ms, now_ms, out);
    }

    /// A lease of just now was none, since nobody could be given the message: it is ready as before, and that counts as no
    /// delivery. Does nothing if somebody else has it by now.
    pub fn take_back(&mut self, group: GroupId, lease: &Lease, now_ms: u64) {
        if let Some(group) = self.groups.get_mut(&group.0) {
            group.take_back(&mut self.shared, lease, now_ms);
        }
    }

    /// Whether something is ready for this consumer.
    pub fn can_lease(&self, group: GroupId, consumer: u64) -> bool {
        let group = self.groups.get(&group.0).filter(|group| group.has_begun(self.durable_to));
        group.is_some_and(|group| group.can_lease(&self.shared, consumer))
    }

    /// Number of messages that are ready in a group.
    pub fn ready(&self, group: GroupId) -> u64 {
        self.groups.get(&group.0).map_or(0, |group| group.ready.iter().map(Runs::len).sum())
    }

    /// What becomes of a delivery. `random` is the chance in the queue's backoff.
    ///
    /// # Errors
    /// [`Refusal::Stale`]: the message is settled, or was delivered again, or is not leased. One that came back at the end
    /// of its lease may still be acknowledged or rejected.
    pub fn settle(
        &mut self,
        group: GroupId,
        settlement: &Settlement,
        now_ms: u64,
        random: u32,
    ) -> Result<(), Refusal> {
        let known = self.groups.get_mut(&group.0).ok_or(Refusal::Stale)?;
        if !known.unknown.is_empty() && known.unknown.contains(settlement.receipt.offset) {
            return self.settle_unknown(group, settlement);
        }
        known.settle(&mut self.shared, settlement, now_ms, random)
    }

    /// A consumer takes no more: another may become the active one. What it has it keeps.
    pub fn leave(&mut self, group: GroupId, consumer: u64, _now_ms: u64) {
        if let Some(group) = self.groups.get_mut(&group.0) {
            group.leave(consumer);
        }
    }

    /// Does what is due: leases and delays that end, messages that expire, limits, an active consumer that is silent. If
    /// that is very much, it does some of it; the rest is due at once.
    pub fn tend(&mut self, now_ms: u64) {
        self.heed_config(now_ms);
        let mut most = self.at_once;
        self.free_lines(&mut most, now_ms);
        self.let_join(&mut most, now_ms);
        self.clear_remains(&mut most);
        let Self { shared, groups, .. } = self;
        for group in groups.values_mut() {
            group.tend(shared, &mut most, now_ms);
        }
        while let Some(offset) = shared.pool.take_expired(now_ms, &mut most) {
            for group in groups.values_mut() {
                group.expel(shared, offset, Reason::Expired, now_ms);
            }
        }
        self.enforce_limits(self.moved_at_once(), now_ms);
        self.seen.tend(now_ms, self.shared.config.dedup_window_ms, self.at_once);
    }

    /// When [`Queue::tend`] is to be called next, ms since 1970; at once if that lies in the past.
    pub fn next_due(&self) -> Option<u64> {
        let is_over = self.shared.oldest_too_many().is_some();
        let groups = self.groups.values().filter_map(|group| group.next_due(&self.shared));
        let has_more = is_over || self.is_busy();
        groups.chain(self.shared.pool.next_expiry()).chain(has_more.then_some(0)).min()
    }

    /// Whether something is under way that [`Queue::tend`] is to go on with at once.
    pub fn is_busy(&self) -> bool {
        let is_freeing = self.shared.freeing.front().is_some_and(|freeing| freeing.flush <= self.durable_to);
        let pool = &self.shared.pool;
        let is_heeding = pool.is_heeding() || self.groups.values().any(Group::is_lining_up);
        let is_forgetting = self.shared.config.dedup_window_ms == 0 && self.seen.ids_len() > 0;
        let is_moving = pool.late_groups().next().is_some() || !self.remains.is_empty();
        is_freeing || is_heeding || is_forgetting || is_moving
    }

    /// Lets the oldest messages leave that nobody holds, if there are too many.
    pub(crate) fn enforce_limits(&mut self, most: usize, now_ms: u64) {
        let Self { shared, groups, .. } = self;
        for _ in 0..most {
            let Some(offset) = shared.oldest_too_many() else { return };
            for group in groups.values_mut() {
                group.expel(shared, offset, Reason::Overflow, now_ms);
            }
        }
    }

    /// Whether there is room for so many more messages and bytes, those on their way included.
    pub fn admits(&self, messages: u64, bytes: u64) -> bool {
        self.shared.config.overflow == crate::Overflow::DropOldest || !self.shared.exceeds(messages, bytes)
    }

    // --- messages that leave for another queue

    /// Up to `max` messages that leave, each once, in the order of their numbers within a group. They are to be brought
    /// there in that order. None before all messages are registered again.
    pub fn take_leaving(&mut self, max: usize) -> Vec<Leaving> {
        let mut taken = Vec::new();
        if self.registered_to < self.restored_to {
            return taken;
        }
        for group in self.groups.values_mut() {
            group.take_leaving(max - taken.len(), &mut taken);
        }
        taken
    }

    /// It did not work: that message of a group and those behind it are to be taken again.
    pub fn give_back_leaving(&mut self, group: GroupId, from_number: u64) {
        if let Some(group) = self.groups.get_mut(&group.0) {
            group.give_back(from_number);
        }
    }

    /// A message has arrived where it went, durably: it is settled.
    pub fn left(&mut self, group: GroupId, number: u64) {
        if let Some(group) = self.groups.get_mut(&group.0) {
            group.left(&mut self.shared, number);
        }
    }

    // --- lasting

    /// Appends a batch of all events since the last flush to `into`, if there are any. Its number: 1, 2, 3 …
    pub fn flush(&mut self, into: &mut Vec<u8>) -> Option<u64> {
        let flush = self.shared.recorder.flush(self.registered_to, into)?;
        for id in self.shared.departed.drain(..) {
            if let Some(group) = self.groups.get_mut(&id) {
                group.seal(flush);
            }
        }
        Some(flush)
    }

    /// Whether nothing has happened since the last flush.
    pub(crate) fn is_flushed(&self) -> bool {
        self.shared.recorder.is_empty()
    }

    /// Whether there are events that somebody waits for to last.
    pub fn flush_is_due(&self) -> bool {
        self.shared.recorder.is_due()
    }

    /// Flushes up to this one are durable.
    pub fn durable(&mut self, flush: u64, now_ms: u64) {
        self.groups.values_mut().for_each(|group| group.durable(flush));
        self.durable_to = flush;
        self.free_lines(&mut { self.at_once }, now_ms);
    }

    /// Lets those out that waited until it is durable that the one before of their key is settled, as long as `most` is
    /// not 0.
    fn free_lines(&mut self, most: &mut usize, now_ms: u64) {
        let Self { shared, groups, durable_to, .. } = self;
        while *most > 0
            && let Some(next) = shared.freeing.pop_front_if(|freeing| freeing.flush <= *durable_to)
        {
            *most -= 1;
            if let Some(group) = groups.get_mut(&next.group) {
                group.advance(shared, next, now_ms);
            }
        }
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_odd = |c: char| c.is_control() || matches!(c, '/' | '+' | '#');
    if !(1..=GROUP_NAME_BYTES_MAX).contains(&name.len()) || name.contains(is_odd) {
        let rule = "the name of a group has 1 to 255 bytes, and no control characters, '/', '+' or '#'";
        return Err(Refusal::Invalid(rule.into()));
    }
    Ok(())
}
