//! Offsets as they were before what is not kept yet: a log that refuses their records must not leave them changed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Groups;
use super::offsets::Offset;

/// Names what is to be kept together. Later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keep(pub u64);

/// An offset has changed: one record says so.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) group_id: Arc<str>,
    /// Of an offset of a transaction that is not over.
    pub(super) producer_id: Option<i64>,
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    /// What it was before; nothing if there was none.
    pub(super) before: Option<Offset>,
}

impl Change {
    fn is_of_the_same(&self, other: &Self) -> bool {
        self.partition == other.partition
            && self.producer_id == other.producer_id
            && self.topic == other.topic
            && self.group_id == other.group_id
    }
}

/// What has changed and is not known to be kept.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Of which the records have not been handed out, in their order.
    gathering: VecDeque<Change>,
    /// By what they are kept with, oldest first.
    handed: VecDeque<(Keep, Vec<Change>)>,
    last: u64,
}

impl Changes {
    pub(super) fn note(&mut self, change: Change) {
        self.gathering.push_back(change);
    }

    /// So many records are handed out together.
    pub(super) fn hand_out(&mut self, records: usize) -> Keep {
        self.last += 1;
        let keep = Keep(self.last);
        let count = records.min(self.gathering.len());
        if count > 0 {
            self.handed.push_back((keep, self.gathering.drain(..count).collect()));
        }
        keep
    }

    /// Takes what changed with these records, and where it stood.
    fn take(&mut self, keep: Keep) -> Option<(usize, Vec<Change>)> {
        let at = self.handed.binary_search_by_key(&keep, |(known, _)| *known).ok()?;
        self.handed.remove(at).map(|(_, changes)| (at, changes))
    }
}

impl Groups {
    /// What was handed out to be kept together is kept.
    pub fn kept(&mut self, keep: Keep) {
        let Some((at, changes)) = self.out.changes.take(keep) else { return };
        // What came before and fails later has been overtaken.
        for (_, earlier) in self.out.changes.handed.iter_mut().take(at) {
            earlier.retain(|earlier| changes.iter().all(|change| !change.is_of_the_same(earlier)));
        }
    }

    /// What was handed out to be kept together is not, and never will be: the offsets it tells of are what they were
    /// before, unless they have changed once more since.
    ///
    /// Of many, those handed out last had better be told first.
    pub fn not_kept(&mut self, keep: Keep) {
        let Some((at, mut changes)) = self.out.changes.take(keep) else { return };
        while let Some(change) = changes.pop() {
            let behind = self.out.changes.handed.iter_mut().skip(at).flat_map(|(_, changes)| changes);
            match behind.into_iter().find(|later| later.is_of_the_same(&change)) {
                Some(later) => later.before = change.before,
                None => self.put_back(change),
            }
        }
    }

    fn put_back(&mut self, change: Change) {
        let Change { group_id, producer_id, topic, partition, before } = change;
        match before {
            Some(offset) => {
                self.group_to_restore(&group_id);
                self.put_offset(&group_id, producer_id, &topic, partition, offset);
            }
            None => self.take_offset(&group_id, producer_id, &topic, partition),
        }
    }
}
