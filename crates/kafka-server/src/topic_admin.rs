//! Creating, changing and deleting topics on shard 0: the effects of the [`Controller`]'s changes.
//!
//! A client that has its answer must find the change on every shard. The order is therefore: the record of the change
//! is durable; the new catalogue is published to all shards; then the client is answered. Partitions and committed
//! offsets of a deleted topic are removed after its deletion was published, when no shard opens them any more, over as
//! many turns as it takes.
//!
//! The coordinators' logs are in the same store, so this file also gives each completion to the machine that it belongs
//! to.

use std::sync::Arc;

use mainstem_kafka::Uuid;
use mainstem_log::{Completion, Error, Store};
use mainstem_queue_core::{QueueError, Reply};
use mainstem_queue_server::{QueueHost, ReplyTo};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::{Topic, TopicId};
use crate::controller::{CatalogueWrite, Controller, Ended, Published, RefusedChange, WaitingOperation};
use crate::pending::AfterTopicChange;
use crate::pending_work::Task;
use crate::shard::Shard;
use crate::shard_message::{Mail, ShardMessage};
use crate::topic_change::{NewTopic, TopicChange};
use crate::topic_config::TopicConfig;

/// Most declarations in the catalogue.
const DECLARED_MAX: usize = 10_000;
/// Groups, topics and offsets that are visited at once when offsets of deleted topics are removed.
const FORGET_STEPS: usize = 250;
/// One of them: a lookup, or the removal of an offset.
const FORGET_STEP_UNITS: u32 = 10;

impl Shard {
    /// Starts the coordinators in the first turn. A cluster without an identifier gets one.
    pub(crate) fn start_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        self.poll_groups(io);
        if self.controller.as_ref().is_some_and(|controller| controller.groups.is_forgetting()) {
            self.pending_work.add(Task::ForgetTopics);
            io.request_turn();
        }
        if self.env.is_controller() {
            let topics = self.bindings.bound_topics(&self.env);
            (0..topics).for_each(|bound| self.create_bound_topic(io, bound));
        }
        if let Some(controller) = &mut self.controller {
            controller.transactions.start(io.clock);
            self.poll_transactions(io);
        }
        if self.env.is_controller() && self.env.shared().cluster_id().is_empty() {
            let id = new_uuid(io).to_string();
            self.env.shared().set_cluster_id(&id);
            if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
                controller.store_cluster_id(first, io.clock.unix_ms, id);
            }
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_controller_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        completion: &Completion,
    ) -> bool {
        let ended = self.controller.as_mut().and_then(|known| known.on_completion(completion, io.clock));
        let Some(ended) = ended else { return false };
        self.carry_out_ended(io, ended);
        true
    }

    /// Continues what need not wait for the disk, and what the store refused.
    pub(crate) fn poll_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        // Called several times per turn, mostly for nothing.
        let controller = self.controller.as_deref_mut().filter(|controller| controller.has_outcomes());
        let Some(ended) = controller.map(|controller| controller.take_failed(io.clock)) else { return };
        self.carry_out_ended(io, ended);
    }

    /// Continues what has waited for the logs of the controller and the coordinators.
    fn carry_out_ended(&mut self, io: &mut Io<'_, Mail>, ended: Ended) {
        let Ended { writes, group_answers, has_transaction_effects } = ended;
        for (write, outcome) in writes {
            self.on_catalogue_write(io, write, outcome);
        }
        self.publish_changes(io);
        for (then, answer) in group_answers {
            self.resume_group_reply(io, then, answer);
        }
        if has_transaction_effects {
            self.poll_transactions(io);
        }
    }

    /// Applies expired deadlines of the coordinators.
    pub(crate) fn coordinate_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(controller) = &mut self.controller else { return };
        controller.on_timer(io.clock);
        self.poll_groups(io);
        self.poll_transactions(io);
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

    /// Applies a write of the catalogue's log that is durable or has failed, and continues the operation.
    fn on_catalogue_write(
        &mut self,
        io: &mut Io<'_, Mail>,
        write: CatalogueWrite,
        outcome: Result<(), Error>,
    ) {
        let Some(controller) = &mut self.controller else { return };
        controller.apply(&write, outcome.is_ok());
        let (changed, then) = match write {
            CatalogueWrite::ClusterId => return,
            CatalogueWrite::Create { then, .. } => (None, then),
            CatalogueWrite::Change { topic, then, .. } => (Some(topic.id), then),
            CatalogueWrite::Delete { id, then } => (Some(id), then),
            CatalogueWrite::Declare { to, .. } => {
                if outcome.is_ok() {
                    self.publish_changes(io);
                }
                let reply = outcome.map_or(Reply::Refused(QueueError::Storage), |()| Reply::Done);
                return self.reply_to_requester(io, to, reply);
            }
        };
        self.resume_topic_change(io, then, outcome.map_err(AppendError::from));
        let waiting = changed.and_then(|id| Some(self.controller.as_mut()?.end_change(id)));
        for operation in waiting.into_iter().flatten() {
            match operation {
                WaitingOperation::Change { name, change, then } => {
                    self.change_topic(io, &name, change, then);
                }
                WaitingOperation::Delete { id, then } => self.delete_topic(io, id, then),
            }
        }
    }

    /// Stores a declaration of another protocol on shard 0, or removes it if there is no text.
    pub(crate) fn declare(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: Arc<str>,
        text: Option<Arc<str>>,
        to: ReplyTo,
    ) {
        if text.is_some() && self.env.catalogue().declared.len() >= DECLARED_MAX {
            return self.reply_to_requester(io, to, Reply::Refused(QueueError::TooMany));
        }
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
            controller.store_declaration(first, io.clock.unix_ms, (name, text), to);
        }
    }

    /// Publishes the changes of the catalogue before any client is answered. After it no shard opens a partition of a
    /// deleted topic, so those are removed, and the offsets that groups have committed.
    pub(crate) fn publish_changes(&mut self, io: &mut Io<'_, Mail>) {
        let changes = self.controller.as_deref_mut().and_then(Controller::take_changes);
        let Some(Published { catalogue, changed, deleted }) = changes else { return };
        self.env.shared().publish(catalogue);
        for shard in (0..self.env.shared().shards).filter(|shard| *shard != self.env.me()) {
            io.send(shard, Mail(ShardMessage::CatalogueChanged { changed: Arc::clone(&changed) }));
        }
        self.storage.apply_catalogue(&mut self.env, &changed);
        self.forget_topics(io, &deleted);
        self.batch_waiting_records(io);
        self.with_queues(io, QueueHost::retry_awaiting_creation);
        for topic in deleted {
            let by_owner = self.env.partitions_by_owner(&topic).into_iter().enumerate();
            for (shard, partitions) in by_owner.filter(|(_, partitions)| !partitions.is_empty()) {
                if shard == self.env.me() {
                    self.pending_work.add_removal(io, partitions);
                } else {
                    io.send(shard, Mail(ShardMessage::RemovePartitions { partitions }));
                }
            }
        }
    }
}

/// The offsets of deleted topics.
impl Shard {
    /// Removes the offsets that groups have committed for deleted topics, now or in the next turns.
    fn forget_topics(&mut self, io: &mut Io<'_, Mail>, deleted: &[Arc<Topic>]) {
        if deleted.is_empty() {
            return;
        }
        let is_first = !self.controller.as_ref().is_some_and(|controller| controller.groups.is_forgetting());
        let names = deleted.iter().map(|topic| Arc::clone(&topic.name)).collect();
        self.with_groups(io, |groups, _| groups.forget_topics(names));
        if is_first && self.continue_forgetting(io) {
            self.pending_work.add(Task::ForgetTopics);
            io.request_turn();
        }
    }

    /// Continues to remove offsets of deleted topics. Returns whether there are more.
    pub(crate) fn continue_forgetting(&mut self, io: &mut Io<'_, Mail>) -> bool {
        let steps = self.with_groups(io, |groups, _| groups.continue_forgetting(FORGET_STEPS)).unwrap_or(0);
        io.charge(steps as u32 * FORGET_STEP_UNITS);
        self.controller.as_ref().is_some_and(|controller| controller.groups.is_forgetting())
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
