//! OffsetCommit and OffsetDelete: committed offsets, and the bookkeeping that all offset changes share.
//!
//! An offset changes in memory first, then its record is handed out; the reply waits until the record is durable. Each
//! change is also recorded in [`changes`](super::changes), so that it can be undone if the write fails. The order of
//! changes and of records must be the same.

use std::borrow::Cow;
use std::sync::Arc;

use super::changes::Change;
use super::consumer_group::Group;
use super::offsets::Offset;
use super::request::{OffsetCommit, OffsetDelete, OffsetToCommit, TopicRequest};
use super::response::{PartitionResult, Response, TopicResult};
use super::settings::{NAME_MAX_BYTES, RECORDS_PER_WRITE_MAX};
use super::state::State;
use super::{Groups, records};
use crate::{Caller, Error, Record};

/// Identifies the committer. All fields are empty for a consumer that does not use the group protocol.
#[derive(Clone, Copy)]
pub(super) struct Committer<'a> {
    pub(super) member_id: &'a str,
    pub(super) instance_id: Option<&'a str>,
    pub(super) generation: i32,
}

impl Groups {
    /// OffsetCommit. Answered once the offsets are durable.
    pub fn handle_offset_commit(&mut self, now_ms: u64, request: &OffsetCommit<'_>, caller: Caller) {
        let expires_ms = request.retention_ms.map(|retention_ms| now_ms.saturating_add(retention_ms));
        let OffsetCommit { group_id, member_id, generation, .. } = *request;
        let checked = self.check_commit(now_ms, request);
        let checked = self.allow_kept(checked, group_id, (member_id, generation), &request.topics);
        match checked {
            Ok(topics) => {
                let topics = self.store_offsets(now_ms, group_id, None, expires_ms, &topics);
                self.effects.reply_when_durable(caller, Response::Commit(topics));
            }
            Err(error) => {
                let refused = answer_all_with_error(&request.topics, error);
                self.effects.reply(caller, Response::Commit(refused));
            }
        }
    }

    /// The offsets to commit after the check of their sender. A member of the consumer protocol that sends an older
    /// epoch may commit for partitions that it has had since then (KIP-1251); the others are refused.
    pub(super) fn allow_kept<'a, 'b>(
        &self,
        checked: Result<(), Error>,
        group_id: &str,
        (member_id, epoch): (&str, i32),
        topics: &'b [TopicRequest<'a, OffsetToCommit<'a>>],
    ) -> Result<Cow<'b, [TopicRequest<'a, OffsetToCommit<'a>>]>, Error> {
        let Err(error) = checked else { return Ok(Cow::Borrowed(topics)) };
        let consumer = self.by_id.get(group_id).and_then(Group::consumer);
        let Some(kept) = consumer.and_then(|consumer| consumer.kept_since(member_id, epoch)) else {
            return Err(error);
        };
        let mut allowed = topics.to_vec();
        for topic in &mut allowed {
            for partition in &mut topic.partitions {
                let is_kept = kept.contains(&(topic.name, partition.partition));
                partition.refused = partition.refused.or((!is_kept).then_some(error));
            }
        }
        Ok(Cow::Owned(allowed))
    }

    fn check_commit(&mut self, now_ms: u64, request: &OffsetCommit<'_>) -> Result<(), Error> {
        if request.group_id.len() > NAME_MAX_BYTES {
            return Err(Error::InvalidGroupId);
        }
        let committer = Committer {
            member_id: request.member_id,
            instance_id: request.instance_id,
            generation: request.generation,
        };
        let group_id = request.group_id;
        let Some(checked) = self.with_group(now_ms, group_id, |context| {
            context.check_committer(committer)?;
            // A commit renews the session, like a heartbeat.
            if context.group.consumer().is_none()
                && matches!(context.group.state(), State::Stable | State::PreparingRebalance)
            {
                context.renew_session(request.member_id);
            }
            Ok(())
        }) else {
            return self.create_simple_group(now_ms, group_id, request.generation, request.no_group);
        };
        checked
    }

    /// Creates a group that only holds offsets. Only a committer without a generation may create one.
    pub(super) fn create_simple_group(
        &mut self,
        now_ms: u64,
        group_id: &str,
        generation: i32,
        no_group: Error,
    ) -> Result<(), Error> {
        if generation >= 0 {
            return Err(no_group);
        }
        self.check_group_limit()?;
        let group_id: Arc<str> = group_id.into();
        self.by_id.insert(group_id.clone(), Group::new(group_id, now_ms));
        Ok(())
    }

    /// Stores the valid offsets of a request, as pending ones of a transaction if `producer_id` is set.
    pub(super) fn store_offsets(
        &mut self,
        now_ms: u64,
        group_id: &str,
        producer_id: Option<i64>,
        expires_ms: Option<u64>,
        topics: &[TopicRequest<'_, OffsetToCommit<'_>>],
    ) -> Vec<TopicResult<PartitionResult>> {
        let mut new_records = Vec::new();
        let answers = answer_each(topics, |topic, requested| {
            let outcome = self.check_offset(group_id, producer_id, topic, requested);
            if outcome.is_ok() {
                let offset = Offset {
                    next: requested.offset,
                    leader_epoch: requested.leader_epoch,
                    metadata: requested.metadata.into(),
                    committed_ms: now_ms,
                    expires_ms,
                    order: self.next_order,
                };
                new_records.push(records::offset(group_id, producer_id, topic, requested.partition, &offset));
                let before = self.put_offset(group_id, producer_id, topic, requested.partition, offset);
                self.push_change(group_id, producer_id, topic, requested.partition, before);
            }
            PartitionResult { partition: requested.partition, outcome }
        });
        self.persist_in_chunks(new_records);
        self.remove_if_unused(group_id);
        answers
    }

    fn check_offset(
        &self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        requested: &OffsetToCommit<'_>,
    ) -> Result<(), Error> {
        if let Some(error) = requested.refused {
            return Err(error);
        }
        if topic.len() > NAME_MAX_BYTES {
            return Err(Error::UnknownTopicOrPartition);
        }
        if requested.metadata.len() > self.settings.offset_metadata_max_bytes {
            return Err(Error::OffsetMetadataTooLarge);
        }
        if self.offset_count < self.settings.offsets_max {
            return Ok(());
        }
        let offsets = self.by_id.get(group_id).map(Group::offsets);
        let before = offsets.and_then(|offsets| match producer_id {
            None => offsets.committed(topic, requested.partition),
            Some(producer_id) => offsets.pending(producer_id, topic, requested.partition),
        });
        before.map(|_| ()).ok_or(Error::InvalidCommitOffsetSize)
    }

    /// Stores an offset and returns the previous one.
    pub(super) fn put_offset(
        &mut self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        partition: i32,
        offset: Offset,
    ) -> Option<Offset> {
        let group = self.by_id.get_mut(group_id)?;
        self.next_order = self.next_order.max(offset.order + 1);
        let before = match producer_id {
            None => group.offsets_mut().commit(topic, partition, offset),
            Some(producer_id) => {
                self.transactions.entry(producer_id).or_default().insert(group.id().clone());
                group.offsets_mut().add_pending(producer_id, topic, partition, offset)
            }
        };
        self.offset_count += usize::from(before.is_none());
        before
    }

    /// Removes an offset, if there is one.
    pub(super) fn remove_offset(
        &mut self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        partition: i32,
    ) {
        if let Some(producer_id) = producer_id {
            self.drop_pending(group_id, producer_id, topic, partition);
        } else if let Some(group) = self.by_id.get_mut(group_id) {
            self.offset_count -= usize::from(group.offsets_mut().remove(topic, partition).is_some());
        }
        self.remove_if_unused(group_id);
    }

    /// Records a change of an offset, whose record must be the next one that is handed out.
    pub(super) fn push_change(
        &mut self,
        group_id: &str,
        producer_id: Option<i64>,
        topic: &str,
        partition: i32,
        before: Option<Offset>,
    ) {
        let (group_id, topic) = (group_id.into(), topic.into());
        self.effects.changes.push(Change { group_id, producer_id, topic, partition, before });
    }

    /// OffsetDelete: deletes offsets of topics that no member is subscribed to. Answered once that is durable.
    pub fn handle_offset_delete(&mut self, request: &OffsetDelete<'_>, caller: Caller) {
        if let Err(error) = self.check_offset_delete(request.group_id) {
            return self.effects.reply(caller, Response::OffsetDelete(Err(error)));
        }
        let mut new_records = Vec::new();
        let answers = answer_each(&request.topics, |topic, requested| {
            let subscribed =
                self.by_id.get(request.group_id).is_some_and(|group| group.is_subscribed_to(topic));
            let outcome = if !requested.exists {
                Err(Error::UnknownTopicOrPartition)
            } else if subscribed {
                Err(Error::GroupSubscribedToTopic)
            } else {
                self.drop_offset(request.group_id, topic, requested.partition, &mut new_records);
                Ok(())
            };
            PartitionResult { partition: requested.partition, outcome }
        });
        self.persist_in_chunks(new_records);
        self.remove_if_unused(request.group_id);
        self.effects.reply_when_durable(caller, Response::OffsetDelete(Ok(answers)));
    }

    fn check_offset_delete(&self, group_id: &str) -> Result<(), Error> {
        let group = self.by_id.get(group_id).ok_or(Error::GroupIdNotFound)?;
        if group.state() == State::Empty || group.uses_consumer_protocol() {
            Ok(())
        } else {
            Err(Error::NonEmptyGroup)
        }
    }

    /// Deletes the committed and the pending offsets of a partition. Appends the tombstones to `new_records`.
    pub(super) fn drop_offset(
        &mut self,
        group_id: &str,
        topic: &str,
        partition: i32,
        new_records: &mut Vec<Record>,
    ) {
        self.drop_committed_offset(group_id, topic, partition, new_records);
        let Some(group) = self.by_id.get(group_id) else { return };
        let producers: Vec<i64> = group.offsets().producers().collect();
        for producer_id in producers {
            self.drop_pending_offset(group_id, producer_id, topic, partition, new_records);
        }
    }

    /// Deletes the committed offset of a partition.
    pub(super) fn drop_committed_offset(
        &mut self,
        group_id: &str,
        topic: &str,
        partition: i32,
        new_records: &mut Vec<Record>,
    ) {
        let Some(group) = self.by_id.get_mut(group_id) else { return };
        let before = group.offsets_mut().remove(topic, partition);
        if before.is_some() {
            self.offset_count -= 1;
            self.push_change(group_id, None, topic, partition, before);
            new_records.push(records::offset_tombstone(group_id, None, topic, partition));
        }
    }

    /// Deletes the offset of a partition in a pending transaction.
    pub(super) fn drop_pending_offset(
        &mut self,
        group_id: &str,
        producer_id: i64,
        topic: &str,
        partition: i32,
        new_records: &mut Vec<Record>,
    ) {
        let before = self.drop_pending(group_id, producer_id, topic, partition);
        if before.is_some() {
            self.push_change(group_id, Some(producer_id), topic, partition, before);
            new_records.push(records::offset_tombstone(group_id, Some(producer_id), topic, partition));
        }
    }

    pub(super) fn drop_pending(
        &mut self,
        group_id: &str,
        producer_id: i64,
        topic: &str,
        partition: i32,
    ) -> Option<Offset> {
        let group = self.by_id.get_mut(group_id)?;
        let before = group.offsets_mut().drop_pending(producer_id, topic, partition)?;
        self.offset_count -= 1;
        if !group.offsets().producers().any(|open| open == producer_id) {
            self.close_transaction(producer_id, group_id);
        }
        Some(before)
    }

    /// Forgets that a transaction has pending offsets in a group.
    pub(super) fn close_transaction(&mut self, producer_id: i64, group_id: &str) {
        if let Some(groups) = self.transactions.get_mut(&producer_id) {
            groups.remove(group_id);
            if groups.is_empty() {
                self.transactions.remove(&producer_id);
            }
        }
    }

    /// Persists records in writes of bounded size; they need not be atomic.
    pub(super) fn persist_in_chunks(&mut self, mut records: Vec<Record>) {
        while records.len() > RECORDS_PER_WRITE_MAX {
            let rest = records.split_off(RECORDS_PER_WRITE_MAX);
            self.effects.persist(std::mem::replace(&mut records, rest));
        }
        self.effects.persist(records);
    }

    pub(super) fn remove_if_unused(&mut self, group_id: &str) {
        if self.by_id.get(group_id).is_some_and(Group::is_unused) {
            self.by_id.remove(group_id);
        }
    }
}

/// The same error for every partition of a request.
pub(super) fn answer_all_with_error<'a>(
    topics: &[TopicRequest<'a, OffsetToCommit<'a>>],
    error: Error,
) -> Vec<TopicResult<PartitionResult>> {
    answer_each(topics, |_, requested| PartitionResult {
        partition: requested.partition,
        outcome: Err(error),
    })
}

/// Builds the response, partition by partition.
pub(super) fn answer_each<P, A>(
    topics: &[TopicRequest<'_, P>],
    mut answer: impl FnMut(&str, &P) -> A,
) -> Vec<TopicResult<A>> {
    let of_topic = |topic: &TopicRequest<'_, P>| TopicResult {
        name: topic.name.to_owned(),
        id: topic.id,
        partitions: topic.partitions.iter().map(|partition| answer(topic.name, partition)).collect(),
    };
    topics.iter().map(of_topic).collect()
}

impl super::context::GroupContext<'_> {
    /// Members commit in the current generation; others only while the group has no members.
    fn check_committer(&self, committer: Committer<'_>) -> Result<(), Error> {
        let empty = self.group.state() == State::Empty;
        if committer.generation < 0 && empty {
            return Ok(());
        }
        if self.group.consumer().is_some() {
            return self.check_consumer_member(committer.member_id, committer.generation);
        }
        if committer.is_anonymous() {
            return Err(Error::UnknownMemberId);
        }
        self.check_generation(committer)?;
        // The member does not know its new assignment yet, so its partitions may already belong to another member.
        if self.group.state() == State::CompletingRebalance {
            return Err(Error::RebalanceInProgress);
        }
        Ok(())
    }

    pub(super) fn check_generation(&self, committer: Committer<'_>) -> Result<(), Error> {
        self.check_member(committer.member_id, committer.instance_id)?;
        if committer.generation == self.group.generation() { Ok(()) } else { Err(Error::IllegalGeneration) }
    }
}

impl Committer<'_> {
    pub(super) fn is_anonymous(self) -> bool {
        self.generation < 0 && self.member_id.is_empty() && self.instance_id.is_none()
    }
}
