//! Removal of offsets and groups: expiry (KIP-211), DeleteGroups.
//!
//! A group without members expires with its last offset. Offsets that a pending transaction would overwrite never
//! expire.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::consumer_group::Group;
use super::offsets::Offset;
use super::response::{DeletedGroup, Response};
use super::state::State;
use super::{Groups, records};
use crate::{Caller, Error, Record};

impl Groups {
    /// DeleteGroups: deletes groups without members, with all their offsets. Answered once that is durable.
    pub fn handle_delete(&mut self, now_ms: u64, group_ids: &[&str], caller: Caller) {
        let delete = |group_id: &&str| DeletedGroup {
            group_id: (*group_id).to_owned(),
            outcome: self.delete(now_ms, group_id),
        };
        let deleted = group_ids.iter().map(delete).collect();
        self.effects.reply_when_durable(caller, Response::Delete(deleted));
    }

    fn delete(&mut self, now_ms: u64, group_id: &str) -> Result<(), Error> {
        let group = self.by_id.get(group_id).ok_or(Error::GroupIdNotFound)?;
        if group.state() != State::Empty {
            return Err(Error::NonEmptyGroup);
        }
        let mut partitions: Vec<(Arc<str>, i32)> = all_partitions(group).collect();
        partitions
            .extend(group.offsets().all_pending().map(|(_, topic, partition)| (topic.clone(), partition)));
        let mut new_records = Vec::new();
        for (topic, partition) in partitions {
            self.drop_offset(group_id, &topic, partition, &mut new_records);
        }
        self.persist_in_chunks(new_records);
        self.remove(now_ms, group_id);
        Ok(())
    }

    /// Removes a group that has no members and no offsets.
    fn remove(&mut self, now_ms: u64, group_id: &str) {
        let _existed = self.with_group(now_ms, group_id, |context| {
            context.clear_all_timers();
            context.leave_consumer_protocol();
            if context.group.take_persisted() {
                context.effects.persist(vec![records::group_tombstone(group_id)]);
            }
        });
    }

    fn drop_offsets(&mut self, group_id: &str, partitions: impl Iterator<Item = (Arc<str>, i32)>) {
        let mut new_records: Vec<Record> = Vec::new();
        for (topic, partition) in partitions {
            self.drop_offset(group_id, &topic, partition, &mut new_records);
        }
        self.persist_in_chunks(new_records);
        self.remove_if_unused(group_id);
    }

    /// Expires offsets that have not been committed for the retention time, and groups that are empty afterwards
    /// (KIP-211).
    pub(super) fn expire_offsets(&mut self, now_ms: u64) {
        let group_ids: Vec<Arc<str>> = self.by_id.keys().cloned().collect();
        for group_id in group_ids {
            let retention_ms = self.settings.offsets_retention_ms;
            let Some(group) = self.by_id.get(&group_id) else { continue };
            let expired: Vec<(Arc<str>, i32)> = expired(group, now_ms, retention_ms).collect();
            self.drop_offsets(&group_id, expired.into_iter());
            if self.by_id.get(&group_id).is_some_and(Group::is_idle) {
                self.remove(now_ms, &group_id);
            }
        }
    }
}

fn all_partitions(group: &Group) -> impl Iterator<Item = (Arc<str>, i32)> {
    let of_topic = |(topic, partitions): (&Arc<str>, &BTreeMap<i32, Offset>)| {
        let partitions: Vec<_> = partitions.keys().map(|partition| (topic.clone(), *partition)).collect();
        partitions
    };
    group.offsets().all_committed().flat_map(of_topic)
}

/// Offsets that have expired. In a group with members, only those of topics that no member is subscribed to.
fn expired(group: &Group, now_ms: u64, retention_ms: u64) -> impl Iterator<Item = (Arc<str>, i32)> {
    let since_empty = match group.state() {
        // If the group has had members, the retention of all offsets starts when the last one left.
        State::Empty if group.protocol_type().is_some() => Some(group.since_ms()),
        _ => None,
    };
    let may_expire = match group.state() {
        State::Empty => true,
        State::Stable | State::Assigning | State::Reconciling => {
            group.uses_consumer_protocol() && group.has_known_subscriptions()
        }
        _ => false,
    };
    let is_old = move |offset: &Offset| match offset.expires_ms {
        Some(expires_ms) => now_ms >= expires_ms,
        None => now_ms.saturating_sub(since_empty.unwrap_or(offset.committed_ms)) >= retention_ms,
    };
    all_partitions(group).filter(move |(topic, partition)| {
        let offset = group.offsets().committed(topic, *partition);
        may_expire
            && offset.is_some_and(is_old)
            && !group.is_subscribed_to(topic)
            && !group.offsets().is_unstable(topic, *partition)
    })
}
