//! Fan-outs of one shard that continue in later turns: which is next, and who waits for each.
//!
//! A fan-out that takes long is divided, and other messages are delivered in between. A subscriber must not see that:
//! messages of one publisher, and messages to one topic, arrive in the order in which the shard got them. So a message
//! that has publisher or topic in common with an unfinished fan-out waits for it, and those that have neither share the
//! turns. Nothing is waited for but the shard itself, so all of them end.
//!
//! Each part is appended to the journals on its own. Whoever waits for a fan-out waits for the commits of all parts,
//! and learns if one of them failed.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::commits::CompletedCommit;
use crate::journal::entry::Origin;
use crate::message::{Message, SessionKey};
use crate::pending_acks::AckToken;
use crate::qos2_recovery::PartialPublish;
use crate::routes::Matched;

/// Fan-outs that share the turns. More wait for one of them to end.
const ACTIVE_MAX: usize = 8;
/// Of those that wait, how many are considered at a time. The first is free as soon as no active one blocks it.
const CONSIDERED_MAX: usize = 32;
/// Unfinished fan-outs from which on no message is taken from other shards.
const UNFINISHED_MAX: usize = 1024;

/// A message and those who get it.
#[derive(Debug)]
pub(crate) struct FanOutTask {
    pub(crate) message: Arc<Message>,
    pub(crate) matched: Arc<Matched>,
    pub(crate) partial: Option<Arc<PartialPublish>>,
    pub(crate) origin: Option<Origin>,
    /// The pending ack that waits for it.
    pub(crate) token: Option<AckToken>,
}

/// A fan-out that is not finished.
#[derive(Debug)]
pub(crate) struct UnfinishedFanOut {
    pub(crate) task: FanOutTask,
    /// Ascending in the order of arrival.
    pub(crate) number: u64,
    /// Some of it has been done.
    pub(crate) has_begun: bool,
    keys: [u64; 2],
    commits: CommitRange,
}

impl UnfinishedFanOut {
    /// A part has been appended, and is durable with `commit`.
    pub(crate) fn wait_for(&mut self, commit: u64) {
        self.commits.extend(commit);
    }

    /// Whether one must wait for the other.
    fn conflicts_with(&self, other: &Self) -> bool {
        self.keys[0] == other.keys[0] || self.keys[1] == other.keys[1]
    }
}

/// The commits that something is part of.
#[derive(Clone, Copy, Debug, Default)]
struct CommitRange {
    /// 0 if there are none.
    first: u64,
    last: u64,
    has_failed: bool,
}

impl CommitRange {
    fn extend(&mut self, commit: u64) {
        if self.first == 0 {
            self.first = commit;
        }
        self.last = commit;
    }

    fn note_failure(&mut self, commit: u64) {
        self.has_failed |= (self.first..=self.last).contains(&commit);
    }
}

/// Somebody waits until everything before is finished and durable.
#[derive(Debug)]
struct Fence {
    /// The last fan-out that it waits for.
    last: u64,
    token: AckToken,
    commits: CommitRange,
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
    fences: VecDeque<Fence>,
    /// Finished fan-outs whose commits are not over.
    settling: Vec<(AckToken, CommitRange)>,
}

impl FanOuts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Number of fan-outs that are not finished, or not durable.
    pub(crate) fn unfinished(&self) -> usize {
        self.active.len() + self.waiting.len() + self.fences.len() + self.settling.len()
    }

    /// Whether so many are unfinished that no more should come from other shards.
    pub(crate) fn is_full(&self) -> bool {
        self.active.len() + self.waiting.len() >= UNFINISHED_MAX
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
    pub(crate) fn push(&mut self, task: FanOutTask) -> u64 {
        self.last += 1;
        let keys = self.keys_of(&task.message);
        for key in keys {
            *self.keys.entry(key).or_default() += 1;
        }
        let (number, commits) = (self.last, CommitRange::default());
        self.waiting.push_back(UnfinishedFanOut { task, number, has_begun: false, keys, commits });
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

    /// A fan-out is finished, and those that waited for it may begin. `commit` is that of the turn; true if somebody
    /// waits for it even if nothing is appended.
    pub(crate) fn finish(&mut self, fan_out: &UnfinishedFanOut, commit: u64) -> bool {
        for key in fan_out.keys {
            if let Some(count) = self.keys.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(&key);
                }
            }
        }
        if let Some(token) = fan_out.task.token {
            self.settling.push((token, fan_out.commits));
        }
        let unfinished = self.active.iter().chain(&self.waiting).map(|fan_out| fan_out.number);
        let oldest = unfinished.min().unwrap_or(u64::MAX);
        let mut has_fence = false;
        while let Some(mut fence) = self.fences.pop_front_if(|fence| fence.last < oldest) {
            fence.commits.extend(commit);
            self.settling.push((fence.token, fence.commits));
            has_fence = true;
        }
        has_fence
    }

    /// Sends a receipt for `token` when all unfinished fan-outs are finished and durable. `commit` is that of the turn.
    /// False if there are none.
    pub(crate) fn fence(&mut self, token: AckToken, commit: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        // Their parts may be in any earlier commit that is not over.
        let unfinished = self.active.iter().chain(&self.waiting).map(|fan_out| fan_out.commits);
        let first = unfinished.filter(|commits| commits.first > 0).map(|commits| commits.first).min();
        let has_failed = self.active.iter().any(|fan_out| fan_out.commits.has_failed);
        let commits = CommitRange { first: first.unwrap_or(commit), last: commit, has_failed };
        self.fences.push_back(Fence { last: self.last, token, commits });
        true
    }

    /// A commit is over.
    pub(crate) fn on_commit(&mut self, completed: CompletedCommit) {
        if !completed.has_failed {
            return;
        }
        let unfinished = self.active.iter_mut().chain(&mut self.waiting).map(|fan_out| &mut fan_out.commits);
        let fences = self.fences.iter_mut().map(|fence| &mut fence.commits);
        let settling = self.settling.iter_mut().map(|(_, commits)| commits);
        for commits in unfinished.chain(fences).chain(settling) {
            commits.note_failure(completed.commit);
        }
    }

    /// Takes a finished fan-out whose commits are over: who waits for it, and whether all of it is durable.
    pub(crate) fn next_settled(&mut self, durable_commit: u64) -> Option<(AckToken, bool)> {
        let index = self.settling.iter().position(|(_, commits)| commits.last <= durable_commit)?;
        let (token, commits) = self.settling.remove(index);
        Some((token, !commits.has_failed))
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

    fn task(publisher: u32, topic: &str, token: Option<u64>) -> FanOutTask {
        let (payload, properties) = (&b""[..], MessageProperties::default());
        let (qos, publisher) = (QoS::AtLeastOnce, Some(key(publisher)));
        let content = Content { qos, retain: false, publisher, topic, payload, properties };
        FanOutTask {
            message: Arc::new(Message::new(&content, 0, &MemoryMeter::default())),
            matched: Arc::default(),
            partial: None,
            origin: None,
            token: token.map(|number| AckToken { session: key(0), number }),
        }
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
            fan_outs.push(task(publisher, topic, None));
        }
        assert_eq!(numbers(&mut fan_outs, 4), [1, 5, 1, 5], "2 and 3 wait for 1, and 4 for 3");
        assert!(fan_outs.has_publisher(key(4)) && !fan_outs.has_publisher(key(5)));
        assert!(
            fan_outs.blocks(&task(9, "c", None).message) && !fan_outs.blocks(&task(9, "d", None).message)
        );
        let first = fan_outs.next().unwrap();
        fan_outs.finish(&first, 1);
        assert_eq!(numbers(&mut fan_outs, 6), [5, 2, 3, 5, 2, 3]);
        while let Some(fan_out) = fan_outs.next() {
            fan_outs.finish(&fan_out, 1);
        }
        assert!(fan_outs.is_empty() && fan_outs.unfinished() == 0 && fan_outs.keys.is_empty());
    }

    #[test]
    fn more_than_can_be_active_are_done_in_order() {
        let mut fan_outs = FanOuts::default();
        for number in 0..100 {
            fan_outs.push(task(number, &number.to_string(), None));
        }
        let mut done = Vec::new();
        while let Some(fan_out) = fan_outs.next() {
            assert!(fan_outs.active.len() < ACTIVE_MAX);
            done.push(fan_out.number);
            fan_outs.finish(&fan_out, 1);
        }
        assert_eq!(done, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn whoever_waits_learns_of_the_failure_of_any_part() {
        for failing in [2, 3, 4, 5] {
            let mut fan_outs = FanOuts::default();
            fan_outs.push(task(1, "a", Some(7)));
            let mut fan_out = fan_outs.next().unwrap();
            for commit in [3, 4] {
                fan_out.wait_for(commit);
            }
            fan_outs.put_back(fan_out);
            let fence = AckToken { session: key(9), number: 8 };
            assert!(fan_outs.fence(fence, 4));
            fan_outs.on_commit(CompletedCommit { commit: failing, has_failed: failing == 3 });
            let fan_out = fan_outs.next().unwrap();
            assert!(fan_outs.finish(&fan_out, 5), "the fence asks for a commit");
            fan_outs.on_commit(CompletedCommit { commit: failing, has_failed: true });
            assert!(fan_outs.next_settled(3).is_none());
            let (token, is_durable) = fan_outs.next_settled(5).unwrap();
            assert_eq!((token.number, is_durable), (7, !(3..=4).contains(&failing)), "commit {failing}");
            let (token, is_durable) = fan_outs.next_settled(5).unwrap();
            assert_eq!((token.number, is_durable), (8, failing == 2), "commit {failing}");
            assert!(fan_outs.unfinished() == 0 && !fan_outs.fence(fence, 6));
        }
    }
}
