//! `SyncGroup`, versions 0 to 5: what each member of a group gets. Runs on the controller; answered when the leader has
//! assigned and that is durable.

use mainstem_coordinator::group::{Answer, SyncGroup, Synced};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupResponse};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: SyncGroupRequest) {
    let assignments = &request.assignments;
    let sync = SyncGroup {
        group_id: &request.group_id,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        generation: request.generation_id,
        protocol_type: request.protocol_type.as_deref(),
        protocol: request.protocol_name.as_deref(),
        assignments: assignments.iter().map(|one| (&*one.member_id, &*one.assignment)).collect(),
    };
    shard.ask_groups(
        io,
        |groups, now_ms, caller| groups.handle_sync(now_ms, &sync, caller),
        move |shard, io, answer| {
            if let Answer::Sync(outcome) = answer {
                shard.reply::<SyncGroupRequest>(io, &call, &response(outcome));
            }
        },
    );
}

fn response(outcome: Result<Synced, mainstem_coordinator::Error>) -> SyncGroupResponse {
    match outcome {
        Ok(synced) => SyncGroupResponse {
            protocol_type: Some(synced.protocol_type),
            protocol_name: Some(synced.protocol),
            assignment: synced.assignment,
            ..SyncGroupResponse::default()
        },
        Err(error) => SyncGroupResponse { error_code: error.code(), ..SyncGroupResponse::default() },
    }
}
