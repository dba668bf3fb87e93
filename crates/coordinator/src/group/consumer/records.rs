//! Encoding of groups and members of the consumer protocol as records. The format is specified in
//! `docs/formats/group-records.md`.
//!
//! A group has one record, and so has each member, with its subscription, its progress and its partitions. A change
//! writes the records of those that it has changed, all in one write.

use std::sync::Arc;

use super::assignor::Assignor;
use super::member::{ClassicMember, ConsumerMember, Progress};
use super::partitions::{Partitions, TopicId, TopicPartition};
use super::subscription::Subscription;
use super::{ConsumerGroup, PendingRecords};
use crate::Record;
use crate::bytes::{Malformed, Reader, Writer};
use crate::group::member::{Protocol, Session};
use crate::group::records::{CONSUMER_GROUP, CONSUMER_MEMBER, VERSION, versioned};

/// The persisted part of a group, without its members.
#[derive(Debug)]
pub(in crate::group) struct StoredConsumerGroup {
    epoch: i32,
    assignment_epoch: i32,
    assignor: Assignor,
    since_ms: u64,
    topics_hash: u64,
}

impl ConsumerGroup {
    /// Returns the records of all that has changed since the last call. If a write has failed meanwhile, these are the
    /// records of everything; but as long as writes fail, only those of the group and of `sender` in addition.
    pub(super) fn take_records(
        &mut self,
        group_id: &str,
        (failed_writes, is_failing): (u64, bool),
        sender: Option<&str>,
    ) -> Vec<Record> {
        if self.pending.failed_writes != failed_writes {
            self.pending.is_group = true;
            if is_failing {
                let sender = sender.and_then(|id| self.members.get(id));
                self.pending.members.extend(sender.map(|member| member.id.clone()));
            } else {
                self.pending.failed_writes = failed_writes;
                self.pending.members.extend(self.members.keys().cloned());
            }
        }
        let PendingRecords { is_group, members, tombstones, .. } = &mut self.pending;
        let changed = std::mem::take(members);
        let mut records = std::mem::take(tombstones);
        if std::mem::take(is_group) {
            self.pending.is_persisted = true;
            records.push(self.group_record(group_id));
        }
        let of_member = |id: Arc<str>| Record {
            key: member_key(group_id, &id),
            value: self.members.get(&id).map(member_value),
        };
        records.extend(changed.into_iter().map(of_member));
        records
    }

    /// Returns the tombstones of the group and of all its members, and of what they were before.
    pub(in crate::group) fn take_tombstones(&mut self, group_id: &str) -> Vec<Record> {
        let mut tombstones = std::mem::take(&mut self.pending.tombstones);
        let members = self.members.keys().chain(&self.pending.members);
        tombstones.extend(members.map(|id| Record { key: member_key(group_id, id), value: None }));
        tombstones.push(group_tombstone(group_id));
        tombstones
    }

    fn group_record(&self, group_id: &str) -> Record {
        let mut value = Writer::starting_with(VERSION);
        value.signed(self.epoch.into()).signed(self.assignment_epoch.into());
        value
            .number(assignor_number(Some(self.assignor)))
            .number(self.since_ms)
            .number(self.epoch_topics_hash);
        Record { key: group_key(group_id), value: Some(value.0) }
    }

    /// Replaces what the record of the group has.
    pub(in crate::group) fn restore_group(&mut self, stored: Option<StoredConsumerGroup>) {
        self.pending.is_persisted = stored.is_some();
        let Some(stored) = stored else { return };
        self.epoch = stored.epoch;
        self.assignment_epoch = stored.assignment_epoch;
        self.assignor = stored.assignor;
        self.since_ms = stored.since_ms;
        self.epoch_topics_hash = stored.topics_hash;
    }

    /// Replaces a member. [`ConsumerGroup::finish_restore`] completes the totals.
    pub(in crate::group) fn restore_member(&mut self, id: &str, member: Option<ConsumerMember>) {
        let _before = match member {
            Some(member) => self.members.insert(member.id.clone(), member),
            None => self.members.remove(id),
        };
    }
}

fn group_key(group_id: &str) -> Vec<u8> {
    let mut key = Writer::starting_with(CONSUMER_GROUP);
    key.text(group_id);
    key.0
}

pub(super) fn member_key(group_id: &str, member_id: &str) -> Vec<u8> {
    let mut key = Writer::starting_with(CONSUMER_MEMBER);
    key.text(group_id).text(member_id);
    key.0
}

/// Tombstone of a group, which has no members.
pub(in crate::group) fn group_tombstone(group_id: &str) -> Record {
    Record { key: group_key(group_id), value: None }
}

/// Number of an assignor; 0 for none.
fn assignor_number(assignor: Option<Assignor>) -> u64 {
    match assignor {
        None => 0,
        Some(Assignor::Uniform) => 1,
        Some(Assignor::Range) => 2,
    }
}

fn read_assignor(reader: &mut Reader<'_>) -> Result<Option<Assignor>, Malformed> {
    match reader.number()? {
        0 => Ok(None),
        1 => Ok(Some(Assignor::Uniform)),
        2 => Ok(Some(Assignor::Range)),
        _ => Err(Malformed("unknown assignor")),
    }
}

pub(in crate::group) fn read_group(bytes: &[u8]) -> Result<StoredConsumerGroup, Malformed> {
    let mut reader = versioned(bytes)?;
    let stored = StoredConsumerGroup {
        epoch: reader.signed_32()?,
        assignment_epoch: reader.signed_32()?,
        assignor: read_assignor(&mut reader)?.ok_or(Malformed("a group without an assignor"))?,
        since_ms: reader.number()?,
        topics_hash: reader.number()?,
    };
    reader.end()?;
    Ok(stored)
}

fn member_value(member: &ConsumerMember) -> Vec<u8> {
    let mut value = Writer::starting_with(VERSION);
    value.optional_text(member.instance_id.as_deref()).optional_text(member.rack_id.as_deref());
    value.text(&member.client_id).text(&member.client_host).number(member.rebalance_timeout_ms.into());
    value.number(member.subscription.names.len() as u64);
    for name in &member.subscription.names {
        value.text(name);
    }
    value.optional_text(member.subscription.regex.as_deref()).number(assignor_number(member.assignor));
    value.signed(member.epoch.into()).signed(member.previous_epoch.into());
    value.number(match member.progress {
        Progress::Stable => 0,
        Progress::Revoking => 1,
        Progress::Waiting => 2,
    });
    for partitions in [&member.assigned, &member.revoking, &member.target] {
        write_partitions(&mut value, partitions);
    }
    for partition in member.held() {
        value.signed(member.since.get(partition).copied().unwrap_or(member.epoch).into());
    }
    write_classic(&mut value, member.classic.as_ref());
    value.0
}

/// The number of protocols, 0 for a member of the consumer protocol; the session timeout, and the protocols.
fn write_classic(value: &mut Writer, classic: Option<&ClassicMember>) {
    let Some(classic) = classic else {
        value.number(0);
        return;
    };
    value.number(classic.protocols.len() as u64).number(classic.session_timeout_ms.into());
    for protocol in &classic.protocols {
        value.text(&protocol.name).bytes(&protocol.metadata);
    }
}

fn read_classic(reader: &mut Reader<'_>) -> Result<Option<ClassicMember>, Malformed> {
    let count = reader.count()?;
    if count == 0 {
        return Ok(None);
    }
    let session_timeout_ms = read_timeout(reader)?;
    let mut protocols = Vec::new();
    for _ in 0..count {
        protocols.push(Protocol { name: reader.text()?.into(), metadata: reader.bytes()?.to_vec() });
    }
    Ok(Some(ClassicMember { session_timeout_ms, protocols }))
}

fn read_timeout(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(reader.number()?).map_err(|_| Malformed("a timeout exceeds 32 bits"))
}

fn write_partitions(value: &mut Writer, partitions: &Partitions) {
    let topics = super::response::by_topic(partitions);
    value.number(topics.len() as u64);
    for topic in &topics {
        value.bytes(&topic.topic_id).number(topic.partitions.len() as u64);
        for partition in &topic.partitions {
            value.signed((*partition).into());
        }
    }
}

pub(in crate::group) fn read_member(id: &str, bytes: &[u8]) -> Result<ConsumerMember, Malformed> {
    let mut reader = versioned(bytes)?;
    let mut member = ConsumerMember::new(id.into());
    member.instance_id = reader.optional_text()?.map(Arc::from);
    member.rack_id = reader.optional_text()?.map(str::to_owned);
    reader.text()?.clone_into(&mut member.client_id);
    reader.text()?.clone_into(&mut member.client_host);
    member.rebalance_timeout_ms = read_timeout(&mut reader)?;
    let mut subscription = Subscription::default();
    for _ in 0..reader.count()? {
        subscription.names.insert(reader.text()?.into());
    }
    subscription.regex = reader.optional_text()?.map(Arc::from);
    member.subscription = Arc::new(subscription);
    member.assignor = read_assignor(&mut reader)?;
    member.epoch = reader.signed_32()?;
    member.previous_epoch = reader.signed_32()?;
    member.progress = match reader.number()? {
        0 => Progress::Stable,
        1 => Progress::Revoking,
        2 => Progress::Waiting,
        _ => return Err(Malformed("unknown progress of a member")),
    };
    member.assigned = read_partitions(&mut reader)?;
    member.revoking = read_partitions(&mut reader)?;
    member.target = read_partitions(&mut reader)?;
    let held: Vec<TopicPartition> = member.held().copied().collect();
    for partition in held {
        member.since.insert(partition, reader.signed_32()?);
    }
    member.classic = read_classic(&mut reader)?;
    member.session = Session::default();
    reader.end()?;
    Ok(member)
}

fn read_partitions(reader: &mut Reader<'_>) -> Result<Partitions, Malformed> {
    let mut partitions = Partitions::new();
    for _ in 0..reader.count()? {
        let topic_id: TopicId =
            reader.bytes()?.try_into().map_err(|_| Malformed("a topic id of another length"))?;
        for _ in 0..reader.count()? {
            partitions.insert(TopicPartition { topic_id, partition: reader.signed_32()? });
        }
    }
    Ok(partitions)
}
