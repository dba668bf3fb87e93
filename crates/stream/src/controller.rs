//! What is coordinated on shard 0: the topics there are, and the one log that tells of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_log::{Completion, Durability, Error, Store};
use mainstem_runtime::{Clock, Io};
use serde::{Deserialize, Serialize};

use crate::alike::Alike;
use crate::catalogue::{Catalogue, PartitionId, Topic, from_hex, hex, name_fault};
use crate::groups::GroupCoordinator;
use crate::kept::{Kept, KeyValue};
use crate::mail::{Letter, Mail};
use crate::partition::Refused;
use crate::shard::Shard;
use crate::shared::Shared;
use crate::topic_config::{self, TopicConfig};
use crate::transactions::TransactionCoordinator;

/// The log of the catalogue, in the first shard's store.
const LOG: &str = "kafka-catalogue";
/// Key of the record with the cluster's identifier; those of topics are `topic/` and an identifier.
const CLUSTER: &[u8] = b"cluster";
const TOPIC: &str = "topic/";
/// What keys of declarations of other doors begin with; their name follows.
const DECLARED: &str = "declared/";

/// What goes on when something is durable, or could not be kept.
pub(crate) type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Result<(), Error>) + Send>;

/// What waits until a topic is not being changed any more.
type Waiting = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>) + Send>;

/// A topic that is being changed or deleted.
struct Changing {
    /// What it is to be; nothing if it is being deleted.
    next: Option<Arc<Topic>>,
    waiting: Vec<Waiting>,
}

/// What shard 0 has.
pub(crate) struct Controller {
    kept: Kept<Then>,
    /// The topics; what all shards see once it is durable.
    catalogue: Catalogue,
    /// Topics that are being made.
    making: BTreeMap<Arc<str>, Arc<Topic>>,
    /// Names of topics that there are, and of those that are being made.
    alike: Alike,
    /// Partitions that are being made, of new topics and of those that grow.
    making_partitions: i32,
    /// The catalogue has changed, and not all shards can see that yet.
    has_changed: bool,
    /// Topics that have been deleted, and whose partitions have not been removed.
    deleted: Vec<Arc<Topic>>,
    /// Topics that are being changed or deleted, and what waits for that.
    changing: BTreeMap<[u8; 16], Changing>,
    pub(crate) groups: GroupCoordinator,
    pub(crate) transactions: TransactionCoordinator,
}

/// A topic in the log.
#[derive(Debug, Serialize, Deserialize)]
struct TopicRecord {
    /// Version of the record; 1.
    v: u8,
    name: String,
    /// For each partition, the store that has it.
    homes: Vec<u16>,
    /// What was set.
    config: BTreeMap<String, String>,
}

/// The cluster in the log.
#[derive(Debug, Serialize, Deserialize)]
struct ClusterRecord {
    v: u8,
    id: String,
}

/// A topic to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewTopic {
    pub(crate) name: Arc<str>,
    pub(crate) partitions: i32,
    /// What it is set to; checked.
    pub(crate) config: BTreeMap<String, String>,
}

fn topic_key(id: Uuid) -> Vec<u8> {
    format!("{TOPIC}{}", hex(id)).into_bytes()
}

fn topic_id(key: &[u8]) -> Option<Uuid> {
    from_hex(std::str::from_utf8(key).ok()?.strip_prefix(TOPIC)?)
}

/// The name of the declaration that a record is of.
fn declared_name(key: &[u8]) -> Option<Arc<str>> {
    std::str::from_utf8(key).ok()?.strip_prefix(DECLARED).map(Into::into)
}

fn topic_record(topic: &Topic) -> KeyValue {
    let record = TopicRecord {
        v: 1,
        name: topic.name.to_string(),
        homes: topic.homes.clone(),
        config: topic.config.set.clone(),
    };
    let value = serde_json::to_vec(&record).expect("plain data");
    (topic_key(topic.id), Some(value))
}

impl Controller {
    /// Reads what there is, and lets all shards see it.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn restore(store: &mut dyn Store, shared: &Shared, clock: Clock) -> Result<Self, Error> {
        let mut catalogue = Catalogue::default();
        let (mut cluster, mut unreadable) = (None, None);
        let kept = Kept::open(store, LOG, Durability::Fsync, |key, value| {
            if let Some(name) = declared_name(key) {
                catalogue.declare(name, value.map(|value| String::from_utf8_lossy(value).into()));
            } else if key == CLUSTER {
                cluster = value.and_then(|value| serde_json::from_slice::<ClusterRecord>(value).ok());
            } else if let Some(id) = topic_id(key) {
                match value.map(serde_json::from_slice::<TopicRecord>) {
                    None => drop(catalogue.remove(id)),
                    Some(Ok(TopicRecord { name, homes, config, .. })) => catalogue.put(Arc::new(Topic {
                        name: name.into(),
                        id,
                        homes,
                        config: TopicConfig::new(config, &shared.config),
                    })),
                    Some(Err(error)) => drop(unreadable.get_or_insert(error)),
                }
            }
        })?;
        // Without it the topic's logs would be taken for those of a deleted one, and removed.
        if let Some(error) = unreadable {
            return Err(Error::System(format!("{LOG}: a topic cannot be read: {error}")));
        }
        if let Some(ClusterRecord { id, .. }) = cluster {
            shared.set_cluster_id(&id);
        }
        shared.publish(Arc::new(catalogue.clone()));
        let mut alike = Alike::default();
        for name in catalogue.by_name.keys() {
            alike.add(name);
        }
        let groups = GroupCoordinator::restore(store, shared, clock)?;
        let transactions = TransactionCoordinator::restore(store, shared, clock)?;
        Ok(Self {
            kept,
            catalogue,
            making: BTreeMap::new(),
            alike,
            making_partitions: 0,
            changing: BTreeMap::new(),
            has_changed: false,
            deleted: Vec::new(),
            groups,
            transactions,
        })
    }

    /// All topics as they are, and as they will be when what is under way is durable: either may hold.
    pub(crate) fn forms(&self) -> impl Iterator<Item = &Arc<Topic>> {
        let next = self.changing.values().filter_map(|changing| changing.next.as_ref());
        self.catalogue.by_name.values().chain(self.making.values()).chain(next)
    }

    /// Those of one topic.
    pub(crate) fn forms_of(&self, name: &str) -> impl Iterator<Item = &Arc<Topic>> {
        let known = self.catalogue.topic(name);
        let next = known.and_then(|known| self.changing.get(&known.id.0)?.next.as_ref());
        known.into_iter().chain(self.making.get(name)).chain(next)
    }

    /// The topic that a name collides with.
    pub(crate) fn colliding(&self, name: &str) -> Option<&Arc<str>> {
        self.alike.colliding(name)
    }
}

impl Shard {
    /// Whether this is the shard that coordinates.
    pub(crate) fn is_controller(&self) -> bool {
        self.controller.is_some()
    }

    /// The first turn: a cluster that has no identifier gets one.
    pub(crate) fn begin_coordinating(&mut self, io: &mut Io<'_, Mail>) {
        self.go_on_with_groups(io);
        if self.is_controller() {
            self.shared.bound.refresh(&mut self.bound);
            (0..self.bound.topics.len()).for_each(|bound| self.make_bound(io, bound));
        }
        self.begin_transactions(io);
        if self.is_controller() && self.shared.cluster_id().is_empty() {
            let id = new_uuid(io).to_string();
            self.shared.set_cluster_id(&id);
            let value = serde_json::to_vec(&ClusterRecord { v: 1, id }).expect("plain data");
            self.keep(io, &[(CLUSTER.to_vec(), Some(value))], Box::new(|_, _, _| {}));
        }
    }

    /// Keeps records of the catalogue; goes on when they are durable.
    fn keep(&mut self, io: &Io<'_, Mail>, records: &[KeyValue], then: Then) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.kept.keep(&mut *first.store, io.clock.unix_ms, records, then);
        }
    }

    /// Hands the store what has been gathered for it in this turn.
    pub(crate) fn store_kept(&mut self) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.kept.store(&mut *first.store);
            controller.groups.store_kept(&mut *first.store);
            controller.transactions.store_kept(&mut *first.store);
        }
    }

    /// Takes note of a completion in the first store. False if it is of a partition.
    pub(crate) fn controller_arrived(&mut self, io: &mut Io<'_, Mail>, completion: &Completion) -> bool {
        if self.groups_arrived(io, completion) || self.transactions_arrived(io, completion) {
            return true;
        }
        let Some(controller) = &mut self.controller else { return false };
        let mut told = Vec::new();
        let is_mine = controller.kept.arrived(completion, &mut told);
        for (then, outcome) in told {
            then(self, io, outcome);
        }
        self.publish_changes(io);
        is_mine
    }

    /// Goes on with what need not wait for the disk, or could not be kept.
    pub(crate) fn go_on_coordinating(&mut self, io: &mut Io<'_, Mail>) {
        let mut told = Vec::new();
        if let Some(controller) = &mut self.controller {
            controller.kept.take_refused(&mut told);
        }
        for (then, outcome) in told {
            then(self, io, outcome);
        }
        self.answer_refused_by_groups_log(io);
        self.take_refused_by_transaction_log(io);
    }

    /// A coordinator has something due.
    pub(crate) fn coordinate_due(&mut self, io: &mut Io<'_, Mail>) {
        self.groups_due(io);
        self.transactions_due(io);
        self.go_on_coordinating(io);
    }

    /// Why a topic cannot be made; nothing if it can.
    pub(crate) fn topic_fault(&self, new: &NewTopic) -> Option<Refused> {
        let refused = |code, message: String| Some(Refused::new(code, message));
        if let Some(fault) = name_fault(&new.name) {
            return refused(ErrorCode::InvalidTopicException, fault);
        }
        let controller = self.controller.as_ref()?;
        if controller.catalogue.topic(&new.name).is_some() || controller.making.contains_key(&new.name) {
            return refused(ErrorCode::TopicAlreadyExists, format!("Topic '{}' already exists.", new.name));
        }
        if let Some(other) = controller.alike.colliding(&new.name) {
            let message = format!("Topic '{}' collides with existing topic: {other}", new.name);
            return refused(ErrorCode::InvalidTopicException, message);
        }
        if new.partitions != 1
            && let Some(refused) = topic_config::queue_fault(&new.config)
        {
            return Some(refused);
        }
        if new.partitions < 1 {
            let message = "Number of partitions was set to an invalid non-positive value.";
            return refused(ErrorCode::InvalidPartitions, message.into());
        }
        self.partitions_fault(new.partitions)
    }

    /// Why there cannot be so many more partitions; nothing if there can.
    pub(crate) fn partitions_fault(&self, more: i32) -> Option<Refused> {
        let controller = self.controller.as_ref()?;
        let partitions = controller.catalogue.partitions + controller.making_partitions;
        let most = self.shared.config.partitions_max;
        let message = format!("There may be {most} partitions in all.");
        (partitions.saturating_add(more) > most).then(|| Refused::new(ErrorCode::PolicyViolation, message))
    }

    /// Makes a topic; it exists when `then` hears of it, if nothing has failed.
    pub(crate) fn make_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        new: NewTopic,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<Arc<Topic>, Refused>) + Send + 'static,
    ) {
        match self.topic_fault(&new).or_else(|| self.letters_fault(&new)) {
            Some(refused) => then(self, io, Err(refused)),
            None => self.make_sound_topic(io, new, then),
        }
    }

    /// Makes a topic that has been checked.
    pub(crate) fn make_sound_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        new: NewTopic,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<Arc<Topic>, Refused>) + Send + 'static,
    ) {
        let id = new_uuid(io);
        let first = io.random() as usize;
        let homes = self.shared.homes_from(first, new.partitions);
        let name = Arc::clone(&new.name);
        let config = TopicConfig::new(new.config, &self.shared.config);
        let topic = Arc::new(Topic { name: Arc::clone(&name), id, homes, config });
        let record = topic_record(&topic);
        if let Some(controller) = &mut self.controller {
            controller.making.insert(Arc::clone(&name), Arc::clone(&topic));
            controller.alike.add(&name);
            controller.making_partitions += topic.partitions();
        }
        let made = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if let Some(controller) = &mut shard.controller {
                controller.making.remove(&name);
                controller.making_partitions -= topic.partitions();
                if outcome.is_err() {
                    controller.alike.remove(&name);
                }
            }
            match outcome {
                Ok(()) => {
                    shard.change_catalogue(|catalogue| catalogue.put(Arc::clone(&topic)));
                    then(shard, io, Ok(topic));
                }
                Err(error) => then(shard, io, Err(crate::partition::refusal(&error))),
            }
        };
        self.keep(io, &[record], Box::new(made));
    }

    /// Changes a topic's partitions or configuration: `change` makes the new one of the old.
    pub(crate) fn change_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: &str,
        change: impl FnOnce(&Self, &Topic) -> Result<Topic, Refused> + Send + 'static,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<(), Refused>) + Send + 'static,
    ) {
        let known = self.controller.as_ref().and_then(|controller| controller.catalogue.topic(name).cloned());
        let Some(known) = known else {
            return then(self, io, Err(ErrorCode::UnknownTopicOrPartition.into()));
        };
        if let Some(waiting) = self.changes_of(known.id) {
            let name = name.to_owned();
            return waiting.push(Box::new(move |shard, io| shard.change_topic(io, &name, change, then)));
        }
        let topic = match change(self, &known) {
            Ok(topic) => Arc::new(topic),
            Err(refused) => return then(self, io, Err(refused)),
        };
        let record = topic_record(&topic);
        let (id, more) = (topic.id, topic.partitions() - known.partitions());
        if let Some(controller) = &mut self.controller {
            let next = Some(Arc::clone(&topic));
            controller.changing.insert(id.0, Changing { next, waiting: Vec::new() });
            controller.making_partitions += more;
        }
        let changed = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if let Some(controller) = &mut shard.controller {
                controller.making_partitions -= more;
            }
            if outcome.is_ok() {
                shard.change_catalogue(|catalogue| catalogue.put(topic));
            }
            then(shard, io, outcome.map_err(|error| crate::partition::refusal(&error)));
            shard.has_changed(io, id);
        };
        self.keep(io, &[record], Box::new(changed));
    }

    /// What waits until a topic is not being changed any more; nothing if it is not.
    fn changes_of(&mut self, id: Uuid) -> Option<&mut Vec<Waiting>> {
        Some(&mut self.controller.as_mut()?.changing.get_mut(&id.0)?.waiting)
    }

    /// A topic is not being changed any more.
    fn has_changed(&mut self, io: &mut Io<'_, Mail>, id: Uuid) {
        let changed = self.controller.as_mut().and_then(|controller| controller.changing.remove(&id.0));
        for again in changed.into_iter().flat_map(|changed| changed.waiting) {
            again(self, io);
        }
    }

    /// Deletes a topic and all in it.
    pub(crate) fn delete_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: Uuid,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<(), Refused>) + Send + 'static,
    ) {
        if let Some(waiting) = self.changes_of(id) {
            return waiting.push(Box::new(move |shard, io| shard.delete_topic(io, id, then)));
        }
        match &mut self.controller {
            Some(known) if known.catalogue.topic_by_id(id).is_some() => {
                known.changing.insert(id.0, Changing { next: None, waiting: Vec::new() });
            }
            _ => return then(self, io, Err(ErrorCode::UnknownTopicOrPartition.into())),
        }
        let deleted = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if outcome.is_ok() {
                let mut gone = None;
                shard.change_catalogue(|catalogue| gone = catalogue.remove(id));
                if let Some(topic) = gone {
                    shard.with_groups(io, |groups, _| groups.forget_topic(&topic.name));
                    if let Some(controller) = &mut shard.controller {
                        controller.alike.remove(&topic.name);
                        controller.deleted.push(topic);
                    }
                }
            }
            then(shard, io, outcome.map_err(|error| crate::partition::refusal(&error)));
            shard.has_changed(io, id);
        };
        self.keep(io, &[(topic_key(id), None)], Box::new(deleted));
    }

    /// Keeps a declaration of another door, or takes it back.
    pub(crate) fn keep_declaration(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: Arc<str>,
        text: Option<Arc<str>>,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<(), Error>) + Send + 'static,
    ) {
        let record = (format!("{DECLARED}{name}").into_bytes(), text.as_deref().map(Into::into));
        let kept = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if outcome.is_ok() {
                shard.change_catalogue(|catalogue| catalogue.declare(name, text));
                shard.publish_changes(io);
            }
            then(shard, io, outcome);
        };
        self.keep(io, &[record], Box::new(kept));
    }

    fn change_catalogue(&mut self, change: impl FnOnce(&mut Catalogue)) {
        if let Some(controller) = &mut self.controller {
            change(&mut controller.catalogue);
            controller.has_changed = true;
        }
    }

    /// Lets all shards see what has changed, before anybody is told: once for many changes, since that copies the
    /// catalogue. Then partitions of deleted topics can go, and nobody opens them again.
    pub(crate) fn publish_changes(&mut self, io: &mut Io<'_, Mail>) {
        let Some(controller) = &mut self.controller else { return };
        if !std::mem::take(&mut controller.has_changed) {
            return;
        }
        self.shared.publish(Arc::new(controller.catalogue.clone()));
        let deleted = std::mem::take(&mut controller.deleted);
        for shard in (0..self.shared.shards).filter(|shard| *shard != self.me) {
            io.send(shard, Mail(Letter::Changed));
        }
        self.look_at_changes();
        self.place(io);
        self.go_on_with_errands(io);
        for topic in deleted {
            self.remove_everywhere(io, &topic);
        }
    }

    fn remove_everywhere(&mut self, io: &mut Io<'_, Mail>, topic: &Topic) {
        let mut by_shard: Vec<Vec<PartitionId>> = vec![Vec::new(); self.shared.shards];
        for index in 0..topic.partitions() {
            if let Some(home) = topic.home(index) {
                by_shard[self.shared.owner(home)].push(topic.partition(index));
            }
        }
        for (shard, partitions) in by_shard.into_iter().enumerate() {
            if partitions.is_empty() {
                continue;
            }
            if shard == self.me {
                self.remove_partitions(io, partitions);
            } else {
                io.send(shard, Mail(Letter::Remove { partitions }));
            }
        }
    }

    /// Brings the partitions that are open up to date with the catalogue.
    pub(crate) fn look_at_changes(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        for partition in self.partitions.values_mut() {
            let Some(topic) = self.catalogue.topic_by_id(partition.id.topic) else { continue };
            if !Arc::ptr_eq(topic, &partition.topic) {
                let store = &mut *self.stores[partition.store].store;
                if let Err(error) = partition.reconfigure(topic, store) {
                    log::error!("a partition of {} keeps its old configuration: {error}", topic.name);
                }
            }
        }
    }
}

/// A new identifier, of version 4 (RFC 9562).
pub(crate) fn new_uuid<M>(io: &mut Io<'_, M>) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&io.random().to_be_bytes());
    bytes[8..].copy_from_slice(&io.random().to_be_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_log::{BatchBuilder, Memory};

    /// The bytes of `docs/formats/kafka-catalogue.md`.
    #[test]
    fn a_catalogue_that_was_kept_is_read() {
        let mut store = Memory::new();
        let log = store.open(LOG, &mainstem_log::Options::default()).unwrap();
        let mut builder = BatchBuilder::default();
        let records: [(&str, Option<&str>); 4] = [
            ("cluster", Some(r#"{"v":1,"id":"I-CEeZ1oTNWVCVR0LMkQ2A"}"#)),
            (
                "topic/0123456789abcdef0123456789abcdef",
                Some(r#"{"v":1,"name":"orders","homes":[1,0,1],"config":{"cleanup.policy":"compact"}}"#),
            ),
            (
                "topic/00000000000000000000000000000001",
                Some(r#"{"v":1,"name":"gone","homes":[0],"config":{}}"#),
            ),
            ("topic/00000000000000000000000000000001", None),
        ];
        for (key, value) in records {
            builder.push(0, Some(key.as_bytes()), value.map(str::as_bytes));
        }
        store.append(log, builder.finish()).unwrap();
        store.commit();
        let shared = Shared::new(crate::config::Config::default(), 2, None);
        let controller = Controller::restore(&mut store, &shared, Clock::default()).unwrap();
        assert_eq!(&*shared.cluster_id(), "I-CEeZ1oTNWVCVR0LMkQ2A");
        let names: Vec<&str> = controller.catalogue.by_name.keys().map(|name| &**name).collect();
        assert_eq!(names, ["orders"]);
        let topic = controller.catalogue.topic("orders").unwrap();
        assert_eq!(topic.homes, [1, 0, 1]);
        assert!(topic.config.is_compacted);
        let (key, value) = topic_record(topic);
        assert_eq!(key, records[1].0.as_bytes());
        assert_eq!(value.as_deref(), records[1].1.map(str::as_bytes));
    }
}
