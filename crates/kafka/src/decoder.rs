//! Decodes a message in steps.
//!
//! A request of some megabytes can have arrays of millions of elements, and decoding them takes as long as hundreds of
//! small requests. A [`Decoder`] decodes some elements per call and keeps its place in between. It accepts what
//! [`Message::decode`] accepts, and gives the same message.
//!
//! How the types of the protocol keep their place is told in `steps.rs`.

use crate::message::Message;
use crate::reader::{ARRAY_BYTES_MAX, DecodeError, Reader};
use crate::steps::{Progress, Steps};

/// A message that is decoded in steps.
#[derive(Debug)]
pub struct Decoder<M> {
    message: M,
    version: i16,
    /// Bytes decoded so far.
    position: usize,
    /// Memory that further array elements may take; `None` before the first step.
    array_budget: Option<usize>,
    steps: Steps,
}

impl<M: Message> Decoder<M> {
    /// Begins a message of this version.
    pub fn new(version: i16) -> Self {
        let steps = Steps::default();
        Self { message: M::default(), version, position: 0, array_budget: None, steps }
    }

    /// Memory of all arrays that have begun, bytes.
    pub fn array_bytes(&self) -> usize {
        self.array_budget.map_or(0, |left| ARRAY_BYTES_MAX - left)
    }

    /// Decodes up to `elements` more elements of arrays, and returns the message if that was all. A long element counts
    /// as several. `bytes` must be the same in each call, from the beginning of the message on.
    ///
    /// # Errors
    /// [`DecodeError`] if the input is truncated or malformed. The decoder must not be used any more.
    pub fn step(&mut self, bytes: &[u8], elements: usize) -> Result<Option<M>, DecodeError> {
        let rest = bytes.get(self.position..).ok_or(DecodeError::Truncated)?;
        let mut reader = Reader::resume(rest, self.array_budget);
        self.steps.begin(elements);
        let progress = self.message.decode_some(&mut reader, self.version, &mut self.steps)?;
        self.position = bytes.len() - reader.remaining();
        self.array_budget = Some(reader.array_budget());
        Ok((progress == Progress::Complete).then(|| std::mem::take(&mut self.message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::consumer_group_heartbeat::{Assignment, ConsumerGroupHeartbeatResponse, TopicPartitions};
    use crate::api::metadata::{MetadataRequest, MetadataRequestTopic};
    use crate::api::offset_commit::{
        OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
    };

    /// Number of steps of so many elements.
    fn steps<M: Message>(message: &M, version: i16, elements: usize) -> usize {
        let mut bytes = Vec::new();
        message.encode(&mut bytes, version);
        let mut decoder = Decoder::<M>::new(version);
        for steps in 1.. {
            if let Some(decoded) = decoder.step(&bytes, elements).unwrap() {
                assert_eq!(decoded, *message);
                return steps;
            }
        }
        unreachable!()
    }

    #[test]
    fn a_step_ends_in_arrays_of_any_depth() {
        let partition = |partition_index| OffsetCommitRequestPartition {
            partition_index,
            committed_metadata: Some(String::new()),
            ..OffsetCommitRequestPartition::default()
        };
        let topic = |count: i32| OffsetCommitRequestTopic {
            name: count.to_string(),
            partitions: (0..count).map(partition).collect(),
            ..OffsetCommitRequestTopic::default()
        };
        let request = |counts: &[i32]| OffsetCommitRequest {
            topics: counts.iter().copied().map(topic).collect(),
            ..OffsetCommitRequest::default()
        };
        for version in [2, 8] {
            assert_eq!(steps(&request(&[]), version, 10), 1);
            assert_eq!(steps(&request(&[0, 3, 2]), version, 100), 1);
            // Three topics and 95 partitions.
            let taken = steps(&request(&[5, 80, 10]), version, 10);
            assert!((9..=11).contains(&taken), "{taken} steps");
        }
    }

    #[test]
    fn a_step_ends_inside_a_nullable_struct() {
        let response = |assignment| ConsumerGroupHeartbeatResponse { assignment, ..Default::default() };
        assert_eq!(steps(&response(None), 1, 10), 1);
        let topic = TopicPartitions { partitions: (0..9).collect(), ..Default::default() };
        // Ten topics and 90 partitions.
        let assignment = Assignment { topic_partitions: vec![topic; 10] };
        let taken = steps(&response(Some(assignment)), 1, 10);
        assert!((9..=11).contains(&taken), "{taken} steps");
    }

    #[test]
    fn a_long_element_counts_as_several() {
        let topic = |bytes| MetadataRequestTopic { name: Some("x".repeat(bytes)), ..Default::default() };
        let request = |bytes| MetadataRequest { topics: Some(vec![topic(bytes); 100]), ..Default::default() };
        let (short, long) = (steps(&request(1), 9, 20), steps(&request(2_560), 9, 20));
        assert!(short <= 6 && long >= 50, "{short} and {long} steps");
    }

    #[test]
    fn all_steps_share_the_array_budget() {
        // Elements of 24 bytes in memory and one on the wire.
        let count = 3_000_000_u32;
        let mut bytes = count.to_be_bytes().to_vec();
        bytes.resize(bytes.len() + count as usize * 2, 0);
        let mut decoder = Decoder::<crate::api::describe_groups::DescribeGroupsRequest>::new(0);
        assert!(matches!(decoder.step(&bytes, 1), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn truncated_input_is_an_error_in_the_step_that_reaches_its_end() {
        let request = crate::api::describe_groups::DescribeGroupsRequest {
            groups: vec!["group".into(); 10],
            ..Default::default()
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes, 0);
        bytes.pop();
        let mut decoder = Decoder::<crate::api::describe_groups::DescribeGroupsRequest>::new(0);
        assert_eq!(decoder.step(&bytes, 5), Ok(None));
        assert_eq!(decoder.step(&bytes, 5), Err(DecodeError::Truncated));
    }
}
