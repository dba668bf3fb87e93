//! Replay of persisted records into [`Groups`].
//!
//! Group and offset records are independent: replaying a group record keeps the offsets that were replayed before it.
//! So both a full log and a compacted one give the same state.

use std::sync::Arc;

use super::Groups;
use super::consumer::{self, ConsumerGroup};
use super::consumer_group::{Group, StoredGroup};
use super::records::{self, Key};
use crate::{Malformed, Record};

impl Groups {
    /// Replays one record. Records must come in log order; for each key the last one is enough.
    /// [`finish_restore`](Self::finish_restore) completes the replay.
    ///
    /// # Errors
    /// [`Malformed`] if the record does not belong to groups, or a newer version wrote it.
    pub fn restore(&mut self, record: &Record) -> Result<(), Malformed> {
        match (records::parse_key(&record.key)?, &record.value) {
            (Key::Group { group_id }, Some(value)) => {
                let stored = records::read_group(value)?;
                self.restore_group(group_id, Some(stored));
            }
            (Key::Group { group_id }, None) => self.restore_group(group_id, None),
            (Key::GroupConfig { group_id }, value) => self.restore_config(group_id, value.as_deref())?,
            (Key::ConsumerGroup { group_id }, value) => {
                let stored = value.as_deref().map(consumer::read_group).transpose()?;
                self.restore_consumer(group_id, stored.is_some(), |consumer| consumer.restore_group(stored));
            }
            (Key::ConsumerMember { group_id, member_id }, value) => {
                let member =
                    value.as_deref().map(|value| consumer::read_member(member_id, value)).transpose()?;
                self.restore_consumer(group_id, member.is_some(), |consumer| {
                    consumer.restore_member(member_id, member);
                });
            }
            (Key::Offset { group_id, producer_id, topic, partition }, Some(value)) => {
                let offset = records::read_offset(value)?;
                self.group_or_insert(group_id);
                self.put_offset(group_id, producer_id, topic, partition, offset);
            }
            (Key::Offset { group_id, producer_id, topic, partition }, None) => {
                self.remove_offset(group_id, producer_id, topic, partition);
            }
        }
        Ok(())
    }

    pub(super) fn group_or_insert(&mut self, group_id: &str) -> &mut Group {
        self.by_id.entry(group_id.into()).or_insert_with_key(|group_id| Group::new(group_id.clone(), 0))
    }

    fn restore_group(&mut self, group_id: &str, stored: Option<StoredGroup>) {
        // The newest record tells which protocol the group uses: a tombstone of the other one was lost.
        let is_classic = stored.is_some();
        let group = self.group_or_insert(group_id);
        let bytes_before = group.bytes();
        let replaced = if is_classic { group.take_consumer() } else { None };
        group.restore(stored);
        let bytes = group.bytes();
        for tombstone in replaced.into_iter().flat_map(|mut consumer| consumer.take_tombstones(group_id)) {
            self.effects.tombstones.note_stale(tombstone.key);
        }
        self.bytes = self.bytes - bytes_before + bytes;
        self.remove_if_unused(group_id);
    }

    fn restore_consumer(&mut self, group_id: &str, has_value: bool, change: impl FnOnce(&mut ConsumerGroup)) {
        let group = self.group_or_insert(group_id);
        if has_value && group.is_persisted() {
            let bytes_before = group.bytes();
            group.end_classic();
            let bytes = group.bytes();
            self.bytes = self.bytes - bytes_before + bytes;
            self.effects.tombstones.note_stale(records::group_tombstone(group_id).key);
        }
        let group = self.group_or_insert(group_id);
        let mut consumer = group.take_consumer().unwrap_or_default();
        change(&mut consumer);
        if consumer.is_persisted() || !consumer.is_empty() {
            group.restore_consumer(consumer);
        }
        self.remove_if_unused(group_id);
    }

    /// Completes the replay. Members have one session timeout to send a heartbeat.
    pub fn finish_restore(&mut self, now_ms: u64) {
        self.next_check_ms = now_ms.saturating_add(self.settings.offsets_retention_check_interval_ms);
        let members_max = self.settings.members_max;
        let group_ids: Vec<Arc<str>> = self.by_id.keys().cloned().collect();
        for group_id in group_ids {
            if let Some(consumer) = self.by_id.get_mut(&group_id).and_then(Group::consumer_mut) {
                let stale = consumer.finish_restore(&group_id);
                self.bytes += consumer.bytes();
                for key in stale {
                    self.effects.tombstones.note_stale(key);
                }
            }
            self.with_group(now_ms, &group_id, |context| {
                context.resume_consumer_group();
                context.group.update_subscriptions();
                for id in context.group.member_ids() {
                    context.renew_session(&id);
                }
                if context.group.members().len() > members_max {
                    // The limit was lowered: the last members to rejoin are removed.
                    context.prepare_rebalance();
                }
            });
        }
    }
}
