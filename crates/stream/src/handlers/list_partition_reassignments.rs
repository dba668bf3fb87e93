//! `ListPartitionReassignments`, version 0: partitions on the move between nodes (KIP-455), of which there are none.
//! Runs here.

use mainstem_kafka::api::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    _: ListPartitionReassignmentsRequest,
) {
    let response = ListPartitionReassignmentsResponse::default();
    shard.reply::<ListPartitionReassignmentsRequest>(io, &call, &response);
}
