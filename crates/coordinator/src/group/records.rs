//! Groups and offsets as records: their keys and values. The bytes are described in `docs/formats/group-records.md`.

use std::sync::Arc;

use super::member::{Member, Protocol, Session};
use super::offsets::Offset;
use super::roster::Group;
use crate::Record;
use crate::bytes::{Malformed, Reader, Writer};

/// What the key of a group begins with.
const GROUP: u8 = 1;
/// What the key of a committed offset begins with.
const OFFSET: u8 = 2;
/// What the key of an offset of a transaction that is not over begins with.
const PENDING: u8 = 3;
/// What every value begins with.
const VERSION: u8 = 1;

/// What a record speaks of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    Group { group_id: &'a str },
    Offset { group_id: &'a str, producer_id: Option<i64>, topic: &'a str, partition: i32 },
}

pub(super) fn key(bytes: &[u8]) -> Result<Key<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    let kind = reader.byte()?;
    let producer_id = match kind {
        PENDING => Some(reader.signed()?),
        GROUP | OFFSET => None,
        _ => return Err(Malformed("a kind that is not known")),
    };
    let group_id = reader.text()?;
    let key = if kind == GROUP {
        Key::Group { group_id }
    } else {
        Key::Offset { group_id, producer_id, topic: reader.text()?, partition: reader.signed_32()? }
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

/// An offset, of a transaction if it has a producer identifier.
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

/// That there is no such offset.
pub(super) fn no_offset(group_id: &str, producer_id: Option<i64>, topic: &str, partition: i32) -> Record {
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

/// A group: its generation, and its members with what they got.
pub(super) fn group(group: &Group) -> Record {
    let mut value = Writer::starting_with(VERSION);
    value.signed(group.generation.into()).number(group.since_ms);
    value.maybe_text(group.protocol_type.as_deref()).maybe_text(group.protocol.as_deref());
    value.maybe_text(group.leader.as_deref()).number(group.members().len() as u64);
    for member in group.members() {
        value.text(&member.id).maybe_text(member.instance_id.as_deref());
        value.text(&member.client_id).text(&member.client_host);
        value.number(member.rebalance_timeout_ms.into()).number(member.session_timeout_ms.into());
        value.bytes(member.metadata(group.protocol.as_deref().unwrap_or_default())).bytes(&member.assignment);
    }
    Record { key: group_key(&group.id), value: Some(value.0) }
}

/// That there is no such group.
pub(super) fn no_group(group_id: &str) -> Record {
    Record { key: group_key(group_id), value: None }
}

/// What is kept of a group.
pub(super) struct KeptGroup {
    pub(super) generation: i32,
    pub(super) since_ms: u64,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<Arc<str>>,
    pub(super) leader: Option<Arc<str>>,
    pub(super) members: Vec<Member>,
}

pub(super) fn read_group(bytes: &[u8]) -> Result<KeptGroup, Malformed> {
    let mut reader = versioned(bytes)?;
    let mut kept = KeptGroup {
        generation: reader.signed_32()?,
        since_ms: reader.number()?,
        protocol_type: reader.maybe_text()?.map(str::to_owned),
        protocol: reader.maybe_text()?.map(Arc::from),
        leader: reader.maybe_text()?.map(Arc::from),
        members: Vec::new(),
    };
    let count = reader.count()?;
    if count > 0 && (kept.protocol_type.is_none() || kept.leader.is_none()) {
        return Err(Malformed("members without a protocol or a leader"));
    }
    for _ in 0..count {
        let protocol = kept.protocol.as_ref().ok_or(Malformed("members without a protocol"))?;
        kept.members.push(read_member(&mut reader, protocol)?);
    }
    reader.end()?;
    Ok(kept)
}

/// Of the protocols that a member speaks only the group's is kept: it says the others when it joins again.
fn read_member(reader: &mut Reader<'_>, protocol: &Arc<str>) -> Result<Member, Malformed> {
    let timeout =
        |value: Result<u64, Malformed>| u32::try_from(value?).map_err(|_| Malformed("a timeout of ages"));
    Ok(Member {
        id: reader.text()?.into(),
        instance_id: reader.maybe_text()?.map(Arc::from),
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

fn versioned(bytes: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.byte()? == VERSION { Ok(reader) } else { Err(Malformed("a version that is not known")) }
}
