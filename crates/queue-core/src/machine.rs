//! The state machine of one queue: [`Queue`].
//!
//! The machine knows offsets, keys, sizes and times of messages, not their contents: those stay in the log. Every
//! change is recorded as an event in the same call. Replaying the events gives the same state, but for leases, which
//! end with the process.
//!
//! Groups share what is the same for all, such as keys and expiry, and have the rest for themselves. A further group
//! adds almost nothing for messages without a key that it was not given yet. Calls that may concern any number of
//! messages handle a bounded number and say what is left, so that a large queue does not stall its shard.

mod incremental_snapshot;
mod joining;
mod lagging;
mod lost_messages;
mod operations;
mod register;
mod restore;
mod unfinished;

pub use incremental_snapshot::SnapshotCursor;

use crate::config::Config;
use crate::duplicates::Duplicates;
use crate::event::Event;
use crate::group::Group;
use crate::group_table::{DEFAULT_ID, GROUPS_MAX, GroupTable};
use crate::registration::Registration;
use crate::request::{GroupName, QueueError, Reason, Receipt, Settlement};
use crate::shared::Shared;
use crate::tuning::Tuning;

/// Cost of a message that changes its place in the order of its key or leaves the queue, in messages examined.
pub(crate) const MOVE_COST: usize = 4;
/// Longest name of a group in bytes.
const GROUP_NAME_BYTES_MAX: usize = 255;
/// The longest lease, and the longest delay that a consumer can request: twelve hours.
pub(crate) const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1000;

/// Identifies a group of a queue. The number also appears in the events of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub(crate) u32);

impl GroupId {
    /// The group of consumers that name none.
    pub const DEFAULT: Self = Self(DEFAULT_ID);
}

/// A new lease of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The receipt that settles it.
    pub receipt: Receipt,
    /// Incarnation of the previous delivery; 0 if this is the first one.
    pub previous_incarnation: u32,
    /// Time of the first delivery, in ms since 1970.
    pub first_delivered_ms: u64,
    /// End of the lease, in ms since 1970.
    pub until_ms: u64,
}

/// A message that must be copied to another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingTransfer {
    /// The group that it leaves.
    pub group: GroupId,
    /// Its transfer number in that group. Numbers ascend and are never used again.
    pub number: u64,
    /// Offset of the message.
    pub offset: u64,
    /// Number of deliveries.
    pub count: u32,
    /// Why it leaves.
    pub reason: Reason,
    /// When it began to leave, in ms since 1970.
    pub since_ms: u64,
}

/// Memory of a message with a key, and what it takes more in each group that it was delivered to.
const MESSAGE_BYTES: u64 = 145;
const DELIVERED_BYTES: u64 = 120;

/// A queue: the offsets of its messages, and the state of each message in each group. It does not know the contents
/// of messages, reads no clock and does no I/O. Times are in ms since 1970.
///
/// # Durability
/// Each [`Queue::flush`] returns one batch of events. The caller appends it to a log, reports when it is
/// [durable](Queue::durable), and confirms nothing before that. If a batch cannot be written, the caller rebuilds the
/// queue: [`Queue::new`], [`Queue::replay`] of each batch in order, then [`Queue::register`] of all messages. A
/// [`Queue::snapshot`] replaces all batches before it. After a rebuild each message is in its previous state, except
/// that leased messages are ready; delivery counts are kept.
///
/// # Costs
/// An operation on one message costs O(log n). A message that was never delivered takes about 110 bytes, plus 35 with
/// a key, plus 35 if it can expire. Another group adds almost nothing for messages without a key, if it settles
/// mostly in order. A delivered message takes another 120 bytes in each group. Operators' calls, [long
/// snapshots](Queue::begin_snapshot) and [changes of the configuration](Queue::configure) work in steps.
#[derive(Debug)]
pub struct Queue {
    shared: Shared,
    groups: GroupTable,
    duplicates: Duplicates,
    registration: Registration,
    /// Flushes up to this one are durable.
    durable_to: u64,
    at_once: usize,
    /// Unsettled messages to keep in memory.
    known_max: u64,
}

impl Queue {
    /// An empty queue with the group `default`.
    pub fn new(config: Config) -> Self {
        Self {
            shared: Shared::new(config),
            groups: GroupTable::default(),
            duplicates: Duplicates::default(),
            registration: Registration::default(),
            durable_to: 0,
            at_once: Tuning::default().at_once,
            known_max: Tuning::default().known_max,
        }
    }

    /// Starts an incarnation: its number distinguishes deliveries from those before a crash, which may have forgotten
    /// deliveries whose receipts some consumers still have. Call it with an unpredictable number once the queue is
    /// rebuilt, before the first lease.
    pub fn begin_incarnation(&mut self, random: u32) {
        // 0 is for deliveries without an incarnation.
        self.shared.incarnation = random.max(1);
    }

    /// Limit of messages that one call handles where no other limit applies.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// Sets the limit of messages that one call handles; 1,000 by default. Later calls handle the rest.
    pub fn set_at_once(&mut self, messages: usize) {
        self.at_once = messages.max(1);
    }

    /// Sets how many unsettled messages the queue keeps in memory before groups lag; a million by
    /// default.
    pub fn set_known_max(&mut self, messages: u64) {
        self.known_max = messages.max(1);
    }

    /// Memory of all messages, bytes, about.
    pub fn memory(&self) -> u64 {
        let delivered: usize = self.groups.values().map(Group::deliveries).sum();
        self.shared.messages.len() * MESSAGE_BYTES + delivered as u64 * DELIVERED_BYTES
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Changes the configuration, also for existing messages. Changes that concern every message are applied in
    /// steps: by this call, by each [`Queue::maintain`], and by calls with the same configuration. Until a step
    /// reaches a message
    ///
    /// - it keeps its previous order by key;
    /// - it is not delivered once it has expired, but may not leave the queue yet.
    pub fn configure(&mut self, config: Config, now_ms: u64) {
        let old = std::mem::replace(&mut self.shared.config, config);
        let Config { fifo, single_active_consumer, .. } = self.shared.config;
        for group in self.groups.values_mut() {
            if old.fifo != fifo {
                group.fifo_changed(self.registration.to());
            }
            if old.single_active_consumer != single_active_consumer {
                group.clear_active();
            }
        }
        self.apply_config(now_ms);
        self.enforce_limits(self.transferred_at_once(), now_ms);
    }

    /// Limit of messages that one call unblocks or moves out of the queue.
    fn transferred_at_once(&self) -> usize {
        (self.at_once / MOVE_COST).max(1)
    }

    /// Continues to apply the configuration to existing messages.
    fn apply_config(&mut self, now_ms: u64) {
        let mut budget = self.transferred_at_once();
        let Self { shared, groups, at_once, .. } = self;
        shared.messages.apply_ttl(shared.config.ttl_ms, *at_once);
        for group in groups.values_mut() {
            group.apply_fifo(shared, &mut budget, now_ms);
        }
    }

    // --- groups

    /// The group with this name.
    pub fn group(&self, name: &str) -> Option<GroupId> {
        self.groups.id_of(name).map(GroupId)
    }

    /// The name of a group.
    ///
    /// # Panics
    /// If the group was removed.
    pub fn group_name(&self, group: GroupId) -> &GroupName {
        self.groups[group.0].name()
    }

    /// All groups, in the order of their creation.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.ids().map(GroupId)
    }

    /// Returns the group with this name, and creates it if necessary. A new group delivers nothing while its
    /// [creation is pending](Self::is_pending_creation), that is, not durable: otherwise a crash could forget the group
    /// after it has delivered messages, and create it again without them.
    ///
    /// # Errors
    /// The name is empty, longer than 255 bytes, or contains control characters, `/`, `+` or `#`; or there are 256
    /// groups.
    pub fn open_group(&mut self, name: &GroupName, now_ms: u64) -> Result<GroupId, QueueError> {
        if let Some(group) = self.group(name) {
            return Ok(group);
        }
        check_group_name(name)?;
        if self.groups.len() >= GROUPS_MAX {
            return Err(QueueError::TooMany);
        }
        // A group with this name may have existed before.
        self.shared.resume_incarnation();
        let group = self.groups.create(name, self.shared.recorder.next_flush());
        let (id, last_number) = (group.id(), group.last_number());
        self.shared.recorder.record(&Event::Group { group: id, name, last_number });
        self.begin_joining(id);
        // The new group has to settle messages that are registered later, but not those registered before.
        self.shared.recorder.close_section(self.registration.to());
        self.continue_joining(&mut { self.at_once }, now_ms);
        Ok(GroupId(id))
    }

    /// Removes a group and its unsettled messages.
    ///
    /// # Errors
    /// It does not exist, or it is the only group of the queue.
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), QueueError> {
        if self.groups.len() == 1 && self.groups.contains(group.0) {
            return Err(QueueError::Invalid(
                "the only group of a queue cannot be removed: purge it, or create another group first".into(),
            ));
        }
        if !self.groups.retire(group.0) {
            return Err(QueueError::UnknownGroup);
        }
        self.shared.recorder.record(&Event::GroupRemoved { group: group.0 });
        self.clear_removed_groups(&mut { self.at_once });
        Ok(())
    }

    /// Releases messages of removed groups while `budget` lasts. Waits while a new group is listing them.
    fn clear_removed_groups(&mut self, budget: &mut usize) {
        if self.is_listing() {
            return;
        }
        while let Some(mut gone) = self.groups.pop_removed() {
            self.release_missed(&mut gone, budget);
            gone.release_all(&mut self.shared, budget);
            if *budget == 0 {
                return self.groups.return_removed(gone);
            }
        }
    }

    /// Whether the creation of the group is not durable yet, so that it delivers nothing.
    pub fn is_pending_creation(&self, group: GroupId) -> bool {
        self.groups.is_pending_creation(group.0, self.durable_to)
    }

    // --- consuming

    /// Leases up to `max` messages to a consumer, in order, and appends the leases to `out`. A group whose
    /// [creation is pending](Self::is_pending_creation) leases none.
    ///
    /// With a single active consumer, other consumers get nothing until that one has [left](Self::leave), or has had
    /// no lease and made no request for the lease time of the queue. So a waiting consumer must repeat its request
    /// within that time, even with a `max` of 0.
    pub fn lease(
        &mut self,
        group: GroupId,
        consumer: u64,
        max: usize,
        lease_ms: Option<u64>,
        now_ms: u64,
        out: &mut Vec<Lease>,
    ) {
        let Some(group) = self.groups.get_mut(group.0) else { return };
        let lease_ms = lease_ms.unwrap_or(self.shared.config.lease_ms).clamp(1, LEASE_MS_MAX);
        // The request keeps its consumer active all the same.
        let max = if group.is_created(self.durable_to) { max } else { 0 };
        group.lease(&mut self.shared, consumer, max, lease_ms, now_ms, out);
    }

    /// Cancels a lease that was just made, because the message could not be handed over. The message is ready as
    /// before, and the delivery does not count. Does nothing if the lease is not the last one of the message.
    pub fn cancel_lease(&mut self, group: GroupId, lease: &Lease, now_ms: u64) {
        if let Some(group) = self.groups.get_mut(group.0) {
            group.cancel_lease(&mut self.shared, lease, now_ms);
        }
    }

    /// Whether a message is ready for this consumer.
    pub fn can_lease(&self, group: GroupId, consumer: u64) -> bool {
        let group = self.groups.get(group.0).filter(|group| group.is_created(self.durable_to));
        group.is_some_and(|group| group.can_lease(&self.shared, consumer))
    }

    /// Number of messages that are ready in a group.
    pub fn ready(&self, group: GroupId) -> u64 {
        self.groups.get(group.0).map_or(0, Group::ready)
    }

    /// Settles a delivery. `random` is the random part of the backoff.
    ///
    /// # Errors
    /// [`QueueError::Stale`]: the message is settled, was delivered again, or is not leased. If the lease has ended
    /// and the message is ready again, it can still be acknowledged or rejected.
    pub fn settle(
        &mut self,
        group: GroupId,
        settlement: &Settlement,
        now_ms: u64,
        random: u32,
    ) -> Result<(), QueueError> {
        let known = self.groups.get_mut(group.0).ok_or(QueueError::Stale)?;
        if !known.unknown().is_empty() && known.unknown().contains(settlement.receipt.offset) {
            return self.settle_unknown(group, settlement);
        }
        known.settle(&mut self.shared, settlement, now_ms, random)
    }

    /// The consumer stops receiving, so another one may become the active consumer. It keeps its leases.
    pub fn leave(&mut self, group: GroupId, consumer: u64, _now_ms: u64) {
        if let Some(group) = self.groups.get_mut(group.0) {
            group.leave(consumer);
        }
    }

    /// Does what is due: ends leases and delays, expires messages, enforces limits, releases a silent active
    /// consumer. One call does a limited amount of work; [`next_due`](Self::next_due) tells when to call again.
    pub fn maintain(&mut self, now_ms: u64) {
        self.apply_config(now_ms);
        let mut budget = self.at_once;
        self.release_keys(&mut budget, now_ms);
        self.continue_joining(&mut budget, now_ms);
        self.clear_removed_groups(&mut budget);
        let Self { shared, groups, .. } = self;
        for group in groups.values_mut() {
            group.maintain(shared, &mut budget, now_ms);
        }
        while let Some(offset) = shared.messages.take_expired(now_ms, &mut budget) {
            for group in groups.values_mut() {
                group.expel(shared, offset, Reason::Expired, now_ms);
            }
        }
        self.enforce_limits(self.transferred_at_once(), now_ms);
        self.duplicates.index_mut().maintain(now_ms, self.shared.config.dedup_window_ms, self.at_once);
    }

    /// When to call [`Queue::maintain`] next, in ms since 1970. A time in the past means at once.
    pub fn next_due(&self) -> Option<u64> {
        let is_over = self.shared.oldest_over_limit().is_some();
        let groups = self.groups.values().filter_map(|group| group.next_due(&self.shared));
        let has_more = is_over || self.is_busy();
        groups.chain(self.shared.messages.next_expiry()).chain(has_more.then_some(0)).min()
    }

    /// Whether [`Queue::maintain`] has more work to do at once.
    pub fn is_busy(&self) -> bool {
        let is_releasing = self
            .shared
            .key_releases
            .front()
            .is_some_and(|key_releases| key_releases.flush <= self.durable_to);
        let messages = &self.shared.messages;
        let is_applying_ttl = messages.is_applying_ttl() || self.groups.values().any(Group::is_applying_fifo);
        let is_forgetting = self.shared.config.dedup_window_ms == 0 && self.duplicates.index().ids_len() > 0;
        let is_moving = messages.joining_groups().next().is_some() || !self.groups.removed().is_empty();
        is_releasing || is_applying_ttl || is_forgetting || is_moving
    }

    /// If limits are exceeded, moves out the oldest messages that no group holds.
    pub(crate) fn enforce_limits(&mut self, most: usize, now_ms: u64) {
        let Self { shared, groups, .. } = self;
        for _ in 0..most {
            let Some(offset) = shared.oldest_over_limit() else { return };
            for group in groups.values_mut() {
                group.expel(shared, offset, Reason::Overflow, now_ms);
            }
        }
    }

    /// Whether this many more messages and bytes fit. The caller includes messages that it has admitted before and
    /// that are not registered yet.
    pub fn admits(&self, messages: u64, bytes: u64) -> bool {
        self.room().is_some_and(|[more, more_bytes]| messages <= more && bytes <= more_bytes)
    }

    /// How many more messages and bytes fit, less what [`Queue::admits`] includes; `None` if nothing does.
    pub(crate) fn room(&self) -> Option<[u64; 2]> {
        if self.shared.config.overflow == crate::Overflow::DropOldest {
            return Some([u64::MAX; 2]);
        }
        self.shared.room()
    }

    // --- messages that leave for another queue

    /// Returns up to `max` messages that leave, each one once, in the order of their numbers within a group. The
    /// caller must copy them in that order. Returns none before all messages are registered again.
    pub fn take_pending_transfers(&mut self, max: usize) -> Vec<PendingTransfer> {
        let mut taken = Vec::new();
        if self.registration.is_restoring() {
            return taken;
        }
        for group in self.groups.values_mut() {
            group.take_transfers(max - taken.len(), &mut taken);
        }
        taken
    }

    /// The copy of this message failed. It and the messages of its group after it are returned again.
    pub fn return_pending_transfer(&mut self, group: GroupId, from_number: u64) {
        if let Some(group) = self.groups.get_mut(group.0) {
            group.return_transfers(from_number);
        }
    }

    /// The copy of a message is durable: the message is settled here.
    pub fn complete_transfer(&mut self, group: GroupId, number: u64) {
        if let Some(group) = self.groups.get_mut(group.0) {
            group.transferred(&mut self.shared, number);
        }
    }

    // --- durability

    /// Appends a batch of all events since the last flush to `into`, and returns its number: 1, 2, 3 … `None` if
    /// there are no events.
    pub fn flush(&mut self, into: &mut Vec<u8>) -> Option<u64> {
        let flush = self.shared.recorder.flush(self.registration.to(), into)?;
        for id in self.shared.transferring.drain(..) {
            if let Some(group) = self.groups.get_mut(id) {
                group.seal(flush);
            }
        }
        Some(flush)
    }

    /// Records that all messages below [`Queue::registered_to`] are registered, even if nothing else has happened.
    pub(crate) fn record_registration(&mut self) {
        self.shared.recorder.close_section(self.registration.to());
    }

    /// Flushed events record messages below this offset as registered.
    pub(crate) fn flushed_to(&self) -> u64 {
        self.shared.recorder.flushed_to()
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.shared.recorder.is_empty()
    }

    /// Hands `store` a note of deliveries that must become durable, in `buffer`, if there is nothing else to flush.
    /// Returns whether there was a note and `store` took it.
    pub(crate) fn note_deliveries(
        &mut self,
        buffer: &mut Vec<u8>,
        store: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let recorder = &mut self.shared.recorder;
        let is_noted = recorder.note(self.registration.to(), buffer) && store(buffer);
        if is_noted {
            recorder.noted();
        }
        is_noted
    }

    /// Whether something is noted and not flushed.
    pub(crate) fn has_noted(&self) -> bool {
        self.shared.recorder.has_noted()
    }

    /// Whether there are events that somebody waits for.
    pub fn flush_is_due(&self) -> bool {
        self.shared.recorder.is_due()
    }

    /// Flushes up to this one are durable.
    pub fn durable(&mut self, flush: u64, now_ms: u64) {
        debug_assert!(flush >= self.durable_to, "flushes become durable in order");
        debug_assert!(flush < self.shared.recorder.next_flush(), "a flush is durable after it was made");
        self.groups.values_mut().for_each(|group| group.durable(flush));
        self.durable_to = flush;
        self.release_keys(&mut { self.at_once }, now_ms);
    }

    /// Unblocks messages whose predecessor of the same key is durably settled, while `budget` lasts.
    fn release_keys(&mut self, budget: &mut usize, now_ms: u64) {
        let Self { shared, groups, durable_to, .. } = self;
        while *budget > 0
            && let Some(next) =
                shared.key_releases.pop_front_if(|key_releases| key_releases.flush <= *durable_to)
        {
            *budget -= 1;
            if let Some(group) = groups.get_mut(next.group) {
                group.advance(shared, next, now_ms);
            }
        }
    }
}

/// Checks the name of a group.
///
/// # Errors
/// [`QueueError::Invalid`]: it is empty, longer than 255 bytes, or has a character that it cannot have.
pub fn check_group_name(name: &str) -> Result<(), QueueError> {
    let is_odd = |c: char| c.is_control() || matches!(c, '/' | '+' | '#');
    if !(1..=GROUP_NAME_BYTES_MAX).contains(&name.len()) || name.contains(is_odd) {
        let rule = "a group name must have 1 to 255 bytes, and no control characters, '/', '+' or '#'";
        return Err(QueueError::Invalid(rule.into()));
    }
    Ok(())
}
