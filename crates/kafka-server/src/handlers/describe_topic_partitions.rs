//! `DescribeTopicPartitions`, version 0: returns topics and their partitions in pages, ordered by topic name (KIP-966).

use std::collections::BTreeSet;

use mainstem_kafka::api::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic, TopicRequest,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use super::metadata::TOPIC_OPERATIONS;
use crate::catalogue::name_error;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Most partitions of one page (Kafka's `max.request.partition.size.limit`).
const PARTITIONS_MAX: i32 = 2_000;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeTopicPartitionsRequest,
) {
    let is_all = request.topics.is_empty();
    let (from, first) = match &request.cursor {
        None => ("", 0),
        Some(cursor) if cursor.partition_index < 0 => {
            return answer_error(shard, io, &call, &request, ErrorCode::InvalidRequest);
        }
        Some(cursor) => (cursor.topic_name.as_str(), cursor.partition_index),
    };
    let requested: BTreeSet<&str> = request.topics.iter().map(|topic| topic.name.as_str()).collect();
    let all = shard.env.catalogue().by_name.from(from).map(|(name, _)| &**name);
    let visible = all.filter(|name| is_all && call.may_topic(Action::Describe, name));
    let mut left = request.response_partition_limit.clamp(1, PARTITIONS_MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in requested.range(from..).copied().chain(visible) {
        if left == 0 {
            response.next_cursor = Some(Cursor { topic_name: name.into(), partition_index: 0 });
            break;
        }
        let begin = if name == from { first } else { 0 };
        let (topic, next_partition) = page(shard, &call, name, begin, left);
        left -= i32::try_from(topic.partitions.len()).unwrap_or(left);
        response.topics.push(topic);
        if let Some(partition_index) = next_partition {
            response.next_cursor = Some(Cursor { topic_name: name.into(), partition_index });
            break;
        }
    }
    shard.reply::<DescribeTopicPartitionsRequest>(io, &call, &response);
}

fn answer_error(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &DescribeTopicPartitionsRequest,
    code: ErrorCode,
) {
    let topic = |topic: &TopicRequest| DescribeTopicPartitionsResponseTopic {
        error_code: code as i16,
        name: Some(topic.name.clone()),
        ..DescribeTopicPartitionsResponseTopic::default()
    };
    let topics = request.topics.iter().map(topic).collect();
    let response = DescribeTopicPartitionsResponse { topics, ..DescribeTopicPartitionsResponse::default() };
    shard.reply::<DescribeTopicPartitionsRequest>(io, call, &response);
}

/// Up to `limit` partitions of a topic, and the first one of the next page.
fn page(
    shard: &Shard,
    call: &RequestContext,
    name: &str,
    begin: i32,
    limit: i32,
) -> (DescribeTopicPartitionsResponseTopic, Option<i32>) {
    let mut described = DescribeTopicPartitionsResponseTopic {
        name: Some(name.into()),
        topic_authorized_operations: call.operations(TOPIC_OPERATIONS, ResourceKind::Topic, name),
        ..DescribeTopicPartitionsResponseTopic::default()
    };
    if let Err(code) = call.check_topic(Action::Describe, name) {
        described.error_code = code as i16;
        described.topic_authorized_operations = i32::MIN;
        return (described, None);
    }
    let Some(topic) = shard.env.catalogue().topic(name) else {
        let is_name = name_error(name).is_none();
        let code =
            if is_name { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::InvalidTopicException };
        described.error_code = code as i16;
        return (described, None);
    };
    let node = shard.env.shared().config.node_id;
    let partition = |partition_index: i32| DescribeTopicPartitionsResponsePartition {
        partition_index,
        leader_id: node,
        leader_epoch: 0,
        replica_nodes: vec![node],
        isr_nodes: vec![node],
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
        ..DescribeTopicPartitionsResponsePartition::default()
    };
    let end = topic.partitions().min(begin.saturating_add(limit));
    described.topic_id = Uuid(topic.id.0);
    described.partitions = (begin..end).map(partition).collect();
    (described, (end < topic.partitions()).then_some(end))
}
