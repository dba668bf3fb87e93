//! `CreateAcls`, versions 1 to 3: would add access control entries. There is no authorizer, so each entry fails with
//! `SECURITY_DISABLED`.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_acls::{
    AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse,
};
use mainstem_runtime::Io;

use super::describe_acls::NO_AUTHORIZER;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: CreateAclsRequest,
) {
    let result = |_: &AclCreation| AclCreationResult {
        error_code: ErrorCode::SecurityDisabled as i16,
        error_message: Some(NO_AUTHORIZER.into()),
    };
    let results = request.creations.iter().map(result).collect();
    let response = CreateAclsResponse { results, ..CreateAclsResponse::default() };
    shard.reply::<CreateAclsRequest>(io, &call, &response);
}
