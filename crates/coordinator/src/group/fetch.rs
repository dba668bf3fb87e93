//! OffsetFetch: from where a group goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Groups;
use super::answer::{Answer, CommittedOffset, FetchedGroup, FetchedOffset, TopicAnswer};
use super::commit::answer_each;
use super::offsets::{Offset, Offsets};
use super::request::{OffsetFetch, OffsetsOf};
use crate::{Caller, Error};

impl Groups {
    /// OffsetFetch. Answered when what it tells is kept.
    pub fn handle_offset_fetch(&mut self, request: &OffsetFetch<'_>, caller: Caller) {
        let fetched = |wanted| self.offsets_of(wanted, request.require_stable);
        let groups = request.groups.iter().map(fetched).collect();
        self.out.reply_when_kept(caller, Answer::Fetch(groups));
    }

    /// A group that there is not has no offsets.
    fn offsets_of(&self, wanted: &OffsetsOf<'_>, require_stable: bool) -> FetchedGroup {
        let none = Offsets::default();
        let offsets = self.known.get(wanted.group_id).map_or(&none, |group| &group.offsets);
        let topics = match &wanted.topics {
            Some(topics) => answer_each(topics, |topic, partition| {
                let committed = offsets.committed(topic, *partition);
                fetched(offsets, topic, *partition, committed, require_stable)
            }),
            None => all(offsets, require_stable),
        };
        FetchedGroup { group_id: wanted.group_id.to_owned(), outcome: Ok(topics) }
    }
}

fn all(offsets: &Offsets, require_stable: bool) -> Vec<TopicAnswer<FetchedOffset>> {
    let of_topic = |(topic, partitions): (&Arc<str>, &BTreeMap<i32, Offset>)| {
        let mut answers = Vec::with_capacity(partitions.len());
        for (partition, offset) in partitions {
            answers.push(fetched(offsets, topic, *partition, Some(offset), require_stable));
        }
        TopicAnswer { name: topic.as_ref().to_owned(), id: [0; 16], partitions: answers }
    };
    offsets.all_committed().map(of_topic).collect()
}

/// What a transaction that is not over would change is better asked again, if the client says so (KIP-447).
fn fetched(
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
