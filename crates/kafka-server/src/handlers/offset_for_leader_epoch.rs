//! `OffsetForLeaderEpoch`, versions 2 to 4: returns the end offset of leader epochs.
//!
//! Leadership never changes, so each partition has only epoch 0, which ends at the high watermark. A topic that is
//! deleted and created again also starts with epoch 0.

use mainstem_kafka::api::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::catalogue::PartitionId;
use crate::leader_epoch::{LEADER_EPOCH, check_epoch};
use crate::partition_message::{PartitionQuery, PartitionQueryResult};
use crate::pending::AfterQueries;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: OffsetForLeaderEpochRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let mut queries = Vec::new();
    for topic in &request.topics {
        let known = shard.env.catalogue().topic(&topic.topic);
        let is_allowed = call.may_topic(Action::Describe, &topic.topic);
        let id = known.filter(|_| is_allowed).map_or_else(Default::default, |topic| topic.id);
        let query = |part: &OffsetForLeaderPartition| {
            (PartitionId { topic: id, index: part.partition }, PartitionQuery::Watermarks)
        };
        queries.extend(topic.partitions.iter().map(query));
    }
    shard.query_partitions(io, queries, AfterQueries::OffsetForLeaderEpoch { call, request });
}

/// Answers with the results of the partitions.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &OffsetForLeaderEpochRequest,
    answers: Vec<PartitionQueryResult>,
) {
    let mut answers = answers.into_iter();
    let topics = request.topics.iter().map(|topic| {
        let denied = call.check_topic(Action::Describe, &topic.topic).err();
        let partition = |(part, answer): (&OffsetForLeaderPartition, PartitionQueryResult)| match denied {
            None => part_response((part, answer)),
            Some(code) => {
                EpochEndOffset { partition: part.partition, error_code: code as i16, ..Default::default() }
            }
        };
        let partitions = topic.partitions.iter().zip(answers.by_ref()).map(partition).collect();
        OffsetForLeaderTopicResult { topic: topic.topic.clone(), partitions }
    });
    let topics = topics.collect();
    let response = OffsetForLeaderEpochResponse { topics, ..Default::default() };
    shard.reply::<OffsetForLeaderEpochRequest>(io, call, &response);
}

fn part_response((part, answer): (&OffsetForLeaderPartition, PartitionQueryResult)) -> EpochEndOffset {
    let mut response = EpochEndOffset { partition: part.partition, ..Default::default() };
    match (answer, check_epoch(part.current_leader_epoch)) {
        (PartitionQueryResult::Failed(code), _) | (_, Err(code)) => response.error_code = code as i16,
        (PartitionQueryResult::Watermarks(watermarks), Ok(())) if part.leader_epoch == LEADER_EPOCH => {
            response.leader_epoch = LEADER_EPOCH;
            response.end_offset = watermarks.high_watermark.cast_signed();
        }
        // Unknown epochs have no end offset.
        _ => {}
    }
    response
}
