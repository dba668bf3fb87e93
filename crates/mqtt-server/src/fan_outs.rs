//! Fan-outs of one shard that continue in later turns: which is next, and who waits for each.
//!
//! A fan-out that takes long is divided, and other messages are delivered in between. A subscriber must not see that:
//! messages of one publisher, and messages to one topic, arrive in the order in which the shard got them. So a message
//! that has publisher or topic in common with an unfinished fan-out waits for it, and those that have neither share the
//! turns. Nothing is waited for but the shard itself, so all of them end.
//!
//! Only messages that nobody acknowledges are divided, so nobody waits for the commits of their parts.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::message::{Message, SessionKey};
use crate::routes::Matched;

/// Fan-outs that share the turns. More wait for one of them to end.
const ACTIVE_MAX: usize = 8;
/// Of those that wait, how many are considered at a time. The first is free as soon as no active one blocks it.
const CONSIDERED_MAX: usize = 32;
/// Unfinished fan-outs from which on no message is taken from other shards.
const UNFINISHED_MAX: usize = 1024;

/// A fan-out that is not finished.
#[derive(Debug)]
pub(crate) struct UnfinishedFanOut {
    pub(crate) message: Arc<Message>,
    pub(crate) matched: Arc<Matched>,
    /// Ascending in the order of arrival.
    pub(crate) number: u64,
    /// Some of it has been done.
    pub(crate) has_begun: bool,
    keys: [u64; 2],
}

impl UnfinishedFanOut {
    /// Whether one must wait for the other.
    fn conflicts_with(&self, other: &Self) -> bool {
        self.keys[0] == other.keys[0] || self.keys[1] == other.keys[1]
    }
}

/// The unfinished fan-outs of one shard.
#[derive(Debug, Default)]
pub(crate) struct FanOuts {
    /// Number of the last fan-out.
    last: u64,
    active: VecDeque<UnfinishedFanOut>,
    waiting: VecDeque<UnfinishedFanOut>,
    /// Hashes of the publishers and topics of all of them, with how many have it. If two have the same hash by chance,
    /// one waits that need not.
    keys: HashMap<u64, u32, RandomState>,
    hasher: RandomState,
}

impl FanOuts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Number of fan-outs that are not finished.
    pub(crate) fn unfinished(&self) -> usize {
        self.active.len() + self.waiting.len()
    }

    /// Whether so many are unfinished that no more should come from other shards.
    pub(crate) fn is_full(&self) -> bool {
        self.unfinished() >= UNFINISHED_MAX
    }

    fn publisher_key(&self, publisher: Option<SessionKey>) -> u64 {
        let key = publisher.map(|key| (key.shard, key.slot, key.generation));
        self.hasher.hash_one((0_u8, key))
    }

    fn keys_of(&self, message: &Message) -> [u64; 2] {
        [self.publisher_key(message.publisher), self.hasher.hash_one((1_u8, message.topic()))]
    }

    /// Whether a fan-out of this publisher is unfinished.
    pub(crate) fn has_publisher(&self, publisher: SessionKey) -> bool {
        self.keys.contains_key(&self.publisher_key(Some(publisher)))
    }

    /// Whether a message must wait for an unfinished fan-out.
    pub(crate) fn blocks(&self, message: &Message) -> bool {
        self.keys_of(message).iter().any(|key| self.keys.contains_key(key))
    }

    /// Adds a fan-out behind all others. Returns its number.
    pub(crate) fn push(&mut self, message: Arc<Message>, matched: Arc<Matched>) -> u64 {
        self.last += 1;
        let keys = self.keys_of(&message);
        for key in keys {
            *self.keys.entry(key).or_default() += 1;
        }
        let number = self.last;
        self.waiting.push_back(UnfinishedFanOut { message, matched, number, has_begun: false, keys });
        number
    }

    /// Takes the fan-out that is to continue next, to be [put back](Self::put_back) or [finished](Self::finish).
    pub(crate) fn next(&mut self) -> Option<UnfinishedFanOut> {
        while self.active.len() < ACTIVE_MAX && self.activate() {}
        self.active.pop_front()
    }

    /// Activates the first that waits for none before it. False if there is none.
    fn activate(&mut self) -> bool {
        let is_free = |index: &usize| {
            let candidate = &self.waiting[*index];
            let mut before = self.active.iter().chain(self.waiting.range(..index));
            !before.any(|other| candidate.conflicts_with(other))
        };
        let found = (0..self.waiting.len().min(CONSIDERED_MAX)).find(is_free);
        let free = found.and_then(|index| self.waiting.remove(index));
        let is_found = free.is_some();
        self.active.extend(free);
        is_found
    }

    /// A fan-out continues when the other active ones have had their turn.
    pub(crate) fn put_back(&mut self, fan_out: UnfinishedFanOut) {
        self.active.push_back(fan_out);
    }

    /// A fan-out is finished, and those that waited for it may begin.
    pub(crate) fn finish(&mut self, fan_out: &UnfinishedFanOut) {
        for key in fan_out.keys {
            if let Some(count) = self.keys.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_mqtt::{MessageProperties, QoS};
    use mainstem_runtime::MemoryMeter;

    use super::*;
    use crate::message::Content;

    fn key(slot: u32) -> SessionKey {
        SessionKey { shard: 0, slot, generation: 1 }
    }

    fn message(publisher: u32, topic: &str) -> Arc<Message> {
        let (payload, properties) = (&b""[..], MessageProperties::default());
        let (qos, publisher) = (QoS::AtMostOnce, Some(key(publisher)));
        let content = Content { qos, retain: false, publisher, topic, payload, properties };
        Arc::new(Message::new(&content, 0, &MemoryMeter::default()))
    }

    fn numbers(fan_outs: &mut FanOuts, count: usize) -> Vec<u64> {
        let mut next = || {
            let fan_out = fan_outs.next().unwrap();
            let number = fan_out.number;
            fan_outs.put_back(fan_out);
            number
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn fan_outs_take_turns_and_those_with_one_publisher_or_topic_wait() {
        let mut fan_outs = FanOuts::default();
        for (publisher, topic) in [(1, "a"), (2, "a"), (1, "b"), (3, "b"), (4, "c")] {
            fan_outs.push(message(publisher, topic), Arc::default());
        }
        assert_eq!(numbers(&mut fan_outs, 4), [1, 5, 1, 5], "2 and 3 wait for 1, and 4 for 3");
        assert!(fan_outs.has_publisher(key(4)) && !fan_outs.has_publisher(key(5)));
        assert!(fan_outs.blocks(&message(9, "c")) && !fan_outs.blocks(&message(9, "d")));
        let first = fan_outs.next().unwrap();
        fan_outs.finish(&first);
        assert_eq!(numbers(&mut fan_outs, 6), [5, 2, 3, 5, 2, 3]);
        while let Some(fan_out) = fan_outs.next() {
            fan_outs.finish(&fan_out);
        }
        assert!(fan_outs.is_empty() && fan_outs.unfinished() == 0 && fan_outs.keys.is_empty());
    }

    #[test]
    fn more_than_can_be_active_are_done_in_order() {
        let mut fan_outs = FanOuts::default();
        for number in 0..100 {
            fan_outs.push(message(number, &number.to_string()), Arc::default());
        }
        let mut done = Vec::new();
        while let Some(fan_out) = fan_outs.next() {
            assert!(fan_outs.active.len() < ACTIVE_MAX);
            done.push(fan_out.number);
            fan_outs.finish(&fan_out);
        }
        assert_eq!(done, (1..=100).collect::<Vec<_>>());
    }
}
