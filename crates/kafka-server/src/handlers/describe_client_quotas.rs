//! `DescribeClientQuotas`, versions 0 to 1: lists quotas (KIP-546). There are none.

use mainstem_kafka::api::describe_client_quotas::{
    DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    _: DescribeClientQuotasRequest,
) {
    if let Err(code) = call.check_cluster(Action::DescribeConfigs) {
        let response = DescribeClientQuotasResponse {
            error_code: code as i16,
            ..DescribeClientQuotasResponse::default()
        };
        return shard.reply::<DescribeClientQuotasRequest>(io, &call, &response);
    }
    let response =
        DescribeClientQuotasResponse { entries: Some(Vec::new()), ..DescribeClientQuotasResponse::default() };
    shard.reply::<DescribeClientQuotasRequest>(io, &call, &response);
}
