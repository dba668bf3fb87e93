//! `IncrementalAlterConfigs`, versions 0 and 1: changes single keys of what topics are set to (KIP-339). Runs on the
//! controller.

use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use mainstem_runtime::Io;

use super::alter_configs::{Change, Operation, Step, alter};
use crate::mail::{Call, Mail};
use crate::partition::Refused;
use crate::shard::Shard;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    request: IncrementalAlterConfigsRequest,
) {
    let change = |resource: AlterConfigsResource| Change {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        is_whole: false,
        steps: resource.configs.into_iter().map(step).collect(),
    };
    let changes = request.resources.into_iter().map(change).collect();
    alter(shard, io, changes, request.validate_only, move |shard, io, told| {
        let response = |(change, refused): (Change, Refused)| AlterConfigsResourceResponse {
            error_code: refused.code as i16,
            error_message: refused.message,
            resource_type: change.resource_type,
            resource_name: change.resource_name,
        };
        let responses = told.into_iter().map(response).collect();
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
