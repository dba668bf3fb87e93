//! Tombstones of groups and members whose write has failed.
//!
//! A record that was not written is written again, because its group still exists. A tombstone has no such owner: if
//! it is lost, the log keeps a group or a member that is gone, and a restart brings it back. So the keys of tombstones
//! are kept until their write is confirmed, and those of failed writes are written again as soon as the log accepts
//! writes, unless there is something under the key by then.

use std::collections::{BTreeSet, VecDeque};

use super::Groups;
use super::changes::WriteId;
use super::consumer::ConsumerGroup;
use super::consumer_group::Group;
use super::records::{self, Key};
use crate::Record;

#[derive(Debug, Default)]
pub(super) struct Tombstones {
    /// Keys by write that is not confirmed, oldest first.
    in_flight: VecDeque<(WriteId, Vec<Vec<u8>>)>,
    /// Keys that the log has and should not have.
    lost: BTreeSet<Vec<u8>>,
}

impl Tombstones {
    /// Notes the tombstones of a write.
    pub(super) fn note_write(&mut self, write: WriteId, written: &[Record]) {
        let tombstones = written.iter().filter(|record| record.value.is_none());
        let keys: Vec<Vec<u8>> =
            tombstones.map(|record| record.key.clone()).filter(|key| is_of_group(key)).collect();
        if !keys.is_empty() {
            self.in_flight.push_back((write, keys));
        }
    }

    fn take(&mut self, write: WriteId) -> Vec<Vec<u8>> {
        let at = self.in_flight.binary_search_by_key(&write, |(known, _)| *known).ok();
        at.and_then(|at| self.in_flight.remove(at)).map(|(_, keys)| keys).unwrap_or_default()
    }

    /// The log has a record that it should not have.
    pub(super) fn note_stale(&mut self, key: Vec<u8>) {
        self.lost.insert(key);
    }
}

/// Whether a key is that of a group or of a member. Tombstones of offsets are undone if they fail.
fn is_of_group(key: &[u8]) -> bool {
    matches!(
        records::parse_key(key),
        Ok(Key::Group { .. } | Key::ConsumerGroup { .. } | Key::ConsumerMember { .. })
    )
}

impl Groups {
    /// A write is durable, so the log accepts writes: writes lost tombstones again.
    pub(super) fn repeat_tombstones(&mut self, write: WriteId) {
        self.effects.tombstones.take(write);
        if self.effects.tombstones.lost.is_empty() {
            return;
        }
        let lost = std::mem::take(&mut self.effects.tombstones.lost).into_iter();
        let gone = lost.filter(|key| !self.has_record(key)).map(|key| Record { key, value: None });
        let gone = gone.collect();
        self.effects.persist(gone);
    }

    /// The tombstones of a failed write are lost.
    pub(super) fn note_lost_tombstones(&mut self, write: WriteId) {
        let keys = self.effects.tombstones.take(write);
        self.effects.tombstones.lost.extend(keys);
    }

    /// Whether there is something that a record with this key describes.
    fn has_record(&self, key: &[u8]) -> bool {
        let group = |group_id: &str| self.by_id.get(group_id);
        match records::parse_key(key) {
            Ok(Key::Group { group_id }) => group(group_id).is_some_and(Group::is_persisted),
            Ok(Key::ConsumerGroup { group_id }) => {
                group(group_id).and_then(Group::consumer).is_some_and(ConsumerGroup::is_persisted)
            }
            Ok(Key::ConsumerMember { group_id, member_id }) => group(group_id)
                .and_then(Group::consumer)
                .is_some_and(|consumer| consumer.member(member_id).is_some()),
            _ => false,
        }
    }
}
