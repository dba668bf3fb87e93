//! Encoding of groups and offsets as records. The format is specified in `docs/formats/group-records.md`.
//!
//! A key starts with its kind, a value with a version. Unknown kinds and versions are errors: dropping such a record
//! silently would lose the state of a group.

use std::sync::Arc;

use super::configuration::GroupConfig;
use super::consumer_group::{Group, StoredGroup};
use super::member::{Member, Protocol, Session};
use super::offsets::Offset;
use crate::Record;
use crate::bytes::{Malformed, Reader, Writer};

/// Key kind of a group.
const GROUP: u8 = 1;
/// Key kind of a committed offset.
const OFFSET: u8 = 2;
/// Key kind of a pending offset.
const PENDING: u8 = 3;
/// Key kind of a group of the consumer protocol.
pub(super) const CONSUMER_GROUP: u8 = 4;
/// Key kind of a member of such a group.
pub(super) const CONSUMER_MEMBER: u8 = 5;
/// Key kind of the configuration of a group.
const GROUP_CONFIG: u8 = 6;
/// First byte of every value.
pub(super) const VERSION: u8 = 1;

/// A decoded key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    Group { group_id: &'a str },
    ConsumerGroup { group_id: &'a str },
    ConsumerMember { group_id: &'a str, member_id: &'a str },
    GroupConfig { group_id: &'a str },
    Offset { group_id: &'a str, producer_id: Option<i64>, topic: &'a str, partition: i32 },
}

pub(super) fn parse_key(bytes: &[u8]) -> Result<Key<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    let kind = reader.byte()?;
    let producer_id = match kind {
        PENDING => Some(reader.signed()?),
        GROUP | OFFSET | CONSUMER_GROUP | CONSUMER_MEMBER | GROUP_CONFIG => None,
        _ => return Err(Malformed("unknown key kind")),
    };
    let group_id = reader.text()?;
    let key = match kind {
        GROUP => Key::Group { group_id },
        CONSUMER_GROUP => Key::ConsumerGroup { group_id },
        GROUP_CONFIG => Key::GroupConfig { group_id },
        CONSUMER_MEMBER => Key::ConsumerMember { group_id, member_id: reader.text()? },
        _ => Key::Offset { group_id, producer_id, topic: reader.text()?, partition: reader.signed_32()? },
    };
    reader.end()?;
    Ok(key)
}

fn group_key(group_id: &str) -> Vec<u8> {
    let mut key = Writer::starting_with(GROUP);
    key.text(group_id);
    key.0
}

fn offset_key(group_id: &str, producer_id: Option<i64>, topic: &str, partition: i32) -> Vec<u8> {
    let mut key = Writer::starting_with(if producer_id.is_some() { PENDING } else { OFFSET });
    if let Some(producer_id) = producer_id {
        key.signed(producer_id);
    }
    key.text(group_id).text(topic).signed(partition.into());
    key.0
}

/// Record of an offset: a pending one if `producer_id` is set.
pub(super) fn offset(
    group_id: &str,
    producer_id: Option<i64>,
    topic: &str,
    partition: i32,
    offset: &Offset,
) -> Record {
    let mut value = Writer::starting_with(VERSION);
    value.signed(offset.next).signed(offset.leader_epoch.into()).text(&offset.metadata);
    value.number(offset.committed_ms).number(offset.expires_ms.map_or(0, |at| at.saturating_add(1)));
    value.number(offset.order);
    Record { key: offset_key(group_id, producer_id, topic, partition), value: Some(value.0) }
}

/// Tombstone of an offset.
pub(super) fn offset_tombstone(
    group_id: &str,
    producer_id: Option<i64>,
    topic: &str,
    partition: i32,
) -> Record {
    Record { key: offset_key(group_id, producer_id, topic, partition), value: None }
}

pub(super) fn read_offset(bytes: &[u8]) -> Result<Offset, Malformed> {
    let mut reader = versioned(bytes)?;
    let offset = Offset {
        next: reader.signed()?,
        leader_epoch: reader.signed_32()?,
        metadata: reader.text()?.into(),
        committed_ms: reader.number()?,
        expires_ms: reader.number()?.checked_sub(1),
        order: reader.number()?,
    };
    reader.end()?;
    Ok(offset)
}

/// Record of a group: its generation, and its members with their assignments.
pub(super) fn group(group: &Group) -> Record {
    let mut value = Writer::starting_with(VERSION);
    value.signed(group.generation().into()).number(group.since_ms());
    value.optional_text(group.protocol_type()).optional_text(group.protocol());
    value.optional_text(group.leader().map(|id| &**id)).number(group.members().len() as u64);
    for member in group.members() {
        value.text(&member.id).optional_text(member.instance_id.as_deref());
        value.text(&member.client_id).text(&member.client_host);
        value.number(member.rebalance_timeout_ms.into()).number(member.session_timeout_ms.into());
        value.bytes(member.metadata(group.protocol().unwrap_or_default())).bytes(&member.assignment);
    }
    Record { key: group_key(group.id()), value: Some(value.0) }
}

/// Tombstone of a group.
pub(super) fn group_tombstone(group_id: &str) -> Record {
    Record { key: group_key(group_id), value: None }
}

pub(super) fn read_group(bytes: &[u8]) -> Result<StoredGroup, Malformed> {
    let mut reader = versioned(bytes)?;
    let mut stored = StoredGroup {
        generation: reader.signed_32()?,
        since_ms: reader.number()?,
        protocol_type: reader.optional_text()?.map(str::to_owned),
        protocol: reader.optional_text()?.map(Arc::from),
        leader: reader.optional_text()?.map(Arc::from),
        members: Vec::new(),
    };
    let count = reader.count()?;
    if count > 0 && (stored.protocol_type.is_none() || stored.leader.is_none()) {
        return Err(Malformed("members without a protocol or a leader"));
    }
    for _ in 0..count {
        let protocol = stored.protocol.as_ref().ok_or(Malformed("members without a protocol"))?;
        stored.members.push(read_member(&mut reader, protocol)?);
    }
    reader.end()?;
    Ok(stored)
}

/// Record of the configuration of a group; a tombstone if nothing is set.
pub(super) fn group_config(group_id: &str, config: GroupConfig) -> Record {
    let mut key = Writer::starting_with(GROUP_CONFIG);
    key.text(group_id);
    let value = (config != GroupConfig::default()).then(|| {
        let mut value = Writer::starting_with(VERSION);
        for setting in [config.session_timeout_ms, config.heartbeat_interval_ms] {
            value.number(setting.map_or(0, |setting| u64::from(setting) + 1));
        }
        value.0
    });
    Record { key: key.0, value }
}

pub(super) fn read_group_config(bytes: &[u8]) -> Result<GroupConfig, Malformed> {
    let mut reader = versioned(bytes)?;
    let mut setting = || match reader.number()?.checked_sub(1) {
        None => Ok(None),
        Some(value) => {
            u32::try_from(value).map(Some).map_err(|_| Malformed("a setting of a group exceeds 32 bits"))
        }
    };
    let config = GroupConfig { session_timeout_ms: setting()?, heartbeat_interval_ms: setting()? };
    reader.end()?;
    Ok(config)
}

/// Only the metadata for the group's protocol is persisted; a member sends the rest when it rejoins.
fn read_member(reader: &mut Reader<'_>, protocol: &Arc<str>) -> Result<Member, Malformed> {
    let timeout = |value: Result<u64, Malformed>| {
        u32::try_from(value?).map_err(|_| Malformed("a timeout exceeds 32 bits"))
    };
    Ok(Member {
        id: reader.text()?.into(),
        instance_id: reader.optional_text()?.map(Arc::from),
        client_id: reader.text()?.to_owned(),
        client_host: reader.text()?.to_owned(),
        rebalance_timeout_ms: timeout(reader.number())?,
        session_timeout_ms: timeout(reader.number())?,
        protocols: vec![Protocol { name: protocol.clone(), metadata: reader.bytes()?.to_vec() }],
        assignment: reader.bytes()?.to_vec(),
        is_new: false,
        joining: None,
        syncing: None,
        session: Session::default(),
    })
}

pub(super) fn versioned(bytes: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.byte()? == VERSION { Ok(reader) } else { Err(Malformed("unknown record version")) }
}
