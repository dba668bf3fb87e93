//! `ElectLeaders`, versions 0 to 2: has leaders of partitions elected (KIP-460). The one node leads all of them. Runs
//! here.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::elect_leaders::{
    ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: ElectLeadersRequest) {
    let topic = |asked: &TopicPartitions| {
        let partition = |index: &i32| partition(shard, &asked.topic, *index);
        let partition_result = asked.partitions.iter().map(partition).collect();
        ReplicaElectionResult { topic: asked.topic.clone(), partition_result }
    };
    // Of all partitions only those are told that have got another leader, which none has.
    let replica_election_results = request.topic_partitions.iter().flatten().map(topic).collect();
    let response = ElectLeadersResponse { replica_election_results, ..ElectLeadersResponse::default() };
    shard.reply::<ElectLeadersRequest>(io, &call, &response);
}

fn partition(shard: &Shard, topic: &str, index: i32) -> PartitionResult {
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let (code, message) = match shard.catalogue.topic(topic) {
        None => (unknown, format!("No such topic as {topic}")),
        Some(known) if known.home(index).is_none() => {
            (unknown, format!("No such partition as {topic}-{index}"))
        }
        Some(_) => {
            (ErrorCode::ElectionNotNeeded, "Leader election not needed for topic partition.".to_owned())
        }
    };
    PartitionResult { partition_id: index, error_code: code as i16, error_message: Some(message) }
}
