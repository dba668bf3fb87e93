//! The messages that some group has not settled: what all groups know of them, and how much they are.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Range;

use crate::config::{Config, Overflow};
use crate::meta::Meta;
use crate::runs::Runs;
use crate::thin::{thin, thin_set};

/// What is known of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) timestamp_ms: u64,
    /// As its headers have it; `u64::MAX` for never.
    expires_ms: u64,
    pub(crate) due_ms: u64,
    key: Option<NonZeroU64>,
    bytes: u32,
    /// Groups that have not settled it.
    pending: u16,
    /// Those of them that it does not leave.
    staying: u16,
    /// Those of them that have it leased, or that it leaves.
    held: u16,
    pub(crate) priority: u8,
    /// Whether another queue moved it here.
    pub(crate) is_moved: bool,
}

impl Known {
    /// Stands for its key, if it has one.
    pub(crate) fn key(&self) -> Option<u64> {
        self.key.map(NonZeroU64::get)
    }

    /// Time at which it expires, in a queue that gives messages so long; `u64::MAX` for never.
    pub(crate) fn expires_ms(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 {
            self.expires_ms
        } else {
            self.expires_ms.min(self.timestamp_ms.saturating_add(ttl_ms))
        }
    }
}

/// Messages by offset.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    messages: BTreeMap<u64, Known>,
    /// Those that expire, by when.
    expiring: BTreeSet<(u64, u64)>,
    /// Those that no group holds, if the oldest of them are dropped when there are too many.
    droppable: Option<Runs>,
    /// What new groups are still to be given, by group: messages that stay here until then.
    late: BTreeMap<u32, Runs>,
    ttl_ms: u64,
    bytes: u64,
    staying: u64,
    staying_bytes: u64,
}

impl Pool {
    pub(crate) fn new(config: &Config) -> Self {
        let mut pool = Self::default();
        pool.configure(config);
        pool
    }

    /// Heeds what of the configuration concerns messages. Goes through all of them if that changes.
    pub(crate) fn configure(&mut self, config: &Config) {
        if self.ttl_ms != config.ttl_ms {
            self.ttl_ms = config.ttl_ms;
            let ttl_ms = self.ttl_ms;
            let times = self.messages.iter().map(|(&offset, known)| (known.expires_ms(ttl_ms), offset));
            self.expiring = times.filter(|&(at, _)| at != u64::MAX).collect();
        }
        let drops = config.overflow == Overflow::DropOldest && config.length_max.max(config.bytes_max) > 0;
        if drops && self.droppable.is_none() {
            let mut free = Runs::default();
            for (&offset, _) in self.messages.iter().filter(|(_, known)| known.held == 0) {
                free.insert(offset);
            }
            self.droppable = Some(free);
        } else if !drops {
            self.droppable = None;
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.messages.len() as u64
    }

    /// Bytes of all messages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Messages, and their bytes, that some group has not settled and that do not leave there.
    pub(crate) fn staying(&self) -> (u64, u64) {
        (self.staying, self.staying_bytes)
    }

    pub(crate) fn get(&self, offset: u64) -> Option<&Known> {
        self.messages.get(&offset)
    }

    /// The oldest one.
    pub(crate) fn first(&self) -> Option<(u64, &Known)> {
        self.messages.first_key_value().map(|(&offset, known)| (offset, known))
    }

    /// Whether there is a message that has expired by then.
    pub(crate) fn has_expired(&self, offset: u64, now_ms: u64) -> bool {
        self.get(offset).is_some_and(|known| known.expires_ms(self.ttl_ms) <= now_ms)
    }

    /// When the first message expires.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiring.first().map(|&(at, _)| at)
    }

    /// A message that has expired by then, each once.
    pub(crate) fn take_expired(&mut self, now_ms: u64) -> Option<u64> {
        let &(at, offset) = self.expiring.first().filter(|&&(at, _)| at <= now_ms)?;
        self.expiring.remove(&(at, offset));
        Some(offset)
    }

    /// The oldest message that no group holds, if such are dropped.
    pub(crate) fn oldest_droppable(&self) -> Option<u64> {
        self.droppable.as_ref()?.first()
    }

    /// A message that is to be pending somewhere; it may be known.
    pub(crate) fn put(&mut self, meta: &Meta) {
        let Entry::Vacant(vacant) = self.messages.entry(meta.offset) else { return };
        let known = vacant.insert(Known {
            timestamp_ms: meta.timestamp_ms,
            expires_ms: meta.expires_ms,
            due_ms: meta.due_ms,
            // Two keys that meet here only wait for each other.
            key: meta.key.and_then(|key| NonZeroU64::new(key.max(1))),
            bytes: meta.bytes,
            pending: 0,
            staying: 0,
            held: 0,
            priority: meta.priority.min(9),
            is_moved: meta.moved_by.is_some(),
        });
        let at = known.expires_ms(self.ttl_ms);
        if at != u64::MAX {
            self.expiring.insert((at, meta.offset));
        }
        if let Some(free) = &mut self.droppable {
            free.insert(meta.offset);
        }
        self.bytes += u64::from(meta.bytes);
    }

    // --- groups that are new

    /// A group is still to be given these.
    pub(crate) fn set_late(&mut self, group: u32, offsets: Runs) {
        if !offsets.is_empty() {
            self.late.insert(group, offsets);
        }
    }

    /// What a group is still to be given.
    pub(crate) fn late(&self, group: u32) -> Option<&Runs> {
        self.late.get(&group)
    }

    /// All that groups are still to be given.
    pub(crate) fn all_late(&self) -> impl Iterator<Item = &Runs> {
        self.late.values()
    }

    /// Whether a group is still to be given this.
    pub(crate) fn is_late(&self, offset: u64) -> bool {
        self.late.values().any(|offsets| offsets.contains(offset))
    }

    /// A group is to be given this message behind those that it is still to be given, if there are any. Says whether.
    pub(crate) fn join_late(&mut self, group: u32, offset: u64) -> bool {
        self.late.get_mut(&group).is_some_and(|offsets| offsets.insert(offset))
    }

    /// Takes out the first of them from `from` on, which the group is given now.
    pub(crate) fn take_late(&mut self, group: u32, from: u64) -> Option<u64> {
        let offsets = self.late.get_mut(&group)?;
        let first = offsets.first_from(from)?;
        offsets.remove(first);
        if offsets.is_empty() {
            self.late.remove(&group);
        }
        Some(first)
    }

    /// A group that is no more is not given this.
    pub(crate) fn refuse_late(&mut self, group: u32) -> bool {
        let first = self.take_late(group, 0);
        if let Some(offset) = first {
            self.forget_if_settled(offset);
        }
        first.is_some()
    }

    /// The first group that is still to be given something.
    pub(crate) fn first_late(&self) -> Option<u32> {
        self.late.keys().next().copied()
    }

    /// What was lost is given to nobody.
    pub(crate) fn lose_late(&mut self, offsets: &Range<u64>) {
        self.late.values_mut().for_each(|late| late.remove_range(offsets.clone()));
        self.late.retain(|_, late| !late.is_empty());
    }

    // --- what groups make of messages

    /// One more group has it to settle.
    pub(crate) fn pend(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.pending += 1;
        known.staying += 1;
        if known.staying == 1 {
            self.staying += 1;
            self.staying_bytes += u64::from(known.bytes);
        }
    }

    /// A group has leased it.
    pub(crate) fn hold(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.held += 1;
        if let Some(free) = &mut self.droppable {
            free.remove(offset);
        }
    }

    /// A group that held it does so no more.
    pub(crate) fn let_go(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.held -= 1;
        if known.held == 0
            && let Some(free) = &mut self.droppable
        {
            free.insert(offset);
        }
    }

    /// It leaves a group that did not hold it, which then holds it until it is settled.
    pub(crate) fn depart(&mut self, offset: u64) {
        self.hold(offset);
        self.stay_no_more(offset);
    }

    fn stay_no_more(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.staying -= 1;
        if known.staying == 0 {
            self.staying -= 1;
            self.staying_bytes -= u64::from(known.bytes);
        }
    }

    /// A group that did not hold it has settled it.
    pub(crate) fn settle(&mut self, offset: u64) {
        self.stay_no_more(offset);
        self.forget(offset);
    }

    /// A group that it was leaving is done with it.
    pub(crate) fn settle_departed(&mut self, offset: u64) {
        self.let_go(offset);
        self.forget(offset);
    }

    /// Forgets what it knows, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        self.late.values_mut().for_each(|late| late.thin(most));
        thin(&mut self.messages, most);
        thin_set(&mut self.expiring, most);
        self.droppable.iter_mut().for_each(|free| free.thin(most));
    }

    fn forget(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.pending -= 1;
        self.forget_if_settled(offset);
    }

    fn forget_if_settled(&mut self, offset: u64) {
        let Some(known) = self.messages.get(&offset) else { return };
        if known.pending > 0 || self.is_late(offset) {
            return;
        }
        let at = known.expires_ms(self.ttl_ms);
        self.bytes -= u64::from(known.bytes);
        self.messages.remove(&offset);
        if at != u64::MAX {
            self.expiring.remove(&(at, offset));
        }
        if let Some(free) = &mut self.droppable {
            free.remove(offset);
        }
    }
}
