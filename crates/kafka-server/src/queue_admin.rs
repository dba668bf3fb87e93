//! Creating, configuring and deleting queues, on shard 0: they are topics of one partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_queue_core::{EngineSettings, QueueError, Reply, Request};
use mainstem_queue_server::{QueueOperation, QueueRequest, QueueTopicConfig, ReplyTo, Requester};
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::catalogue::Topic;
use crate::dead_letters;
use crate::partition_message::RECORD_OVERHEAD_BYTES;
use crate::pending::AfterTopicChange;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::topic_change::{NewTopic, TopicChange};
use crate::topic_config::{self, DURABILITY, QUEUE, QUEUE_ENABLED, TopicConfig};

/// The setting of a queue that is not one of [`mainstem_queue_core::Config`].
const DURABILITY_SETTING: &str = "durability";

/// Converts a queue's settings to topic settings.
fn topic_settings(settings: &[(String, String)]) -> BTreeMap<String, String> {
    let pair = |(name, value): &(String, String)| match name.as_str() {
        DURABILITY_SETTING => (DURABILITY.to_owned(), value.clone()),
        name => (format!("{QUEUE}{name}"), value.clone()),
    };
    let enabled = (QUEUE_ENABLED.to_owned(), "true".to_owned());
    settings.iter().map(pair).chain([enabled]).collect()
}

impl QueueTopicConfig for TopicConfig {
    fn engine_settings(&self) -> Option<EngineSettings> {
        let config = self.queue.clone()?;
        let message_bytes_max = self.partition.message_bytes_max.saturating_sub(RECORD_OVERHEAD_BYTES);
        Some(EngineSettings { config, durability: self.partition.options.durability, message_bytes_max })
    }

    fn shown_settings(&self) -> Vec<(String, String)> {
        let own = self.queue.as_ref().map(mainstem_queue_core::Config::pairs).unwrap_or_default();
        let durability = topic_config::durability_name(self.partition.options.durability);
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut settings: Vec<(String, String)> =
            own.chain([(DURABILITY_SETTING.to_owned(), durability.to_owned())]).collect();
        settings.sort_unstable();
        settings
    }

    fn is_queue(&self) -> bool {
        self.queue.is_some()
    }
}

/// Validates the topic settings of a queue.
fn check(set: &BTreeMap<String, String>) -> Result<(), QueueError> {
    if set.get(QUEUE_ENABLED).map(String::as_str) != Some("true") {
        return Err(QueueError::Invalid("enabled: a queue cannot be set to be none".into()));
    }
    topic_config::config_error(set).map_or(Ok(()), |error| Err(QueueError::Invalid(error)))
}

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

/// The settings of a queue's topic after the change, validated.
///
/// # Errors
/// The settings are invalid.
pub(crate) fn changed_settings(
    known: &Topic,
    settings: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut set = known.config.set.clone();
    set.extend(settings);
    check(&set).map_err(|refusal| refusal.to_string())?;
    Ok(set)
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
        if let Err(refusal) = check(&config) {
            return self.reply_to_requester(io, to, Reply::Refused(refusal));
        }
        if let Some(known) = self.catalogue.topic(&queue) {
            let (wanted, is) = (TopicConfig::new(config, &self.shared.config), &known.config);
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
        let known = self.catalogue.topic(queue);
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
        let known = self.catalogue.topic(queue).map(|known| (known.id, known.config.queue.is_some()));
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
                self.shared.config.queues_auto_create
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
        let durability = dead_letters::durability(&self.catalogue, &request.queue, from);
        let durability = durability.map(|durability| (DURABILITY_SETTING.to_owned(), durability));
        let settings: Vec<_> = limit.into_iter().chain(durability).collect();
        let config = topic_settings(&settings);
        let new = NewTopic { name: Arc::clone(&request.queue), partitions: 1, config };
        let error = match request.operation {
            QueueOperation::Transfer(..) => self.transfer_destination_error(&new),
            QueueOperation::Request(_) => {
                self.topic_error(&new).or_else(|| self.dead_letter_topic_error(&new))
            }
        };
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
