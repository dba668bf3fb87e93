//! Rights on work queues that requests for topics need besides Kafka's.
//!
//! A queue is a topic, so Kafka's requests could change its settings and delete its messages: both need the right to
//! manage the queue. Dead letters go wherever their queue says, without a client that could be asked then, as with a
//! binding. So whoever names their destination must be allowed to send there at that time.

use mainstem_kafka::ErrorCode;
use mainstem_queue_core::Config;
use mainstem_security::Action;

use crate::append_error::AppendError;
use crate::catalogue::Catalogue;
use crate::shard_message::RequestContext;
use crate::topic_config::QUEUE;

/// The setting that names the destination of dead letters.
const DEAD_LETTER_QUEUE: &str = "dead-letter-queue";

/// Checks that the sender may set these keys of a topic, with their new values.
///
/// # Errors
/// The topic is or becomes a queue that the sender may not manage, or the sender may not send to the destination of
/// its dead letters.
pub(crate) fn check_queue_settings<'a>(
    catalogue: &Catalogue,
    call: &RequestContext,
    topic: &str,
    settings: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<(), AppendError> {
    if call.is_unrestricted() {
        return Ok(());
    }
    // Keys that are reset are not among the settings, so what is set already counts.
    let known = catalogue.topic(topic);
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
        Some(to) if !to.is_empty() => check_dead_letters(catalogue, call, &to),
        _ => Ok(()),
    }
}

fn check_dead_letters(catalogue: &Catalogue, call: &RequestContext, to: &str) -> Result<(), AppendError> {
    let is_topic = catalogue.topic(to).is_some_and(|topic| topic.config.queue.is_none());
    let checked =
        if is_topic { call.check_topic(Action::Produce, to) } else { call.check_queue(Action::Send, to) };
    let message = || format!("{QUEUE}{DEAD_LETTER_QUEUE}: the right to send to '{to}' is needed.");
    checked.map_err(|code| AppendError::new(code, message()))
}

/// Checks that the sender may delete messages of a topic, which may be a queue.
///
/// # Errors
/// It may not.
pub(crate) fn check_deletion(
    catalogue: &Catalogue,
    call: &RequestContext,
    topic: &str,
) -> Result<(), ErrorCode> {
    call.check_topic(Action::Delete, topic)?;
    let is_queue = catalogue.topic(topic).is_some_and(|topic| topic.config.queue.is_some());
    if is_queue { call.check_queue(Action::Manage, topic) } else { Ok(()) }
}
