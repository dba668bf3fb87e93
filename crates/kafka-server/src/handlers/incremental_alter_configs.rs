//! `IncrementalAlterConfigs`, versions 0 to 1: changes single keys of the configuration of topics and groups
//! (KIP-339).

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::ChangedSettings;

use super::alter_configs::{alter, audited, denials, note_changes, steps};
use crate::append_error::AppendError;
use crate::pending::AfterChanges;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_change::{ConfigChange, ConfigOperation, ConfigStep};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: IncrementalAlterConfigsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let change = |resource: AlterConfigsResource| ConfigChange {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        replaces_all: false,
        steps: steps(io, resource.configs, step),
    };
    let changes: Vec<ConfigChange> = request.resources.into_iter().map(change).collect();
    let denied = denials(shard, &call, &changes);
    let before = audited(shard, &changes);
    let then = AfterChanges::IncrementalAlterConfigs { call, changes: changes.clone(), before };
    alter(shard, io, (changes, denied), request.validate_only, then);
}

/// Answers when all changes are durable or refused.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    (changes, before): (Vec<ConfigChange>, Vec<Option<ChangedSettings>>),
    outcomes: Vec<Result<(), AppendError>>,
) {
    note_changes(shard, call, &changes, before);
    let response = |(change, outcome): (ConfigChange, Result<(), AppendError>)| {
        let AppendError { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
        AlterConfigsResourceResponse {
            error_code: code as i16,
            error_message: message,
            resource_type: change.resource_type,
            resource_name: change.resource_name,
        }
    };
    let responses = changes.into_iter().zip(outcomes).map(response).collect();
    let response = IncrementalAlterConfigsResponse { responses, ..Default::default() };
    shard.reply::<IncrementalAlterConfigsRequest>(io, call, &response);
}

fn step(config: AlterableConfig) -> ConfigStep {
    let operation = match config.config_operation {
        0 => Some(ConfigOperation::Set),
        1 => Some(ConfigOperation::Delete),
        2 => Some(ConfigOperation::Append),
        3 => Some(ConfigOperation::Subtract),
        _ => None,
    };
    ConfigStep { name: config.name, operation, value: config.value }
}
