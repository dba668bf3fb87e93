//! `ListGroups`, versions 0 to 5: lists groups by state and type.

use mainstem_coordinator::group::ListedGroup as Listed;
use mainstem_kafka::api::list_groups::{ListGroupsRequest, ListGroupsResponse, ListedGroup};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Filters of each kind that count, of a handful that make sense.
const FILTERS_MAX: usize = 1_000;
/// Types of groups.
const CLASSIC: &str = "classic";
const CONSUMER: &str = "consumer";

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ListGroupsRequest,
) {
    let states: Vec<&str> = request.states_filter.iter().take(FILTERS_MAX).map(String::as_str).collect();
    let types: Vec<&str> = request.types_filter.iter().take(FILTERS_MAX).map(String::as_str).collect();
    let listed = shard.with_groups(io, |groups, _| groups.list(&states, &types)).unwrap_or_default();
    let group = |group: Listed| ListedGroup {
        group_id: group.group_id,
        protocol_type: group.protocol_type,
        group_state: group.state.name().into(),
        group_type: if group.is_consumer { CONSUMER } else { CLASSIC }.into(),
    };
    let sees_all = call.allows(Action::Describe, ResourceKind::Cluster, "");
    let is_visible =
        |listed: &Listed| sees_all || call.allows(Action::Describe, ResourceKind::Group, &listed.group_id);
    let groups = listed.into_iter().filter(is_visible).map(group).collect();
    let response = ListGroupsResponse { groups, ..ListGroupsResponse::default() };
    shard.reply::<ListGroupsRequest>(io, &call, &response);
}
