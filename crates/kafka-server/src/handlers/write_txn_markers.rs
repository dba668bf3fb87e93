//! `WriteTxnMarkers`, versions 1 to 2: writes transaction markers to partitions without the coordinator. Administrators
//! use it to end a hanging transaction (KIP-664). Answered when the markers are durable. To the audit topic, nobody
//! writes a marker.

use mainstem_coordinator::producer::{Marker, Outcome};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::catalogue::PartitionId;
use crate::pending::AfterMarkers;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: WriteTxnMarkersRequest,
) {
    let checked = if call.allows(Action::ClusterAction, ResourceKind::Cluster, "") {
        Ok(())
    } else {
        call.check_cluster(Action::Alter)
    };
    if let Err(code) = checked {
        let partitions = request.markers.iter().flat_map(|marker| &marker.topics);
        let count = partitions.map(|topic| topic.partition_indexes.len()).sum();
        return finish(shard, io, &call, &request, vec![Err(code); count]);
    }
    let mut markers = Vec::new();
    for requested in &request.markers {
        let marker = Marker {
            producer_id: requested.producer_id,
            producer_epoch: requested.producer_epoch,
            coordinator_epoch: requested.coordinator_epoch,
            outcome: if requested.transaction_result { Outcome::Commit } else { Outcome::Abort },
            timestamp_ms: io.clock.unix_ms.cast_signed(),
        };
        for topic in &requested.topics {
            // No transaction writes to the audit topic, so none there needs to be ended.
            if shard.env.is_audit_topic(&topic.name) && call.check_produce(&shard.env, &topic.name).is_err() {
                continue;
            }
            let id = shard.env.catalogue().topic(&topic.name).map(|known| known.id).unwrap_or_default();
            let ids = topic.partition_indexes.iter().map(|index| PartitionId { topic: id, index: *index });
            markers.extend(ids.map(|id| (id, marker)));
        }
    }
    shard.write_markers(io, markers, AfterMarkers::WriteTxnMarkers { call, request });
}

/// Answers when the markers are durable or have failed. `outcomes` are those of all partitions but the audit topic's,
/// to which nobody writes.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &WriteTxnMarkersRequest,
    outcomes: Vec<Result<(), ErrorCode>>,
) {
    let mut outcomes = outcomes.into_iter();
    let env = &shard.env;
    let mut of_topic = |topic: &WritableTxnMarkerTopic| {
        if env.is_audit_topic(&topic.name) {
            topic_result(topic, &mut std::iter::repeat(Err(ErrorCode::TopicAuthorizationFailed)))
        } else {
            topic_result(topic, &mut outcomes)
        }
    };
    let mut result = |marker: &WritableTxnMarker| WritableTxnMarkerResult {
        producer_id: marker.producer_id,
        topics: marker.topics.iter().map(&mut of_topic).collect(),
    };
    let response = WriteTxnMarkersResponse { markers: request.markers.iter().map(&mut result).collect() };
    shard.reply::<WriteTxnMarkersRequest>(io, call, &response);
}

fn topic_result(
    topic: &WritableTxnMarkerTopic,
    outcomes: &mut impl Iterator<Item = Result<(), ErrorCode>>,
) -> WritableTxnMarkerTopicResult {
    let partition = |(index, outcome): (&i32, Result<(), ErrorCode>)| WritableTxnMarkerPartitionResult {
        partition_index: *index,
        error_code: outcome.err().unwrap_or(ErrorCode::None) as i16,
    };
    WritableTxnMarkerTopicResult {
        name: topic.name.clone(),
        partitions: topic.partition_indexes.iter().zip(outcomes).map(partition).collect(),
    }
}
