//! Produce requests that borrow: records go from the frame to the log without being copied on the way.

use crate::Uuid;
use crate::message::Request;
use crate::reader::{DecodeError, Reader};
use crate::wire::{Form, Wire, take_array, take_bytes, take_str};

use super::ProduceRequest;

/// A `ProduceRequest` that borrows from the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequestRef<'a> {
    /// The transaction that the records are part of, if any.
    pub transactional_id: Option<&'a str>,
    /// How many replicas have to have the records before the answer: 0 for no answer at all, 1, or -1 for all.
    pub acks: i16,
    /// How long to wait for them, ms.
    pub timeout_ms: i32,
    /// What to append, by topic.
    pub topics: Vec<TopicRef<'a>>,
}

/// What to append to one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRef<'a> {
    /// Its name; empty since version 13.
    pub name: &'a str,
    /// Its identifier; zero before version 13.
    pub topic_id: Uuid,
    /// What to append, by partition.
    pub partitions: Vec<PartitionRef<'a>>,
}

/// What to append to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRef<'a> {
    /// Number of the partition in its topic.
    pub index: i32,
    /// Record batches, as nobody has looked into them yet.
    pub records: Option<&'a [u8]>,
}

const MISSING: DecodeError = DecodeError::Malformed("a Produce request lacks a name or an array");

impl<'a> ProduceRequestRef<'a> {
    /// Takes a request of this version off the front.
    ///
    /// # Errors
    /// [`DecodeError`].
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

/// An array of structs that `take` takes all fields of.
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

/// The request has no tagged field that means anything.
fn skip_tags(reader: &mut Reader<'_>, form: Form) -> Result<(), DecodeError> {
    if form.flexible { reader.skip_tags() } else { Ok(()) }
}
