//! `DescribeClientQuotas`, versions 0 and 1: how much clients may do (KIP-546). Nobody is held back, so there is nothing
//! to show. Runs here.

use mainstem_kafka::api::describe_client_quotas::{
    DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, _: DescribeClientQuotasRequest) {
    let response =
        DescribeClientQuotasResponse { entries: Some(Vec::new()), ..DescribeClientQuotasResponse::default() };
    shard.reply::<DescribeClientQuotasRequest>(io, &call, &response);
}
