//! `CreateAcls`, versions 1 to 3: says who may do what, where nobody checks. Runs here.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_acls::{
    AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse,
};
use mainstem_runtime::Io;

use super::describe_acls::NO_AUTHORIZER;
use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: CreateAclsRequest) {
    let result = |_: &AclCreation| AclCreationResult {
        error_code: ErrorCode::SecurityDisabled as i16,
        error_message: Some(NO_AUTHORIZER.into()),
    };
    let results = request.creations.iter().map(result).collect();
    let response = CreateAclsResponse { results, ..CreateAclsResponse::default() };
    shard.reply::<CreateAclsRequest>(io, &call, &response);
}
