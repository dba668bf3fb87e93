//! Requests over thousands of topics or groups that are handled in parts, each in a turn of its own.
//!
//! A request like `CreateTopics` names items that do not depend on each other, and answers each of them. Its handler
//! takes some microseconds per item, or a hundred, so ten thousand of them would stall the shard. Such a request is a
//! [`Division`]: a job that has the handler answer one part after the other, and joins the answers. The client gets
//! one response. Items of the same name stay in one part, because handlers refuse those that occur twice, see
//! `items_left.rs`.
//!
//! Other requests name partitions of topics, see `topics_left.rs`. A part of one that changes something succeeds or
//! fails by itself: a group may be rebalanced between two parts of an `OffsetCommit`. Each partition has its result.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_coordinator::transaction::PARTICIPANTS_MAX;
use mainstem_kafka::Request;
use mainstem_kafka::api::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use mainstem_kafka::api::alter_configs::{AlterConfigsRequest, AlterConfigsResource};
use mainstem_kafka::api::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignableTopic,
};
use mainstem_kafka::api::consumer_group_describe::ConsumerGroupDescribeRequest;
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::delete_records::{DeleteRecordsRequest, DeleteRecordsTopic};
use mainstem_kafka::api::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_kafka::api::describe_groups::DescribeGroupsRequest;
use mainstem_kafka::api::describe_producers::{DescribeProducersRequest, TopicRequest};
use mainstem_kafka::api::describe_transactions::DescribeTransactionsRequest;
use mainstem_kafka::api::find_coordinator::FindCoordinatorRequest;
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource as IncrementalResource, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::list_offsets::{ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataResponse};
use mainstem_kafka::api::offset_commit::{OffsetCommitRequest, OffsetCommitRequestTopic};
use mainstem_kafka::api::offset_delete::{OffsetDeleteRequest, OffsetDeleteRequestTopic};
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequest, OffsetFetchResponse};
use mainstem_kafka::api::offset_for_leader_epoch::{OffsetForLeaderEpochRequest, OffsetForLeaderTopic};
use mainstem_kafka::api::produce::{ProduceRequest, TopicProduceData};
use mainstem_kafka::api::txn_offset_commit::{TxnOffsetCommitRequest, TxnOffsetCommitRequestTopic};
use mainstem_runtime::MemoryMeter;

use crate::answer::Answer;
use crate::items_left::{ItemsLeft, NextItems, RequestedItem};
use crate::joined_response::{Identifier, JoinedResponse, NestedArray, Placement};
use crate::metadata_division::{MetadataPart, MetadataRest};
use crate::offset_fetch_division::{
    KnownOffsets, OffsetFetchPart, OffsetFetchRest, bytes_behind_items, nested_arrays,
};
use crate::sender::Sender;
use crate::shard_message::RequestContext;
use crate::topics_left::{PartTopics, TopicsLeft, has_more_items};

/// Most bytes of the response to a request that is handled in parts.
const RESPONSE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Topics and partitions of a Produce from which on it is handled in parts. Those of fewer are held by the partitions.
pub(crate) const WIDE_PRODUCE: usize = 2_000;

/// Declares the requests. A line has the request, its items and their type, and the most items of a part: about a
/// millisecond of work. Items are either those of `items_left.rs`, or topics with partitions, which both count; `ids
/// from` is the first version that names topics by identifier. A request with no more items than a part is not divided,
/// or with no more than `beyond`.
macro_rules! divided_requests {
    (
        items {$(
            $name:ident($request:ident) in $items:ident: $type:ty, $part_items:literal;
        )*}
        topics {$(
            $of_topics:ident($of_topics_request:ident) in $topics:ident: $topic:ty, $topic_items:literal
                $(, ids from $ids:literal)? $(, beyond $beyond:expr)?;
        )*}
    ) => {
        /// A part of a request.
        #[derive(Debug)]
        pub(crate) enum DividedRequest {
            Metadata(Box<MetadataPart>),
            OffsetFetch(OffsetFetchPart),
            $($name($request),)*
            $($of_topics($of_topics_request),)*
        }

        /// What is left of a request: its items, and the request without them.
        #[derive(Debug)]
        pub(crate) enum Rest {
            Metadata(Box<MetadataRest>),
            OffsetFetch(OffsetFetchRest),
            $($name($request, ItemsLeft<$type>),)*
            $($of_topics($of_topics_request, TopicsLeft<$topic>),)*
        }

        impl Rest {
            /// Takes the next part, and where its items belong.
            fn take_part(&mut self, call: &RequestContext, known: &KnownOffsets<'_>) -> NextPart {
                let part = |part: Option<(DividedRequest, Placement)>| part.map_or(NextPart::End, NextPart::Part);
                match self {
                    Self::Metadata(rest) => {
                        let topics = rest.take_part();
                        part(topics.map(|part| {
                            (DividedRequest::Metadata(Box::new(part)), Placement::default())
                        }))
                    }
                    Self::OffsetFetch(rest) => {
                        let groups = rest.take_part(call, known);
                        part(groups.map(|(part, placement)| (DividedRequest::OffsetFetch(part), placement)))
                    }
                    $(Self::$name(request, left) => match left.take($part_items) {
                        NextItems::Part(items) => {
                            let mut part = request.clone();
                            part.$items = items;
                            NextPart::Part((DividedRequest::$name(part), Placement::default()))
                        }
                        NextItems::Sorting => NextPart::Preparing,
                        NextItems::End => NextPart::End,
                    },)*
                    $(Self::$of_topics(request, left) => {
                        let topics = left.take($topic_items);
                        part(topics.map(|(topics, part_topics)| {
                            let mut part = request.clone();
                            part.$topics = topics;
                            (DividedRequest::$of_topics(part), placement(part_topics))
                        }))
                    })*
                }
            }
        }

        $(impl Divisible for $request {
            fn divide(mut self) -> Result<Rest, Self> {
                if self.$items.len() <= $part_items {
                    return Err(self);
                }
                let items = std::mem::take(&mut self.$items);
                Ok(Rest::$name(self, ItemsLeft::new(items)))
            }
        })*

        $(impl Divisible for $of_topics_request {
            const BYTES_BEHIND_ITEMS: usize = bytes_behind_topics!($of_topics);

            fn divide(mut self) -> Result<Rest, Self> {
                let beyond = [$topic_items $(, $beyond)?];
                if !has_more_items(&self.$topics, beyond[beyond.len() - 1]) {
                    return Err(self);
                }
                let topics = std::mem::take(&mut self.$topics);
                Ok(Rest::$of_topics(self, TopicsLeft::new(topics)))
            }

            fn nested_arrays(version: i16) -> Vec<NestedArray> {
                let ids_from: &[i16] = &[$($ids)?];
                let has_ids = ids_from.iter().any(|from| version >= *from);
                let after = if has_ids { Identifier::Uuid } else { Identifier::Name };
                vec![NestedArray { after, behind: 0 }]
            }
        })*
    };
}

/// The throttle time follows the topics of a Produce response.
macro_rules! bytes_behind_topics {
    (Produce) => {
        size_of::<i32>()
    };
    ($other:ident) => {
        0
    };
}

divided_requests! {
    items {
        AlterConfigs(AlterConfigsRequest) in resources: AlterConfigsResource, 100;
        CreatePartitions(CreatePartitionsRequest) in topics: CreatePartitionsTopic, 200;
        CreateTopics(CreateTopicsRequest) in topics: CreatableTopic, 10;
        DeleteGroups(DeleteGroupsRequest) in groups_names: String, 200;
        DeleteTopics(DeleteTopicsRequest) in topics: DeleteTopicState, 100;
        DescribeConfigs(DescribeConfigsRequest) in resources: DescribeConfigsResource, 10;
        ConsumerGroupDescribe(ConsumerGroupDescribeRequest) in group_ids: String, 200;
        DescribeGroups(DescribeGroupsRequest) in groups: String, 200;
        DescribeTransactions(DescribeTransactionsRequest) in transactional_ids: String, 20;
        FindCoordinator(FindCoordinatorRequest) in coordinator_keys: String, 500;
        IncrementalAlterConfigs(IncrementalAlterConfigsRequest) in resources: IncrementalResource, 100;
        LeaveGroup(LeaveGroupRequest) in members: MemberIdentity, 500;
    }
    topics {
        AddPartitionsToTxn(AddPartitionsToTxnRequest) in v3_and_below_topics: AddPartitionsToTxnTopic, 500,
            beyond PARTICIPANTS_MAX;
        AlterPartitionReassignments(AlterPartitionReassignmentsRequest) in topics: ReassignableTopic, 500;
        DeleteRecords(DeleteRecordsRequest) in topics: DeleteRecordsTopic, 200;
        DescribeProducers(DescribeProducersRequest) in topics: TopicRequest, 200;
        ListOffsets(ListOffsetsRequest) in topics: ListOffsetsTopic, 300;
        OffsetCommit(OffsetCommitRequest) in topics: OffsetCommitRequestTopic, 200, ids from 10;
        OffsetDelete(OffsetDeleteRequest) in topics: OffsetDeleteRequestTopic, 500;
        OffsetForLeaderEpoch(OffsetForLeaderEpochRequest) in topics: OffsetForLeaderTopic, 500;
        Produce(ProduceRequest) in topic_data: TopicProduceData, 200, ids from 13, beyond WIDE_PRODUCE;
        TxnOffsetCommit(TxnOffsetCommitRequest) in topics: TxnOffsetCommitRequestTopic, 200;
    }
}

/// Declares items that handlers do not accept twice, and the fields that name them.
macro_rules! named_items {
    ($($type:ty: $($field:ident)+;)*) => {
        $(impl RequestedItem for $type {
            fn cmp_names(&self, other: &Self) -> Option<Ordering> {
                Some(($(&self.$field,)+).cmp(&($(&other.$field,)+)))
            }
        })*
    };
}

named_items! {
    AlterConfigsResource: resource_name;
    CreatableTopic: name;
    CreatePartitionsTopic: name;
    DeleteTopicState: name topic_id;
    IncrementalResource: resource_name;
}

/// Declares items that do not depend on each other.
macro_rules! unnamed_items {
    ($($type:ty)*) => {
        $(impl RequestedItem for $type {
            fn cmp_names(&self, _: &Self) -> Option<Ordering> {
                None
            }
        })*
    };
}

unnamed_items!(DescribeConfigsResource MemberIdentity String);

/// What comes next of a request that is handled in parts.
#[derive(Debug)]
pub(crate) enum NextPart<P = (DividedRequest, Placement)> {
    Part(P),
    /// There will be a part in a later turn.
    Preparing,
    /// Nothing is left.
    End,
}

/// A request that may have too many items for one turn.
pub(crate) trait Divisible: Request {
    /// Bytes of the response behind its items, without tagged fields.
    const BYTES_BEHIND_ITEMS: usize = 0;

    /// Prepares the request to be handled in parts.
    ///
    /// # Errors
    /// Returns the request if it is no longer than a part.
    fn divide(self) -> Result<Rest, Self>;

    /// The arrays in the items of the response that may take several parts.
    fn nested_arrays(_version: i16) -> Vec<NestedArray> {
        Vec::new()
    }
}

fn placement(topics: PartTopics) -> Placement {
    match topics {
        PartTopics::Whole => Placement::default(),
        PartTopics::Slice { is_last } => Placement { depth: 1, ends: usize::from(is_last) },
    }
}

/// A request that is handled in parts.
#[derive(Debug)]
pub(crate) struct Division {
    call: RequestContext,
    rest: Rest,
    /// Where the items of the newest part belong.
    placement: Placement,
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
        let (template, behind) = (R::Response::default(), R::BYTES_BEHIND_ITEMS);
        let response = JoinedResponse::begin::<R>(call, &template, behind, meter.clone());
        let response = response.like_parts(R::nested_arrays(call.version));
        Ok(Self::new(call, rest, response))
    }

    fn new(call: &RequestContext, rest: Rest, response: JoinedResponse) -> Self {
        Self { call: call.clone(), rest, placement: Placement::default(), response, deleted: BTreeSet::new() }
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
        Self::new(call, Rest::Metadata(Box::new(rest)), response)
    }

    /// An OffsetFetch request that is answered in parts.
    pub(crate) fn of_offset_fetch(call: &RequestContext, rest: OffsetFetchRest, meter: &MemoryMeter) -> Self {
        let (template, behind) = (OffsetFetchResponse::default(), bytes_behind_items(call.version));
        let response = JoinedResponse::begin::<OffsetFetchRequest>(call, &template, behind, meter.clone());
        let response = response.like_parts(nested_arrays(call.version));
        Self::new(call, Rest::OffsetFetch(rest), response)
    }

    pub(crate) fn call(&self) -> &RequestContext {
        &self.call
    }

    /// Has later parts checked by rights that have changed meanwhile.
    pub(crate) fn set_sender(&mut self, sender: Arc<Sender>) {
        self.call.sender = Some(sender);
    }

    /// Takes the next part.
    pub(crate) fn next_part(&mut self, known: &KnownOffsets<'_>) -> NextPart<DividedRequest> {
        match self.rest.take_part(&self.call, known) {
            NextPart::Part((part, placement)) => {
                self.placement = placement;
                NextPart::Part(part)
            }
            NextPart::Preparing => NextPart::Preparing,
            NextPart::End => NextPart::End,
        }
    }

    /// The names of the topics that the request has deleted so far.
    pub(crate) fn deleted(&mut self) -> &mut BTreeSet<Arc<str>> {
        &mut self.deleted
    }

    /// Throttles the client for at least this long. Later parts say so too.
    pub(crate) fn throttle(&mut self, throttle_ms: u32) {
        self.call.throttle(throttle_ms.into());
    }

    /// Adds the response to the newest part, without header. Returns false if the whole response gets too long.
    pub(crate) fn add(&mut self, response: &[u8]) -> bool {
        self.response.add(response, self.placement);
        self.response.len() <= RESPONSE_BYTES_MAX
    }

    /// The whole response, in a frame, and what is left of the request, which takes long to free.
    pub(crate) fn finish(self) -> (Answer, Rest) {
        let is_answered = !matches!(&self.rest, Rest::Produce(request, _) if request.acks == 0);
        let answer = if is_answered { self.response.finish(&self.call) } else { Answer::default() };
        (answer, self.rest)
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

#[cfg(test)]
mod tests {
    use mainstem_kafka::api::create_topics::{CreatableTopicResult, CreateTopicsResponse};
    use mainstem_kafka::api::delete_groups::{DeletableGroupResult, DeleteGroupsResponse};
    use mainstem_kafka::api::metadata::{MetadataResponseBroker, MetadataResponseTopic};
    use mainstem_kafka::{Message, frame, put_response_header};
    use mainstem_runtime::ConnId;

    use super::*;
    use crate::catalogue::Catalogue;
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
                    joined.add(&bytes, Placement::default());
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
            joined.add(&bytes, Placement::default());
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
                joined.add(&bytes, Placement::default());
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
        let none = KnownOffsets { groups: None, catalogue: &Catalogue::default() };
        let mut parts: Vec<Vec<String>> = Vec::new();
        loop {
            match division.next_part(&none) {
                NextPart::Part(DividedRequest::CreateTopics(part)) => {
                    parts.push(part.topics.into_iter().map(|topic| topic.name).collect());
                }
                NextPart::Part(other) => panic!("{other:?}"),
                NextPart::Preparing => {}
                NextPart::End => break,
            }
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
