//! `ElectLeaders`, versions 0 to 2: elects partition leaders (KIP-460). This broker already leads all partitions.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::elect_leaders::{
    ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ElectLeadersRequest,
) {
    if let Err(code) = call.check_cluster(Action::Alter) {
        let response = ElectLeadersResponse { error_code: code as i16, ..ElectLeadersResponse::default() };
        return shard.reply::<ElectLeadersRequest>(io, &call, &response);
    }
    let topic = |requested: &TopicPartitions| {
        let partition = |index: &i32| partition(shard, &requested.topic, *index);
        let partition_result = requested.partitions.iter().map(partition).collect();
        ReplicaElectionResult { topic: requested.topic.clone(), partition_result }
    };
    // A response about all partitions lists only those with a new leader: none.
    let replica_election_results = request.topic_partitions.iter().flatten().map(topic).collect();
    let response = ElectLeadersResponse { replica_election_results, ..ElectLeadersResponse::default() };
    shard.reply::<ElectLeadersRequest>(io, &call, &response);
}

fn partition(shard: &Shard, topic: &str, index: i32) -> PartitionResult {
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let (code, message) = match shard.env.catalogue().topic(topic) {
        None => (unknown, format!("No such topic as {topic}")),
        Some(known) if known.store_id(index).is_none() => {
            (unknown, format!("No such partition as {topic}-{index}"))
        }
        Some(_) => {
            (ErrorCode::ElectionNotNeeded, "Leader election not needed for topic partition.".to_owned())
        }
    };
    PartitionResult { partition_id: index, error_code: code as i16, error_message: Some(message) }
}
