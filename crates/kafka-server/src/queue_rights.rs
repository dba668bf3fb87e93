//! Rights on work queues that requests for topics need besides Kafka's.
//!
//! A queue is a topic, so Kafka's requests could change its settings and delete its messages: both need the right to
//! manage the queue. Dead letters go wherever their queue says, without a client that could be asked then, as with a
//! binding. So whoever names their destination must be allowed to send there at that time.

use mainstem_kafka::ErrorCode;
use mainstem_queue_core::Config;
use mainstem_security::{Action, ChangedSettings};

use crate::append_error::AppendError;
use crate::shard::Shard;
use crate::shard_message::RequestContext;
use crate::topic_config::QUEUE;

/// The setting that names the destination of dead letters.
const DEAD_LETTER_QUEUE: &str = "dead-letter-queue";

impl Shard {
    /// Checks that the sender may set these keys of a topic, with their new values.
    ///
    /// # Errors
    /// The topic is or becomes a queue that the sender may not manage, or the sender may not send to the destination of
    /// its dead letters.
    pub(crate) fn check_queue_settings<'a>(
        &self,
        call: &RequestContext,
        topic: &str,
        settings: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<(), AppendError> {
        if call.is_unrestricted() {
            return Ok(());
        }
        // Keys that are reset are not among the settings, so what is set already counts.
        let known = self.env.catalogue().topic(topic);
        let mut concerns_queue =
            known.is_some_and(|known| known.config.set.keys().any(|key| key.starts_with(QUEUE)));
        let mut destination = None;
        for (name, value) in settings.filter_map(|(key, value)| Some((key.strip_prefix(QUEUE)?, value))) {
            concerns_queue = true;
            if name == DEAD_LETTER_QUEUE {
                destination = value;
            }
        }
        if concerns_queue {
            call.check_queue(Action::Manage, topic).map_err(|code| {
                AppendError::new(code, format!("The right to manage the work queue '{topic}' is needed."))
            })?;
        }
        let parse = |name| Config::from_pairs([(DEAD_LETTER_QUEUE, name)]).ok();
        match destination.and_then(parse).map(|config| config.dead_letter_queue) {
            Some(to) if !to.is_empty() => self.check_dead_letters(call, &to),
            _ => Ok(()),
        }
    }

    fn check_dead_letters(&self, call: &RequestContext, to: &str) -> Result<(), AppendError> {
        let is_topic = self.env.catalogue().topic(to).is_some_and(|topic| topic.config.queue.is_none());
        let checked =
            if is_topic { call.check_topic(Action::Produce, to) } else { call.check_queue(Action::Send, to) };
        let message = || format!("{QUEUE}{DEAD_LETTER_QUEUE}: the right to send to '{to}' is needed.");
        checked.map_err(|code| AppendError::new(code, message()))
    }

    /// Checks that the sender may delete messages of a topic, which may be a queue.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check_deletion(&self, call: &RequestContext, topic: &str) -> Result<(), ErrorCode> {
        call.check_topic(Action::Delete, topic)?;
        let is_queue = self.env.catalogue().topic(topic).is_some_and(|topic| topic.config.queue.is_some());
        if is_queue { call.check_queue(Action::Manage, topic) } else { Ok(()) }
    }

    /// A topic's settings and number of partitions for the audit log; `None` if there is no such topic.
    pub(crate) fn audited_topic(&self, name: &str) -> Option<ChangedSettings> {
        let topic = self.env.catalogue().topic(name)?;
        let mut settings = topic.config.set.clone();
        settings.insert("partitions".into(), topic.partitions().to_string());
        Some(settings)
    }

    /// Notes a change of a topic in the audit log; nothing if it is as before.
    pub(crate) fn note_topic_change(
        &self,
        call: &RequestContext,
        change: &'static str,
        name: &str,
        before: Option<ChangedSettings>,
    ) {
        let after = self.audited_topic(name);
        if before != after {
            call.note_change(change, name, before, after);
        }
    }
}
