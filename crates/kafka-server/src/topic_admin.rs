//! Creating, changing and deleting topics on shard 0: the effects of the [`Controller`]'s changes.

use std::sync::Arc;

use mainstem_kafka::Uuid;
use mainstem_log::{Completion, Error, Store};
use mainstem_queue_core::{QueueError, Reply};
use mainstem_queue_server::ReplyTo;
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::{Topic, TopicId};
use crate::controller::{CatalogueWrite, Controller, RefusedChange, WaitingOperation};
use crate::pending::AfterTopicChange;
use crate::shard::Shard;
use crate::shard_message::{Mail, ShardMessage};
use crate::topic_change::{NewTopic, TopicChange};
use crate::topic_config::TopicConfig;

impl Shard {
    /// Starts the coordinators in the first turn. A cluster without an identifier gets one.
    pub(crate) fn start_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        self.poll_groups(io);
        if self.env.is_controller() {
            self.env.shared().bound.refresh(&mut self.bindings);
            (0..self.bindings.topics.len()).for_each(|bound| self.create_bound_topic(io, bound));
        }
        self.begin_transactions(io);
        if self.env.is_controller() && self.env.shared().cluster_id().is_empty() {
            let id = new_uuid(io).to_string();
            self.env.shared().set_cluster_id(&id);
            if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
                controller.store_cluster_id(first, io.clock.unix_ms, id);
            }
        }
    }

    /// Appends the records of this turn to the logs of the coordinators.
    pub(crate) fn store_compacted_logs(&mut self) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
            controller.store_pending(first);
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

    /// Validates and creates a topic; `then` continues when it is durable.
    pub(crate) fn create_topic(&mut self, io: &mut Io<'_, Mail>, new: NewTopic, then: AfterTopicChange) {
        match self.controller.as_deref().and_then(|controller| controller.creation_error(&new)) {
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
        let store_ids = self.env.shared().store_ids_from(first, new.partitions);
        let config = TopicConfig::new(new.config, &self.env.shared().config);
        let topic = Arc::new(Topic { name: new.name, id, store_ids, config });
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
            controller.start_creation(first, io.clock.unix_ms, topic, then);
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
        self.with_controller(io, |controller, store, now_ms| {
            controller.change(store, now_ms, name, change, then)
        });
    }

    /// Deletes a topic and its records, after its change in progress.
    pub(crate) fn delete_topic(&mut self, io: &mut Io<'_, Mail>, id: TopicId, then: AfterTopicChange) {
        self.with_controller(io, |controller, store, now_ms| controller.delete(store, now_ms, id, then));
    }

    /// Calls the controller with its store, and continues a change that it refuses.
    fn with_controller(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: impl FnOnce(&mut Controller, &mut dyn Store, u64) -> Result<(), RefusedChange>,
    ) {
        debug_assert!(self.env.is_controller(), "topics change on shard 0");
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store())
            && let Err(RefusedChange { then, error }) = call(controller, first, io.clock.unix_ms)
        {
            self.resume_topic_change(io, then, Err(error));
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
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
            controller.store_declaration(first, io.clock.unix_ms, (name, text), to);
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
        self.env.shared().publish(catalogue);
        for shard in (0..self.env.shared().shards).filter(|shard| *shard != self.env.me()) {
            io.send(shard, Mail(ShardMessage::CatalogueChanged));
        }
        self.storage.apply_catalogue(&mut self.env);
        self.batch_waiting_records(io);
        self.retry_pending_requests(io);
        for topic in deleted {
            let by_owner = self.env.partitions_by_owner(&topic).into_iter().enumerate();
            for (shard, partitions) in by_owner.filter(|(_, partitions)| !partitions.is_empty()) {
                if shard == self.env.me() {
                    self.remove_partitions(io, partitions);
                } else {
                    io.send(shard, Mail(ShardMessage::RemovePartitions { partitions }));
                }
            }
        }
    }
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
