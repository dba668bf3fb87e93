//! `DescribeAcls`, versions 1 to 3: would list access control entries. There is no authorizer, so it fails with
//! `SECURITY_DISABLED`.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_acls::{DescribeAclsRequest, DescribeAclsResponse};
use mainstem_runtime::Io;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// The error message of every request about authorization.
pub(crate) const NO_AUTHORIZER: &str = "No Authorizer is configured.";

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: RequestContext, _: DescribeAclsRequest) {
    let response = DescribeAclsResponse {
        error_code: ErrorCode::SecurityDisabled as i16,
        error_message: Some("No Authorizer is configured on the broker".into()),
        ..DescribeAclsResponse::default()
    };
    shard.reply::<DescribeAclsRequest>(io, &call, &response);
}
