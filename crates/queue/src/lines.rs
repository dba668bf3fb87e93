//! Order by key: of the messages of one key, one is out at a time and the others wait in line, the lowest first.
//!
//! One that is settled stands in line until that is durable. If it did not, a later one could come out and then, after a
//! crash that forgets that it was settled, it could come out once more behind the later one.
//!
//! Where there was no order by key before, several of a key may be in consumers' hands: but one of them are *astray*. They
//! have places in line, and are out before those that wait.

mod out;

use std::collections::{BTreeMap, BTreeSet};

use out::Out;

use crate::thin::{thin, thin_set};

/// The lines of one group. An offset stands in at most one, until it is durable that it is settled.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Who is out, by key.
    out: Out,
    /// The others, by key and offset.
    waiting: BTreeSet<(u64, u64)>,
    /// Those of them that somebody has. If a key has such, somebody has the one that is out.
    astray: BTreeSet<(u64, u64)>,
    /// Those that are settled, by an event in this flush.
    settled: BTreeMap<(u64, u64), u64>,
}

fn first_of(set: &BTreeSet<(u64, u64)>, key: u64) -> Option<u64> {
    set.range((key, 0)..=(key, u64::MAX)).next().map(|&(_, offset)| offset)
}

impl Lines {
    /// Whether nobody is out or waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty() && self.astray.is_empty() && self.settled.is_empty()
    }

    /// Who of this key is out.
    pub(crate) fn out(&self, key: u64) -> Option<u64> {
        self.out.get(key)
    }

    /// Lets `offset` out, which nobody has, if nobody of its key is; otherwise it waits. Whether it is out. One that was
    /// settled is not any more.
    pub(crate) fn enter(&mut self, key: u64, offset: u64) -> bool {
        self.be_unsettled(key, offset);
        self.stray_no_more(key, offset);
        let out = self.out.get_or_insert(key, offset);
        if out != offset {
            self.waiting.insert((key, offset));
        }
        out == offset
    }

    /// Somebody has `offset`, and also the one of its key that is out.
    pub(crate) fn enter_astray(&mut self, key: u64, offset: u64) {
        self.be_unsettled(key, offset);
        self.waiting.insert((key, offset));
        self.astray.insert((key, offset));
    }

    /// Somebody has `offset`, so that it is out. The one of its key that was waits.
    pub(crate) fn enter_instead(&mut self, key: u64, offset: u64) {
        self.be_unsettled(key, offset);
        self.waiting.remove(&(key, offset));
        if let Some(out) = self.out.insert(key, offset) {
            self.waiting.insert((key, out));
        }
    }

    fn be_unsettled(&mut self, key: u64, offset: u64) {
        if !self.settled.is_empty() {
            self.settled.remove(&(key, offset));
        }
    }

    fn stray_no_more(&mut self, key: u64, offset: u64) {
        if !self.astray.is_empty() {
            self.astray.remove(&(key, offset));
        }
    }

    /// Who is to be out next: one that is astray, otherwise the lowest of those that wait.
    fn next(&self, key: u64) -> Option<u64> {
        first_of(&self.astray, key).or_else(|| first_of(&self.waiting, key))
    }

    /// Lets another one out instead of the one that is out, which nobody has: one that is astray, or a lower one that waits.
    pub(crate) fn give_way(&mut self, key: u64) -> Option<u64> {
        let out = self.out(key)?;
        let next = self.next(key).filter(|&next| next < out || self.astray.contains(&(key, next)))?;
        self.waiting.remove(&(key, next));
        self.stray_no_more(key, next);
        self.waiting.insert((key, out));
        self.out.insert(key, next);
        Some(next)
    }

    /// Forgets what it knows, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        self.out.thin(most);
        thin_set(&mut self.waiting, most);
        thin_set(&mut self.astray, most);
        thin(&mut self.settled, most);
    }

    /// One is settled by an event in this flush, and keeps its place until that is durable.
    pub(crate) fn settle(&mut self, key: u64, offset: u64, flush: u64) {
        self.stray_no_more(key, offset);
        self.settled.insert((key, offset), flush);
    }

    pub(crate) fn is_settled(&self, key: u64, offset: u64) -> bool {
        self.settled.contains_key(&(key, offset))
    }

    /// That one is settled is durable. If it was out, another one is: which.
    pub(crate) fn depart(&mut self, key: u64, offset: u64, flush: u64) -> Option<u64> {
        if self.settled.get(&(key, offset)) != Some(&flush) {
            return None;
        }
        self.settled.remove(&(key, offset));
        self.leave(key, offset)
    }

    /// One stands in line no more. If it was out, another one is: which.
    pub(crate) fn leave(&mut self, key: u64, offset: u64) -> Option<u64> {
        self.stray_no_more(key, offset);
        if self.out(key) != Some(offset) {
            self.waiting.remove(&(key, offset));
            return None;
        }
        let next = self.next(key);
        match next {
            Some(next) => {
                self.waiting.remove(&(key, next));
                self.stray_no_more(key, next);
                self.out.insert(key, next);
            }
            None => self.out.remove(key),
        }
        next
    }
}
