//! Where dead letters go: what may be chosen, and what such a queue is made with.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_kafka::Uuid;
use mainstem_log::Durability;
use mainstem_queue::Config;

use crate::catalogue::{Catalogue, Topic, name_fault};
use crate::topic_config::{DURABILITY, queue_of};

/// What the names of queues of dead letters end with, unless a queue says otherwise.
pub(super) const DEAD_LETTERS: &str = ".dead";

/// Why the dead letters of a queue cannot go where it is to be set to; nothing if they can, or if it is no queue.
pub(crate) fn fault(catalogue: &Catalogue, queue: &str, set: &BTreeMap<String, String>) -> Option<String> {
    let config = queue_of(set)?;
    let chosen = config.dead_letter_queue.as_str();
    if chosen == queue {
        return Some("dead-letter-queue: it is the queue itself".into());
    }
    if let Some(fault) = Some(chosen).filter(|chosen| !chosen.is_empty()).and_then(name_fault) {
        return Some(format!("dead-letter-queue: {fault}"));
    }
    // Dead letters of dead letters are another matter: their queue has been made, whatever its name.
    if chosen.is_empty()
        && !queue.ends_with(DEAD_LETTERS)
        && let Some(fault) = destination(queue, &config).as_deref().and_then(name_fault)
    {
        return Some(format!("dead-letter-queue: one is to be named, since {fault}"));
    }
    // What is rejected everywhere would go round for ever.
    let mut passed = BTreeSet::new();
    let mut next = destination(queue, &config);
    while let Some(at) = next.filter(|at| passed.insert(at.clone())) {
        if at == queue {
            let way: Vec<String> = passed.into_iter().filter(|passed| passed != queue).collect();
            let way = way.join(", ");
            return Some(format!("dead-letter-queue: dead letters would come back here, by way of {way}"));
        }
        // What is not there may be made, without further settings.
        let further = catalogue
            .topic(&at)
            .map_or_else(|| destination(&at, &Config::default()), |topic| destination_of(topic));
        next = further.filter(|further| name_fault(further).is_none());
    }
    None
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
