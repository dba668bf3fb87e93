//! Order by key: of the messages of one key, one is out at a time and the others wait in line, the lowest first.
//!
//! One that is settled stands in line until that is durable. If it did not, a later one could come out and then, after a
//! crash that forgets that it was settled, it could come out once more behind the later one.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::quality::FixedState;
use hashbrown::HashMap;

use crate::thin::{thin, thin_set};

/// The lines of one group. An offset stands in at most one, until it is durable that it is settled.
#[derive(Debug)]
pub(crate) struct Lines {
    /// Who is out, by key.
    out: HashMap<u64, u64, FixedState>,
    /// The others, by key and offset.
    waiting: BTreeSet<(u64, u64)>,
    /// Those that are settled, by an event in this flush.
    settled: BTreeMap<(u64, u64), u64>,
}

impl Default for Lines {
    fn default() -> Self {
        let out = HashMap::with_hasher(FixedState::with_seed(0));
        Self { out, waiting: BTreeSet::new(), settled: BTreeMap::new() }
    }
}

impl Lines {
    /// Who of this key is out.
    pub(crate) fn out(&self, key: u64) -> Option<u64> {
        self.out.get(&key).copied()
    }

    /// Lets `offset` out if nobody of its key is; otherwise it waits. Whether it is out. One that was settled is not any
    /// more.
    pub(crate) fn enter(&mut self, key: u64, offset: u64) -> bool {
        if !self.settled.is_empty() {
            self.settled.remove(&(key, offset));
        }
        let out = *self.out.entry(key).or_insert(offset);
        if out != offset {
            self.waiting.insert((key, offset));
        }
        out == offset
    }

    /// The lowest of those that wait.
    fn first_waiting(&self, key: u64) -> Option<u64> {
        self.waiting.range((key, 0)..=(key, u64::MAX)).next().map(|&(_, offset)| offset)
    }

    /// Lets a lower one out instead of the one that is out, if such a one waits.
    pub(crate) fn give_way(&mut self, key: u64) -> Option<u64> {
        let out = self.out(key)?;
        let lower = self.first_waiting(key).filter(|&lower| lower < out)?;
        self.waiting.remove(&(key, lower));
        self.waiting.insert((key, out));
        self.out.insert(key, lower);
        Some(lower)
    }

    /// Forgets what it knows, as long as `most` is not 0.
    pub(crate) fn thin(&mut self, most: &mut usize) {
        thin_set(&mut self.waiting, most);
        thin(&mut self.settled, most);
    }

    /// One is settled by an event in this flush, and keeps its place until that is durable.
    pub(crate) fn settle(&mut self, key: u64, offset: u64, flush: u64) {
        self.settled.insert((key, offset), flush);
    }

    pub(crate) fn is_settled(&self, key: u64, offset: u64) -> bool {
        self.settled.contains_key(&(key, offset))
    }

    /// That one is settled is durable. If it was out, the lowest of those that wait is.
    pub(crate) fn depart(&mut self, key: u64, offset: u64, flush: u64) -> Option<u64> {
        if self.settled.get(&(key, offset)) != Some(&flush) {
            return None;
        }
        self.settled.remove(&(key, offset));
        if self.out(key) != Some(offset) {
            self.waiting.remove(&(key, offset));
            return None;
        }
        let next = self.first_waiting(key);
        match next {
            Some(next) => {
                self.waiting.remove(&(key, next));
                self.out.insert(key, next);
            }
            None => drop(self.out.remove(&key)),
        }
        next
    }
}
