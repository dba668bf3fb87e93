//! `DeleteAcls`, versions 1 to 3: would delete access control entries. There is no authorizer, so each filter fails
//! with `SECURITY_DISABLED`.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_acls::{
    DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse,
};
use mainstem_runtime::Io;

use super::describe_acls::NO_AUTHORIZER;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DeleteAclsRequest,
) {
    let result = |_: &DeleteAclsFilter| DeleteAclsFilterResult {
        error_code: ErrorCode::SecurityDisabled as i16,
        error_message: Some(NO_AUTHORIZER.into()),
        ..DeleteAclsFilterResult::default()
    };
    let filter_results = request.filters.iter().map(result).collect();
    let response = DeleteAclsResponse { filter_results, ..DeleteAclsResponse::default() };
    shard.reply::<DeleteAclsRequest>(io, &call, &response);
}
