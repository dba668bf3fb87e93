//! `AlterConfigs`, versions 0 to 2: sets what topics are set to as a whole. Runs on the controller.
//!
//! What it has in common with `IncrementalAlterConfigs` stands here too. Only topics can be changed: the node's
//! configuration is read at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_configs::{
    AlterConfigsRequest, AlterConfigsResource, AlterConfigsResourceResponse, AlterConfigsResponse,
};
use mainstem_runtime::Io;

use super::create_topics::invalid_request;
use super::describe_configs::{BROKER, BROKER_LOGGER, TOPIC, is_this_node};
use crate::broker_config;
use crate::catalogue::{Topic, name_fault};
use crate::mail::{Call, Mail};
use crate::partition::Refused;
use crate::shard::Shard;
use crate::topic_config::{self, TopicConfig, find, parts};

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: AlterConfigsRequest) {
    let change = |resource: AlterConfigsResource| Change {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        is_whole: true,
        steps: resource.configs.into_iter().map(|config| Step::set(config.name, config.value)).collect(),
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
        let response = AlterConfigsResponse { responses, ..AlterConfigsResponse::default() };
        shard.reply::<AlterConfigsRequest>(io, &call, &response);
    });
}

/// What is to be changed in a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) resource_type: i8,
    pub(crate) resource_name: String,
    /// What is not set in the steps is unset.
    pub(crate) is_whole: bool,
    pub(crate) steps: Vec<Step>,
}

/// What becomes of a key.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// Nothing if it is not known.
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

/// Makes changes, each by itself; goes on with them and what they are answered with.
pub(crate) fn alter(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    changes: Vec<Change>,
    validate_only: bool,
    then: impl FnOnce(&mut Shard, &mut Io<'_, Mail>, Vec<(Change, Refused)>) + Send + 'static,
) {
    let mut counts: BTreeMap<(i8, &str), usize> = BTreeMap::new();
    for change in &changes {
        *counts.entry((change.resource_type, &change.resource_name)).or_default() += 1;
    }
    let is_once = |change: &Change| counts[&(change.resource_type, change.resource_name.as_str())] == 1;
    let (mut outcomes, mut wanted) = (Vec::with_capacity(changes.len()), Vec::new());
    for (part, change) in changes.iter().enumerate() {
        let checked = if is_once(change) {
            check(shard, change)
        } else {
            Err(invalid_request("Each resource must appear at most once."))
        };
        if matches!(checked, Ok(true)) && !validate_only {
            wanted.push((part, change.clone()));
        }
        outcomes.push(checked.map(drop));
    }
    let job = shard.begin_changes(io, outcomes, wanted.len(), move |shard, io, outcomes| {
        let told = outcomes.into_iter().map(|outcome| outcome.err().unwrap_or(ErrorCode::None.into()));
        then(shard, io, changes.into_iter().zip(told).collect());
    });
    for (part, change) in wanted {
        let name: Arc<str> = change.resource_name.as_str().into();
        let make = move |shard: &Shard, known: &Topic| {
            let config = &shard.shared.config;
            let config = TopicConfig::new(changed(shard, &change, known)?, config);
            if let Some(refused) = known.config.change_fault(&config, known.partitions()) {
                return Err(refused);
            }
            Ok(Topic { config, ..known.clone() })
        };
        shard.change_topic(io, &name, make, move |shard, io, outcome| {
            shard.change_done(io, job, part, outcome);
        });
    }
}

/// Whether a change makes a difference.
fn check(shard: &Shard, change: &Change) -> Result<bool, Refused> {
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
            if let Some(fault) = name_fault(name) {
                return Err(Refused::new(ErrorCode::InvalidTopicException, fault));
            }
            let Some(topic) = shard.catalogue.topic(name) else {
                let message = format!("The topic '{name}' does not exist.");
                return Err(Refused::new(ErrorCode::UnknownTopicOrPartition, message));
            };
            Ok(changed(shard, change, topic)? != topic.config.set)
        }
        BROKER => {
            if !name.is_empty() {
                is_this_node(shard, name, " or empty string")?;
            }
            // Nobody has set what is not here, so that it may be unset: tools clear throttles that way.
            let is_fixed = |name: &str| broker_config::KEYS.iter().any(|key| key.name == name);
            let is_refused = |step: &&Step| step.operation != Some(Operation::Delete) || is_fixed(&step.name);
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

/// What the topic is set to afterwards.
fn changed(shard: &Shard, change: &Change, known: &Topic) -> Result<BTreeMap<String, String>, Refused> {
    let refused = |message: String| Refused::new(ErrorCode::InvalidConfig, message);
    let mut set = if change.is_whole { BTreeMap::new() } else { known.config.set.clone() };
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
                set.insert(name.clone(), edit(*operation, &now, &value));
            }
            None => {}
        }
    }
    let fault = topic_config::fault(&set).or_else(|| shard.dead_letters_fault(&known.name, &set));
    fault.map_or(Ok(set), |fault| Err(refused(fault)))
}

/// The list `now` with those in `value` added, or taken away.
fn edit(operation: Operation, now: &str, value: &str) -> String {
    let mut list: Vec<&str> = parts(now).collect();
    for part in parts(value) {
        match operation {
            Operation::Append if !list.contains(&part) => list.push(part),
            Operation::Subtract => list.retain(|known| *known != part),
            _ => {}
        }
    }
    list.join(",")
}
