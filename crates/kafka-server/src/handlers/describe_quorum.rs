//! `DescribeQuorum`, versions 0 to 2: returns the voters of the metadata partition (KIP-595). The only voter is this
//! broker.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_quorum::{
    DescribeQuorumRequest, DescribeQuorumResponse, Listener, Node, ReplicaState, RequestTopicData,
    ResponsePartitionData, ResponseTopicData,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Kafka's name of the metadata log, which has one partition.
const METADATA: &str = "__cluster_metadata";

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeQuorumRequest,
) {
    if let Err(code) = call.check_cluster(Action::Describe) {
        let response =
            DescribeQuorumResponse { error_code: code as i16, ..DescribeQuorumResponse::default() };
        return shard.reply::<DescribeQuorumRequest>(io, &call, &response);
    }
    let is_metadata = match &request.topics[..] {
        [RequestTopicData { topic_name, partitions }] => {
            topic_name == METADATA && partitions.len() == 1 && partitions[0].partition_index == 0
        }
        _ => false,
    };
    let response = if is_metadata { describe(shard, &call, io.clock.unix_ms) } else { refuse(&request) };
    shard.reply::<DescribeQuorumRequest>(io, &call, &response);
}

fn describe(shard: &Shard, call: &RequestContext, now_ms: u64) -> DescribeQuorumResponse {
    let node_id = shard.env.shared().config.node_id;
    let (host, port) = shard.env.shared().advertised(call.listener);
    // Each change of the catalogue counts as one entry of that log.
    let end = shard.env.catalogue().version.cast_signed();
    let now_ms = now_ms.cast_signed();
    let voter = ReplicaState {
        replica_id: node_id,
        log_end_offset: end,
        last_fetch_timestamp: now_ms,
        last_caught_up_timestamp: now_ms,
        ..ReplicaState::default()
    };
    let partition = ResponsePartitionData {
        leader_id: node_id,
        high_watermark: end,
        current_voters: vec![voter],
        ..ResponsePartitionData::default()
    };
    let listener = Listener { name: "PLAINTEXT".into(), host: host.to_string(), port };
    DescribeQuorumResponse {
        topics: vec![ResponseTopicData { topic_name: METADATA.into(), partitions: vec![partition] }],
        nodes: vec![Node { node_id, listeners: vec![listener] }],
        ..DescribeQuorumResponse::default()
    }
}

/// The error of any other topic: only the metadata has a quorum.
fn refuse(request: &DescribeQuorumRequest) -> DescribeQuorumResponse {
    let topic = |requested: &RequestTopicData| {
        let partitions = requested.partitions.iter().map(|partition| ResponsePartitionData {
            partition_index: partition.partition_index,
            error_code: ErrorCode::UnknownTopicOrPartition as i16,
            ..ResponsePartitionData::default()
        });
        ResponseTopicData { topic_name: requested.topic_name.clone(), partitions: partitions.collect() }
    };
    DescribeQuorumResponse {
        topics: request.topics.iter().map(topic).collect(),
        ..DescribeQuorumResponse::default()
    }
}
