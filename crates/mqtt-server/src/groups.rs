//! Shared subscriptions: which member of a group gets the next message (MQTT 5, 4.8.2).
//!
//! The member with the fewest outstanding messages gets it; members with equally many take turns. Offline members get
//! none while any is online, and what they had not acknowledged moves to the others.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use mainstem_mqtt::SubscribeOptions;
use mainstem_topic::parse_subscription;

use crate::message::SessionKey;
use crate::pressure::Pressure;

/// Members considered for one message. In larger groups the turn decides which.
const CONSIDERED_MAX: usize = 32;

/// Load of a session with messages of shared subscriptions, shared by all shards.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) online: AtomicBool,
    outstanding: AtomicU32,
}

impl Load {
    /// A restored message is outstanding.
    pub(crate) fn take_up(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// A message is no longer outstanding.
    pub(crate) fn settle(&self) {
        let before = self.outstanding.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "settled more messages than were outstanding");
    }
}

/// Membership of a session in a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) key: SessionKey,
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
    pub(crate) load: Arc<Load>,
}

/// The sessions of one shared subscription.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: Box<str>,
    pub(crate) filter: Box<str>,
    members: RwLock<Vec<Member>>,
    turn: AtomicUsize,
    /// How far members were behind when they were picked. If one is behind, all are: the one with the least load is
    /// picked.
    pub(crate) pressure: Pressure,
}

impl Group {
    pub(crate) fn new(name: &str, filter: &str) -> Self {
        Self {
            name: name.into(),
            filter: filter.into(),
            members: RwLock::default(),
            turn: AtomicUsize::new(0),
            pressure: Pressure::default(),
        }
    }

    /// `$share/<name>/<filter>`.
    pub(crate) fn full_name(&self) -> String {
        format!("$share/{}/{}", self.name, self.filter)
    }

    /// Whether `full` is the [`Group::full_name`] of this group.
    pub(crate) fn is_called(&self, full: &str) -> bool {
        parse_subscription(full)
            .is_ok_and(|parsed| parsed.group == Some(&*self.name) && parsed.filter == &*self.filter)
    }

    pub(crate) fn join(&self, member: Member) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        match members.iter_mut().find(|known| known.key == member.key) {
            Some(known) => *known = member,
            None => members.push(member),
        }
    }

    /// True if the group is empty afterwards.
    pub(crate) fn leave(&self, key: SessionKey) -> bool {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.key != key);
        members.is_empty()
    }

    /// Picks the member that gets the next message, and counts it as outstanding there. `except` has just passed it on.
    pub(crate) fn pick(&self, except: Option<SessionKey>) -> Option<Member> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut best: Option<(u64, &Member)> = None;
        let mut considered = 0;
        for step in 0..members.len() {
            let member = &members[start.wrapping_add(step) % members.len()];
            if Some(member.key) == except {
                continue;
            }
            let online = member.load.online.load(Ordering::Relaxed);
            let cost =
                u64::from(member.load.outstanding.load(Ordering::Relaxed)) + (u64::from(!online) << 32);
            if best.is_none_or(|(lowest, _)| cost < lowest) {
                best = Some((cost, member));
            }
            considered += 1;
            // Only online members count, or a group with many offline members would not find them.
            if cost == 0
                || (considered >= CONSIDERED_MAX && best.is_some_and(|(lowest, _)| lowest >> 32 == 0))
            {
                break;
            }
        }
        best.map(|(_, member)| {
            member.load.outstanding.fetch_add(1, Ordering::Relaxed);
            member.clone()
        })
    }

    /// A session's part in the group.
    pub(crate) fn member(&self, key: SessionKey) -> Option<Member> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.iter().find(|member| member.key == key).cloned()
    }

    /// Whether somebody other than `key` is connected.
    pub(crate) fn has_other_online(&self, key: SessionKey) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.iter().any(|member| member.key != key && member.load.online.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(slot: u32) -> Member {
        let load = Load::default();
        load.online.store(true, Ordering::Relaxed);
        Member {
            key: SessionKey { shard: 0, slot, generation: 1 },
            options: SubscribeOptions::default(),
            id: 0,
            load: Arc::new(load),
        }
    }

    #[test]
    fn picks_the_member_with_the_least_load() {
        let group = Group::new("g", "t");
        let members: Vec<_> = (0..4).map(member).collect();
        for member in &members {
            group.join(member.clone());
        }
        for _ in 0..400 {
            group.pick(None).unwrap();
        }
        for member in &members {
            assert_eq!(member.load.outstanding.load(Ordering::Relaxed), 100);
        }
        for _ in 0..60 {
            members[2].load.settle();
        }
        for _ in 0..60 {
            assert_eq!(group.pick(None).unwrap().key, members[2].key);
        }
    }

    #[test]
    fn offline_members_are_skipped_while_any_is_online() {
        let group = Group::new("g", "t");
        let members: Vec<_> = (0..100).map(member).collect();
        for member in &members {
            group.join(member.clone());
        }
        for member in &members[..99] {
            member.load.online.store(false, Ordering::Relaxed);
        }
        for _ in 0..50 {
            assert_eq!(group.pick(None).unwrap().key, members[99].key);
        }
        assert!(group.has_other_online(members[0].key));
        assert!(!group.has_other_online(members[99].key));
        assert!(group.pick(Some(members[99].key)).is_some(), "an offline session is better than nobody");
    }
}
