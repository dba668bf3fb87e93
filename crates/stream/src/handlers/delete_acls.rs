//! `DeleteAcls`, versions 1 to 3: takes back who may do what, where nobody checks. Runs here.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_acls::{
    DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse,
};
use mainstem_runtime::Io;

use super::describe_acls::NO_AUTHORIZER;
use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: DeleteAclsRequest) {
    let result = |_: &DeleteAclsFilter| DeleteAclsFilterResult {
        error_code: ErrorCode::SecurityDisabled as i16,
        error_message: Some(NO_AUTHORIZER.into()),
        ..DeleteAclsFilterResult::default()
    };
    let filter_results = request.filters.iter().map(result).collect();
    let response = DeleteAclsResponse { filter_results, ..DeleteAclsResponse::default() };
    shard.reply::<DeleteAclsRequest>(io, &call, &response);
}
