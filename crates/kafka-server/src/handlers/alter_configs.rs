//! `AlterConfigs`, versions 0 to 2: replaces the whole configuration of topics and groups.
//!
//! Each resource changes completely or not at all, independently of the others. A topic gets its new configuration when
//! the change is durable in the catalogue, a group when it is in the log of groups. The node reads its configuration
//! only at startup.
//!
//! `IncrementalAlterConfigs` shares the functions of this file.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_coordinator::Error;
use mainstem_coordinator::group::Response;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_configs::{
    AlterConfigsRequest, AlterConfigsResource, AlterConfigsResourceResponse, AlterConfigsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ChangedSettings};

use super::create_topics::{CONFIGS_MAX, TOO_MANY_CONFIGS, invalid_request, truncate_configs};
use super::describe_configs::{BROKER, BROKER_LOGGER, GROUP, TOPIC, is_this_node};
use crate::append_error::AppendError;
use crate::broker_config;
use crate::catalogue::name_error;
use crate::group_config::altered;
use crate::pending::{AfterChanges, AfterGroupReply, AfterTopicChange};
use crate::queue_rights::check_queue_settings;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_audit::{audited_topic, note_topic_change};
use crate::topic_change::{ConfigChange, ConfigOperation, ConfigStep, TopicChange};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AlterConfigsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let change = |resource: AlterConfigsResource| ConfigChange {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        replaces_all: true,
        steps: steps(io, resource.configs, |config| set(config.name, config.value)),
    };
    let changes: Vec<ConfigChange> = request.resources.into_iter().map(change).collect();
    let denied = denials(shard, &call, &changes);
    let before = audited(shard, &changes);
    let then = AfterChanges::AlterConfigs { call, changes: changes.clone(), before };
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
    let response = AlterConfigsResponse { responses, ..Default::default() };
    shard.reply::<AlterConfigsRequest>(io, call, &response);
}

/// The changes of a resource.
pub(crate) fn steps<C: Send + 'static>(
    io: &Io<'_, Mail>,
    mut configs: Vec<C>,
    step: impl Fn(C) -> ConfigStep,
) -> Vec<ConfigStep> {
    truncate_configs(io, &mut configs);
    configs.into_iter().map(step).collect()
}

fn set(name: String, value: Option<String>) -> ConfigStep {
    ConfigStep { name, operation: Some(ConfigOperation::Set), value }
}

/// Applies changes independently of each other, `then` continues with their outcomes.
pub(crate) fn alter(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    (changes, denied): (Vec<ConfigChange>, Vec<Option<AppendError>>),
    validate_only: bool,
    then: AfterChanges,
) {
    let mut counts: BTreeMap<(i8, &str), usize> = BTreeMap::new();
    for change in &changes {
        *counts.entry((change.resource_type, &change.resource_name)).or_default() += 1;
    }
    let is_unique =
        |change: &ConfigChange| counts[&(change.resource_type, change.resource_name.as_str())] == 1;
    let (mut outcomes, mut to_apply) = (Vec::with_capacity(changes.len()), Vec::new());
    for (part, change) in changes.iter().enumerate() {
        let checked = match denied.get(part).cloned().flatten() {
            Some(refused) => Err(refused),
            None if is_unique(change) => check(shard, change),
            None => Err(invalid_request("Each resource must appear at most once.")),
        };
        if matches!(checked, Ok(true)) && !validate_only {
            to_apply.push((part, change.clone()));
        }
        outcomes.push(checked.map(drop));
    }
    let job = shard.begin_changes(io, outcomes, to_apply.len(), then);
    for (part, change) in to_apply {
        if change.resource_type == GROUP {
            configure_group(shard, io, &change, job, part);
            continue;
        }
        let name = change.resource_name.clone();
        shard.change_topic(io, &name, TopicChange::AlterConfig(change), AfterTopicChange::Job { job, part });
    }
}

/// Changes the configuration of a group.
fn configure_group(shard: &mut Shard, io: &mut Io<'_, Mail>, change: &ConfigChange, job: u64, part: usize) {
    let altered = match &shard.controller {
        Some(controller) => {
            let before = controller.groups.configuration(&change.resource_name);
            altered(before, change, &shard.env.shared().config)
        }
        None => Err(ErrorCode::NotController.into()),
    };
    let config = match altered {
        Ok(config) => config,
        Err(error) => return shard.change_done(io, job, part, Err(error)),
    };
    shard.call_groups(
        io,
        |groups, _, caller| groups.handle_configure(&change.resource_name, config, caller),
        AfterGroupReply::Configure { job, part },
    );
}

/// Continues when the configuration of a group is durable or refused.
pub(crate) fn group_configured(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    (job, part): (u64, usize),
    answer: Response,
) {
    if let Response::Configure(outcome) = answer {
        let error = |error: Error| {
            AppendError::from(ErrorCode::from_code(error.code()).unwrap_or(ErrorCode::UnknownServerError))
        };
        shard.change_done(io, job, part, outcome.map_err(error));
    }
}

/// The errors of the changes that the sender may not make.
pub(crate) fn denials(
    shard: &Shard,
    call: &RequestContext,
    changes: &[ConfigChange],
) -> Vec<Option<AppendError>> {
    let check = |change: &ConfigChange| {
        let name = change.resource_name.as_str();
        match change.resource_type {
            TOPIC => {
                call.check_topic(Action::AlterConfigs, name)?;
                check_queue_settings(shard.env.catalogue(), call, name, change.new_values())
            }
            GROUP => Ok(call.check_group(Action::AlterConfigs, name)?),
            _ => Ok(call.check_cluster(Action::AlterConfigs)?),
        }
    };
    changes.iter().map(|change| check(change).err()).collect()
}

/// The topics before they change, for the audit log.
pub(crate) fn audited(shard: &Shard, changes: &[ConfigChange]) -> Vec<Option<ChangedSettings>> {
    let topic = |change: &ConfigChange| {
        let is_topic = change.resource_type == TOPIC;
        is_topic.then(|| audited_topic(shard.env.catalogue(), &change.resource_name)).flatten()
    };
    changes.iter().map(topic).collect()
}

/// Notes what has changed in the audit log.
pub(crate) fn note_changes(
    shard: &Shard,
    call: &RequestContext,
    changes: &[ConfigChange],
    before: Vec<Option<ChangedSettings>>,
) {
    for (change, before) in changes.iter().zip(before) {
        if before.is_some() {
            note_topic_change(shard.env.catalogue(), call, "configure-topic", &change.resource_name, before);
        }
    }
}

/// Whether a change alters the configuration.
fn check(shard: &Shard, change: &ConfigChange) -> Result<bool, AppendError> {
    if change.steps.len() > CONFIGS_MAX {
        return Err(invalid_request(TOO_MANY_CONFIGS));
    }
    let mut names = BTreeSet::new();
    if !change.steps.iter().all(|step| names.insert(&step.name)) {
        return Err(invalid_request("Error due to duplicate config keys"));
    }
    let is_missing =
        |step: &&ConfigStep| step.value.is_none() && step.operation != Some(ConfigOperation::Delete);
    let missing: Vec<&str> = change.steps.iter().filter(is_missing).map(|step| step.name.as_str()).collect();
    if !missing.is_empty() {
        return Err(invalid_request(&format!("Null value not supported for : {}", missing.join(","))));
    }
    if change.steps.iter().any(|step| step.operation.is_none()) {
        return Err(invalid_request("Unknown operation type"));
    }
    let name = change.resource_name.as_str();
    match change.resource_type {
        TOPIC => {
            if let Some(error) = name_error(name) {
                return Err(AppendError::new(ErrorCode::InvalidTopicException, error));
            }
            let Some(topic) = shard.env.catalogue().topic(name) else {
                let message = format!("The topic '{name}' does not exist.");
                return Err(AppendError::new(ErrorCode::UnknownTopicOrPartition, message));
            };
            let Some(controller) = &shard.controller else { return Err(ErrorCode::NotController.into()) };
            Ok(controller.altered_config(change, topic)? != topic.config.set)
        }
        BROKER => {
            if !name.is_empty() {
                is_this_node(shard, name, " or empty string")?;
            }
            // Deleting an unknown key succeeds: tools clear throttles that way.
            let is_known = |name: &str| broker_config::KEYS.iter().any(|key| key.name == name);
            let is_refused =
                |step: &&ConfigStep| step.operation != Some(ConfigOperation::Delete) || is_known(&step.name);
            let refused: Vec<&str> =
                change.steps.iter().filter(is_refused).map(|step| step.name.as_str()).collect();
            if refused.is_empty() {
                return Ok(false);
            }
            let what = format!("Cannot update these configs dynamically: [{}]", refused.join(", "));
            Err(invalid_request(&what))
        }
        GROUP if name.is_empty() => Err(invalid_request("Group name must not be empty")),
        GROUP => {
            let Some(controller) = &shard.controller else { return Err(ErrorCode::NotController.into()) };
            let before = controller.groups.configuration(name);
            Ok(altered(before, change, &shard.env.shared().config)? != before)
        }
        BROKER_LOGGER => Err(invalid_request("The levels of loggers are set at the start of the broker")),
        other => Err(invalid_request(&format!("Unknown resource type {other}"))),
    }
}
