//! `DeleteGroups`, versions 0 to 2: groups without members go, with their offsets (KIP-229). Runs on the controller.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{Answer, DeletedGroup};
use mainstem_kafka::api::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: DeleteGroupsRequest) {
    let group_ids: Vec<&str> = request.groups_names.iter().map(String::as_str).collect();
    shard.ask_groups(
        io,
        |groups, now_ms, caller| groups.handle_delete(now_ms, &group_ids, caller),
        move |shard, io, answer| {
            if let Answer::Delete(deleted) = answer {
                let results = deleted.into_iter().map(result).collect();
                let response = DeleteGroupsResponse { results, ..DeleteGroupsResponse::default() };
                shard.reply::<DeleteGroupsRequest>(io, &call, &response);
            }
        },
    );
}

fn result(deleted: DeletedGroup) -> DeletableGroupResult {
    DeletableGroupResult {
        group_id: deleted.group_id,
        error_code: deleted.outcome.err().map_or(0, Error::code),
    }
}
