//! Borrowing decoder for Produce requests: records go from the frame to the log without a copy.
//!
//! It must accept exactly what [`ProduceRequest`] accepts; a test compares the two.

use crate::Uuid;
use crate::message::Request;
use crate::reader::{DecodeError, Reader};
use crate::wire::{Form, Wire, take_array, take_bytes, take_len, take_str};

use super::{PartitionProduceData, ProduceRequest, TopicProduceData};

/// A `ProduceRequest` that borrows from the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequestRef<'a> {
    /// Transactional id, if the records are part of a transaction.
    pub transactional_id: Option<&'a str>,
    /// Required acknowledgments: 0 for no response at all, 1, or -1 for all replicas.
    pub acks: i16,
    /// Timeout for the acknowledgments, ms.
    pub timeout_ms: i32,
    /// Records by topic.
    pub topics: Vec<TopicRef<'a>>,
}

/// Records for one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRef<'a> {
    /// Topic name; empty since version 13.
    pub name: &'a str,
    /// Topic id; zero before version 13.
    pub topic_id: Uuid,
    /// Records by partition.
    pub partitions: Vec<PartitionRef<'a>>,
}

/// Records for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRef<'a> {
    /// Partition index.
    pub index: i32,
    /// Record batches, not validated yet.
    pub records: Option<&'a [u8]>,
}

const MISSING: DecodeError = DecodeError::Malformed("a name or an array of the Produce request is null");

impl<'a> From<&'a ProduceRequest> for ProduceRequestRef<'a> {
    fn from(request: &'a ProduceRequest) -> Self {
        let partition = |data: &'a PartitionProduceData| PartitionRef {
            index: data.index,
            records: data.records.as_deref(),
        };
        let topic = |topic: &'a TopicProduceData| TopicRef {
            name: &topic.name,
            topic_id: topic.topic_id,
            partitions: topic.partition_data.iter().map(partition).collect(),
        };
        Self {
            transactional_id: request.transactional_id.as_deref(),
            acks: request.acks,
            timeout_ms: request.timeout_ms,
            topics: request.topic_data.iter().map(topic).collect(),
        }
    }
}

impl<'a> ProduceRequestRef<'a> {
    /// Decodes a request from the front of `reader`.
    ///
    /// # Errors
    /// [`DecodeError`] if the input is truncated or malformed.
    pub fn decode(reader: &mut Reader<'a>, version: i16) -> Result<Self, DecodeError> {
        let form = Form::of(version, ProduceRequest::FLEXIBLE_FROM);
        let transactional_id = take_str(reader, form)?;
        let acks = Wire::take(reader, form)?;
        let timeout_ms = Wire::take(reader, form)?;
        let topics = take_all(reader, form, |reader| TopicRef::take(reader, form))?;
        skip_tags(reader, form)?;
        Ok(Self { transactional_id, acks, timeout_ms, topics })
    }
}

/// Whether a request names more topics and partitions together than this. Decodes no more than needed, so that a
/// request may be handled differently that has too many to decode them at once.
///
/// # Errors
/// [`DecodeError`] if the input is truncated or malformed.
pub fn has_more_partitions(bytes: &[u8], version: i16, most: usize) -> Result<bool, DecodeError> {
    let form = Form::of(version, ProduceRequest::FLEXIBLE_FROM);
    let mut reader = Reader::new(bytes);
    take_str(&mut reader, form)?;
    let (_acks, _timeout_ms): (i16, i32) = (Wire::take(&mut reader, form)?, Wire::take(&mut reader, form)?);
    let mut left = most;
    let topics = take_len(&mut reader, form)?.ok_or(MISSING)?;
    for _ in 0..topics {
        if form.version >= 13 {
            Uuid::take(&mut reader, form)?;
        } else {
            take_str(&mut reader, form)?;
        }
        let partitions = take_len(&mut reader, form)?.ok_or(MISSING)?;
        let Some(rest) = left.checked_sub(partitions.saturating_add(1)) else { return Ok(true) };
        left = rest;
        for _ in 0..partitions {
            i32::take(&mut reader, form)?;
            take_bytes(&mut reader, form)?;
            skip_tags(&mut reader, form)?;
        }
        skip_tags(&mut reader, form)?;
    }
    Ok(false)
}

impl<'a> TopicRef<'a> {
    fn take(reader: &mut Reader<'a>, form: Form) -> Result<Self, DecodeError> {
        let (name, topic_id) = if form.version >= 13 {
            ("", Wire::take(reader, form)?)
        } else {
            (take_str(reader, form)?.ok_or(MISSING)?, Uuid::ZERO)
        };
        let partitions = take_all(reader, form, |reader| {
            Ok(PartitionRef { index: Wire::take(reader, form)?, records: take_bytes(reader, form)? })
        })?;
        Ok(Self { name, topic_id, partitions })
    }
}

/// Reads an array of structs; `take` reads the fields of one.
fn take_all<'a, T>(
    reader: &mut Reader<'a>,
    form: Form,
    mut take: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let all = take_array(reader, form, |reader| {
        let element = take(reader)?;
        skip_tags(reader, form)?;
        Ok(element)
    })?;
    all.ok_or(MISSING)
}

/// Skips tagged fields: the request has none of its own.
fn skip_tags(reader: &mut Reader<'_>, form: Form) -> Result<(), DecodeError> {
    if form.flexible { reader.skip_tags() } else { Ok(()) }
}
