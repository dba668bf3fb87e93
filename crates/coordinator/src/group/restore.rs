//! Groups come back from the records that were kept.

use std::sync::Arc;

use super::Groups;
use super::records::{self, KeptGroup, Key};
use super::roster::Group;
use super::state::State;
use crate::{Malformed, Record};

impl Groups {
    /// Puts back what one record tells. Records come in the order in which they were kept; of each key the last one
    /// is enough. [`restored`](Self::restored) ends it.
    ///
    /// # Errors
    /// If it is no record of groups, or one of a newer version.
    pub fn restore(&mut self, record: &Record) -> Result<(), Malformed> {
        match (records::key(&record.key)?, &record.value) {
            (Key::Group { group_id }, Some(value)) => {
                let kept = records::read_group(value)?;
                self.put_group(group_id, Some(kept));
            }
            (Key::Group { group_id }, None) => self.put_group(group_id, None),
            (Key::Offset { group_id, producer_id, topic, partition }, Some(value)) => {
                let offset = records::read_offset(value)?;
                self.group_to_restore(group_id);
                self.put_offset(group_id, producer_id, topic, partition, offset);
            }
            (Key::Offset { group_id, producer_id, topic, partition }, None) => {
                self.take_offset(group_id, producer_id, topic, partition);
            }
        }
        Ok(())
    }

    pub(super) fn group_to_restore(&mut self, group_id: &str) -> &mut Group {
        self.known.entry(group_id.into()).or_insert_with_key(|group_id| Group::new(group_id.clone(), 0))
    }

    /// Its offsets have records of their own, and stay.
    fn put_group(&mut self, group_id: &str, kept: Option<KeptGroup>) {
        let group = self.group_to_restore(group_id);
        let mut fresh = Group::new(group.id.clone(), 0);
        std::mem::swap(&mut fresh.offsets, &mut group.offsets);
        let bytes_before = group.bytes;
        fresh.kept = kept.is_some();
        if let Some(kept) = kept {
            kept.fill(&mut fresh);
        }
        let bytes = fresh.bytes;
        *group = fresh;
        self.bytes = self.bytes - bytes_before + bytes;
        self.forget_if_blank(group_id);
    }

    /// All records have been read. Members have their session timeout to be heard again.
    pub fn restored(&mut self, now_ms: u64) {
        self.next_check_ms = now_ms.saturating_add(self.settings.offsets_retention_check_interval_ms);
        let members_max = self.settings.members_max;
        let group_ids: Vec<Arc<str>> = self.known.keys().cloned().collect();
        for group_id in group_ids {
            self.visit(now_ms, &group_id, |visit| {
                visit.group.note_subscriptions();
                for id in visit.group.member_ids() {
                    visit.note_life(&id);
                }
                if visit.group.members().len() > members_max {
                    // The bound is lower than it was: those who join again last are out.
                    visit.prepare_rebalance();
                }
            });
        }
    }
}

impl KeptGroup {
    fn fill(self, group: &mut Group) {
        group.generation = self.generation;
        group.protocol = self.protocol;
        group.since_ms = self.since_ms;
        if !self.members.is_empty() {
            group.state = State::Stable;
        }
        let protocol_type = self.protocol_type.as_deref().unwrap_or_default();
        for member in self.members {
            group.add(member, protocol_type);
        }
        group.leader = self.leader;
        group.protocol_type = self.protocol_type;
    }
}
