//! `DescribeAcls`, versions 1 to 3: who may do what. Everybody may do everything. Runs here.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_acls::{DescribeAclsRequest, DescribeAclsResponse};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

/// What whoever changes authorisation is told.
pub(crate) const NO_AUTHORIZER: &str = "No Authorizer is configured.";

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, _: DescribeAclsRequest) {
    let response = DescribeAclsResponse {
        error_code: ErrorCode::SecurityDisabled as i16,
        error_message: Some("No Authorizer is configured on the broker".into()),
        ..DescribeAclsResponse::default()
    };
    shard.reply::<DescribeAclsRequest>(io, &call, &response);
}
