//! Requests over thousands of topics or groups that are handled in parts, each in a turn of its own.
//!
//! A request like `CreateTopics` names items that do not depend on each other, and answers each of them. Its handler
//! takes some microseconds per item, or a hundred, so ten thousand of them would stall the shard. Such a request is a
//! [`Division`]: a job that has the handler answer one part after the other, and joins the answers. The client gets
//! one response. Items of the same name stay in one part, because handlers refuse those that occur twice.
//!
//! The answers are joined in their encoding, because encoding all of them at the end would take long too. Each of these
//! responses has one array of items, mostly at its end, so they can be joined without knowing what they are. They stay
//! in pieces, because a response of a hundred megabytes takes long to copy, and even to free.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::vec;

use mainstem_kafka::api::alter_configs::{AlterConfigsRequest, AlterConfigsResource};
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource as IncrementalResource, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataResponse};
use mainstem_kafka::{Reader, Request, frame, put_response_header};
use mainstem_runtime::{MemoryMeter, SharedBytes};

use crate::answer::Answer;
use crate::metadata_division::{MetadataPart, MetadataRest};
use crate::shard_message::RequestContext;

/// Most bytes of the response to a request that is handled in parts.
const RESPONSE_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Bytes at which a piece of a joined response is full.
const PIECE_BYTES: usize = 64 * 1024;

/// Declares the requests. A line has the request, its items and their type, the name of an item if none may occur
/// twice, and the most items of a part: about a millisecond of work.
macro_rules! divided_requests {
    ($($name:ident($request:ident) in $items:ident: $type:ty, named $item:ident => $key:expr, $part_items:literal;)*) => {
        /// A part of a request.
        #[derive(Debug)]
        pub(crate) enum DividedRequest {
            Metadata(Box<MetadataPart>),
            $($name($request),)*
        }

        /// What is left of a request: its items, and the request without them.
        #[derive(Debug)]
        pub(crate) enum Rest {
            Metadata(Box<MetadataRest>),
            $($name($request, vec::IntoIter<$type>),)*
        }

        impl Rest {
            /// Takes the next part; `None` if nothing is left.
            fn take_part(&mut self) -> Option<DividedRequest> {
                match self {
                    Self::Metadata(rest) => Some(DividedRequest::Metadata(Box::new(rest.take_part()?))),
                    $(Self::$name(request, items) => {
                        let end = part_end(items.as_slice(), $part_items, |$item| $key)?;
                        let mut part = request.clone();
                        part.$items = items.by_ref().take(end).collect();
                        Some(DividedRequest::$name(part))
                    })*
                }
            }
        }

        $(impl Divisible for $request {
            fn divide(mut self) -> Result<Rest, Self> {
                let mut items = std::mem::take(&mut self.$items);
                if items.len() <= $part_items {
                    self.$items = items;
                    return Err(self);
                }
                // A stable sort: items without names keep their order.
                items.sort_by(|one, other| { let $item = one; $key }.cmp(&{ let $item = other; $key }));
                Ok(Rest::$name(self, items.into_iter()))
            }
        })*
    };
}

divided_requests! {
    AlterConfigs(AlterConfigsRequest) in resources: AlterConfigsResource,
        named item => Some(item.resource_name.as_str()), 100;
    CreatePartitions(CreatePartitionsRequest) in topics: CreatePartitionsTopic,
        named item => Some(item.name.as_str()), 200;
    CreateTopics(CreateTopicsRequest) in topics: CreatableTopic, named item => Some(item.name.as_str()), 10;
    DeleteGroups(DeleteGroupsRequest) in groups_names: String, named _item => None::<&str>, 200;
    DeleteTopics(DeleteTopicsRequest) in topics: DeleteTopicState,
        named item => Some((item.name.as_deref(), item.topic_id)), 100;
    DescribeConfigs(DescribeConfigsRequest) in resources: DescribeConfigsResource, named _item => None::<&str>, 10;
    IncrementalAlterConfigs(IncrementalAlterConfigsRequest) in resources: IncrementalResource,
        named item => Some(item.resource_name.as_str()), 100;
}

/// A request that may have too many items for one turn.
pub(crate) trait Divisible: Request {
    /// Prepares the request to be handled in parts.
    ///
    /// # Errors
    /// Returns the request if it is no longer than a part.
    fn divide(self) -> Result<Rest, Self>;
}

/// The end of the first part of `items`; `None` if there are none.
fn part_end<'a, T, N: PartialEq>(
    items: &'a [T],
    part_items: usize,
    name: impl Fn(&'a T) -> Option<N>,
) -> Option<usize> {
    let last = items.len().min(part_items).checked_sub(1)?;
    let name_of_last = name(&items[last]);
    let has_same_name = |item: &&'a T| name_of_last.is_some() && name(item) == name_of_last;
    Some(last + 1 + items[last + 1..].iter().take_while(has_same_name).count())
}

/// A request that is handled in parts.
#[derive(Debug)]
pub(crate) struct Division {
    call: RequestContext,
    rest: Rest,
    response: JoinedResponse,
    /// Names of the topics that earlier parts have deleted.
    deleted: BTreeSet<Arc<str>>,
}

impl Division {
    /// Divides a request that has more items than a part. The response is charged to `meter`.
    ///
    /// # Errors
    /// Returns the request if it is short, or a part itself.
    pub(crate) fn of<R: Divisible>(
        call: &RequestContext,
        request: R,
        meter: &MemoryMeter,
    ) -> Result<Self, R> {
        if call.division.is_some() {
            return Err(request);
        }
        let rest = request.divide()?;
        let mut response = JoinedResponse::begin::<R>(call, &R::Response::default(), 0, meter.clone());
        response.begins_like_parts = true;
        Ok(Self { call: call.clone(), rest, response, deleted: BTreeSet::new() })
    }

    /// A Metadata request that is answered in parts. `template` is the response without topics; those to the parts have
    /// topics only.
    pub(crate) fn of_metadata(
        call: &RequestContext,
        rest: MetadataRest,
        template: &MetadataResponse,
        meter: &MemoryMeter,
    ) -> Self {
        let behind = metadata_bytes_behind_topics(call.version);
        let response = JoinedResponse::begin::<MetadataRequest>(call, template, behind, meter.clone());
        let rest = Rest::Metadata(Box::new(rest));
        Self { call: call.clone(), rest, response, deleted: BTreeSet::new() }
    }

    pub(crate) fn call(&self) -> &RequestContext {
        &self.call
    }

    /// Takes the next part; `None` if all are answered.
    pub(crate) fn next_part(&mut self) -> Option<DividedRequest> {
        self.rest.take_part()
    }

    /// The names of the topics that the request has deleted so far.
    pub(crate) fn deleted(&mut self) -> &mut BTreeSet<Arc<str>> {
        &mut self.deleted
    }

    /// Throttles the client for at least this long. Later parts say so too.
    pub(crate) fn throttle(&mut self, throttle_ms: u32) {
        self.call.throttle(throttle_ms.into());
    }

    /// Adds the response to a part, without header. Returns false if the whole response gets too long.
    pub(crate) fn add(&mut self, response: &[u8]) -> bool {
        self.response.add(response);
        self.response.len <= RESPONSE_BYTES_MAX
    }

    /// The whole response, in a frame.
    pub(crate) fn finish(self) -> Answer {
        self.response.finish(&self.call)
    }
}

/// Bytes of a Metadata response behind its topics, without tagged fields.
fn metadata_bytes_behind_topics(version: i16) -> usize {
    match version {
        ..=7 | 11..=12 => 0,
        8..=10 => size_of::<i32>(),
        13.. => size_of::<i16>(),
    }
}

/// The frame of a response with an array of items, while they are added.
#[derive(Debug)]
struct JoinedResponse {
    is_flexible: bool,
    /// Bytes of the response before the number of its items.
    fields: Vec<u8>,
    /// Bytes behind the items.
    behind: Vec<u8>,
    /// `fields` are those of the newest part, which say how long the client is throttled.
    begins_like_parts: bool,
    /// Number of bytes before the number of items in the response to a part.
    part_fields: usize,
    items: u32,
    /// The encoded items: full pieces, and the newest one.
    pieces: Vec<SharedBytes>,
    newest: Vec<u8>,
    /// Bytes of all pieces.
    len: usize,
    meter: MemoryMeter,
}

impl JoinedResponse {
    /// Begins a response like `template`, which has no items, and `behind` bytes behind them besides tagged fields.
    fn begin<R: Request>(
        call: &RequestContext,
        template: &R::Response,
        behind: usize,
        meter: MemoryMeter,
    ) -> Self {
        let is_flexible = call.version >= R::FLEXIBLE_FROM;
        // In the compact form an empty array is one byte, and tagged fields end the response.
        let (count, tags) = if is_flexible { (1, 1) } else { (size_of::<i32>(), 0) };
        let encoded = |response: &R::Response| {
            let mut bytes = Vec::new();
            call.encode(response, &mut bytes);
            let behind = bytes.split_off(bytes.len().saturating_sub(behind + tags));
            bytes.truncate(bytes.len().saturating_sub(count));
            (bytes, behind)
        };
        let (fields, behind) = encoded(template);
        let (part_fields, _) = encoded(&R::Response::default());
        Self {
            is_flexible,
            fields,
            behind,
            begins_like_parts: false,
            part_fields: part_fields.len(),
            items: 0,
            pieces: Vec::new(),
            newest: Vec::new(),
            len: 0,
            meter,
        }
    }

    /// What precedes the items, in a frame without length.
    fn head(&self, call: &RequestContext) -> Vec<u8> {
        let mut head = Vec::new();
        frame::begin_frame(&mut head);
        put_response_header(call.correlation_id, call.api_key, call.version, &mut head);
        head.extend_from_slice(&self.fields);
        if self.is_flexible {
            put_uvarint(self.items + 1, &mut head);
        } else {
            head.extend_from_slice(&self.items.to_be_bytes());
        }
        head
    }

    fn add(&mut self, response: &[u8]) {
        let (fields, items) = response.split_at(self.part_fields);
        if self.begins_like_parts {
            self.fields.copy_from_slice(fields);
        }
        let mut reader = Reader::new(items);
        self.items += if self.is_flexible {
            reader.uvarint().map_or(0, |count| count.saturating_sub(1))
        } else {
            reader.array().map_or(0, u32::from_be_bytes)
        };
        let items = reader.rest();
        let items = &items[..items.len() - self.behind.len()];
        self.newest.extend_from_slice(items);
        self.len += items.len();
        if self.newest.len() >= PIECE_BYTES {
            let piece = std::mem::take(&mut self.newest).into_boxed_slice();
            self.pieces.push(SharedBytes::new(piece, &self.meter));
        }
    }

    fn finish(mut self, call: &RequestContext) -> Answer {
        let behind = self.behind.len();
        self.newest.append(&mut self.behind);
        self.len += behind;
        let mut head = self.head(call);
        frame::end_frame(&mut head, frame::LENGTH_BYTES, self.len);
        Answer { head, pieces: self.pieces, tail: self.newest }
    }
}

fn put_uvarint(mut value: u32, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

#[cfg(test)]
mod tests {
    use mainstem_kafka::Message;
    use mainstem_kafka::api::create_topics::{CreatableTopicResult, CreateTopicsResponse};
    use mainstem_kafka::api::delete_groups::{DeletableGroupResult, DeleteGroupsResponse};
    use mainstem_kafka::api::metadata::{MetadataResponseBroker, MetadataResponseTopic};
    use mainstem_runtime::ConnId;

    use super::*;
    use crate::shard_message::Caller;

    fn call<R: Request>(version: i16) -> RequestContext {
        RequestContext {
            caller: Caller { shard: 0, conn: ConnId::from_parts(1, 1), request: 0 },
            api_key: R::KEY,
            version,
            correlation_id: 7,
            client_id: "client".into(),
            peer: None,
            listener: 0,
            sender: None,
            quotas: None,
            throttle_ms: 0,
            division: None,
        }
    }

    fn whole<R: Request>(call: &RequestContext, response: &R::Response) -> Vec<u8> {
        let mut bytes = Vec::new();
        let begun = frame::begin_frame(&mut bytes);
        put_response_header(call.correlation_id, call.api_key, call.version, &mut bytes);
        response.encode(&mut bytes, call.version);
        frame::end_frame(&mut bytes, begun, 0);
        bytes
    }

    #[test]
    fn joined_responses_are_the_response_to_the_whole_request_in_all_versions() {
        let results: Vec<_> = (0..300_i16)
            .map(|index| DeletableGroupResult { group_id: format!("group {index}"), error_code: index })
            .collect();
        for version in DeleteGroupsRequest::VERSIONS {
            let call = call::<DeleteGroupsRequest>(version);
            for count in [0, 5, 120, 130, 300] {
                let mut joined = JoinedResponse::begin::<DeleteGroupsRequest>(
                    &call,
                    &DeleteGroupsResponse::default(),
                    0,
                    MemoryMeter::default(),
                );
                for part in results[..count].chunks(50) {
                    let response = DeleteGroupsResponse { results: part.to_vec(), ..Default::default() };
                    let mut bytes = Vec::new();
                    response.encode(&mut bytes, version);
                    joined.add(&bytes);
                }
                let response =
                    DeleteGroupsResponse { results: results[..count].to_vec(), ..Default::default() };
                let expected = whole::<DeleteGroupsRequest>(&call, &response);
                assert_eq!(joined.finish(&call).bytes(), expected, "{count} items in version {version}");
            }
        }
        for version in CreateTopicsRequest::VERSIONS {
            let call = call::<CreateTopicsRequest>(version);
            let topics = vec![CreatableTopicResult { name: "topic".into(), ..Default::default() }; 3];
            let response = CreateTopicsResponse { topics, ..Default::default() };
            let mut bytes = Vec::new();
            response.encode(&mut bytes, version);
            let mut joined = JoinedResponse::begin::<CreateTopicsRequest>(
                &call,
                &CreateTopicsResponse::default(),
                0,
                MemoryMeter::default(),
            );
            joined.add(&bytes);
            assert_eq!(joined.finish(&call).bytes(), whole::<CreateTopicsRequest>(&call, &response));
        }
    }

    #[test]
    fn a_joined_metadata_response_is_that_to_the_whole_request_in_all_versions() {
        let topics: Vec<_> = (0..300_u16)
            .map(|index| MetadataResponseTopic {
                name: Some(format!("topic {index}")),
                error_code: 3,
                ..MetadataResponseTopic::default()
            })
            .collect();
        let broker = MetadataResponseBroker { host: "host".into(), ..MetadataResponseBroker::default() };
        let template = MetadataResponse {
            brokers: vec![broker],
            cluster_id: Some("cluster".into()),
            controller_id: 7,
            cluster_authorized_operations: 9,
            ..MetadataResponse::default()
        };
        for version in MetadataRequest::VERSIONS {
            let call = call::<MetadataRequest>(version);
            let behind = metadata_bytes_behind_topics(version);
            let meter = MemoryMeter::default();
            let mut joined = JoinedResponse::begin::<MetadataRequest>(&call, &template, behind, meter);
            for part in topics.chunks(50) {
                let response = MetadataResponse { topics: part.to_vec(), ..MetadataResponse::default() };
                let mut bytes = Vec::new();
                response.encode(&mut bytes, version);
                joined.add(&bytes);
            }
            let expected = MetadataResponse { topics: topics.clone(), ..template.clone() };
            let expected = whole::<MetadataRequest>(&call, &expected);
            assert_eq!(joined.finish(&call).bytes(), expected, "version {version}");
        }
    }

    #[test]
    fn items_of_the_same_name_stay_in_one_part_and_no_item_is_lost() {
        let call = call::<CreateTopicsRequest>(7);
        let topic = |index: usize| {
            let name = if index.is_multiple_of(2) { "same".to_owned() } else { format!("topic {index:02}") };
            CreatableTopic { name, ..Default::default() }
        };
        let request = CreateTopicsRequest { topics: (0..50).map(topic).collect(), ..Default::default() };
        let mut division = Division::of(&call, request.clone(), &MemoryMeter::default()).unwrap();
        let mut parts: Vec<Vec<String>> = Vec::new();
        while let Some(DividedRequest::CreateTopics(part)) = division.next_part() {
            parts.push(part.topics.into_iter().map(|topic| topic.name).collect());
        }
        assert_eq!(parts.iter().filter(|part| part.iter().any(|name| name == "same")).count(), 1);
        let mut all: Vec<String> = parts.concat();
        let mut sent: Vec<String> = request.topics.iter().map(|topic| topic.name.clone()).collect();
        all.sort();
        sent.sort();
        assert_eq!(all, sent);
        assert!(parts.len() >= 3);
        let part = RequestContext { division: Some(1), ..call };
        assert!(
            Division::of(&part, request, &MemoryMeter::default()).is_err(),
            "a part is not divided again"
        );
    }
}
