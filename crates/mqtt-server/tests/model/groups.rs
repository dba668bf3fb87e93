//! What the oracle knows of shared subscriptions: each message is to reach one member of each group.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstem_mqtt::QoS;
use mainstem_topic::matches;

use crate::oracle::Publication;
use crate::plan::MessageId;
use crate::session::Serial;

/// Name and filter.
pub(crate) type Key = (&'static str, &'static str);

/// A message that a group was given and may not have passed on yet.
#[derive(Debug)]
struct Deal {
    message: MessageId,
    qos: QoS,
    /// Some member must get it.
    is_sure: bool,
    /// Some member would get it with QoS 0: it is lost if that one goes.
    is_soft: bool,
}

#[derive(Debug, Default)]
struct Group {
    members: BTreeSet<Serial>,
    /// Sessions that have left and may still have messages in their queues.
    former: BTreeSet<Serial>,
    deals: Vec<Deal>,
}

impl Group {
    fn concerns(&self, serial: Serial) -> bool {
        self.members.contains(&serial) || self.former.contains(&serial)
    }
}

/// The copies of one message that shared subscriptions have brought.
#[derive(Debug, Default)]
struct Dealt {
    /// Group and number of the publication.
    deals: Vec<(Key, u64)>,
    /// Copies that a member had and did not acknowledge when it went: another may get them.
    handed_back: usize,
    /// Copies that nothing else explains.
    got: usize,
    /// Copies that a plain subscription may explain.
    perhaps: usize,
    /// Copies that must have come.
    required: usize,
}

/// All shared subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_key: BTreeMap<Key, Group>,
    dealt: HashMap<MessageId, Dealt>,
    /// Who left when: number of the last publication before.
    left: HashMap<(Key, Serial), u64>,
}

impl Groups {
    pub(crate) fn join(&mut self, key: Key, serial: Serial) {
        let group = self.by_key.entry(key).or_default();
        group.members.insert(serial);
        group.deals.iter_mut().filter(|deal| deal.is_soft).for_each(|deal| deal.is_sure = false);
        // It may take with QoS 0 what was to be dealt out with more.
        group.deals.iter_mut().for_each(|deal| deal.is_soft = true);
    }

    pub(crate) fn leave(&mut self, key: Key, serial: Serial, number: u64) {
        self.disturb(serial);
        let group = self.by_key.entry(key).or_default();
        group.members.remove(&serial);
        group.former.insert(serial);
        self.left.insert((key, serial), number);
        if group.members.is_empty() {
            group.deals.iter_mut().for_each(|deal| deal.is_sure = false);
        }
    }

    /// A member comes, goes, stops reading or reads again.
    pub(crate) fn disturb(&mut self, serial: Serial) {
        for deal in self.deals_of(serial).filter(|deal| deal.is_soft) {
            deal.is_sure = false;
        }
    }

    /// A session has ended: what it had with QoS 2 goes to nobody else [MQTT-4.8.2-5].
    pub(crate) fn member_ended(&mut self, serial: Serial) {
        let left = &self.left;
        for (key, group) in &mut self.by_key {
            group.former.remove(&serial);
            if left.contains_key(&(*key, serial)) || group.members.contains(&serial) {
                let mut at_risk = group.deals.iter_mut();
                at_risk
                    .by_ref()
                    .filter(|deal| deal.qos == QoS::ExactlyOnce)
                    .for_each(|deal| deal.is_sure = false);
            }
        }
    }

    /// A queue of this member overflows: anything in it may be lost.
    pub(crate) fn give_up(&mut self, serial: Serial) {
        self.deals_of(serial).for_each(|deal| deal.is_sure = false);
    }

    /// All sessions that share a group with this one, itself among them.
    pub(crate) fn concerned_with(&self, serial: Serial) -> BTreeSet<Serial> {
        let groups = self.by_key.values().filter(|group| group.concerns(serial));
        groups.flat_map(|group| group.members.union(&group.former)).copied().collect()
    }

    fn deals_of(&mut self, serial: Serial) -> impl Iterator<Item = &mut Deal> {
        let groups = self.by_key.values_mut().filter(move |group| group.concerns(serial));
        groups.flat_map(|group| &mut group.deals)
    }

    /// Messages that this member may have been given and not have got yet.
    pub(crate) fn open_deals(&self, serial: Serial) -> usize {
        let groups = self.by_key.values().filter(|group| group.concerns(serial));
        groups.map(|group| group.deals.len()).sum()
    }

    pub(crate) fn met_by(&self, topic: &str) -> Vec<Key> {
        let met =
            self.by_key.iter().filter(|(key, group)| !group.members.is_empty() && matches(key.1, topic));
        met.map(|(key, _)| *key).collect()
    }

    pub(crate) fn members(&self, key: Key) -> Vec<Serial> {
        self.by_key.get(&key).map(|group| group.members.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn deal(&mut self, key: Key, publication: &Publication, is_sure: bool, is_soft: bool) {
        let Publication { message, qos, number, .. } = *publication;
        self.dealt.entry(message).or_default().deals.push((key, number));
        let group = self.by_key.get_mut(&key).expect("a group");
        group.deals.push(Deal { message, qos, is_sure, is_soft });
    }

    /// Whether a message may come to a session by one of its groups.
    pub(crate) fn may_bring(&self, message: MessageId, serial: Serial) -> bool {
        self.dealt.get(&message).is_some_and(|dealt| {
            dealt.deals.iter().any(|(key, number)| {
                let left = self.left.get(&(*key, serial));
                self.by_key.get(key).is_some_and(|group| group.members.contains(&serial))
                    || left.is_some_and(|left| left >= number)
            })
        })
    }

    /// A member has gone with the message unacknowledged.
    pub(crate) fn hand_back(&mut self, message: MessageId) {
        let Some(dealt) = self.dealt.get_mut(&message) else { return };
        dealt.handed_back += 1;
        // It may stand in the queue of another now.
        for (key, _) in &dealt.deals {
            let group = self.by_key.get_mut(key).expect("a group");
            group.deals.push(Deal { message, qos: QoS::AtLeastOnce, is_sure: false, is_soft: false });
        }
    }

    /// A copy has come that only a shared subscription can have brought.
    /// Who handed back what cannot be told of a message without a payload.
    pub(crate) fn take_sure(&mut self, message: MessageId, is_anonymous: bool, serial: Serial, name: &str) {
        assert!(
            self.may_bring(message, serial),
            "session {serial} gets {name} without a subscription for it"
        );
        let dealt = self.dealt.get_mut(&message).expect("dealt");
        dealt.got += 1;
        assert!(
            dealt.got <= dealt.deals.len() + dealt.handed_back || is_anonymous,
            "{name} came to {} members of {} groups, {} handed back [MQTT-4.8.2-4]",
            dealt.got,
            dealt.deals.len(),
            dealt.handed_back
        );
    }

    /// A copy has come that a shared subscription may have brought.
    pub(crate) fn take_perhaps(&mut self, message: MessageId) {
        if let Some(dealt) = self.dealt.get_mut(&message) {
            dealt.perhaps += 1;
        }
    }

    /// At a moment when nothing moves: groups whose members could all take more have nothing left to give.
    pub(crate) fn check_drained(
        &mut self,
        is_drained: impl Fn(Serial) -> bool,
        is_current: impl Fn(MessageId) -> bool,
        name: impl Fn(MessageId) -> String,
    ) {
        for (key, group) in &mut self.by_key {
            if !group.members.union(&group.former).all(|serial| is_drained(*serial)) {
                continue;
            }
            group.former.clear();
            for deal in group.deals.drain(..).filter(|deal| deal.is_sure && is_current(deal.message)) {
                let dealt = self.dealt.get_mut(&deal.message).expect("dealt");
                dealt.required += 1;
                assert!(
                    dealt.got + dealt.perhaps >= dealt.required,
                    "nobody of {key:?} got {}: {dealt:?}",
                    name(deal.message)
                );
            }
        }
    }
}
