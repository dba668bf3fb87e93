//! `SyncGroup`, versions 0 to 5: returns the assignment of each member of a consumer group. Answered when the leader's
//! assignment is durable.

use mainstem_coordinator::group::{Response, SyncGroup, SyncResult};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: SyncGroupRequest,
) {
    if let Err(code) = call.check_group(Action::Group, &request.group_id) {
        let response = SyncGroupResponse { error_code: code as i16, ..SyncGroupResponse::default() };
        return shard.reply::<SyncGroupRequest>(io, &call, &response);
    }
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
    shard.call_groups(
        io,
        |groups, now_ms, caller| groups.handle_sync(now_ms, &sync, caller),
        AfterGroupReply::SyncGroup(call),
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::Sync(outcome) = answer {
        shard.reply::<SyncGroupRequest>(io, call, &response(outcome));
    }
}

fn response(outcome: Result<SyncResult, mainstem_coordinator::Error>) -> SyncGroupResponse {
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
