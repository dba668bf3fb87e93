//! `ListPartitionReassignments`, version 0: lists partition reassignments in progress (KIP-455). There are none.

use mainstem_kafka::api::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    _: ListPartitionReassignmentsRequest,
) {
    if let Err(code) = call.check_cluster(Action::Describe) {
        let response = ListPartitionReassignmentsResponse {
            error_code: code as i16,
            ..ListPartitionReassignmentsResponse::default()
        };
        return shard.reply::<ListPartitionReassignmentsRequest>(io, &call, &response);
    }
    let response = ListPartitionReassignmentsResponse::default();
    shard.reply::<ListPartitionReassignmentsRequest>(io, &call, &response);
}
