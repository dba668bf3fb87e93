//! Rules that consumers and target queues rely on, checked without knowledge of how a queue works.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_queue_core::{Config, Lease, Meta, Receipt};

pub(crate) type Broken = Result<(), String>;

#[derive(Clone, Copy, Debug)]
struct Holder {
    consumer: u64,
    until_ms: u64,
}

/// What was observed of a queue, by group and offset. Flushes are counted from the beginning, across crashes.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Whether messages of one key must come in order, and the first flush after that was so.
    has_order: bool,
    has_order_from: usize,
    dedup_window_ms: u64,
    holders: BTreeMap<(String, u64), Holder>,
    /// The flush that records the settlement.
    settled: BTreeMap<(String, u64), usize>,
    /// The latest offset of each key.
    latest: BTreeMap<(String, u64), u64>,
    /// Offset by transfer number.
    taken: BTreeMap<(String, u64), u64>,
    transferred: BTreeMap<(String, u64), u64>,
    arrived: BTreeMap<(String, u64), usize>,
    /// Delivered messages with an identifier that were not replayed.
    identified: BTreeMap<u64, (Box<[u8]>, u64)>,
    replayed: BTreeSet<u64>,
    /// All receipts ever issued.
    receipts: BTreeSet<(String, Receipt)>,
}

impl Rules {
    pub(crate) fn of(config: &Config) -> Self {
        Self { has_order: config.fifo, dedup_window_ms: config.dedup_window_ms, ..Self::default() }
    }

    /// Order by key is required from now on, or not. A crash may forget settlements before `flush`, whose messages
    /// may come again after others.
    pub(crate) fn has_order(&mut self, has_order: bool, flush: usize) {
        if std::mem::replace(&mut self.has_order, has_order) != has_order {
            self.latest.clear();
            self.has_order_from = flush;
        }
    }

    pub(crate) fn leased(
        &mut self,
        group: &str,
        consumer: u64,
        lease: &Lease,
        log: &BTreeMap<u64, Meta>,
        now_ms: u64,
    ) -> Broken {
        let offset = lease.receipt.offset;
        let at = (group.to_owned(), offset);
        let meta = log.get(&offset).ok_or("a message that is not there is leased")?;
        if let Some(holder) = self.holders.get(&at).filter(|holder| holder.until_ms > now_ms) {
            return Err(format!("two consumers have {at:?}: {consumer} and {}", holder.consumer));
        }
        if !self.receipts.insert((group.to_owned(), lease.receipt)) {
            return Err(format!("two deliveries have one receipt: {at:?}, {:?}", lease.receipt));
        }
        if self.settled.contains_key(&at) {
            return Err(format!("a settled message returns: {at:?}"));
        }
        if let Some(key) = meta.key.filter(|_| self.has_order) {
            let of_key = |other: u64| log.get(&other).is_some_and(|meta| meta.key == Some(key));
            let mut others = self
                .holders
                .iter()
                .filter(|((of, other), _)| of == group && *other != offset && of_key(*other));
            if let Some(other) = others.find(|(_, holder)| holder.until_ms > now_ms) {
                return Err(format!("two of a key are out: {at:?} and {other:?}"));
            }
            let latest = self.latest.entry((group.to_owned(), key)).or_insert(offset);
            if *latest > offset {
                return Err(format!("the order of a key is lost: {at:?} after {latest}"));
            }
            *latest = offset;
        }
        if let Some(id) =
            meta.dedup_id.clone().filter(|_| meta.moved_by.is_none() && !self.replayed.contains(&offset))
        {
            self.identified.insert(offset, (id, meta.timestamp_ms));
            let here = &self.identified[&offset];
            for (other, there) in self.identified.iter().filter(|(other, _)| **other != offset) {
                if here.0 == there.0 && here.1.abs_diff(there.1) < self.dedup_window_ms {
                    return Err(format!("a duplicate is delivered: {offset} and {other}"));
                }
            }
        }
        self.holders.insert(at, Holder { consumer, until_ms: lease.until_ms });
        Ok(())
    }

    pub(crate) fn extended(&mut self, group: &str, offset: u64, until_ms: u64) {
        if let Some(holder) = self.holders.get_mut(&(group.to_owned(), offset)) {
            holder.until_ms = until_ms;
        }
    }

    pub(crate) fn released(&mut self, group: &str, offset: u64) {
        self.holders.remove(&(group.to_owned(), offset));
    }

    pub(crate) fn settled(&mut self, group: &str, offset: u64, flush: usize) {
        self.released(group, offset);
        self.settled.insert((group.to_owned(), offset), flush);
    }

    pub(crate) fn taken(&mut self, group: &str, number: u64, offset: u64) -> Broken {
        let at = (group.to_owned(), number);
        if self.arrived.contains_key(&at) {
            return Err(format!("a message that has arrived leaves again: {at:?}"));
        }
        if *self.taken.entry(at.clone()).or_insert(offset) != offset {
            return Err(format!("a number is used again: {at:?}"));
        }
        let transferred = self.transferred.entry((group.to_owned(), offset)).or_insert(number);
        if *transferred != number {
            return Err(format!("a message leaves again: {offset} as {at:?} and {transferred}"));
        }
        Ok(())
    }

    pub(crate) fn arrived(&mut self, group: &str, number: u64, flush: usize) {
        self.arrived.insert((group.to_owned(), number), flush);
    }

    /// Offsets are pending again.
    pub(crate) fn replayed(&mut self, group: &str, offsets: &[u64], log: &BTreeMap<u64, Meta>) {
        for offset in offsets {
            let at = (group.to_owned(), *offset);
            self.settled.remove(&at);
            self.transferred.remove(&at);
            self.identified.remove(offset);
            self.replayed.insert(*offset);
            if let Some(key) = log[offset].key {
                self.latest.remove(&(group.to_owned(), key));
            }
        }
    }

    /// No consumer of the group holds a message any more.
    pub(crate) fn purged(&mut self, group: &str) {
        self.holders.retain(|(of, _), _| of != group);
    }

    /// A group was removed. A group with the same name is a new one, but its transfer numbers continue.
    pub(crate) fn removed(&mut self, group: &str) {
        self.purged(group);
        self.settled.retain(|(of, _), _| of != group);
        self.latest.retain(|(of, _), _| of != group);
        self.transferred.retain(|(of, _), _| of != group);
    }

    /// The process ended; this many flushes are left.
    pub(crate) fn crashed(&mut self, flushes: usize, groups: &[&str]) {
        self.holders.clear();
        self.settled.retain(|_, flush| *flush <= flushes);
        self.arrived.retain(|_, flush| *flush <= flushes);
        let is_kept = self.has_order_from <= flushes;
        self.latest.retain(|(group, _), _| is_kept && groups.contains(&group.as_str()));
        self.transferred.retain(|(group, _), _| groups.contains(&group.as_str()));
    }
}
