//! `CreateTopics`, versions 2 to 7: creates topics, each independently of the others.
//!
//! There is one broker, so each partition has one replica, whether the client gives a replication factor or an
//! assignment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_kafka::api::create_topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::append_error::AppendError;
use crate::catalogue::new_name_error;
use crate::config_entries::{Entry, of_topic};
use crate::conn_quotas::may_mutate;
use crate::pending::{AfterChanges, AfterTopicChange};
use crate::queue_rights::check_queue_settings;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_admin::new_uuid;
use crate::topic_audit::note_topic_change;
use crate::topic_change::NewTopic;
use crate::topic_config::{self, TopicConfig, queue_error};
use crate::topic_validation::check_assignment;

/// Most configurations of a resource in a request, of some dozens that there are. They are checked at once.
pub(crate) const CONFIGS_MAX: usize = 200;
pub(crate) const TOO_MANY_CONFIGS: &str = "A resource may have 200 configurations in a request.";

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    mut call: RequestContext,
    request: CreateTopicsRequest,
) {
    let Some(mut request) = shard.divide(io, &call, request) else { return };
    request.topics.iter_mut().for_each(|topic| truncate_configs(io, &mut topic.configs));
    let duplicates = duplicates(request.topics.iter().map(|topic| topic.name.as_str()));
    let is_unique = |topic: &&CreatableTopic| !duplicates.contains(topic.name.as_str());
    let mut names: Vec<Arc<str>> = Vec::new();
    let mut plans = Vec::new();
    for topic in request.topics.iter().filter(is_unique) {
        names.push(topic.name.as_str().into());
        let planned = match call.check_creation(&topic.name) {
            Ok(()) => check_queue(shard, &call, topic).and_then(|()| plan(shard, topic)),
            Err(code) => refused(code, "Authorization failed."),
        };
        let is_over = planned.as_ref().is_ok_and(|new| {
            !request.validate_only
                && !may_mutate(
                    &mut shard.env,
                    &mut call,
                    new.partitions.unsigned_abs() as usize,
                    io.clock.now_ms,
                )
        });
        plans.push(if is_over { Err(over_quota()) } else { planned });
    }
    names.extend(duplicates.iter().map(|name| Arc::from(*name)));
    plans.extend(duplicates.iter().map(|_| Err(invalid_request("Duplicate topic name."))));
    let outcomes = plans.iter().map(|plan| plan.as_ref().map(drop).map_err(Clone::clone)).collect();
    let waiting = if request.validate_only { 0 } else { plans.iter().filter(|plan| plan.is_ok()).count() };
    let then = AfterChanges::CreateTopics { call, names, plans: plans.clone() };
    let job = shard.begin_changes(io, outcomes, waiting, then);
    if waiting == 0 {
        return;
    }
    for (part, plan) in plans.into_iter().enumerate() {
        if let Ok(new) = plan {
            shard.create_topic(io, new, AfterTopicChange::Job { job, part });
        }
    }
}

/// Checks the rights on the queue that a topic is to be.
fn check_queue(shard: &Shard, call: &RequestContext, topic: &CreatableTopic) -> Result<(), AppendError> {
    let settings = topic.configs.iter().map(|config| (config.name.as_str(), config.value.as_deref()));
    check_queue_settings(shard.env.catalogue(), call, &topic.name, settings)
}

/// Answers when all topics are created or refused.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    (names, plans): (&[Arc<str>], &[Result<NewTopic, AppendError>]),
    outcomes: Vec<Result<(), AppendError>>,
) {
    let mut topics = Vec::with_capacity(names.len());
    for ((name, plan), outcome) in names.iter().zip(plans).zip(outcomes) {
        topics.push(match (plan, outcome) {
            (Ok(new), Ok(())) => {
                note_topic_change(shard.env.catalogue(), call, "create-topic", name, None);
                success(shard, io, call, new)
            }
            (_, Err(refused)) => failure(name, refused),
            (Err(refused), Ok(())) => failure(name, refused.clone()),
        });
    }
    let response = CreateTopicsResponse { topics, ..CreateTopicsResponse::default() };
    shard.reply::<CreateTopicsRequest>(io, call, &response);
}

/// The names that occur more than once.
pub(crate) fn duplicates<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

/// Removes most of too many configurations. They are refused, so the rest need not be looked at.
pub(crate) fn truncate_configs<C: Send + 'static>(io: &Io<'_, Mail>, configs: &mut Vec<C>) {
    if configs.len() > CONFIGS_MAX {
        let mut all = std::mem::take(configs).into_iter();
        configs.extend(all.by_ref().take(CONFIGS_MAX + 1));
        io.discard(Box::new(all));
    }
}

pub(crate) fn invalid_request(message: &str) -> AppendError {
    AppendError::new(ErrorCode::InvalidRequest, message)
}

/// The error of a topic for which the quota of partitions has no room (KIP-599).
pub(crate) fn over_quota() -> AppendError {
    AppendError::new(ErrorCode::ThrottlingQuotaExceeded, "The throttling quota has been exceeded.")
}

fn refused<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, AppendError> {
    Err(AppendError::new(code, message))
}

/// Validates the request and returns the topic to create.
fn plan(shard: &Shard, topic: &CreatableTopic) -> Result<NewTopic, AppendError> {
    let name: Arc<str> = topic.name.as_str().into();
    if let Some(error) = new_name_error(&name) {
        return refused(ErrorCode::InvalidTopicException, error);
    }
    let name_only = NewTopic { name: Arc::clone(&name), partitions: 1, config: BTreeMap::new() };
    let Some(controller) = &shard.controller else { return Err(ErrorCode::NotController.into()) };
    if let Some(refused) = controller.topic_error(&name_only) {
        return Err(refused);
    }
    let config = config(topic)?;
    let mut partitions = partitions(shard, topic)?;
    if topic.num_partitions == -1 && topic.assignments.is_empty() && queue_error(&config).is_some() {
        partitions = 1;
    }
    let new = NewTopic { name, partitions, config };
    controller.creation_error(&new).map_or(Ok(new), Err)
}

fn config(topic: &CreatableTopic) -> Result<BTreeMap<String, String>, AppendError> {
    if topic.configs.len() > CONFIGS_MAX {
        return refused(ErrorCode::InvalidConfig, TOO_MANY_CONFIGS);
    }
    let without_value = topic.configs.iter().filter(|config| config.value.is_none());
    let without_value: Vec<&str> = without_value.map(|config| config.name.as_str()).collect();
    if !without_value.is_empty() {
        let message = format!("Null value not supported for topic configs: {}", without_value.join(","));
        return refused(ErrorCode::InvalidConfig, message);
    }
    let pairs =
        topic.configs.iter().map(|config| (config.name.clone(), config.value.clone().unwrap_or_default()));
    let set: BTreeMap<String, String> = pairs.collect();
    topic_config::config_error(&set).map_or(Ok(set), |error| refused(ErrorCode::InvalidConfig, error))
}

fn partitions(shard: &Shard, topic: &CreatableTopic) -> Result<i32, AppendError> {
    if !topic.assignments.is_empty() {
        return assigned_partitions(shard.env.shared().config.node_id, topic);
    }
    match topic.replication_factor {
        -1 | 1 => {}
        factor if factor < 1 => {
            let message = "Replication factor must be larger than 0, or -1 to use the default value.";
            return refused(ErrorCode::InvalidReplicationFactor, message);
        }
        factor => {
            let message = format!(
                "Unable to replicate the partition {factor} time(s): The target replication factor of {factor} \
                 cannot be reached because only 1 broker(s) are registered."
            );
            return refused(ErrorCode::InvalidReplicationFactor, message);
        }
    }
    match topic.num_partitions {
        -1 => Ok(shard.env.shared().config.partitions),
        count if count < 1 => {
            let message = "Number of partitions was set to an invalid non-positive value.";
            refused(ErrorCode::InvalidPartitions, message)
        }
        count => Ok(count),
    }
}

/// The number of partitions in an assignment.
fn assigned_partitions(node: i32, topic: &CreatableTopic) -> Result<i32, AppendError> {
    let manual = "A manual partition assignment was specified, but";
    if topic.replication_factor != -1 {
        return Err(invalid_request(&format!("{manual} replication factor was not set to -1.")));
    }
    if topic.num_partitions != -1 {
        return Err(invalid_request(&format!("{manual} numPartitions was not set to -1.")));
    }
    let mut indexes = BTreeSet::new();
    for assignment in &topic.assignments {
        let index = assignment.partition_index;
        if !indexes.insert(index) {
            let message = format!("Found multiple manual partition assignments for partition {index}");
            return refused(ErrorCode::InvalidReplicaAssignment, message);
        }
        check_assignment(node, &assignment.broker_ids)?;
    }
    let mut count = 0;
    for index in indexes {
        if index != count {
            let message = "partitions should be a consecutive 0-based integer sequence";
            return refused(ErrorCode::InvalidReplicaAssignment, message);
        }
        count += 1;
    }
    Ok(count)
}

/// The result for a new topic. As in Kafka, its configuration and its number of partitions and replicas need the right
/// to describe configurations.
fn success(
    shard: &Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    new: &NewTopic,
) -> CreatableTopicResult {
    let config = &shard.env.shared().config;
    let entry = |entry: Entry| CreatableTopicConfigs {
        name: entry.name.into(),
        value: Some(entry.value),
        read_only: entry.is_read_only,
        config_source: entry.source as i8,
        is_sensitive: false,
    };
    // With `validate_only`, Kafka also returns an identifier that the topic will not have.
    let topic_id: Uuid =
        shard.env.catalogue().topic(&new.name).map_or_else(|| new_uuid(io), |topic| Uuid(topic.id.0));
    if !call.allows(Action::DescribeConfigs, ResourceKind::Topic, &new.name) {
        return CreatableTopicResult {
            name: new.name.to_string(),
            topic_id,
            topic_config_error_code: ErrorCode::TopicAuthorizationFailed as i16,
            num_partitions: -1,
            replication_factor: -1,
            configs: Some(Vec::new()),
            ..CreatableTopicResult::default()
        };
    }
    let entries = of_topic(&TopicConfig::new(new.config.clone(), config), config);
    CreatableTopicResult {
        name: new.name.to_string(),
        topic_id,
        num_partitions: new.partitions,
        replication_factor: 1,
        configs: Some(entries.into_iter().map(entry).collect()),
        ..CreatableTopicResult::default()
    }
}

fn failure(name: &str, refused: AppendError) -> CreatableTopicResult {
    CreatableTopicResult {
        name: name.into(),
        error_code: refused.code as i16,
        error_message: refused.message,
        configs: Some(Vec::new()),
        ..CreatableTopicResult::default()
    }
}
