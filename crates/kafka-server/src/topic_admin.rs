//! Creating, changing and deleting topics on shard 0: validation, and the effects of the [`Controller`]'s changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::api::create_partitions::CreatePartitionsTopic;
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_log::{Completion, Error};
use mainstem_partition::Partition;
use mainstem_queue_core::{QueueError, Reply};
use mainstem_queue_server::ReplyTo;
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::{PartitionId, Topic, TopicId, new_name_error};
use crate::controller::{CatalogueWrite, Controller, WaitingOperation};
use crate::pending::AfterTopicChange;
use crate::queue_admin::changed_settings;
use crate::shard::Shard;
use crate::shard_message::{Mail, ShardMessage};
use crate::topic_change::{ConfigChange, ConfigOperation, ConfigStep, NewTopic, TopicChange};
use crate::topic_config::{self, TopicConfig};

impl Shard {
    /// Whether this is shard 0.
    pub(crate) fn is_controller(&self) -> bool {
        self.controller.is_some()
    }

    /// Starts the coordinators in the first turn. A cluster without an identifier gets one.
    pub(crate) fn start_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        self.poll_groups(io);
        if self.is_controller() {
            self.shared.bound.refresh(&mut self.bindings);
            (0..self.bindings.topics.len()).for_each(|bound| self.create_bound_topic(io, bound));
        }
        self.begin_transactions(io);
        if self.is_controller() && self.shared.cluster_id().is_empty() {
            let id = new_uuid(io).to_string();
            self.shared.set_cluster_id(&id);
            if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
                controller.store_cluster_id(&mut *first.store, io.clock.unix_ms, id);
            }
        }
    }

    /// Appends the records of this turn to the logs of the coordinators.
    pub(crate) fn store_compacted_logs(&mut self) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.store_pending(&mut *first.store);
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_controller_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        completion: &Completion,
    ) -> bool {
        if self.on_groups_completion(io, completion) || self.on_transactions_completion(io, completion) {
            return true;
        }
        let Some(controller) = &mut self.controller else { return false };
        let (is_mine, ended) = controller.on_completion(completion);
        for (write, outcome) in ended {
            self.on_catalogue_write(io, write, outcome);
        }
        self.publish_changes(io);
        is_mine
    }

    /// Continues what need not wait for the disk, and what the store refused.
    pub(crate) fn poll_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        // Called several times per turn, mostly for nothing.
        let Some(controller) = self.controller.as_deref_mut().filter(|controller| controller.has_outcomes())
        else {
            return;
        };
        for (write, outcome) in controller.take_failed() {
            self.on_catalogue_write(io, write, outcome);
        }
        self.answer_refused_by_groups_log(io);
        self.take_refused_by_transaction_log(io);
    }

    /// Applies expired deadlines of the coordinators.
    pub(crate) fn coordinate_due(&mut self, io: &mut Io<'_, Mail>) {
        self.groups_due(io);
        self.transactions_due(io);
        self.poll_coordinators(io);
    }

    /// Why a topic cannot be created, if so.
    pub(crate) fn topic_error(&self, new: &NewTopic) -> Option<AppendError> {
        let refused = |code, message: String| Some(AppendError::new(code, message));
        if let Some(error) = new_name_error(&new.name) {
            return refused(ErrorCode::InvalidTopicException, error);
        }
        let controller = self.controller.as_ref()?;
        if controller.is_name_taken(&new.name) {
            return refused(ErrorCode::TopicAlreadyExists, format!("Topic '{}' already exists.", new.name));
        }
        if let Some(other) = controller.name_collision(&new.name) {
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
    pub(crate) fn partitions_error(&self, more: i32) -> Option<AppendError> {
        let partitions = self.controller.as_ref()?.partitions();
        let most = self.shared.config.partitions_max;
        let message = format!("There may be {most} partitions in all.");
        (partitions.saturating_add(more) > most)
            .then(|| AppendError::new(ErrorCode::PolicyViolation, message))
    }

    /// Validates and creates a topic; `then` continues when it is durable.
    pub(crate) fn create_topic(&mut self, io: &mut Io<'_, Mail>, new: NewTopic, then: AfterTopicChange) {
        match self.topic_error(&new).or_else(|| self.dead_letter_topic_error(&new)) {
            Some(refused) => self.resume_topic_change(io, then, Err(refused)),
            None => self.create_valid_topic(io, new, then),
        }
    }

    /// Creates a topic that has been validated.
    pub(crate) fn create_valid_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        new: NewTopic,
        then: AfterTopicChange,
    ) {
        let id = TopicId(new_uuid(io).0);
        let first = io.random() as usize;
        let store_ids = self.shared.store_ids_from(first, new.partitions);
        let config = TopicConfig::new(new.config, &self.shared.config);
        let topic = Arc::new(Topic { name: new.name, id, store_ids, config });
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.start_creation(&mut *first.store, io.clock.unix_ms, topic, then);
        }
    }

    /// Changes a topic's partitions or configuration, after its change in progress.
    pub(crate) fn change_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: &str,
        change: TopicChange,
        then: AfterTopicChange,
    ) {
        let known = self.controller.as_ref().and_then(|controller| controller.topic(name).cloned());
        let Some(known) = known else {
            return self.resume_topic_change(io, then, Err(ErrorCode::UnknownTopicOrPartition.into()));
        };
        if let Some(controller) = &mut self.controller
            && controller.is_changing(known.id)
        {
            let operation = WaitingOperation::Change { name: name.to_owned(), change, then };
            return controller.wait_for_change(known.id, operation);
        }
        let topic = match self.changed_topic(&known, change) {
            Ok(topic) => Arc::new(topic),
            Err(refused) => return self.resume_topic_change(io, then, Err(refused)),
        };
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.start_change(&mut *first.store, io.clock.unix_ms, (&known, topic), then);
        }
    }

    /// Deletes a topic and its records, after its change in progress. Only its administrator deletes a work queue,
    /// because consumers may hold messages that no topic shows.
    pub(crate) fn delete_topic(&mut self, io: &mut Io<'_, Mail>, id: TopicId, then: AfterTopicChange) {
        if !matches!(then, AfterTopicChange::QueueReply(_))
            && let Some(refused) =
                self.controller.as_ref().and_then(|controller| queue_deletion_error(controller, id))
        {
            return self.resume_topic_change(io, then, Err(refused));
        }
        let refused = match (&mut self.controller, self.stores.first_mut()) {
            (Some(controller), _) if controller.is_changing(id) => {
                return controller.wait_for_change(id, WaitingOperation::Delete { id, then });
            }
            (Some(controller), Some(first)) => {
                controller.start_deletion(&mut *first.store, io.clock.unix_ms, id, then)
            }
            _ => Some(then),
        };
        if let Some(then) = refused {
            self.resume_topic_change(io, then, Err(ErrorCode::UnknownTopicOrPartition.into()));
        }
    }

    /// Stores a declaration of another protocol, or removes it if there is no text.
    pub(crate) fn append_declaration(
        &mut self,
        io: &Io<'_, Mail>,
        name: Arc<str>,
        text: Option<Arc<str>>,
        to: ReplyTo,
    ) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.store_declaration(&mut *first.store, io.clock.unix_ms, (name, text), to);
        }
    }

    /// Applies a write of the catalogue's log that is durable or has failed, and continues the operation.
    fn on_catalogue_write(
        &mut self,
        io: &mut Io<'_, Mail>,
        write: CatalogueWrite,
        outcome: Result<(), Error>,
    ) {
        let Some(controller) = &mut self.controller else { return };
        if let Some(deleted) = controller.apply(&write, outcome.is_ok()) {
            self.with_groups(io, |groups, _| groups.forget_topic(&deleted.name));
        }
        match write {
            CatalogueWrite::ClusterId => {}
            CatalogueWrite::Create { then, .. } => {
                self.resume_topic_change(io, then, outcome.map_err(AppendError::from));
            }
            CatalogueWrite::Change { topic, then, .. } => {
                self.resume_topic_change(io, then, outcome.map_err(AppendError::from));
                self.resume_waiting_operations(io, topic.id);
            }
            CatalogueWrite::Delete { id, then } => {
                self.resume_topic_change(io, then, outcome.map_err(AppendError::from));
                self.resume_waiting_operations(io, id);
            }
            CatalogueWrite::Declare { to, .. } => {
                if outcome.is_ok() {
                    self.publish_changes(io);
                }
                let reply = outcome.map_or(Reply::Refused(QueueError::Storage), |()| Reply::Done);
                self.reply_to_requester(io, to, reply);
            }
        }
    }

    /// Ends the change of a topic and begins the operations that wait for it.
    fn resume_waiting_operations(&mut self, io: &mut Io<'_, Mail>, id: TopicId) {
        let waiting = self.controller.as_mut().map(|controller| controller.end_change(id));
        for operation in waiting.into_iter().flatten() {
            match operation {
                WaitingOperation::Change { name, change, then } => {
                    self.change_topic(io, &name, change, then);
                }
                WaitingOperation::Delete { id, then } => self.delete_topic(io, id, then),
            }
        }
    }

    /// Publishes the changes of the catalogue before any client is answered. Publishing copies the catalogue, so many
    /// changes are published together. After it no shard opens a partition of a deleted topic, so those are removed.
    pub(crate) fn publish_changes(&mut self, io: &mut Io<'_, Mail>) {
        let changes = self.controller.as_deref_mut().and_then(Controller::take_changes);
        let Some((catalogue, deleted)) = changes else { return };
        self.shared.publish(catalogue);
        for shard in (0..self.shared.shards).filter(|shard| *shard != self.me) {
            io.send(shard, Mail(ShardMessage::CatalogueChanged));
        }
        self.apply_catalogue_changes();
        self.batch_waiting_records(io);
        self.retry_pending_requests(io);
        for topic in deleted {
            self.broadcast_removal(io, &topic);
        }
    }

    fn broadcast_removal(&mut self, io: &mut Io<'_, Mail>, topic: &Topic) {
        let mut by_shard: Vec<Vec<PartitionId>> = vec![Vec::new(); self.shared.shards];
        for index in 0..topic.partitions() {
            if let Some(store_id) = topic.store_id(index) {
                by_shard[self.shared.owner(store_id)].push(topic.partition(index));
            }
        }
        for (shard, partitions) in by_shard.into_iter().enumerate() {
            if partitions.is_empty() {
                continue;
            }
            if shard == self.me {
                self.remove_partitions(io, partitions);
            } else {
                io.send(shard, Mail(ShardMessage::RemovePartitions { partitions }));
            }
        }
    }

    /// Applies the current catalogue to the open partitions.
    pub(crate) fn apply_catalogue_changes(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        let changed = |partition: &Partition| {
            let topic = self.catalogue.topic_by_id(partition.id().topic)?;
            let is_same = Arc::ptr_eq(&topic.config.partition, partition.config());
            (!is_same).then(|| (partition.id(), partition.store_index(), Arc::clone(topic)))
        };
        let changed: Vec<_> = self.partitions.iter().filter_map(changed).collect();
        for (id, store, topic) in changed {
            let store = &mut *self.stores[store].store;
            if let Err(error) = self.partitions.reconfigure(id, &topic.config.partition, store) {
                log::error!("a partition of {} keeps its old configuration: {error}", topic.name);
            }
        }
    }
}

/// Changes of one topic.
impl Shard {
    /// The topic after a change.
    fn changed_topic(&self, existing: &Topic, change: TopicChange) -> Result<Topic, AppendError> {
        match change {
            TopicChange::AlterConfig(change) => {
                let config = TopicConfig::new(self.altered_config(&change, existing)?, &self.shared.config);
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
                Ok(Topic { config: TopicConfig::new(set, &self.shared.config), ..existing.clone() })
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
                    let now =
                        set.get(name).cloned().unwrap_or_else(|| key.default_value(&self.shared.config));
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
                check_assignment(self.shared.config.node_id, &assignment.broker_ids)?;
            }
        }
        if let Some(refused) = self.partitions_error(more) {
            return Err(refused);
        }
        let next = existing.store_ids.last().map_or(0, |store_id| usize::from(*store_id) + 1);
        let mut changed = existing.clone();
        changed.store_ids.extend(self.shared.store_ids_from(next, more));
        Ok(changed)
    }
}

/// Why a topic cannot be deleted by a request for topics: it is a work queue.
fn queue_deletion_error(controller: &Controller, id: TopicId) -> Option<AppendError> {
    let topic = controller.topic_by_id(id).filter(|topic| topic.config.queue.is_some())?;
    let name = &topic.name;
    let message = format!(
        "Topic '{name}' is a work queue. Delete it with `mainstem queue delete {name}` or over HTTP."
    );
    Some(AppendError::new(ErrorCode::PolicyViolation, message))
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

/// A random UUID (version 4, RFC 9562).
pub(crate) fn new_uuid<M>(io: &mut Io<'_, M>) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&io.random().to_be_bytes());
    bytes[8..].copy_from_slice(&io.random().to_be_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}
