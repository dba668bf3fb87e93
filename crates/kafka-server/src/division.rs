//! Requests over thousands of topics or groups that are handled in parts, each in a turn of its own.
//!
//! A request like `CreateTopics` names items that do not depend on each other, and answers each of them. Its handler
//! takes some microseconds per item, or a hundred, so ten thousand of them would stall the shard. Such a request is a
//! [`Division`]: a job that has the handler answer one part after the other, and joins the answers. The client gets
//! one response. Items of the same name stay in one part, because handlers refuse those that occur twice.
//!
//! The answers are joined in their encoding, because encoding all of them at the end would take long too. Each of these
//! responses ends with the array of its items, so they can be joined without knowing what they are.

use mainstem_kafka::api::alter_configs::AlterConfigsRequest;
use mainstem_kafka::api::create_partitions::CreatePartitionsRequest;
use mainstem_kafka::api::create_topics::CreateTopicsRequest;
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::describe_configs::DescribeConfigsRequest;
use mainstem_kafka::api::incremental_alter_configs::IncrementalAlterConfigsRequest;
use mainstem_kafka::{Message, Reader, Request, frame, put_response_header};

use crate::shard_message::RequestContext;

/// Most bytes of the response to a request that is handled in parts.
const RESPONSE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Declares the requests. A line has the request, its items, the name of an item if none may occur twice, and the most
/// items of a part: about a millisecond of work.
macro_rules! divided_requests {
    ($($name:ident($request:ident) in $items:ident, named $item:ident => $key:expr, $part_items:literal;)*) => {
        /// A request that is handled in parts: what is left of it, or a part.
        #[derive(Debug)]
        pub(crate) enum DividedRequest {
            $($name($request),)*
        }

        impl DividedRequest {
            /// Takes the next part; `None` if nothing is left.
            fn take_part(&mut self) -> Option<Self> {
                match self {
                    $(Self::$name(request) => {
                        let end = part_end(&request.$items, $part_items, |$item| $key)?;
                        let items = request.$items.drain(..end).collect();
                        let rest = std::mem::replace(&mut request.$items, items);
                        let part = request.clone();
                        request.$items = rest;
                        Some(Self::$name(part))
                    })*
                }
            }
        }

        $(impl Divisible for $request {
            fn divide(mut self) -> Result<(DividedRequest, usize), Self> {
                let count = self.$items.len();
                if count <= $part_items {
                    return Err(self);
                }
                // A stable sort: items without names keep their order.
                self.$items.sort_by(|one, other| { let $item = one; $key }.cmp(&{ let $item = other; $key }));
                Ok((DividedRequest::$name(self), count))
            }
        })*
    };
}

divided_requests! {
    AlterConfigs(AlterConfigsRequest) in resources, named item => Some(item.resource_name.as_str()), 100;
    CreatePartitions(CreatePartitionsRequest) in topics, named item => Some(item.name.as_str()), 200;
    CreateTopics(CreateTopicsRequest) in topics, named item => Some(item.name.as_str()), 10;
    DeleteGroups(DeleteGroupsRequest) in groups_names, named _item => None::<&str>, 200;
    DescribeConfigs(DescribeConfigsRequest) in resources, named _item => None::<&str>, 10;
    IncrementalAlterConfigs(IncrementalAlterConfigsRequest) in resources,
        named item => Some(item.resource_name.as_str()), 100;
}

/// A request that may have too many items for one turn.
pub(crate) trait Divisible: Request {
    /// Prepares the request to be handled in parts, and returns the number of its items.
    ///
    /// # Errors
    /// Returns the request if it is no longer than a part.
    fn divide(self) -> Result<(DividedRequest, usize), Self>;
}

/// The end of the first part of `items`; `None` if there are none.
fn part_end<T>(items: &[T], part_items: usize, name: impl Fn(&T) -> Option<&str>) -> Option<usize> {
    let last = items.len().min(part_items).checked_sub(1)?;
    let has_same_name = |item: &&T| name(item).is_some_and(|name_of| name(&items[last]) == Some(name_of));
    Some(last + 1 + items[last + 1..].iter().take_while(has_same_name).count())
}

/// A request that is handled in parts.
#[derive(Debug)]
pub(crate) struct Division {
    call: RequestContext,
    rest: DividedRequest,
    response: JoinedResponse,
}

impl Division {
    /// Divides a request that has more items than a part.
    ///
    /// # Errors
    /// Returns the request if it is short, or a part itself.
    pub(crate) fn of<R: Divisible>(call: &RequestContext, request: R) -> Result<Self, R> {
        if call.division.is_some() {
            return Err(request);
        }
        let (rest, items) = request.divide()?;
        let response = JoinedResponse::begin::<R>(call, items);
        Ok(Self { call: call.clone(), rest, response })
    }

    pub(crate) fn call(&self) -> &RequestContext {
        &self.call
    }

    /// Takes the next part; `None` if all are answered.
    pub(crate) fn next_part(&mut self) -> Option<DividedRequest> {
        self.rest.take_part()
    }

    /// Adds the response to a part, without header. Returns false if the whole response gets too long.
    pub(crate) fn add(&mut self, response: &[u8]) -> bool {
        self.response.add(response);
        self.response.bytes.len() <= RESPONSE_BYTES_MAX
    }

    /// The whole response, in a frame.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.response.finish(&self.call)
    }
}

/// The frame of a response that ends with an array of items, while they are added.
#[derive(Debug)]
struct JoinedResponse {
    is_flexible: bool,
    /// Bytes of a response before the number of its items.
    fields: Vec<u8>,
    items: u32,
    /// The encoded items, behind `head_len` bytes of room for what precedes them.
    bytes: Vec<u8>,
    head_len: usize,
}

impl JoinedResponse {
    /// Begins a response with probably this number of items.
    fn begin<R: Request>(call: &RequestContext, items: usize) -> Self {
        let is_flexible = call.version >= R::FLEXIBLE_FROM;
        let mut fields = Vec::new();
        R::Response::default().encode(&mut fields, call.version);
        // In the compact form an empty array is one byte, and tagged fields follow it.
        let behind = if is_flexible { 2 } else { size_of::<i32>() };
        fields.truncate(fields.len().saturating_sub(behind));
        let mut response = Self { is_flexible, fields, items: items as u32, bytes: Vec::new(), head_len: 0 };
        response.head_len = response.head(call).len();
        response.bytes.resize(response.head_len, 0);
        response.items = 0;
        response
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
        let mut reader = Reader::new(&response[self.fields.len()..]);
        self.items += if self.is_flexible {
            reader.uvarint().map_or(0, |count| count.saturating_sub(1))
        } else {
            reader.array().map_or(0, u32::from_be_bytes)
        };
        let items = reader.rest();
        let tags = usize::from(self.is_flexible);
        self.bytes.extend_from_slice(&items[..items.len() - tags]);
    }

    fn finish(mut self, call: &RequestContext) -> Vec<u8> {
        if self.is_flexible {
            self.bytes.push(0);
        }
        let head = self.head(call);
        // Mostly the room is right, and nothing moves: items that occur twice may be answered once.
        if head.len() == self.head_len {
            self.bytes[..head.len()].copy_from_slice(&head);
        } else {
            self.bytes.splice(..self.head_len, head);
        }
        frame::end_frame(&mut self.bytes, frame::LENGTH_BYTES, 0);
        self.bytes
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
    use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicResult, CreateTopicsResponse};
    use mainstem_kafka::api::delete_groups::{DeletableGroupResult, DeleteGroupsResponse};
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
            grants: None,
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
                let mut joined = JoinedResponse::begin::<DeleteGroupsRequest>(&call, 130);
                for part in results[..count].chunks(50) {
                    let response = DeleteGroupsResponse { results: part.to_vec(), ..Default::default() };
                    let mut bytes = Vec::new();
                    response.encode(&mut bytes, version);
                    joined.add(&bytes);
                }
                let response =
                    DeleteGroupsResponse { results: results[..count].to_vec(), ..Default::default() };
                let expected = whole::<DeleteGroupsRequest>(&call, &response);
                assert_eq!(joined.finish(&call), expected, "{count} items in version {version}");
            }
        }
        for version in CreateTopicsRequest::VERSIONS {
            let call = call::<CreateTopicsRequest>(version);
            let topics = vec![CreatableTopicResult { name: "topic".into(), ..Default::default() }; 3];
            let response = CreateTopicsResponse { topics, ..Default::default() };
            let mut bytes = Vec::new();
            response.encode(&mut bytes, version);
            let mut joined = JoinedResponse::begin::<CreateTopicsRequest>(&call, 3);
            joined.add(&bytes);
            assert_eq!(joined.finish(&call), whole::<CreateTopicsRequest>(&call, &response));
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
        let mut division = Division::of(&call, request.clone()).unwrap();
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
        assert!(Division::of(&part, request).is_err(), "a part is not divided again");
    }
}
