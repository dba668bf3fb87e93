//! Where dead letters go: what may be chosen, and what such a queue is made with.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_log::Durability;
use mainstem_queue::Config;

use crate::alike::{collides, may_collide};
use crate::catalogue::{Catalogue, Topic, name_fault};
use crate::controller::{Controller, NewTopic};
use crate::partition::Refused;
use crate::shard::Shard;
use crate::topic_config::{DURABILITY, queue_of};

/// What the names of queues of dead letters end with, unless a queue says otherwise.
pub(super) const DEAD_LETTERS: &str = ".dead";

impl Shard {
    /// Why a topic cannot be made: because of its dead letters, if it is a queue, or those of others.
    pub(crate) fn letters_fault(&self, new: &NewTopic) -> Option<Refused> {
        let controller = self.controller.as_ref()?;
        if let Some(other) = collides_with_letters(controller, &new.name) {
            let message = format!("Topic '{}' collides with {other}", new.name);
            return Some(Refused::new(ErrorCode::InvalidTopicException, message));
        }
        fault(controller, &new.name, &new.config).map(|fault| Refused::new(ErrorCode::InvalidConfig, fault))
    }

    /// Why the dead letters of a queue cannot go where it is to be set to; nothing if they can, or if it is no queue.
    pub(crate) fn dead_letters_fault(&self, queue: &str, set: &BTreeMap<String, String>) -> Option<String> {
        fault(self.controller.as_ref()?, queue, set)
    }

    /// Why a queue cannot be made that messages are on their way to. Those have to go somewhere: what becomes of its own
    /// dead letters is another matter, as long as they do not come back.
    pub(super) fn awaited_queue_fault(&self, new: &NewTopic) -> Option<Refused> {
        let controller = self.controller.as_ref()?;
        let circle = || circle(controller, &new.name, &queue_of(&new.config)?);
        let circle = || circle().map(|fault| Refused::new(ErrorCode::InvalidConfig, fault));
        self.topic_fault(new).or_else(circle)
    }
}

fn fault(controller: &Controller, queue: &str, set: &BTreeMap<String, String>) -> Option<String> {
    let config = queue_of(set)?;
    let chosen = config.dead_letter_queue.as_str();
    if chosen == queue {
        return Some("dead-letter-queue: it is the queue itself".into());
    }
    if let Some(fault) = Some(chosen).filter(|chosen| !chosen.is_empty()).and_then(name_fault) {
        return Some(format!("dead-letter-queue: {fault}"));
    }
    let to = destination(queue, &config)?;
    // Dead letters of dead letters are another matter: their queue has been made, whatever its name.
    if chosen.is_empty()
        && !queue.ends_with(DEAD_LETTERS)
        && let Some(fault) = name_fault(&to)
    {
        return Some(format!("dead-letter-queue: one is to be named, since {fault}"));
    }
    if let Some(other) = collision(controller, queue, &to) {
        return Some(format!(
            "dead-letter-queue: another one is to be named, since '{to}' collides with {other}"
        ));
    }
    circle(controller, queue, &config)
}

/// What keeps the queue from being made that dead letters of `queue` are to go to: something with a name too much like
/// it. Where they go already is no matter.
fn collision(controller: &Controller, queue: &str, to: &str) -> Option<String> {
    let mut own = controller.forms_of(queue).filter_map(|topic| destination_of(topic));
    if own.any(|known| known == to) || controller.forms_of(to).next().is_some() {
        return None;
    }
    if collides(to, queue) {
        return Some("the queue itself".to_owned());
    }
    let topic = controller.colliding(to).map(|other| format!("existing topic: {other}"));
    topic.or_else(|| collides_with_letters(controller, to))
}

/// The queue of dead letters, made or not, that a name collides with.
fn collides_with_letters(controller: &Controller, name: &str) -> Option<String> {
    if !may_collide(name) {
        return None;
    }
    controller.forms().find_map(|topic| {
        let to = destination_of(topic).filter(|to| collides(to, name))?;
        Some(format!("'{to}', where dead letters of queue '{}' go", topic.name))
    })
}

/// Why dead letters of a queue would go round for ever, if they are rejected everywhere; nothing if they would not.
fn circle(controller: &Controller, queue: &str, config: &Config) -> Option<String> {
    let mut passed = BTreeSet::new();
    let mut ways: Vec<Vec<String>> = destination(queue, config).map(|to| vec![to]).into_iter().collect();
    while let Some(mut way) = ways.pop() {
        let Some(at) = way.last().cloned() else { continue };
        if at == queue {
            way.pop();
            let way = way.join(", ");
            return Some(format!("dead-letter-queue: dead letters would come back here, by way of {way}"));
        }
        if passed.insert(at.clone()) {
            ways.extend(destinations_of(controller, &at).map(|next| [way.as_slice(), &[next]].concat()));
        }
    }
    None
}

/// Where dead letters of a queue go, or will go: two while that is being changed.
fn destinations_of(controller: &Controller, queue: &str) -> impl Iterator<Item = String> {
    let mut forms = controller.forms_of(queue).peekable();
    // What is not there may be made, without further settings.
    let unmade = forms.peek().is_none().then(|| destination(queue, &Config::default())).flatten();
    let next = forms.filter_map(|topic| destination_of(topic)).chain(unmade);
    next.filter(|next| name_fault(next).is_none())
}

/// The name of the queue that the dead letters of a queue go to; nothing if they are not kept.
fn destination(queue: &str, config: &Config) -> Option<String> {
    config.dead_letters.then(|| config.dead_letter_queue_of(queue))
}

fn destination_of(topic: &Topic) -> Option<String> {
    destination(&topic.name, topic.config.queue.as_ref()?)
}

/// The durability that a queue is to be made with: that of the queues whose dead letters go there, and of the one that
/// `from` names, whose messages are on their way. The strictest of them counts, so that no letter is less safe than it was.
/// Nothing if that is not set anywhere, and so the broker's.
pub(super) fn durability(catalogue: &Catalogue, queue: &str, from: Option<Uuid>) -> Option<String> {
    let goes_here = |topic: &&Topic| {
        topic.config.queue.is_some()
            && (from == Some(topic.id) || destination_of(topic).is_some_and(|at| at == queue))
    };
    let origins = catalogue.by_name.values().map(|topic| &**topic).filter(goes_here);
    let strictest = origins.max_by_key(|topic| topic.config.options.durability == Durability::Fsync)?;
    strictest.config.set.get(DURABILITY).cloned()
}
