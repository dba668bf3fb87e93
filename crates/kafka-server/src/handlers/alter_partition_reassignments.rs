//! `AlterPartitionReassignments`, versions 0 to 1: moves partitions between brokers (KIP-455). The only broker already
//! has all of them.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ReassignablePartition,
    ReassignablePartitionResponse, ReassignableTopic, ReassignableTopicResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::append_error::AppendError;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_validation::check_assignment;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AlterPartitionReassignmentsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    if let Err(code) = call.check_cluster(Action::Alter) {
        let response = AlterPartitionReassignmentsResponse {
            error_code: code as i16,
            ..AlterPartitionReassignmentsResponse::default()
        };
        return shard.reply::<AlterPartitionReassignmentsRequest>(io, &call, &response);
    }
    let topic = |topic: &ReassignableTopic| {
        let partition = |partition: &ReassignablePartition| {
            let outcome = move_partition(shard, &topic.name, partition);
            let AppendError { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
            ReassignablePartitionResponse {
                partition_index: partition.partition_index,
                error_code: code as i16,
                error_message: message,
            }
        };
        let partitions = topic.partitions.iter().map(partition).collect();
        ReassignableTopicResponse { name: topic.name.clone(), partitions }
    };
    let response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        responses: request.topics.iter().map(topic).collect(),
        ..AlterPartitionReassignmentsResponse::default()
    };
    shard.reply::<AlterPartitionReassignmentsRequest>(io, &call, &response);
}

fn move_partition(shard: &Shard, topic: &str, partition: &ReassignablePartition) -> Result<(), AppendError> {
    let unknown = |what: String| Err(AppendError::new(ErrorCode::UnknownTopicOrPartition, what));
    let Some(known) = shard.env.catalogue().topic(topic) else {
        return unknown(format!("Unable to find a topic named {topic}."));
    };
    if known.store_id(partition.partition_index).is_none() {
        return unknown(format!("Unable to find partition {topic}:{}.", partition.partition_index));
    }
    match &partition.replicas {
        Some(replicas) => check_assignment(shard.env.shared().config.node_id, replicas),
        // The request cancels a reassignment that is not in progress.
        None => Err(ErrorCode::NoReassignmentInProgress.into()),
    }
}
