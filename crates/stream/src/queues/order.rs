//! Making, setting and deleting queues, on shard 0: they are topics of one partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_queue::{Refusal, Reply, Request};
use mainstem_runtime::Io;

use super::dead;
use super::errand::{Errand, ReplyTo, Wanted, Whom};
use crate::catalogue::Topic;
use crate::controller::NewTopic;
use crate::mail::Mail;
use crate::partition::Refused;
use crate::shard::Shard;
use crate::topic_config::{self, DURABILITY, QUEUE, QUEUE_ENABLED, TopicConfig};

/// The setting of a queue that is not the machine's.
const DURABILITY_SETTING: &str = "durability";

/// A queue's settings as its topic has them.
fn topic_settings(settings: &[(String, String)]) -> BTreeMap<String, String> {
    let pair = |(name, value): &(String, String)| match name.as_str() {
        DURABILITY_SETTING => (DURABILITY.to_owned(), value.clone()),
        name => (format!("{QUEUE}{name}"), value.clone()),
    };
    let enabled = (QUEUE_ENABLED.to_owned(), "true".to_owned());
    settings.iter().map(pair).chain([enabled]).collect()
}

/// What a queue is set to, as doors show it.
pub(super) fn settings_of(topic: &Topic) -> Vec<(String, String)> {
    let own = topic.config.queue.as_ref().map(mainstem_queue::Config::pairs).unwrap_or_default();
    let durability = topic_config::durability_name(topic.config.options.durability);
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut settings: Vec<(String, String)> =
        own.chain([(DURABILITY_SETTING.to_owned(), durability.to_owned())]).collect();
    settings.sort_unstable();
    settings
}

/// Why settings cannot be a queue's.
fn check(set: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if set.get(QUEUE_ENABLED).map(String::as_str) != Some("true") {
        return Err(Refusal::Invalid("enabled: a queue cannot be set to be none".into()));
    }
    topic_config::fault(set).map_or(Ok(()), |fault| Err(Refusal::Invalid(fault)))
}

fn refusal(refused: &Refused) -> Refusal {
    let words = || refused.message.clone().unwrap_or_else(|| refused.code.name().to_owned());
    match refused.code {
        ErrorCode::UnknownTopicOrPartition => Refusal::UnknownQueue,
        ErrorCode::TopicAlreadyExists => Refusal::Exists,
        ErrorCode::PolicyViolation => Refusal::TooMany,
        ErrorCode::KafkaStorageError => Refusal::Storage,
        _ => Refusal::Invalid(words()),
    }
}

impl Shard {
    /// Makes, sets or deletes a queue, or makes one that something is wanted of.
    pub(super) fn order_queue(&mut self, io: &mut Io<'_, Mail>, errand: Errand) {
        let Errand { queue, wanted, to } = errand;
        match wanted {
            Wanted::Request(Request::Create { settings }) => self.create_queue(io, queue, &settings, to),
            Wanted::Request(Request::Configure { settings }) => {
                self.configure_queue(io, &queue, settings, to);
            }
            Wanted::Request(Request::Delete) => self.delete_queue(io, &queue, to),
            wanted => self.make_queue_for(io, Errand { queue, wanted, to }),
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
            return self.answer_queue(io, to, Reply::Refused(refusal));
        }
        if let Some(known) = self.catalogue.topic(&queue) {
            let (wanted, is) = (TopicConfig::new(config, &self.shared.config), &known.config);
            let is_same = is.queue.is_some()
                && wanted.queue == is.queue
                && wanted.options.durability == is.options.durability;
            let refusal = if known.config.queue.is_none() { Refusal::NotAQueue } else { Refusal::Exists };
            let reply = if is_same { Reply::Done } else { Reply::Refused(refusal) };
            return self.answer_queue(io, to, reply);
        }
        let new = NewTopic { name: queue, partitions: 1, config };
        self.make_topic(io, new, move |shard, io, made| {
            shard.publish_changes(io);
            let reply = made.map_or_else(|refused| Reply::Refused(refusal(&refused)), |_| Reply::Done);
            shard.answer_queue(io, to, reply);
        });
    }

    fn configure_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        queue: &Arc<str>,
        settings: Vec<(String, String)>,
        to: ReplyTo,
    ) {
        let known = self.catalogue.topic(queue);
        let reply = match known.map(|known| known.config.queue.is_some()) {
            None => Reply::Refused(Refusal::UnknownQueue),
            Some(false) => Reply::Refused(Refusal::NotAQueue),
            Some(true) => {
                let name = Arc::clone(queue);
                let change = move |shard: &Self, known: &Topic| {
                    let mut set = known.config.set.clone();
                    set.extend(topic_settings(&settings));
                    let refused = |fault: String| Refused::new(ErrorCode::InvalidConfig, fault);
                    check(&set).map_err(|refusal| refused(refusal.to_string()))?;
                    shard.dead_letters_fault(&name, &set).map_or(Ok(()), |fault| Err(refused(fault)))?;
                    Ok(Topic { config: TopicConfig::new(set, &shard.shared.config), ..known.clone() })
                };
                return self.change_topic(io, queue, change, move |shard, io, changed| {
                    shard.publish_changes(io);
                    let reply =
                        changed.map_or_else(|refused| Reply::Refused(refusal(&refused)), |()| Reply::Done);
                    shard.answer_queue(io, to, reply);
                });
            }
        };
        self.answer_queue(io, to, reply);
    }

    fn delete_queue(&mut self, io: &mut Io<'_, Mail>, queue: &str, to: ReplyTo) {
        let known = self.catalogue.topic(queue).map(|known| (known.id, known.config.queue.is_some()));
        let reply = match known {
            None => Reply::Refused(Refusal::UnknownQueue),
            Some((_, false)) => Reply::Refused(Refusal::NotAQueue),
            Some((id, true)) => {
                return self.delete_topic(io, id, move |shard, io, deleted| {
                    shard.publish_changes(io);
                    let reply =
                        deleted.map_or_else(|refused| Reply::Refused(refusal(&refused)), |()| Reply::Done);
                    shard.answer_queue(io, to, reply);
                });
            }
        };
        self.answer_queue(io, to, reply);
    }

    /// Something is wanted of a queue that is not there. Where it may be, it is made.
    fn make_queue_for(&mut self, io: &mut Io<'_, Mail>, errand: Errand) {
        // Nobody is to lose dead letters because they fail again, even if their consumer was there before them.
        let is_for_dead_letters =
            matches!(errand.wanted, Wanted::Move(..)) || errand.queue.ends_with(dead::DEAD_LETTERS);
        let limit = is_for_dead_letters.then(|| ("max-deliveries".to_owned(), "0".to_owned()));
        let may_be_made = match &errand.wanted {
            Wanted::Move(..) => true,
            Wanted::Request(Request::Send(_) | Request::Receive { .. }) => {
                self.shared.config.queues_auto_create
            }
            Wanted::Request(_) => false,
        };
        if !may_be_made {
            return self.answer_queue(io, errand.to, Reply::Refused(Refusal::UnknownQueue));
        }
        let from = match errand.to.whom {
            Whom::Queue(origin) => Some(origin.topic),
            Whom::Door(_) | Whom::Visitor(_) | Whom::Sink(_) => None,
        };
        let durability = dead::durability(&self.catalogue, &errand.queue, from);
        let durability = durability.map(|durability| (DURABILITY_SETTING.to_owned(), durability));
        let settings: Vec<_> = limit.into_iter().chain(durability).collect();
        let config = topic_settings(&settings);
        let new = NewTopic { name: Arc::clone(&errand.queue), partitions: 1, config };
        let fault = match errand.wanted {
            Wanted::Move(..) => self.awaited_queue_fault(&new),
            Wanted::Request(_) => self.topic_fault(&new).or_else(|| self.letters_fault(&new)),
        };
        let made = move |shard: &mut Self, io: &mut Io<'_, Mail>, made: Result<_, Refused>| {
            shard.publish_changes(io);
            match made {
                Ok(_) => shard.run_errand(io, errand),
                // It is being made for somebody else.
                Err(refused) if refused.code == ErrorCode::TopicAlreadyExists => shard.wait_for_queue(errand),
                Err(refused) => shard.answer_queue(io, errand.to, Reply::Refused(refusal(&refused))),
            }
        };
        match fault {
            Some(refused) => made(self, io, Err(refused)),
            None => self.make_sound_topic(io, new, made),
        }
    }

    fn wait_for_queue(&mut self, errand: Errand) {
        self.queues.unmade.push(errand);
    }

    /// Topics have changed: what waited for a queue may go on.
    pub(crate) fn go_on_with_errands(&mut self, io: &mut Io<'_, Mail>) {
        for errand in std::mem::take(&mut self.queues.unmade) {
            self.run_errand(io, errand);
        }
    }
}
