//! `DescribeGroups`, versions 0 to 6: returns state and members of consumer groups.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{self, DescribedMember, State};
use mainstem_kafka::api::describe_groups::{
    DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// First version that reports an unknown group as an error instead of a dead group (KIP-1043).
const GROUP_ID_NOT_FOUND: i16 = 6;
/// Operations that are authorized on a group without an authorizer: bits by Kafka's `AclOperation`.
pub(super) const OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeGroupsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let all = if request.include_authorized_operations { OPERATIONS } else { i32::MIN };
    let described = shard.with_groups(io, |groups, _| {
        let describe = |group_id: String| {
            if let Err(code) = call.check_group(Action::Describe, &group_id) {
                return DescribedGroup { error_code: code as i16, group_id, ..DescribedGroup::default() };
            }
            let authorized_operations = call.operations(all, ResourceKind::Group, &group_id);
            let group = match groups.describe(&group_id) {
                Ok(group) => existing_group(group),
                Err(error) => {
                    let is_known = groups.uses_consumer_protocol(&group_id).is_some();
                    let what = if is_known { "is not a classic group" } else { "not found" };
                    missing_group(&format!("Group {group_id} {what}."), error, call.version)
                }
            };
            DescribedGroup { group_id, authorized_operations, ..group }
        };
        request.groups.into_iter().map(describe).collect()
    });
    let groups = described.unwrap_or_default();
    let response = DescribeGroupsResponse { groups, ..DescribeGroupsResponse::default() };
    shard.reply::<DescribeGroupsRequest>(io, &call, &response);
}

fn existing_group(group: group::DescribedGroup) -> DescribedGroup {
    let member = |member: DescribedMember| DescribedGroupMember {
        member_id: member.member_id,
        group_instance_id: member.instance_id,
        client_id: member.client_id,
        client_host: member.client_host,
        member_metadata: member.metadata,
        member_assignment: member.assignment,
    };
    DescribedGroup {
        group_state: group.state.name().into(),
        protocol_type: group.protocol_type,
        protocol_data: group.protocol,
        members: group.members.into_iter().map(member).collect(),
        ..DescribedGroup::default()
    }
}

fn missing_group(message: &str, error: Error, version: i16) -> DescribedGroup {
    let is_error = version >= GROUP_ID_NOT_FOUND || error != Error::GroupIdNotFound;
    DescribedGroup {
        error_code: if is_error { error.code() } else { 0 },
        error_message: is_error.then(|| message.to_owned()),
        group_state: State::Dead.name().into(),
        ..DescribedGroup::default()
    }
}
