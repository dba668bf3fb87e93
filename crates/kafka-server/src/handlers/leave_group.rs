//! `LeaveGroup`, versions 0 to 5: removes members from a consumer group, several at once since version 3 (KIP-345).

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{LeaveGroup, LeaveResult, LeavingMember, Response};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// First version with several members in one request.
const BATCHED: i16 = 3;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: LeaveGroupRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    if let Err(code) = call.check_group(Action::Group, &request.group_id) {
        let response = LeaveGroupResponse { error_code: code as i16, ..LeaveGroupResponse::default() };
        return shard.reply::<LeaveGroupRequest>(io, &call, &response);
    }
    let members = if call.version < BATCHED {
        vec![LeavingMember { member_id: &request.member_id, instance_id: None }]
    } else {
        let leaving = request.members.iter();
        leaving
            .map(|member| LeavingMember {
                member_id: &member.member_id,
                instance_id: member.group_instance_id.as_deref(),
            })
            .collect()
    };
    let leave = LeaveGroup { group_id: &request.group_id, members };
    shard.call_groups(
        io,
        |groups, now_ms, caller| groups.handle_leave(now_ms, &leave, caller),
        AfterGroupReply::LeaveGroup(call),
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::Leave(outcome) = answer {
        shard.reply::<LeaveGroupRequest>(io, call, &response(outcome, call.version));
    }
}

fn response(outcome: Result<Vec<LeaveResult>, Error>, version: i16) -> LeaveGroupResponse {
    let code = |outcome: Result<(), Error>| outcome.err().map_or(0, Error::code);
    let refused = |error_code| LeaveGroupResponse { error_code, ..LeaveGroupResponse::default() };
    let left = match outcome {
        Ok(left) => left,
        Err(error) => return refused(error.code()),
    };
    if version < BATCHED {
        return refused(left.first().map_or(0, |left| code(left.outcome)));
    }
    let members = left.into_iter().map(|left| MemberResponse {
        member_id: left.member_id,
        group_instance_id: left.instance_id,
        error_code: code(left.outcome),
    });
    LeaveGroupResponse { members: members.collect(), ..LeaveGroupResponse::default() }
}
