//! `DescribeProducers`, version 0: the producers that partitions know. Runs here.

use mainstem_coordinator::producer::Active;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicRequest,
    TopicResponse,
};
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::work::{PartAnswer, PartAsk};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    request: DescribeProducersRequest,
) {
    let mut asks = Vec::new();
    for topic in &request.topics {
        let id = shard.catalogue.topic(&topic.name).map(|known| known.id).unwrap_or_default();
        let ids = topic.partition_indexes.iter().map(|index| PartitionId { topic: id, index: *index });
        asks.extend(ids.map(|id| (id, PartAsk::Producers)));
    }
    shard.ask_partitions(io, asks, move |shard, io, answers| {
        let mut answers = answers.into_iter();
        let topics = request.topics.iter().map(|topic| topic_response(topic, &mut answers)).collect();
        let response = DescribeProducersResponse { topics, ..DescribeProducersResponse::default() };
        shard.reply::<DescribeProducersRequest>(io, &call, &response);
    });
}

fn topic_response(topic: &TopicRequest, answers: &mut impl Iterator<Item = PartAnswer>) -> TopicResponse {
    let partition = |(index, answer): (&i32, PartAnswer)| {
        let (error_code, active_producers) = match answer {
            PartAnswer::Producers(all) => (ErrorCode::None, all.iter().map(state).collect()),
            PartAnswer::Failed(code) => (code, Vec::new()),
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

fn state(active: &Active) -> ProducerState {
    ProducerState {
        producer_id: active.producer_id,
        producer_epoch: active.producer_epoch.into(),
        last_sequence: active.last_sequence,
        last_timestamp: active.last_timestamp_ms,
        coordinator_epoch: active.coordinator_epoch,
        current_txn_start_offset: active.transaction_start_offset,
    }
}
