//! Which changes of topics are valid, given the topics that the [`Controller`] has and those that it is creating.
//!
//! Topics are created and changed on shard 0 only, one after the other. A creation counts from the moment it is
//! decided, not from when it is durable: its name, its partitions and its dead-letter queue are part of what the next
//! request is compared with. So two creations that are valid by themselves cannot both pass if they exclude each other.

use std::collections::BTreeMap;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::CreatePartitionsTopic;

use crate::append_error::AppendError;
use crate::catalogue::{Topic, TopicId, new_name_error};
use crate::controller::Controller;
use crate::queue_settings::changed_settings;
use crate::topic_change::{ConfigChange, ConfigOperation, ConfigStep, NewTopic, TopicChange};
use crate::topic_config::{self, TopicConfig};

impl Controller {
    /// Why a topic cannot be created, because of its own settings or of dead-letter queues, if so.
    pub(crate) fn creation_error(&self, new: &NewTopic) -> Option<AppendError> {
        self.topic_error(new).or_else(|| self.dead_letter_topic_error(new))
    }

    /// Why a topic cannot be created, if so.
    pub(crate) fn topic_error(&self, new: &NewTopic) -> Option<AppendError> {
        let refused = |code, message: String| Some(AppendError::new(code, message));
        if let Some(error) = new_name_error(&new.name) {
            return refused(ErrorCode::InvalidTopicException, error);
        }
        if self.is_name_taken(&new.name) {
            return refused(ErrorCode::TopicAlreadyExists, format!("Topic '{}' already exists.", new.name));
        }
        if let Some(other) = self.name_collision(&new.name) {
            let message = format!("Topic '{}' collides with existing topic: {other}", new.name);
            return refused(ErrorCode::InvalidTopicException, message);
        }
        if new.partitions != 1
            && let Some(refused) = topic_config::queue_error(&new.config)
        {
            return Some(refused);
        }
        if new.partitions < 1 {
            let message = "Number of partitions was set to an invalid non-positive value.";
            return refused(ErrorCode::InvalidPartitions, message.into());
        }
        self.partitions_error(new.partitions)
    }

    /// Why `more` partitions cannot be created, if so.
    fn partitions_error(&self, more: i32) -> Option<AppendError> {
        let most = self.config().partitions_max;
        let message = format!("There may be {most} partitions in all.");
        (self.partitions().saturating_add(more) > most)
            .then(|| AppendError::new(ErrorCode::PolicyViolation, message))
    }

    /// The topic after a change.
    pub(crate) fn changed_topic(&self, existing: &Topic, change: TopicChange) -> Result<Topic, AppendError> {
        match change {
            TopicChange::AlterConfig(change) => {
                let config = TopicConfig::new(self.altered_config(&change, existing)?, self.config());
                let refused = existing.config.change_error(&config, existing.partitions());
                refused.map_or_else(|| Ok(Topic { config, ..existing.clone() }), Err)
            }
            TopicChange::AddPartitions(request) => self.add_partitions(existing, &request),
            TopicChange::ConfigureQueue(settings) => {
                let refused = |error: String| AppendError::new(ErrorCode::InvalidConfig, error);
                let set = changed_settings(existing, settings).map_err(refused)?;
                if let Some(error) = self.dead_letter_config_error(&existing.name, &set) {
                    return Err(refused(error));
                }
                Ok(Topic { config: TopicConfig::new(set, self.config()), ..existing.clone() })
            }
        }
    }

    /// The configuration of the topic after the changes.
    pub(crate) fn altered_config(
        &self,
        change: &ConfigChange,
        existing: &Topic,
    ) -> Result<BTreeMap<String, String>, AppendError> {
        let refused = |message: String| AppendError::new(ErrorCode::InvalidConfig, message);
        let mut set = if change.replaces_all { BTreeMap::new() } else { existing.config.set.clone() };
        for ConfigStep { name, operation, value } in &change.steps {
            let value = value.clone().unwrap_or_default();
            match operation {
                Some(ConfigOperation::Set) => {
                    set.insert(name.clone(), value);
                }
                Some(ConfigOperation::Delete) => {
                    set.remove(name);
                }
                Some(operation @ (ConfigOperation::Append | ConfigOperation::Subtract)) => {
                    let key = topic_config::find(name).filter(|key| key.kind.is_list());
                    let key = key.ok_or_else(|| {
                        let operation = format!("{operation:?}").to_uppercase();
                        refused(format!("Can't {operation} to key {name} because its type is not LIST."))
                    })?;
                    let now = set.get(name).cloned().unwrap_or_else(|| key.default_value(self.config()));
                    set.insert(name.clone(), edit_list(*operation, &now, &value));
                }
                None => {}
            }
        }
        let error =
            topic_config::config_error(&set).or_else(|| self.dead_letter_config_error(&existing.name, &set));
        error.map_or(Ok(set), |error| Err(refused(error)))
    }

    /// The topic with the requested number of partitions.
    pub(crate) fn add_partitions(
        &self,
        existing: &Topic,
        request: &CreatePartitionsTopic,
    ) -> Result<Topic, AppendError> {
        let refused = |code, message: String| Err(AppendError::new(code, message));
        let (count, now) = (request.count, existing.partitions());
        if count == now {
            return refused(ErrorCode::InvalidPartitions, format!("Topic already has {now} partition(s)."));
        }
        if count < now {
            let message = format!(
                "The topic {} currently has {now} partition(s); {count} would not be an increase.",
                request.name
            );
            return refused(ErrorCode::InvalidPartitions, message);
        }
        if existing.config.queue.is_some() {
            let message = format!("The topic {} is a work queue, which has one partition.", request.name);
            return refused(ErrorCode::InvalidPartitions, message);
        }
        let more = count - now;
        if let Some(assignments) = &request.assignments {
            if assignments.len() != more.unsigned_abs() as usize {
                let message = format!(
                    "Attempted to add {more} additional partition(s), but only {} assignment(s) were specified.",
                    assignments.len()
                );
                return refused(ErrorCode::InvalidReplicaAssignment, message);
            }
            for assignment in assignments {
                check_assignment(self.config().node_id, &assignment.broker_ids)?;
            }
        }
        if let Some(refused) = self.partitions_error(more) {
            return Err(refused);
        }
        let next = existing.store_ids.last().map_or(0, |store_id| usize::from(*store_id) + 1);
        let mut changed = existing.clone();
        changed.store_ids.extend(self.store_ids_from(next, more));
        Ok(changed)
    }

    /// Why a topic cannot be deleted by a request for topics: it is a work queue. Only its administrator deletes it,
    /// because consumers may hold messages that no topic shows.
    pub(crate) fn queue_deletion_error(&self, id: TopicId) -> Option<AppendError> {
        let topic = self.topic_by_id(id).filter(|topic| topic.config.queue.is_some())?;
        let name = &topic.name;
        let message = format!(
            "Topic '{name}' is a work queue. Delete it with `mainstem queue delete {name}` or over HTTP."
        );
        Some(AppendError::new(ErrorCode::PolicyViolation, message))
    }
}

/// The list `now` with the entries of `value` added or removed.
fn edit_list(operation: ConfigOperation, now: &str, value: &str) -> String {
    let mut list: Vec<&str> = topic_config::list_items(now).collect();
    for part in topic_config::list_items(value) {
        match operation {
            ConfigOperation::Append if !list.contains(&part) => list.push(part),
            ConfigOperation::Subtract => list.retain(|item| *item != part),
            _ => {}
        }
    }
    list.join(",")
}

/// Checks the replicas of a partition: the only valid one is this node.
///
/// # Errors
/// The assignment is invalid.
pub(crate) fn check_assignment(node: i32, brokers: &[i32]) -> Result<(), AppendError> {
    if brokers.is_empty() {
        let message = "The manual partition assignment includes an empty replica list.";
        return Err(AppendError::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    if let Some(other) = brokers.iter().find(|broker| **broker != node) {
        let message = format!(
            "The manual partition assignment includes broker {other}, but no such broker is registered."
        );
        return Err(AppendError::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    if brokers.len() > 1 {
        let message = format!("The manual partition assignment includes the broker {node} more than once.");
        return Err(AppendError::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    Ok(())
}
