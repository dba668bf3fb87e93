//! `ListOffsets`, versions 1 to 11: returns offsets by timestamp, or the first, the last and other special offsets of
//! partitions.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::catalogue::PartitionId;
use crate::leader_epoch::{LEADER_EPOCH, NO_EPOCH, check_epoch};
use crate::partition_message::{PartitionQuery, PartitionQueryResult, isolation};
use crate::pending::AfterQueries;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ListOffsetsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let isolation = isolation(request.isolation_level);
    let mut queries = Vec::new();
    for topic in &request.topics {
        let known = shard.env.catalogue().topic(&topic.name);
        let is_allowed = call.may_topic(Action::Describe, &topic.name);
        let id = known.filter(|_| is_allowed).map_or_else(Default::default, |topic| topic.id);
        for part in &topic.partitions {
            let id = PartitionId { topic: id, index: part.partition_index };
            queries.push((id, PartitionQuery::Offset { timestamp_ms: part.timestamp, isolation }));
        }
    }
    shard.query_partitions(io, queries, AfterQueries::ListOffsets { call, request });
}

/// Answers with the results of the partitions.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &ListOffsetsRequest,
    answers: Vec<PartitionQueryResult>,
) {
    let mut answers = answers.into_iter();
    let topics = request.topics.iter().map(|topic| {
        let parts = topic.partitions.iter().zip(answers.by_ref());
        let denied = call.check_topic(Action::Describe, &topic.name).err();
        let partition = |(part, answer): (&ListOffsetsPartition, PartitionQueryResult)| match denied {
            None => part_response(part, &answer),
            Some(code) => {
                let partition_index = part.partition_index;
                let error_code = code as i16;
                ListOffsetsPartitionResponse { partition_index, error_code, ..Default::default() }
            }
        };
        ListOffsetsTopicResponse { name: topic.name.clone(), partitions: parts.map(partition).collect() }
    });
    let topics = topics.collect();
    shard.reply::<ListOffsetsRequest>(io, call, &ListOffsetsResponse { topics, ..Default::default() });
}

fn part_response(part: &ListOffsetsPartition, answer: &PartitionQueryResult) -> ListOffsetsPartitionResponse {
    let partition_index = part.partition_index;
    let mut response = ListOffsetsPartitionResponse { partition_index, ..Default::default() };
    match (answer, check_epoch(part.current_leader_epoch)) {
        (PartitionQueryResult::Failed(ErrorCode::UnknownTopicOrPartition), _) => {
            response.error_code = ErrorCode::UnknownTopicOrPartition as i16;
        }
        (_, Err(code)) => response.error_code = code as i16,
        (PartitionQueryResult::Offset { offset, timestamp_ms }, Ok(())) => {
            response.offset = *offset;
            response.timestamp = *timestamp_ms;
            response.leader_epoch = if *offset >= 0 { LEADER_EPOCH } else { NO_EPOCH };
        }
        (PartitionQueryResult::Failed(code), Ok(())) => response.error_code = *code as i16,
        _ => response.error_code = ErrorCode::UnknownServerError as i16,
    }
    response
}
