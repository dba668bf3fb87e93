//! Offsets of one group: committed ones, and pending ones of transactions.
//!
//! A pending offset is invisible until its transaction commits, and must not overwrite one that was committed after it.
//! Every offset therefore has a number in one order over all commits of the group, and the larger number wins,
//! whichever way it arrives. Tables are ordered by topic and partition, so that a large group is listed in parts: a
//! part begins behind the last topic of the one before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

/// A committed or pending offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offset {
    /// Offset of the next record to read.
    pub(super) next: i64,
    pub(super) leader_epoch: i32,
    pub(super) metadata: Box<str>,
    /// Commit time, ms since 1970.
    pub(super) committed_ms: u64,
    /// Expiry time if the request set one, ms since 1970.
    pub(super) expires_ms: Option<u64>,
    /// Sequence number over all offsets. A pending offset keeps the number of its TxnOffsetCommit, so that it does not
    /// overwrite an offset that was committed later.
    pub(super) order: u64,
}

/// Topic to partition to offset.
type Table = BTreeMap<Arc<str>, BTreeMap<i32, Offset>>;

#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: Table,
    /// By producer id.
    pending: BTreeMap<i64, Table>,
}

impl Offsets {
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.pending.is_empty()
    }

    pub(super) fn committed(&self, topic: &str, partition: i32) -> Option<&Offset> {
        self.committed.get(topic)?.get(&partition)
    }

    pub(super) fn all_committed(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<i32, Offset>)> {
        self.committed.iter()
    }

    /// The committed offsets of a topic, by partition.
    pub(super) fn committed_of(&self, topic: &str) -> impl Iterator<Item = (i32, &Offset)> {
        of_topic(&self.committed, topic)
    }

    /// The pending offsets of a transaction for a topic, by partition.
    pub(super) fn pending_of(&self, producer_id: i64, topic: &str) -> impl Iterator<Item = (i32, &Offset)> {
        self.pending.get(&producer_id).into_iter().flat_map(move |table| of_topic(table, topic))
    }

    /// The first topic from `from` on that has a committed or a pending offset.
    pub(super) fn next_topic(&self, from: Bound<&str>) -> Option<&Arc<str>> {
        let tables = std::iter::once(&self.committed).chain(self.pending.values());
        tables
            .filter_map(|table| table.range::<str, _>((from, Bound::Unbounded)).next())
            .map(|(topic, _)| topic)
            .min()
    }

    pub(super) fn pending(&self, producer_id: i64, topic: &str, partition: i32) -> Option<&Offset> {
        self.pending.get(&producer_id)?.get(topic)?.get(&partition)
    }

    /// Whether a pending transaction has an offset for the partition.
    pub(super) fn is_unstable(&self, topic: &str, partition: i32) -> bool {
        self.pending
            .values()
            .any(|table| table.get(topic).is_some_and(|partitions| partitions.contains_key(&partition)))
    }

    pub(super) fn producers(&self) -> impl Iterator<Item = i64> + '_ {
        self.pending.keys().copied()
    }

    /// All pending offsets, by producer, topic, and partition.
    pub(super) fn all_pending(&self) -> impl Iterator<Item = (i64, &Arc<str>, i32)> {
        self.pending.iter().flat_map(|(producer_id, table)| {
            let of_topic = move |(topic, partitions): (_, &BTreeMap<i32, Offset>)| {
                let (topic, partitions): (&Arc<str>, Vec<i32>) =
                    (topic, partitions.keys().copied().collect());
                partitions.into_iter().map(move |partition| (*producer_id, topic, partition))
            };
            table.iter().flat_map(of_topic)
        })
    }

    /// Returns the previous offset of the partition.
    pub(super) fn commit(&mut self, topic: &str, partition: i32, offset: Offset) -> Option<Offset> {
        put(&mut self.committed, topic, partition, offset)
    }

    /// Returns the previous pending offset of the transaction.
    pub(super) fn add_pending(
        &mut self,
        producer_id: i64,
        topic: &str,
        partition: i32,
        offset: Offset,
    ) -> Option<Offset> {
        put(self.pending.entry(producer_id).or_default(), topic, partition, offset)
    }

    pub(super) fn remove(&mut self, topic: &str, partition: i32) -> Option<Offset> {
        take(&mut self.committed, topic, partition)
    }

    pub(super) fn drop_pending(&mut self, producer_id: i64, topic: &str, partition: i32) -> Option<Offset> {
        let Entry::Occupied(mut table) = self.pending.entry(producer_id) else { return None };
        let taken = take(table.get_mut(), topic, partition);
        if table.get().is_empty() {
            table.remove();
        }
        taken
    }

    /// Removes and returns all pending offsets of a transaction.
    pub(super) fn take_pending(
        &mut self,
        producer_id: i64,
    ) -> impl Iterator<Item = (Arc<str>, i32, Offset)> + use<> {
        let table = self.pending.remove(&producer_id).unwrap_or_default();
        table.into_iter().flat_map(|(topic, partitions)| {
            partitions.into_iter().map(move |(partition, offset)| (topic.clone(), partition, offset))
        })
    }
}

fn of_topic<'a>(table: &'a Table, topic: &str) -> impl Iterator<Item = (i32, &'a Offset)> + use<'a> {
    let partitions = table.get(topic).into_iter().flatten();
    partitions.map(|(partition, offset)| (*partition, offset))
}

fn put(table: &mut Table, topic: &str, partition: i32, offset: Offset) -> Option<Offset> {
    if let Some(partitions) = table.get_mut(topic) {
        return partitions.insert(partition, offset);
    }
    table.entry(topic.into()).or_default().insert(partition, offset)
}

fn take(table: &mut Table, topic: &str, partition: i32) -> Option<Offset> {
    let partitions = table.get_mut(topic)?;
    let offset = partitions.remove(&partition);
    if partitions.is_empty() {
        table.remove(topic);
    }
    offset
}
