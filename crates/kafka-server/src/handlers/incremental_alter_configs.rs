//! `IncrementalAlterConfigs`, versions 0 to 1: changes single keys of the configuration of topics (KIP-339).

use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use mainstem_runtime::Io;

use super::alter_configs::{Change, Operation, Step, alter};
use crate::append_error::AppendError;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: IncrementalAlterConfigsRequest,
) {
    let change = |resource: AlterConfigsResource| Change {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        replaces_all: false,
        steps: resource.configs.into_iter().map(step).collect(),
    };
    let changes = request.resources.into_iter().map(change).collect();
    alter(shard, io, changes, request.validate_only, move |shard, io, results| {
        let response = |(change, refused): (Change, AppendError)| AlterConfigsResourceResponse {
            error_code: refused.code as i16,
            error_message: refused.message,
            resource_type: change.resource_type,
            resource_name: change.resource_name,
        };
        let responses = results.into_iter().map(response).collect();
        let response =
            IncrementalAlterConfigsResponse { responses, ..IncrementalAlterConfigsResponse::default() };
        shard.reply::<IncrementalAlterConfigsRequest>(io, &call, &response);
    });
}

fn step(config: AlterableConfig) -> Step {
    let operation = match config.config_operation {
        0 => Some(Operation::Set),
        1 => Some(Operation::Delete),
        2 => Some(Operation::Append),
        3 => Some(Operation::Subtract),
        _ => None,
    };
    Step { name: config.name, operation, value: config.value }
}
