//! Order by key: of the messages of one key, only the *head* is available or leased; later messages wait.
//!
//! A settled head stays the head until its settlement is durable. Otherwise the next message could be delivered, and
//! a crash that forgets the settlement could then deliver the first message again after the second one.
//!
//! When `fifo` is switched on, consumers may already hold several messages of one key. One of them becomes the head,
//! the others are *extra leased*: they wait like later messages, but come before those that nobody has.

mod heads;

use std::collections::{BTreeMap, BTreeSet};

use heads::Heads;

use crate::deferred_drop::{drop_some, drop_some_of_set};

/// Order by key in one group. An offset stays here until its settlement is durable.
#[derive(Debug, Default)]
pub(crate) struct KeyOrder {
    /// Head of each key.
    heads: Heads,
    /// All other messages, by key and offset.
    waiting: BTreeSet<(u64, u64)>,
    /// Waiting messages that a consumer has. If a key has one, a consumer has its head too.
    extra_leased: BTreeSet<(u64, u64)>,
    /// Settled messages, with the flush that records the settlement.
    settled: BTreeMap<(u64, u64), u64>,
}

fn first_of(set: &BTreeSet<(u64, u64)>, key: u64) -> Option<u64> {
    set.range((key, 0)..=(key, u64::MAX)).next().map(|&(_, offset)| offset)
}

impl KeyOrder {
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty()
            && self.waiting.is_empty()
            && self.extra_leased.is_empty()
            && self.settled.is_empty()
    }

    /// The head of the key.
    pub(crate) fn head(&self, key: u64) -> Option<u64> {
        self.heads.get(key)
    }

    /// Makes `offset`, which no consumer has, the head of its key, or lets it wait. Returns whether it is the head. A
    /// message that was settled is so no longer.
    pub(crate) fn enter(&mut self, key: u64, offset: u64) -> bool {
        self.clear_settled(key, offset);
        self.clear_extra_leased(key, offset);
        let head = self.heads.get_or_insert(key, offset);
        if head != offset {
            self.waiting.insert((key, offset));
        }
        head == offset
    }

    /// Adds a message that a consumer has, while a consumer also has the head.
    pub(crate) fn enter_extra_leased(&mut self, key: u64, offset: u64) {
        self.clear_settled(key, offset);
        self.waiting.insert((key, offset));
        self.extra_leased.insert((key, offset));
    }

    /// Makes a message that a consumer has the head. The previous head waits.
    pub(crate) fn replace_head(&mut self, key: u64, offset: u64) {
        self.clear_settled(key, offset);
        self.waiting.remove(&(key, offset));
        if let Some(head) = self.heads.insert(key, offset) {
            self.waiting.insert((key, head));
        }
    }

    fn clear_settled(&mut self, key: u64, offset: u64) {
        if !self.settled.is_empty() {
            self.settled.remove(&(key, offset));
        }
    }

    fn clear_extra_leased(&mut self, key: u64, offset: u64) {
        if !self.extra_leased.is_empty() {
            self.extra_leased.remove(&(key, offset));
        }
    }

    /// Whether consumers have messages of the key besides its head.
    pub(crate) fn has_extra_leased(&self, key: u64) -> bool {
        first_of(&self.extra_leased, key).is_some()
    }

    /// The next head: an extra leased message, otherwise the lowest one that waits.
    fn next(&self, key: u64) -> Option<u64> {
        first_of(&self.extra_leased, key).or_else(|| first_of(&self.waiting, key))
    }

    /// Replaces a head that no consumer has by an extra leased or lower message, and returns the new head.
    pub(crate) fn swap_head(&mut self, key: u64) -> Option<u64> {
        let head = self.head(key)?;
        let next = self.next(key).filter(|&next| next < head || self.extra_leased.contains(&(key, next)))?;
        self.waiting.remove(&(key, next));
        self.clear_extra_leased(key, next);
        self.waiting.insert((key, head));
        self.heads.insert(key, next);
        Some(next)
    }

    /// Drops entries of collections, while `budget` lasts.
    pub(crate) fn drop_some(&mut self, budget: &mut usize) {
        self.heads.drop_some(budget);
        drop_some_of_set(&mut self.waiting, budget);
        drop_some_of_set(&mut self.extra_leased, budget);
        drop_some(&mut self.settled, budget);
    }

    /// Records a settlement. The message keeps its place until this flush is durable.
    pub(crate) fn settle(&mut self, key: u64, offset: u64, flush: u64) {
        self.clear_extra_leased(key, offset);
        self.settled.insert((key, offset), flush);
    }

    pub(crate) fn is_settled(&self, key: u64, offset: u64) -> bool {
        self.settled.contains_key(&(key, offset))
    }

    /// The settlement is durable. Returns the new head if the message was the head.
    pub(crate) fn release(&mut self, key: u64, offset: u64, flush: u64) -> Option<u64> {
        if self.settled.get(&(key, offset)) != Some(&flush) {
            return None;
        }
        self.settled.remove(&(key, offset));
        self.leave(key, offset)
    }

    /// Removes a message. Returns the new head if the message was the head.
    pub(crate) fn leave(&mut self, key: u64, offset: u64) -> Option<u64> {
        self.clear_extra_leased(key, offset);
        if self.head(key) != Some(offset) {
            self.waiting.remove(&(key, offset));
            return None;
        }
        let next = self.next(key);
        match next {
            Some(next) => {
                self.waiting.remove(&(key, next));
                self.clear_extra_leased(key, next);
                self.heads.insert(key, next);
            }
            None => self.heads.remove(key),
        }
        next
    }
}
