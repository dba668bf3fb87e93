//! `AlterConfigs`, versions 0 to 2: replaces the whole configuration of topics.
//!
//! Each resource changes completely or not at all, independently of the others. A topic gets its new configuration when
//! the change is durable in the catalogue. Only topics can change: the node reads its configuration only at startup.
//!
//! `IncrementalAlterConfigs` shares the functions of this file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_configs::{
    AlterConfigsRequest, AlterConfigsResource, AlterConfigsResourceResponse, AlterConfigsResponse,
};
use mainstem_runtime::Io;

use super::create_topics::invalid_request;
use super::describe_configs::{BROKER, BROKER_LOGGER, TOPIC, is_this_node};
use crate::append_error::AppendError;
use crate::broker_config;
use crate::catalogue::{Topic, name_error};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_config::{self, TopicConfig, find, list_items};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AlterConfigsRequest,
) {
    let change = |resource: AlterConfigsResource| Change {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        replaces_all: true,
        steps: resource.configs.into_iter().map(|config| Step::set(config.name, config.value)).collect(),
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
        let response = AlterConfigsResponse { responses, ..AlterConfigsResponse::default() };
        shard.reply::<AlterConfigsRequest>(io, &call, &response);
    });
}

/// Changes to one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) resource_type: i8,
    pub(crate) resource_name: String,
    /// Whether keys without a step are reset to their defaults.
    pub(crate) replaces_all: bool,
    pub(crate) steps: Vec<Step>,
}

/// One change of a key.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// `None` if the operation is unknown.
    pub(crate) operation: Option<Operation>,
    pub(crate) value: Option<String>,
}

/// Kafka's `AlterConfigOp.OpType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Set,
    Delete,
    Append,
    Subtract,
}

impl Step {
    fn set(name: String, value: Option<String>) -> Self {
        Self { name, operation: Some(Operation::Set), value }
    }
}

/// Applies changes independently of each other, then continues with their results.
pub(crate) fn alter(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    changes: Vec<Change>,
    validate_only: bool,
    then: impl FnOnce(&mut Shard, &mut Io<'_, Mail>, Vec<(Change, AppendError)>) + Send + 'static,
) {
    let mut counts: BTreeMap<(i8, &str), usize> = BTreeMap::new();
    for change in &changes {
        *counts.entry((change.resource_type, &change.resource_name)).or_default() += 1;
    }
    let is_unique = |change: &Change| counts[&(change.resource_type, change.resource_name.as_str())] == 1;
    let (mut outcomes, mut to_apply) = (Vec::with_capacity(changes.len()), Vec::new());
    for (part, change) in changes.iter().enumerate() {
        let checked = if is_unique(change) {
            check(shard, change)
        } else {
            Err(invalid_request("Each resource must appear at most once."))
        };
        if matches!(checked, Ok(true)) && !validate_only {
            to_apply.push((part, change.clone()));
        }
        outcomes.push(checked.map(drop));
    }
    let job = shard.begin_changes(io, outcomes, to_apply.len(), move |shard, io, outcomes| {
        let results = outcomes.into_iter().map(|outcome| outcome.err().unwrap_or(ErrorCode::None.into()));
        then(shard, io, changes.into_iter().zip(results).collect());
    });
    for (part, change) in to_apply {
        let name: Arc<str> = change.resource_name.as_str().into();
        let build = move |shard: &Shard, existing: &Topic| {
            let config = &shard.shared.config;
            let config = TopicConfig::new(apply(shard, &change, existing)?, config);
            if let Some(refused) = existing.config.change_error(&config, existing.partitions()) {
                return Err(refused);
            }
            Ok(Topic { config, ..existing.clone() })
        };
        shard.change_topic(io, &name, build, move |shard, io, outcome| {
            shard.change_done(io, job, part, outcome);
        });
    }
}

/// Whether a change alters the configuration.
fn check(shard: &Shard, change: &Change) -> Result<bool, AppendError> {
    let mut names = BTreeSet::new();
    if !change.steps.iter().all(|step| names.insert(&step.name)) {
        return Err(invalid_request("Error due to duplicate config keys"));
    }
    let is_missing = |step: &&Step| step.value.is_none() && step.operation != Some(Operation::Delete);
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
            let Some(topic) = shard.catalogue.topic(name) else {
                let message = format!("The topic '{name}' does not exist.");
                return Err(AppendError::new(ErrorCode::UnknownTopicOrPartition, message));
            };
            Ok(apply(shard, change, topic)? != topic.config.set)
        }
        BROKER => {
            if !name.is_empty() {
                is_this_node(shard, name, " or empty string")?;
            }
            // Deleting an unknown key succeeds: tools clear throttles that way.
            let is_known = |name: &str| broker_config::KEYS.iter().any(|key| key.name == name);
            let is_refused = |step: &&Step| step.operation != Some(Operation::Delete) || is_known(&step.name);
            let refused: Vec<&str> =
                change.steps.iter().filter(is_refused).map(|step| step.name.as_str()).collect();
            if refused.is_empty() {
                return Ok(false);
            }
            let what = format!("Cannot update these configs dynamically: [{}]", refused.join(", "));
            Err(invalid_request(&what))
        }
        BROKER_LOGGER => Err(invalid_request("The levels of loggers are set at the start of the broker")),
        other => Err(invalid_request(&format!("Unknown resource type {other}"))),
    }
}

/// The configuration of the topic after the changes.
fn apply(shard: &Shard, change: &Change, existing: &Topic) -> Result<BTreeMap<String, String>, AppendError> {
    let refused = |message: String| AppendError::new(ErrorCode::InvalidConfig, message);
    let mut set = if change.replaces_all { BTreeMap::new() } else { existing.config.set.clone() };
    for Step { name, operation, value } in &change.steps {
        let value = value.clone().unwrap_or_default();
        match operation {
            Some(Operation::Set) => {
                set.insert(name.clone(), value);
            }
            Some(Operation::Delete) => {
                set.remove(name);
            }
            Some(operation @ (Operation::Append | Operation::Subtract)) => {
                let key = find(name).filter(|key| key.kind.is_list());
                let key = key.ok_or_else(|| {
                    let operation = format!("{operation:?}").to_uppercase();
                    refused(format!("Can't {operation} to key {name} because its type is not LIST."))
                })?;
                let now = set.get(name).cloned().unwrap_or_else(|| key.default_value(&shard.shared.config));
                set.insert(name.clone(), edit_list(*operation, &now, &value));
            }
            None => {}
        }
    }
    let error = topic_config::fault(&set).or_else(|| shard.dead_letter_config_error(&existing.name, &set));
    error.map_or(Ok(set), |error| Err(refused(error)))
}

/// The list `now` with the entries of `value` added or removed.
fn edit_list(operation: Operation, now: &str, value: &str) -> String {
    let mut list: Vec<&str> = list_items(now).collect();
    for part in list_items(value) {
        match operation {
            Operation::Append if !list.contains(&part) => list.push(part),
            Operation::Subtract => list.retain(|item| *item != part),
            _ => {}
        }
    }
    list.join(",")
}
