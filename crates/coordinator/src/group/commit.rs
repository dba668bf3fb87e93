//! OffsetCommit and OffsetDelete: how far a group has got.

use std::sync::Arc;

use super::answer::{Answer, PartitionDone, TopicAnswer};
use super::changes::Change;
use super::offsets::Offset;
use super::request::{OffsetCommit, OffsetDelete, OffsetToCommit, Topic};
use super::roster::Group;
use super::settings::{KEPT_TOGETHER_MAX, NAME_MAX_BYTES};
use super::state::State;
use super::{Groups, records};
use crate::{Caller, Error, Record};

/// Who commits. What is said of no member stands for a consumer outside of the group's protocol.
#[derive(Clone, Copy)]
pub(super) struct Committer<'a> {
    pub(super) member_id: &'a str,
    pub(super) instance_id: Option<&'a str>,
    pub(super) generation: i32,
}

impl Groups {
    /// OffsetCommit. Answered when the offsets are kept.
    pub fn handle_offset_commit(&mut self, now_ms: u64, request: &OffsetCommit<'_>, caller: Caller) {
        let expires_ms = request.retention_ms.map(|retention_ms| now_ms.saturating_add(retention_ms));
        if let Err(error) = self.let_commit(now_ms, request) {
            return self.out.reply(caller, Answer::Commit(refused(&request.topics, error)));
        }
        let topics = self.take_in(now_ms, request.group_id, None, expires_ms, &request.topics);
        self.out.reply_when_kept(caller, Answer::Commit(topics));
    }

    fn let_commit(&mut self, now_ms: u64, request: &OffsetCommit<'_>) -> Result<(), Error> {
        if request.group_id.len() > NAME_MAX_BYTES {
            return Err(Error::InvalidGroupId);
        }
        let committer = Committer {
            member_id: request.member_id,
            instance_id: request.instance_id,
            generation: request.generation,
        };
        let group_id = request.group_id;
        let Some(checked) = self.visit(now_ms, group_id, |visit| {
            visit.check_committer(committer)?;
            // A member that commits lives.
            if matches!(visit.group.state, State::Stable | State::PreparingRebalance) {
                visit.note_life(request.member_id);
            }
            Ok(())
        }) else {
            return self.make_group_for_offsets(now_ms, group_id, request.generation, request.no_group);
        };
        checked
    }

    /// Whoever commits without being a member may do so to a group that there is not yet.
    pub(super) fn make_group_for_offsets(
        &mut self,
        now_ms: u64,
        group_id: &str,
        generation: i32,
        otherwise: Error,
    ) -> Result<(), Error> {
        if generation >= 0 {
            return Err(otherwise);
        }
        self.check_room_for_group()?;
        let group_id: Arc<str> = group_id.into();
        self.known.insert(group_id.clone(), Group::new(group_id, now_ms));
        Ok(())
    }

    /// Takes in what is good of the offsets, as those of a transaction if `producer_id` says so.
    pub(super) fn take_in(
        &mut self,
        now_ms: u64,
        group_id: &str,
        producer_id: Option<i64>,
        expires_ms: Option<u64>,
        topics: &[Topic<'_, OffsetToCommit<'_>>],
    ) -> Vec<TopicAnswer<PartitionDone>> {
        let mut kept = Vec::new();
        let answers = answer_each(topics, |topic, wanted| {
            let outcome = self.check_offset(group_id, producer_id, topic, wanted);
            if outcome.is_ok() {
                let offset = Offset {
                    next: wanted.offset,
                    leader_epoch: wanted.leader_epoch,
                    metadata: wanted.metadata.into(),
                    committed_ms: now_ms,
                    expires_ms,
                    order: self.next_order,
                };
                kept.push(records::offset(group_id, producer_id, topic, wanted.partition, &offset));
                let before = self.put_offset(group_id, producer_id, topic, wanted.partition, offset);
                self.note_change(group_id, producer_id, topic, wanted.partition, before);
            }
            PartitionDone { partition: wanted.partition, outcome }
        });
        self.keep_in_parts(kept);
        self.forget_if_blank(group_id);
        answers
    }

    fn check_offset(
        &self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        wanted: &OffsetToCommit<'_>,
    ) -> Result<(), Error> {
        if !wanted.exists || topic.len() > NAME_MAX_BYTES {
            return Err(Error::UnknownTopicOrPartition);
        }
        if wanted.metadata.len() > self.settings.offset_metadata_max_bytes {
            return Err(Error::OffsetMetadataTooLarge);
        }
        if self.offsets < self.settings.offsets_max {
            return Ok(());
        }
        let offsets = self.known.get(group_id).map(|group| &group.offsets);
        let before = offsets.and_then(|offsets| match producer_id {
            None => offsets.committed(topic, wanted.partition),
            Some(producer_id) => offsets.pending(producer_id, topic, wanted.partition),
        });
        before.map(|_| ()).ok_or(Error::InvalidCommitOffsetSize)
    }

    /// Puts an offset where it belongs, and counts it; what was in its place.
    pub(super) fn put_offset(
        &mut self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        partition: i32,
        offset: Offset,
    ) -> Option<Offset> {
        let group = self.known.get_mut(group_id)?;
        self.next_order = self.next_order.max(offset.order + 1);
        let before = match producer_id {
            None => group.offsets.commit(topic, partition, offset),
            Some(producer_id) => {
                self.transactions.entry(producer_id).or_default().insert(group.id.clone());
                group.offsets.hold(producer_id, topic, partition, offset)
            }
        };
        self.offsets += usize::from(before.is_none());
        before
    }

    /// Takes an offset away, if there is one, and counts it.
    pub(super) fn take_offset(
        &mut self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        partition: i32,
    ) {
        if let Some(producer_id) = producer_id {
            self.drop_pending(group_id, producer_id, topic, partition);
        } else if let Some(group) = self.known.get_mut(group_id) {
            self.offsets -= usize::from(group.offsets.remove(topic, partition).is_some());
        }
        self.forget_if_blank(group_id);
    }

    /// An offset is not what it was; its record is the next that is handed out.
    pub(super) fn note_change(
        &mut self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        partition: i32,
        before: Option<Offset>,
    ) {
        let (group_id, topic) = (group_id.into(), topic.into());
        self.out.changes.note(Change { group_id, producer_id, topic, partition, before });
    }

    /// OffsetDelete: topics that no member reads may be forgotten.
    pub fn handle_offset_delete(&mut self, request: &OffsetDelete<'_>, caller: Caller) {
        if let Err(error) = self.check_offset_delete(request.group_id) {
            return self.out.reply(caller, Answer::OffsetDelete(Err(error)));
        }
        let mut kept = Vec::new();
        let answers = answer_each(&request.topics, |topic, wanted| {
            let subscribed =
                self.known.get(request.group_id).is_some_and(|group| group.is_subscribed_to(topic));
            let outcome = if !wanted.exists {
                Err(Error::UnknownTopicOrPartition)
            } else if subscribed {
                Err(Error::GroupSubscribedToTopic)
            } else {
                self.drop_offset(request.group_id, topic, wanted.partition, &mut kept);
                Ok(())
            };
            PartitionDone { partition: wanted.partition, outcome }
        });
        self.keep_in_parts(kept);
        self.forget_if_blank(request.group_id);
        self.out.reply_when_kept(caller, Answer::OffsetDelete(Ok(answers)));
    }

    fn check_offset_delete(&self, group_id: &str) -> Result<(), Error> {
        let group = self.known.get(group_id).ok_or(Error::GroupIdNotFound)?;
        if group.state == State::Empty || group.reads_topics() { Ok(()) } else { Err(Error::NonEmptyGroup) }
    }

    /// Forgets what is committed for a partition, and what transactions would commit. `kept` gets the records.
    pub(super) fn drop_offset(
        &mut self,
        group_id: &str,
        topic: &str,
        partition: i32,
        kept: &mut Vec<Record>,
    ) {
        let Some(group) = self.known.get_mut(group_id) else { return };
        let before = group.offsets.remove(topic, partition);
        let producers: Vec<i64> = group.offsets.producers().collect();
        if before.is_some() {
            self.offsets -= 1;
            self.note_change(group_id, None, topic, partition, before);
            kept.push(records::no_offset(group_id, None, topic, partition));
        }
        for producer_id in producers {
            let before = self.drop_pending(group_id, producer_id, topic, partition);
            if before.is_some() {
                self.note_change(group_id, Some(producer_id), topic, partition, before);
                kept.push(records::no_offset(group_id, Some(producer_id), topic, partition));
            }
        }
    }

    pub(super) fn drop_pending(
        &mut self,
        group_id: &str,
        producer_id: i64,
        topic: &str,
        partition: i32,
    ) -> Option<Offset> {
        let group = self.known.get_mut(group_id)?;
        let before = group.offsets.drop_pending(producer_id, topic, partition)?;
        self.offsets -= 1;
        if !group.offsets.producers().any(|open| open == producer_id) {
            self.close_transaction(producer_id, group_id);
        }
        Some(before)
    }

    /// A transaction has nothing more to do with a group.
    pub(super) fn close_transaction(&mut self, producer_id: i64, group_id: &str) {
        if let Some(groups) = self.transactions.get_mut(&producer_id) {
            groups.remove(group_id);
            if groups.is_empty() {
                self.transactions.remove(&producer_id);
            }
        }
    }

    /// Hands records out that need not be kept all together.
    pub(super) fn keep_in_parts(&mut self, mut records: Vec<Record>) {
        while records.len() > KEPT_TOGETHER_MAX {
            let rest = records.split_off(KEPT_TOGETHER_MAX);
            self.out.keep(std::mem::replace(&mut records, rest));
        }
        self.out.keep(records);
    }

    pub(super) fn forget_if_blank(&mut self, group_id: &str) {
        if self.known.get(group_id).is_some_and(Group::is_blank) {
            self.known.remove(group_id);
        }
    }
}

/// Every partition of a request, with the same answer.
pub(super) fn refused<'a>(
    topics: &[Topic<'a, OffsetToCommit<'a>>],
    error: Error,
) -> Vec<TopicAnswer<PartitionDone>> {
    answer_each(topics, |_, wanted| PartitionDone { partition: wanted.partition, outcome: Err(error) })
}

/// Answers every partition of a request.
pub(super) fn answer_each<P, A>(
    topics: &[Topic<'_, P>],
    mut answer: impl FnMut(&str, &P) -> A,
) -> Vec<TopicAnswer<A>> {
    let of_topic = |topic: &Topic<'_, P>| TopicAnswer {
        name: topic.name.to_owned(),
        id: topic.id,
        partitions: topic.partitions.iter().map(|partition| answer(topic.name, partition)).collect(),
    };
    topics.iter().map(of_topic).collect()
}

impl super::visit::Visit<'_> {
    /// Members commit in their generation, and others while the group has no members.
    fn check_committer(&self, committer: Committer<'_>) -> Result<(), Error> {
        let empty = self.group.state == State::Empty;
        if committer.generation < 0 && empty {
            return Ok(());
        }
        if committer.says_nothing() {
            return Err(Error::UnknownMemberId);
        }
        self.check_generation(committer)?;
        // It has joined, and not heard yet what it got: what it read before may be somebody else's by now.
        if self.group.state == State::CompletingRebalance {
            return Err(Error::RebalanceInProgress);
        }
        Ok(())
    }

    pub(super) fn check_generation(&self, committer: Committer<'_>) -> Result<(), Error> {
        self.check_member(committer.member_id, committer.instance_id)?;
        if committer.generation == self.group.generation { Ok(()) } else { Err(Error::IllegalGeneration) }
    }
}

impl Committer<'_> {
    pub(super) fn says_nothing(self) -> bool {
        self.generation < 0 && self.member_id.is_empty() && self.instance_id.is_none()
    }
}
