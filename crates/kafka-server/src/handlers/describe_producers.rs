//! `DescribeProducers`, version 0: returns the producers that partitions have state of.

use mainstem_coordinator::producer;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicRequest,
    TopicResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::catalogue::PartitionId;
use crate::partition_message::{PartitionQuery, PartitionQueryResult};
use crate::pending::AfterQueries;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeProducersRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let mut queries = Vec::new();
    for topic in &request.topics {
        let known = shard.env.catalogue().topic(&topic.name);
        let is_allowed = call.may_topic(Action::Consume, &topic.name);
        let id = known.filter(|_| is_allowed).map(|known| known.id).unwrap_or_default();
        let ids = topic.partition_indexes.iter().map(|index| PartitionId { topic: id, index: *index });
        queries.extend(ids.map(|id| (id, PartitionQuery::Producers)));
    }
    shard.query_partitions(io, queries, AfterQueries::DescribeProducers { call, request });
}

/// Answers with the results of the partitions.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &DescribeProducersRequest,
    answers: Vec<PartitionQueryResult>,
) {
    let mut answers = answers.into_iter();
    let topics = request.topics.iter().map(|topic| topic_response(call, topic, &mut answers)).collect();
    let response = DescribeProducersResponse { topics, ..DescribeProducersResponse::default() };
    shard.reply::<DescribeProducersRequest>(io, call, &response);
}

fn topic_response(
    call: &RequestContext,
    topic: &TopicRequest,
    answers: &mut impl Iterator<Item = PartitionQueryResult>,
) -> TopicResponse {
    let denied = call.check_topic(Action::Consume, &topic.name).err();
    let partition = |(index, answer): (&i32, PartitionQueryResult)| {
        let answer = denied.map_or(answer, PartitionQueryResult::Failed);
        let (error_code, active_producers) = match answer {
            PartitionQueryResult::Producers(all) => (ErrorCode::None, all.iter().map(state).collect()),
            PartitionQueryResult::Failed(code) => (code, Vec::new()),
            _ => (ErrorCode::UnknownServerError, Vec::new()),
        };
        PartitionResponse {
            partition_index: *index,
            error_code: error_code as i16,
            active_producers,
            ..PartitionResponse::default()
        }
    };
    TopicResponse {
        name: topic.name.clone(),
        partitions: topic.partition_indexes.iter().zip(answers).map(partition).collect(),
    }
}

fn state(active: &producer::ProducerState) -> ProducerState {
    ProducerState {
        producer_id: active.producer_id,
        producer_epoch: active.producer_epoch.into(),
        last_sequence: active.last_sequence,
        last_timestamp: active.last_timestamp_ms,
        coordinator_epoch: active.coordinator_epoch,
        current_txn_start_offset: active.transaction_start_offset,
    }
}
