//! OffsetFetch: reads committed offsets.
//!
//! Replies wait until all earlier records are durable, so a client never sees an offset that a crash could take back.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Groups;
use super::commit::answer_each;
use super::offsets::{Offset, Offsets};
use super::request::{GroupOffsetFetch, OffsetFetch};
use super::response::{CommittedOffset, FetchedGroup, FetchedOffset, Response, TopicResult};
use crate::{Caller, Error};

impl Groups {
    /// OffsetFetch. Answered once the reported offsets are durable.
    pub fn handle_offset_fetch(&mut self, request: &OffsetFetch<'_>, caller: Caller) {
        let fetched = |requested| self.offsets_of(requested, request.require_stable);
        let groups = request.groups.iter().map(fetched).collect();
        self.effects.reply_when_durable(caller, Response::Fetch(groups));
    }

    /// The partitions with a committed offset, by topic, if a group has more than `count` of them.
    pub fn committed_beyond(&self, group_id: &str, count: usize) -> Option<Vec<(Arc<str>, Vec<i32>)>> {
        let offsets = self.by_id.get(group_id)?.offsets();
        let committed: usize = offsets.all_committed().map(|(_, partitions)| partitions.len()).sum();
        let all = offsets.all_committed();
        let by_topic =
            all.map(|(topic, partitions)| (Arc::clone(topic), partitions.keys().copied().collect()));
        (committed > count).then(|| by_topic.collect())
    }

    /// A member of the consumer protocol sees offsets only at its current epoch.
    fn check_fetcher(&self, requested: &GroupOffsetFetch<'_>) -> Result<(), Error> {
        let Some(consumer) = self.by_id.get(requested.group_id).and_then(|group| group.consumer()) else {
            return Ok(());
        };
        match requested.member_id {
            None if requested.member_epoch < 0 => Ok(()),
            member_id => consumer.check_epoch(member_id.unwrap_or_default(), requested.member_epoch),
        }
    }

    /// An unknown group has no offsets.
    fn offsets_of(&self, requested: &GroupOffsetFetch<'_>, require_stable: bool) -> FetchedGroup {
        if let Err(error) = self.check_fetcher(requested) {
            return FetchedGroup { group_id: requested.group_id.to_owned(), outcome: Err(error) };
        }
        let none = Offsets::default();
        let offsets = self.by_id.get(requested.group_id).map_or(&none, |group| group.offsets());
        let topics = match &requested.topics {
            Some(topics) => answer_each(topics, |topic, partition| {
                let committed = offsets.committed(topic, *partition);
                fetch_one(offsets, topic, *partition, committed, require_stable)
            }),
            None => fetch_all(offsets, require_stable),
        };
        FetchedGroup { group_id: requested.group_id.to_owned(), outcome: Ok(topics) }
    }
}

fn fetch_all(offsets: &Offsets, require_stable: bool) -> Vec<TopicResult<FetchedOffset>> {
    let of_topic = |(topic, partitions): (&Arc<str>, &BTreeMap<i32, Offset>)| {
        let mut answers = Vec::with_capacity(partitions.len());
        for (partition, offset) in partitions {
            answers.push(fetch_one(offsets, topic, *partition, Some(offset), require_stable));
        }
        TopicResult { name: topic.as_ref().to_owned(), id: [0; 16], partitions: answers }
    };
    offsets.all_committed().map(of_topic).collect()
}

/// With `require_stable`, an offset that a pending transaction would change is an error that the client retries
/// (KIP-447).
fn fetch_one(
    offsets: &Offsets,
    topic: &str,
    partition: i32,
    committed: Option<&Offset>,
    require_stable: bool,
) -> FetchedOffset {
    let outcome = if require_stable && offsets.is_unstable(topic, partition) {
        Err(Error::UnstableOffsetCommit)
    } else {
        Ok(committed.map(|committed| CommittedOffset {
            offset: committed.next,
            leader_epoch: committed.leader_epoch,
            metadata: committed.metadata.as_ref().to_owned(),
        }))
    };
    FetchedOffset { partition, outcome }
}
