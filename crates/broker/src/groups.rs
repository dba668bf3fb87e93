//! Shared subscriptions: who of a group gets the next message (MQTT 5, 4.8.2).
//!
//! The member with the fewest messages outstanding gets it; equals take turns. Members whose connection has
//! gone are passed over while anybody is there, and what they had not acknowledged moves on to the others.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use mainstem_mqtt::SubscribeOptions;
use mainstem_topic::parse_subscription;

use crate::message::SessionKey;
use crate::pressure::Pressure;

/// Members looked at for one message; in larger groups the turn decides where the look begins.
const LOOKED_AT_MAX: usize = 32;

/// How busy a session is with messages of shared subscriptions; shared with whoever deals them out.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) online: AtomicBool,
    outstanding: AtomicU32,
}

impl Load {
    /// One message that was given before the process began is still to be settled.
    pub(crate) fn take_up(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// One message has been settled or given up.
    pub(crate) fn settle(&self) {
        let before = self.outstanding.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "settled more than was given");
    }
}

/// A session's part in a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) key: SessionKey,
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
    pub(crate) load: Arc<Load>,
}

/// All sessions that share one subscription.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: Box<str>,
    pub(crate) filter: Box<str>,
    members: RwLock<Vec<Member>>,
    turn: AtomicUsize,
    /// How members were found when they were chosen: if one is behind, all are, or another would have been.
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

    /// Its name and filter, as clients subscribe to it.
    pub(crate) fn full_name(&self) -> String {
        format!("$share/{}/{}", self.name, self.filter)
    }

    /// Whether `full` is its name and filter: `$share/<name>/<filter>`.
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

    /// Chooses who gets the next message and counts it as outstanding there. `except` is who has just lost it.
    pub(crate) fn pick(&self, except: Option<SessionKey>) -> Option<Member> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut best: Option<(u64, &Member)> = None;
        let mut looked_at = 0;
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
            looked_at += 1;
            // Offline members do not count, or a group with many dead ones would not find the living.
            if cost == 0 || (looked_at >= LOOKED_AT_MAX && best.is_some_and(|(lowest, _)| lowest >> 32 == 0))
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
    fn messages_are_dealt_out_evenly_and_the_busy_get_fewer() {
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
    fn the_dead_are_passed_over_while_anybody_lives() {
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
