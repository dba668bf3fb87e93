//! `JoinGroup`, versions 0 to 9: adds a member to a consumer group. Answered when all members have joined.

use mainstem_coordinator::group::{JoinGroup, JoinResponse, JoinResult, Response};
use mainstem_kafka::api::join_group::{JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::visible_topics::VisibleTopics;

/// First version with a rebalance timeout apart from the session timeout (KIP-62).
const REBALANCE_TIMEOUT: i16 = 1;
/// First version in which a new member joins again with the identifier it got (KIP-394).
const MEMBER_ID_REQUIRED: i16 = 4;
/// First version in which a missing protocol is null instead of empty (KIP-559).
const NULL_PROTOCOL: i16 = 7;
/// First version in which a leader may skip the assignment (KIP-814).
const SKIP_ASSIGNMENT: i16 = 9;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: JoinGroupRequest,
) {
    if let Err(code) = call.check_group(Action::Group, &request.group_id) {
        let response = JoinGroupResponse {
            error_code: code as i16,
            protocol_name: (call.version < NULL_PROTOCOL).then(String::new),
            member_id: request.member_id,
            ..JoinGroupResponse::default()
        };
        return shard.reply::<JoinGroupRequest>(io, &call, &response);
    }
    let random = u128::from(io.random()) << 64 | u128::from(io.random());
    let rebalance_timeout_ms = if call.version < REBALANCE_TIMEOUT {
        request.session_timeout_ms
    } else {
        request.rebalance_timeout_ms
    };
    let client_id = call.client_id.clone();
    let client_host = call.client_host();
    let protocols = &request.protocols;
    let join = JoinGroup {
        group_id: &request.group_id,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        client_id: &client_id,
        client_host: &client_host,
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms,
        protocol_type: &request.protocol_type,
        protocols: protocols.iter().map(|known| (&*known.name, &*known.metadata)).collect(),
        needs_member_id: call.version >= MEMBER_ID_REQUIRED,
        can_skip_assignment: call.version >= SKIP_ASSIGNMENT,
        random,
    };
    let catalogue = shard.env.catalogue().clone();
    let topics = VisibleTopics::new(&catalogue, &call);
    let mut assigned = 0;
    shard.call_groups(
        io,
        |groups, now_ms, caller| {
            groups.handle_join(now_ms, &join, &topics, caller);
            assigned = groups.take_assigned();
        },
        AfterGroupReply::JoinGroup(call.clone()),
    );
    io.charge(topics.units(assigned));
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::Join(answer) = answer {
        shard.reply::<JoinGroupRequest>(io, call, &response(answer, call.version));
    }
}

fn response(answer: JoinResponse, version: i16) -> JoinGroupResponse {
    let JoinResponse { member_id, outcome } = answer;
    match outcome {
        Ok(joined) => of_generation(member_id, joined),
        Err(error) => JoinGroupResponse {
            error_code: error.code(),
            protocol_name: (version < NULL_PROTOCOL).then(String::new),
            member_id,
            ..JoinGroupResponse::default()
        },
    }
}

fn of_generation(member_id: String, joined: JoinResult) -> JoinGroupResponse {
    let members = joined.members.into_iter().map(|member| JoinGroupResponseMember {
        member_id: member.member_id,
        group_instance_id: member.instance_id,
        metadata: member.metadata,
    });
    JoinGroupResponse {
        generation_id: joined.generation,
        protocol_type: Some(joined.protocol_type),
        protocol_name: Some(joined.protocol),
        leader: joined.leader,
        skip_assignment: joined.skip_assignment,
        member_id,
        members: members.collect(),
        ..JoinGroupResponse::default()
    }
}
