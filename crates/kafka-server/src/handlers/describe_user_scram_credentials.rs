//! `DescribeUserScramCredentials`, version 0: returns the SCRAM credentials of users (KIP-554). There are no users.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_user_scram_credentials::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult, UserName,
};
use mainstem_runtime::Io;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeUserScramCredentialsRequest,
) {
    let unknown = |user: UserName| DescribeUserScramCredentialsResult {
        error_code: ErrorCode::ResourceNotFound as i16,
        error_message: Some(format!(
            "Attempt to describe a user credential that does not exist: {}",
            user.name
        )),
        user: user.name,
        ..DescribeUserScramCredentialsResult::default()
    };
    let results = request.users.into_iter().flatten().map(unknown).collect();
    let response =
        DescribeUserScramCredentialsResponse { results, ..DescribeUserScramCredentialsResponse::default() };
    shard.reply::<DescribeUserScramCredentialsRequest>(io, &call, &response);
}
