//! Dead-letter queues: which settings are valid, and the settings of a new one.
//!
//! A dead-letter queue is created when the first dead letter arrives. So the checks run when a queue is created or
//! configured: the dead-letter queue must have a valid name that collides with no topic, and dead letters must not
//! travel in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_kafka::ErrorCode;
use mainstem_log::Durability;
use mainstem_partition::{collides, may_collide};
use mainstem_queue_core::Config;

use crate::append_error::AppendError;
use crate::catalogue::{Catalogue, Topic, TopicId, new_name_error};
use crate::controller::Controller;
use crate::topic_change::NewTopic;
use crate::topic_config::{DURABILITY, queue_of};

/// Suffix of the default name of a dead-letter queue.
pub(crate) const DEAD_LETTERS: &str = ".dead";

impl Controller {
    /// Why a topic cannot be created, because of its dead-letter queue or that of another queue.
    pub(crate) fn dead_letter_topic_error(&self, new: &NewTopic) -> Option<AppendError> {
        if let Some(other) = dead_letter_collision(self, &new.name) {
            let message = format!("Topic '{}' collides with {other}", new.name);
            return Some(AppendError::new(ErrorCode::InvalidTopicException, message));
        }
        config_error(self, &new.name, &new.config)
            .map(|error| AppendError::new(ErrorCode::InvalidConfig, error))
    }

    /// Why a queue cannot have these settings, because of its dead-letter queue; `None` if it can, or is no queue.
    pub(crate) fn dead_letter_config_error(
        &self,
        queue: &str,
        set: &BTreeMap<String, String>,
    ) -> Option<String> {
        config_error(self, queue, set)
    }

    /// Why the destination of pending transfers cannot be created. The rules for its own dead letters do not apply,
    /// except that they must not form a cycle.
    pub(crate) fn transfer_destination_error(&self, new: &NewTopic) -> Option<AppendError> {
        let cycle = || cycle(self, &new.name, &queue_of(&new.config)?);
        let cycle = || cycle().map(|error| AppendError::new(ErrorCode::InvalidConfig, error));
        self.topic_error(new).or_else(cycle)
    }
}

fn config_error(controller: &Controller, queue: &str, set: &BTreeMap<String, String>) -> Option<String> {
    let config = queue_of(set)?;
    let chosen = config.dead_letter_queue.as_str();
    if chosen == queue {
        return Some("dead-letter-queue: it is the queue itself".into());
    }
    if let Some(error) = Some(chosen).filter(|chosen| !chosen.is_empty()).and_then(new_name_error) {
        return Some(format!("dead-letter-queue: {error}"));
    }
    let to = destination(queue, &config)?;
    if controller.config().audit_topic.as_deref() == Some(to.as_str()) {
        return Some(format!("dead-letter-queue: '{to}' is the audit topic (security.audit_topic)"));
    }
    // A dead-letter queue may exist although its own dead-letter queue has no valid name.
    if chosen.is_empty()
        && !queue.ends_with(DEAD_LETTERS)
        && let Some(error) = new_name_error(&to)
    {
        return Some(format!("dead-letter-queue: one is to be named, since {error}"));
    }
    if let Some(other) = collision(controller, queue, &to) {
        return Some(format!(
            "dead-letter-queue: another one is to be named, since '{to}' collides with {other}"
        ));
    }
    cycle(controller, queue, &config)
}

/// Why the dead-letter queue `to` of `queue` cannot be created: a name that collides with it. A destination that is in
/// use already is valid.
fn collision(controller: &Controller, queue: &str, to: &str) -> Option<String> {
    let mut own = controller.forms_of(queue).filter_map(|topic| destination_of(topic));
    if own.any(|known| known == to) || controller.forms_of(to).next().is_some() {
        return None;
    }
    if collides(to, queue) {
        return Some("the queue itself".to_owned());
    }
    let topic = controller.name_collision(to).map(|other| format!("existing topic: {other}"));
    topic.or_else(|| dead_letter_collision(controller, to))
}

/// The dead-letter queue, created or not, that a name collides with.
fn dead_letter_collision(controller: &Controller, name: &str) -> Option<String> {
    if !may_collide(name) {
        return None;
    }
    controller.forms().find_map(|topic| {
        let to = destination_of(topic).filter(|to| collides(to, name))?;
        Some(format!("'{to}', where dead letters of queue '{}' go", topic.name))
    })
}

/// Why dead letters of a queue that are rejected everywhere would come back to it; `None` if they would not.
fn cycle(controller: &Controller, queue: &str, config: &Config) -> Option<String> {
    let mut passed = BTreeSet::new();
    let mut paths: Vec<Vec<String>> = destination(queue, config).map(|to| vec![to]).into_iter().collect();
    while let Some(mut path) = paths.pop() {
        let Some(at) = path.last().cloned() else { continue };
        if at == queue {
            path.pop();
            let path = path.join(", ");
            return Some(format!("dead-letter-queue: dead letters would come back here, by way of {path}"));
        }
        if passed.insert(at.clone()) {
            paths.extend(destinations_of(controller, &at).map(|next| [path.as_slice(), &[next]].concat()));
        }
    }
    None
}

/// The dead-letter queues of a queue: two while a change of its settings is not durable.
fn destinations_of(controller: &Controller, queue: &str) -> impl Iterator<Item = String> {
    let mut forms = controller.forms_of(queue).peekable();
    // A queue that does not exist may be created with default settings.
    let uncreated = forms.peek().is_none().then(|| destination(queue, &Config::default())).flatten();
    let next = forms.filter_map(|topic| destination_of(topic)).chain(uncreated);
    next.filter(|next| new_name_error(next).is_none())
}

/// The name of the dead-letter queue of a queue; `None` if dead letters are dropped.
fn destination(queue: &str, config: &Config) -> Option<String> {
    config.dead_letters.then(|| config.dead_letter_queue_of(queue))
}

pub(crate) fn destination_of(topic: &Topic) -> Option<String> {
    destination(&topic.name, topic.config.queue.as_ref()?)
}

/// The durability for a new dead-letter queue: the strictest of its source queues and of the queue `from`, which has
/// pending transfers to it. `None` if none of them sets it: the broker's default applies.
pub(crate) fn durability(catalogue: &Catalogue, queue: &str, from: Option<TopicId>) -> Option<String> {
    let goes_here = |topic: &&Topic| {
        topic.config.queue.is_some()
            && (from == Some(topic.id) || destination_of(topic).is_some_and(|at| at == queue))
    };
    let origins = catalogue.by_name.values().map(|topic| &**topic).filter(goes_here);
    let strictest =
        origins.max_by_key(|topic| topic.config.partition.options.durability == Durability::Fsync)?;
    strictest.config.set.get(DURABILITY).cloned()
}
