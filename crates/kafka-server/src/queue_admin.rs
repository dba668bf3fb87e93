//! Creating, configuring and deleting queues, on shard 0: they are topics of one partition.
//!
//! A queue's settings are configuration keys of its topic, so the changes are those of topics, in the same log and the
//! same order, and Kafka's tools see them. A message for a queue that does not exist, or its first consumer, creates it
//! if `queues.auto_create` allows that, and a dead letter always does; the request continues when the topic is there.
//! Creating a queue again with the same settings succeeds: a client that got no reply may repeat it.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_queue_core::{QueueError, Reply, Request};
use mainstem_queue_server::{QueueOperation, QueueRequest, ReplyTo, Requester};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::dead_letters;
use crate::pending::AfterTopicChange;
use crate::queue_settings::{DURABILITY_SETTING, check_settings, topic_settings};
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::topic_change::{NewTopic, TopicChange};
use crate::topic_config::TopicConfig;

fn refusal(refused: &AppendError) -> QueueError {
    let words = || refused.message.clone().unwrap_or_else(|| refused.code.name().to_owned());
    match refused.code {
        ErrorCode::UnknownTopicOrPartition => QueueError::UnknownQueue,
        ErrorCode::TopicAlreadyExists => QueueError::Exists,
        ErrorCode::PolicyViolation => QueueError::TooMany,
        ErrorCode::KafkaStorageError => QueueError::Storage,
        _ => QueueError::Invalid(words()),
    }
}

impl Shard {
    /// Creates, configures or deletes a queue, or creates one that a request needs.
    pub(crate) fn administer_queue(&mut self, io: &mut Io<'_, Mail>, request: QueueRequest) {
        let QueueRequest { queue, operation, to } = request;
        match operation {
            QueueOperation::Request(Request::Create { settings }) => {
                self.create_queue(io, queue, &settings, to);
            }
            QueueOperation::Request(Request::Configure { settings }) => {
                self.configure_queue(io, &queue, &settings, to);
            }
            QueueOperation::Request(Request::Delete) => self.delete_queue(io, &queue, to),
            operation => self.auto_create_queue(io, QueueRequest { queue, operation, to }),
        }
    }

    fn create_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        queue: Arc<str>,
        settings: &[(String, String)],
        to: ReplyTo,
    ) {
        let config = topic_settings(settings);
        if let Err(refusal) = check_settings(&config) {
            return self.reply_to_requester(io, to, Reply::Refused(refusal));
        }
        if let Some(known) = self.env.catalogue().topic(&queue) {
            let (wanted, is) = (TopicConfig::new(config, &self.env.shared().config), &known.config);
            let is_same = is.queue.is_some()
                && wanted.queue == is.queue
                && wanted.partition.options.durability == is.partition.options.durability;
            let refusal =
                if known.config.queue.is_none() { QueueError::NotAQueue } else { QueueError::Exists };
            let reply = if is_same { Reply::Done } else { Reply::Refused(refusal) };
            return self.reply_to_requester(io, to, reply);
        }
        let new = NewTopic { name: queue, partitions: 1, config };
        self.create_topic(io, new, AfterTopicChange::QueueReply(to));
    }

    /// A queue has been created, configured or deleted, or not.
    pub(crate) fn on_queue_administered(
        &mut self,
        io: &mut Io<'_, Mail>,
        to: ReplyTo,
        outcome: Result<(), AppendError>,
    ) {
        self.publish_changes(io);
        let reply = outcome.map_or_else(|refused| Reply::Refused(refusal(&refused)), |()| Reply::Done);
        self.reply_to_requester(io, to, reply);
    }

    fn configure_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        queue: &Arc<str>,
        settings: &[(String, String)],
        to: ReplyTo,
    ) {
        let known = self.env.catalogue().topic(queue);
        let reply = match known.map(|known| known.config.queue.is_some()) {
            None => Reply::Refused(QueueError::UnknownQueue),
            Some(false) => Reply::Refused(QueueError::NotAQueue),
            Some(true) => {
                let change = TopicChange::ConfigureQueue(topic_settings(settings));
                return self.change_topic(io, queue, change, AfterTopicChange::QueueReply(to));
            }
        };
        self.reply_to_requester(io, to, reply);
    }

    fn delete_queue(&mut self, io: &mut Io<'_, Mail>, queue: &str, to: ReplyTo) {
        let known = self.env.catalogue().topic(queue).map(|known| (known.id, known.config.queue.is_some()));
        let reply = match known {
            None => Reply::Refused(QueueError::UnknownQueue),
            Some((_, false)) => Reply::Refused(QueueError::NotAQueue),
            Some((id, true)) => {
                return self.delete_topic(io, id, AfterTopicChange::QueueReply(to));
            }
        };
        self.reply_to_requester(io, to, reply);
    }

    /// Creates a queue for a request to it, where that is allowed.
    fn auto_create_queue(&mut self, io: &mut Io<'_, Mail>, request: QueueRequest) {
        // Dead letters that fail again must not be lost, even if a consumer creates their queue before they arrive.
        let is_for_dead_letters = matches!(request.operation, QueueOperation::Transfer(..))
            || request.queue.ends_with(dead_letters::DEAD_LETTERS);
        let limit = is_for_dead_letters.then(|| ("max-deliveries".to_owned(), "0".to_owned()));
        let may_create = match &request.operation {
            QueueOperation::Transfer(..) => true,
            QueueOperation::Request(Request::Send(_) | Request::Receive { .. }) => {
                self.env.shared().config.queues_auto_create
            }
            QueueOperation::Request(_) => false,
        };
        if !may_create {
            return self.reply_to_requester(io, request.to, Reply::Refused(QueueError::UnknownQueue));
        }
        let from = match request.to.requester {
            Requester::Queue(origin) => Some(origin.topic),
            Requester::Token(_) | Requester::Client(_) | Requester::Job(_) => None,
        };
        let durability = dead_letters::durability(self.env.catalogue(), &request.queue, from);
        let durability = durability.map(|durability| (DURABILITY_SETTING.to_owned(), durability));
        let settings: Vec<_> = limit.into_iter().chain(durability).collect();
        let config = topic_settings(&settings);
        let new = NewTopic { name: Arc::clone(&request.queue), partitions: 1, config };
        let error = self.controller.as_deref().and_then(|controller| match request.operation {
            QueueOperation::Transfer(..) => controller.transfer_destination_error(&new),
            QueueOperation::Request(_) => controller.creation_error(&new),
        });
        match error {
            Some(refused) => self.on_queue_auto_created(io, request, Err(refused)),
            None => self.create_valid_topic(io, new, AfterTopicChange::AutoCreatedQueue(Box::new(request))),
        }
    }

    /// The queue that a request needs has been created, or not.
    pub(crate) fn on_queue_auto_created(
        &mut self,
        io: &mut Io<'_, Mail>,
        request: QueueRequest,
        outcome: Result<(), AppendError>,
    ) {
        self.publish_changes(io);
        match outcome {
            Ok(()) => self.route_queue_request(io, request),
            // Another request is creating it.
            Err(refused) if refused.code == ErrorCode::TopicAlreadyExists => {
                self.queues.await_creation(request);
            }
            Err(refused) => self.reply_to_requester(io, request.to, Reply::Refused(refusal(&refused))),
        }
    }
}
