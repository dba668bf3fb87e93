//! `DeleteGroups`, versions 0 to 2: deletes groups without members, with their offsets (KIP-229).

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{DeletedGroup, Response};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DeleteGroupsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let is_allowed = |name: &String| call.check_group(Action::Delete, name).is_ok();
    let (allowed, denied): (Vec<String>, Vec<String>) =
        request.groups_names.into_iter().partition(is_allowed);
    let group_ids: Vec<&str> = allowed.iter().map(String::as_str).collect();
    shard.call_groups(
        io,
        |groups, now_ms, caller| groups.handle_delete(now_ms, &group_ids, caller),
        AfterGroupReply::DeleteGroups { call, denied },
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    denied: Vec<String>,
    answer: Response,
) {
    if let Response::Delete(deleted) = answer {
        let denied = denied.into_iter().map(|group_id| DeletableGroupResult {
            group_id,
            error_code: ErrorCode::GroupAuthorizationFailed as i16,
        });
        for deleted in deleted.iter().filter(|deleted| deleted.outcome.is_ok()) {
            call.note_change("delete-group", &deleted.group_id, None, None);
        }
        let results = deleted.into_iter().map(result).chain(denied).collect();
        let response = DeleteGroupsResponse { results, ..DeleteGroupsResponse::default() };
        shard.reply::<DeleteGroupsRequest>(io, call, &response);
    }
}

fn result(deleted: DeletedGroup) -> DeletableGroupResult {
    DeletableGroupResult {
        group_id: deleted.group_id,
        error_code: deleted.outcome.err().map_or(0, Error::code),
    }
}
