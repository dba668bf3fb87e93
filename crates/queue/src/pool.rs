//! The messages that some group has not settled: what all groups know of them, and how much they are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::num::NonZeroU64;
use std::ops::Range;

use crate::expiry::{Era, Expiry};
use crate::join::Late;
use crate::meta::Meta;
use crate::outside::Outside;
use crate::runs::Runs;
use crate::thin::thin;

/// What is known of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) timestamp_ms: u64,
    /// As its headers have it; `u64::MAX` for never.
    expires_ms: u64,
    pub(crate) due_ms: u64,
    key: Option<NonZeroU64>,
    bytes: u32,
    /// Groups that know it and have not settled it.
    pending: u16,
    /// Those of them that it does not leave, and groups that do not know it.
    staying: u16,
    /// Those of the former that have it leased, or that it leaves, and groups that do not know it.
    held: u16,
    pub(crate) priority: u8,
    /// By which time to live it stands among those that expire.
    pub(crate) era: Era,
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
    expiry: Expiry,
    /// Those that no group holds.
    free: Runs,
    /// What new groups are still to be given, by group: messages that stay here until then.
    late: BTreeMap<u32, Late>,
    /// Those that no group knows and some have to settle: they are not here.
    outside: Outside,
    bytes: u64,
    staying: Size,
}

/// How many messages, and how large they are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    messages: u64,
    bytes: u64,
}

impl Size {
    fn add(&mut self, known: &Known) {
        self.messages += 1;
        self.bytes += u64::from(known.bytes);
    }

    fn subtract(&mut self, known: &Known) {
        self.messages -= 1;
        self.bytes -= u64::from(known.bytes);
    }
}

impl Pool {
    /// Of a queue that gives messages so long; 0 for ever.
    pub(crate) fn new(ttl_ms: u64) -> Self {
        Self { expiry: Expiry::new(ttl_ms), ..Self::default() }
    }

    /// Gives messages so long from now on. Goes on with what that changes for those that are there, for `most` of them.
    pub(crate) fn heed_ttl(&mut self, ttl_ms: u64, most: usize) {
        self.expiry.set_ttl(ttl_ms);
        let Some(from) = self.expiry.next() else { return };
        let mut rest = self.messages.range_mut(from..);
        for (&offset, known) in rest.by_ref().take(most) {
            self.expiry.put_again(offset, known);
        }
        let next = rest.next().map(|(&offset, _)| offset);
        self.expiry.went_on(next);
        self.expiry.set_ttl(ttl_ms);
    }

    /// Whether that is to be gone on with.
    pub(crate) fn is_heeding(&self) -> bool {
        self.expiry.next().is_some()
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
        (self.staying.messages + self.outside.len(), self.staying.bytes + self.outside.bytes())
    }

    /// How many of those are here.
    pub(crate) fn staying_here(&self) -> u64 {
        self.staying.messages
    }

    /// Messages that no group knows and some have to settle.
    pub(crate) fn outside(&self) -> &Outside {
        &self.outside
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
        self.get(offset).is_some_and(|known| known.expires_ms(self.expiry.ttl_ms()) <= now_ms)
    }

    /// When the first message expires, or is to be looked at.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiry.first()
    }

    /// A message that has expired by then, each once. Looks for it as long as `most` is not 0.
    pub(crate) fn take_expired(&mut self, now_ms: u64, most: &mut usize) -> Option<u64> {
        while *most > 0
            && let Some(offset) = self.expiry.take(now_ms)
        {
            *most -= 1;
            if self.has_expired(offset, now_ms) {
                return Some(offset);
            }
            if let Some(known) = self.messages.get_mut(&offset) {
                self.expiry.put_again(offset, known);
            }
        }
        None
    }

    /// The oldest message that no group holds.
    pub(crate) fn oldest_free(&self) -> Option<u64> {
        self.free.first()
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
            era: Era::default(),
            is_moved: meta.moved_by.is_some(),
        });
        self.expiry.put(meta.offset, known);
        self.free.insert(meta.offset);
        self.bytes += u64::from(meta.bytes);
    }

    /// Whether something is remembered, by what it is.
    pub(crate) fn unfinished(&self) -> [(&'static str, bool); 6] {
        [
            ("messages", !self.messages.is_empty()),
            ("times to live", self.expiry.first().is_some()),
            ("messages that nobody has", !self.free.is_empty()),
            ("messages for new groups", !self.late.is_empty()),
            ("messages that no group knows", (self.outside.len(), self.outside.bytes()) != (0, 0)),
            ("sizes", (self.bytes, self.staying) != (0, Size::default())),
        ]
    }

    // --- groups that are new

    /// A group is still to be given what groups have in a range that were there before it.
    pub(crate) fn begin_late(&mut self, group: u32, rest: Range<u64>) {
        if !rest.is_empty() {
            self.late.insert(group, Late { rest, ..Late::default() });
        }
    }

    /// What a group is still to be given.
    pub(crate) fn late(&self, group: u32) -> Option<&Late> {
        self.late.get(&group)
    }

    /// Groups that are still to be given something, in the order in which they were opened.
    pub(crate) fn late_groups(&self) -> impl Iterator<Item = u32> {
        self.late.keys().copied()
    }

    /// Those of them that are still to list some of it.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = (u32, &Late)> {
        self.late.iter().filter(|(_, late)| !late.rest.is_empty()).map(|(&group, late)| (group, late))
    }

    /// Whether a group is still to list some of what it is to be given.
    pub(crate) fn is_unlisted(&self, group: u32) -> bool {
        self.late.get(&group).is_some_and(|late| !late.rest.is_empty())
    }

    /// These are what a group is to be given of what lies below `to`, besides what is kept for it.
    pub(crate) fn list(&mut self, group: u32, offsets: Runs, to: u64) {
        let Entry::Occupied(mut late) = self.late.entry(group) else { return };
        late.get_mut().listed.add(offsets);
        late.get_mut().rest.start = to;
        if late.get().is_empty() {
            late.remove();
        }
    }

    /// A group is about to settle a message, or to let it leave: those that are still to list it keep it.
    pub(crate) fn keep_for_late(&mut self, offset: u64) {
        for late in self.late.values_mut().filter(|late| late.rest.contains(&offset)) {
            late.listed.insert(offset);
        }
    }

    /// Whether a group is still to be given this, and no other may have it.
    pub(crate) fn is_late(&self, offset: u64) -> bool {
        self.late.values().any(|late| late.listed.contains(offset))
    }

    /// A group is to be given this message behind those that it is still to be given, if there are any. Says whether.
    pub(crate) fn join_late(&mut self, group: u32, offset: u64) -> bool {
        self.late.get_mut(&group).is_some_and(|late| late.listed.insert(offset))
    }

    /// Takes out the first of them from `from` on, which the group is given now. Nothing if it is to be listed first.
    pub(crate) fn take_late(&mut self, group: u32, from: u64) -> Option<u64> {
        let Entry::Occupied(mut late) = self.late.entry(group) else { return None };
        let first = late.get().first_from(from)?;
        late.get_mut().listed.remove(first);
        if late.get().is_empty() {
            late.remove();
        }
        Some(first)
    }

    /// A group that is no more is not given this, and lists no more.
    pub(crate) fn refuse_late(&mut self, group: u32) -> bool {
        self.list(group, Runs::default(), u64::MAX);
        let first = self.take_late(group, 0);
        if let Some(offset) = first {
            self.forget_if_settled(offset);
        }
        first.is_some()
    }

    // --- groups that do not know what they have to settle

    /// A group has a message to settle that is here, and is not to know it for now.
    pub(crate) fn miss(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.staying += 1;
        if known.staying == 1 {
            self.staying.add(known);
        }
        self.hold(offset);
    }

    /// The same of one that may be outside.
    pub(crate) fn miss_from_now_on(&mut self, meta: &Meta) {
        if self.messages.contains_key(&meta.offset) {
            self.miss(meta.offset);
        } else {
            self.outside.insert(meta.offset, meta.bytes);
        }
    }

    /// A group that missed it is to know it, or has not to settle it.
    pub(crate) fn miss_no_more(&mut self, offset: u64) {
        self.stay_no_more(offset);
        self.let_go(offset);
    }

    /// The same of all that are here of a range: how many these are.
    pub(crate) fn miss_none(&mut self, range: Range<u64>) -> usize {
        let here: Vec<u64> = self.messages.range(range).map(|(&offset, _)| offset).collect();
        for &offset in &here {
            self.miss_no_more(offset);
        }
        here.len()
    }

    /// Where so many of those end that are here of a range.
    pub(crate) fn end_of(&self, range: Range<u64>, most: usize) -> u64 {
        self.messages.range(range.clone()).nth(most).map_or(range.end, |(&offset, _)| offset)
    }

    /// No group has these to settle that no group knows.
    pub(crate) fn forget_outside(&mut self, offsets: &Runs) {
        offsets.runs().for_each(|run| self.outside.remove_range(run));
    }

    /// A message that may be outside is to be known, and so many groups miss it.
    pub(crate) fn bring_in(&mut self, meta: &Meta, missing: usize) {
        if self.outside.take(meta.offset, meta.bytes) {
            self.put(meta);
            (0..missing).for_each(|_| self.miss(meta.offset));
        }
    }

    // --- what groups make of messages

    /// One more group has it to settle.
    pub(crate) fn pend(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.pending += 1;
        known.staying += 1;
        if known.staying == 1 {
            self.staying.add(known);
        }
    }

    /// A group has leased it.
    pub(crate) fn hold(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.held += 1;
        self.free.remove(offset);
    }

    /// A group that held it does so no more.
    pub(crate) fn let_go(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.held -= 1;
        if known.held == 0 {
            self.free.insert(offset);
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
            self.staying.subtract(known);
        }
    }

    /// A group that did not hold it has settled it.
    pub(crate) fn settle(&mut self, offset: u64) {
        self.stay_no_more(offset);
        self.forget(offset);
    }

    /// A group that held it has settled it: it lets go and settles in one.
    pub(crate) fn settle_held(&mut self, offset: u64) {
        self.stay_no_more(offset);
        let is_late = self.is_late(offset);
        let Entry::Occupied(mut there) = self.messages.entry(offset) else { return };
        let known = there.get_mut();
        known.held -= 1;
        known.pending -= 1;
        if known.pending == 0 && !is_late {
            self.bytes -= u64::from(known.bytes);
            self.expiry.remove(offset, known);
            let gone = there.remove();
            self.see_off(offset, &gone);
        } else if known.held == 0 {
            self.free.insert(offset);
        }
    }

    /// A group that it was leaving is done with it.
    pub(crate) fn settle_departed(&mut self, offset: u64) {
        self.let_go(offset);
        self.forget(offset);
    }

    /// Forgets what it knows, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        self.late.values_mut().for_each(|late| late.listed.thin(most));
        thin(&mut self.messages, most);
        self.expiry.thin(most);
        self.free.thin(most);
        self.outside.thin(most);
    }

    fn forget(&mut self, offset: u64) {
        let Some(known) = self.messages.get_mut(&offset) else { return };
        known.pending -= 1;
        self.forget_if_settled(offset);
    }

    /// Forgets it if no group that knows it has to settle it, and none is to be given it.
    pub(crate) fn forget_if_settled(&mut self, offset: u64) {
        let Some(known) = self.messages.get(&offset) else { return };
        if known.pending > 0 || self.is_late(offset) {
            return;
        }
        self.bytes -= u64::from(known.bytes);
        self.expiry.remove(offset, known);
        self.free.remove(offset);
        if let Some(gone) = self.messages.remove(&offset) {
            self.see_off(offset, &gone);
        }
    }

    /// A message is here no more, since no group knows it that has not settled it.
    fn see_off(&mut self, offset: u64, gone: &Known) {
        if gone.staying > 0 {
            self.staying.subtract(gone);
            self.outside.insert(offset, gone.bytes);
        }
    }
}
