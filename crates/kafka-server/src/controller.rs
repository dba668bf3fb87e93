//! The controller on shard 0: creates, changes and deletes topics, and owns the log of the catalogue.
//!
//! A change takes effect when its record is durable: only then do the shards see the new catalogue. Until that, names
//! and partitions that are being created count against collisions and limits. Changes of one topic run one after the
//! other.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_log::{Completion, Durability, Error, Store};
use mainstem_partition::{CompactedLog, KeyValue, NameCollisions, Partition};
use mainstem_runtime::{Clock, Io};
use serde::{Deserialize, Serialize};

use crate::append_error::AppendError;
use crate::catalogue::{Catalogue, PartitionId, Topic, TopicId, name_error};
use crate::groups::GroupCoordinator;
use crate::shard::Shard;
use crate::shard_message::{Mail, ShardMessage};
use crate::shared::Shared;
use crate::topic_config::{self, TopicConfig};
use crate::transactions::TransactionCoordinator;

/// The log of the catalogue, in the first shard's store.
const LOG: &str = "kafka-catalogue";
/// Key of the record with the cluster id. Keys of topics are `topic/` and the topic identifier.
const CLUSTER: &[u8] = b"cluster";
const TOPIC: &str = "topic/";
/// Prefix of the keys of declarations; the name follows.
const DECLARED: &str = "declared/";

/// Continues when a record is durable or has failed.
pub(crate) type Then = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>, Result<(), Error>) + Send>;

/// Continues when the change of a topic has ended.
type Waiting = Box<dyn FnOnce(&mut Shard, &mut Io<'_, Mail>) + Send>;

/// A topic that is being changed or deleted.
struct Changing {
    /// The new topic; `None` if it is being deleted.
    next: Option<Arc<Topic>>,
    waiting: Vec<Waiting>,
}

/// The state that only shard 0 has.
pub(crate) struct Controller {
    log: CompactedLog<Then>,
    /// The durable catalogue, which `publish_changes` shows to all shards.
    catalogue: Catalogue,
    /// Topics whose creation is not durable yet.
    creating: BTreeMap<Arc<str>, Arc<Topic>>,
    /// Names of existing topics and of those being created.
    names: NameCollisions,
    /// Partitions being created, of new and of growing topics.
    creating_partitions: i32,
    /// The catalogue has changed and is not published yet.
    has_changed: bool,
    /// Deleted topics whose partitions have not been removed.
    deleted: Vec<Arc<Topic>>,
    /// Topics being changed or deleted, and the changes that wait for that.
    changing: BTreeMap<[u8; 16], Changing>,
    pub(crate) groups: GroupCoordinator,
    pub(crate) transactions: TransactionCoordinator,
}

/// A topic in the catalogue's log.
#[derive(Debug, Serialize, Deserialize)]
struct TopicRecord {
    /// Version of the record: 1.
    v: u8,
    name: String,
    /// For each partition, its store.
    homes: Vec<u16>,
    /// The configuration keys that are set.
    config: BTreeMap<String, String>,
}

/// The cluster id in the catalogue's log.
#[derive(Debug, Serialize, Deserialize)]
struct ClusterRecord {
    v: u8,
    id: String,
}

/// A topic to create.
#[derive(Clone, Debug)]
pub(crate) struct NewTopic {
    pub(crate) name: Arc<str>,
    pub(crate) partitions: i32,
    /// Its configuration, validated.
    pub(crate) config: BTreeMap<String, String>,
}

fn topic_key(id: TopicId) -> Vec<u8> {
    format!("{TOPIC}{}", id.to_hex()).into_bytes()
}

fn topic_id(key: &[u8]) -> Option<TopicId> {
    TopicId::from_hex(std::str::from_utf8(key).ok()?.strip_prefix(TOPIC)?)
}

/// The name in the key of a declaration.
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
    /// Restores the catalogue from its log and publishes it.
    ///
    /// # Errors
    /// The store fails, or a record cannot be read.
    pub(crate) fn restore(store: &mut dyn Store, shared: &Shared, clock: Clock) -> Result<Self, Error> {
        let mut catalogue = Catalogue::default();
        let (mut cluster, mut unreadable) = (None, None);
        let log = CompactedLog::open(store, LOG, Durability::Fsync, |key, value| {
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
        // Without its record, the topic would count as deleted and its logs would be removed.
        if let Some(error) = unreadable {
            return Err(Error::System(format!("{LOG}: a topic cannot be read: {error}")));
        }
        if let Some(ClusterRecord { id, .. }) = cluster {
            shared.set_cluster_id(&id);
        }
        shared.publish(Arc::new(catalogue.clone()));
        let mut names = NameCollisions::default();
        for name in catalogue.by_name.keys() {
            names.add(name);
        }
        let groups = GroupCoordinator::restore(store, shared, clock)?;
        let transactions = TransactionCoordinator::restore(store, shared, clock)?;
        Ok(Self {
            log,
            catalogue,
            creating: BTreeMap::new(),
            names,
            creating_partitions: 0,
            changing: BTreeMap::new(),
            has_changed: false,
            deleted: Vec::new(),
            groups,
            transactions,
        })
    }

    /// All topics, before and after the changes in progress: either form may become durable.
    pub(crate) fn forms(&self) -> impl Iterator<Item = &Arc<Topic>> {
        let next = self.changing.values().filter_map(|changing| changing.next.as_ref());
        self.catalogue.by_name.values().chain(self.creating.values()).chain(next)
    }

    /// The forms of one topic.
    pub(crate) fn forms_of(&self, name: &str) -> impl Iterator<Item = &Arc<Topic>> {
        let known = self.catalogue.topic(name);
        let next = known.and_then(|known| self.changing.get(&known.id.0)?.next.as_ref());
        known.into_iter().chain(self.creating.get(name)).chain(next)
    }

    /// The existing topic that a name collides with.
    pub(crate) fn colliding(&self, name: &str) -> Option<&Arc<str>> {
        self.names.colliding(name)
    }
}

impl Shard {
    /// Whether this is shard 0.
    pub(crate) fn is_controller(&self) -> bool {
        self.controller.is_some()
    }

    /// Starts the coordinators in the first turn. A cluster without an identifier gets one.
    pub(crate) fn start_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        self.poll_groups(io);
        if self.is_controller() {
            self.shared.bound.refresh(&mut self.bindings);
            (0..self.bindings.topics.len()).for_each(|bound| self.create_bound_topic(io, bound));
        }
        self.begin_transactions(io);
        if self.is_controller() && self.shared.cluster_id().is_empty() {
            let id = new_uuid(io).to_string();
            self.shared.set_cluster_id(&id);
            let value = serde_json::to_vec(&ClusterRecord { v: 1, id }).expect("plain data");
            self.append_record(io, &[(CLUSTER.to_vec(), Some(value))], Box::new(|_, _, _| {}));
        }
    }

    /// Appends records to the catalogue's log and continues when they are durable.
    fn append_record(&mut self, io: &Io<'_, Mail>, records: &[KeyValue], then: Then) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.log.append(&mut *first.store, io.clock.unix_ms, records, then);
        }
    }

    /// Appends the records of this turn to the logs of the coordinators.
    pub(crate) fn store_compacted_logs(&mut self) {
        if let (Some(controller), Some(first)) = (&mut self.controller, self.stores.first_mut()) {
            controller.log.store_pending(&mut *first.store);
            controller.groups.store_pending(&mut *first.store);
            controller.transactions.store_pending(&mut *first.store);
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_controller_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        completion: &Completion,
    ) -> bool {
        if self.on_groups_completion(io, completion) || self.on_transactions_completion(io, completion) {
            return true;
        }
        let Some(controller) = &mut self.controller else { return false };
        let mut outcomes = Vec::new();
        let is_mine = controller.log.on_completion(completion, &mut outcomes);
        for (then, outcome) in outcomes {
            then(self, io, outcome);
        }
        self.publish_changes(io);
        is_mine
    }

    /// Continues what need not wait for the disk, and what the store refused.
    pub(crate) fn poll_coordinators(&mut self, io: &mut Io<'_, Mail>) {
        let mut outcomes = Vec::new();
        if let Some(controller) = &mut self.controller {
            controller.log.take_failed(&mut outcomes);
        }
        for (then, outcome) in outcomes {
            then(self, io, outcome);
        }
        self.answer_refused_by_groups_log(io);
        self.take_refused_by_transaction_log(io);
    }

    /// Applies expired deadlines of the coordinators.
    pub(crate) fn coordinate_due(&mut self, io: &mut Io<'_, Mail>) {
        self.groups_due(io);
        self.transactions_due(io);
        self.poll_coordinators(io);
    }

    /// Why a topic cannot be created, if so.
    pub(crate) fn topic_error(&self, new: &NewTopic) -> Option<AppendError> {
        let refused = |code, message: String| Some(AppendError::new(code, message));
        if let Some(fault) = name_error(&new.name) {
            return refused(ErrorCode::InvalidTopicException, fault);
        }
        let controller = self.controller.as_ref()?;
        if controller.catalogue.topic(&new.name).is_some() || controller.creating.contains_key(&new.name) {
            return refused(ErrorCode::TopicAlreadyExists, format!("Topic '{}' already exists.", new.name));
        }
        if let Some(other) = controller.names.colliding(&new.name) {
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
        self.partitions_error(new.partitions)
    }

    /// Why `more` partitions cannot be created, if so.
    pub(crate) fn partitions_error(&self, more: i32) -> Option<AppendError> {
        let controller = self.controller.as_ref()?;
        let partitions = controller.catalogue.partitions + controller.creating_partitions;
        let most = self.shared.config.partitions_max;
        let message = format!("There may be {most} partitions in all.");
        (partitions.saturating_add(more) > most)
            .then(|| AppendError::new(ErrorCode::PolicyViolation, message))
    }

    /// Validates and creates a topic; `then` gets it when it is durable.
    pub(crate) fn create_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        new: NewTopic,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<Arc<Topic>, AppendError>) + Send + 'static,
    ) {
        match self.topic_error(&new).or_else(|| self.dead_letter_topic_error(&new)) {
            Some(refused) => then(self, io, Err(refused)),
            None => self.create_valid_topic(io, new, then),
        }
    }

    /// Creates a topic that has been validated.
    pub(crate) fn create_valid_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        new: NewTopic,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<Arc<Topic>, AppendError>) + Send + 'static,
    ) {
        let id = TopicId(new_uuid(io).0);
        let first = io.random() as usize;
        let homes = self.shared.store_ids_from(first, new.partitions);
        let name = Arc::clone(&new.name);
        let config = TopicConfig::new(new.config, &self.shared.config);
        let topic = Arc::new(Topic { name: Arc::clone(&name), id, homes, config });
        let record = topic_record(&topic);
        if let Some(controller) = &mut self.controller {
            controller.creating.insert(Arc::clone(&name), Arc::clone(&topic));
            controller.names.add(&name);
            controller.creating_partitions += topic.partitions();
        }
        let made = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if let Some(controller) = &mut shard.controller {
                controller.creating.remove(&name);
                controller.creating_partitions -= topic.partitions();
                if outcome.is_err() {
                    controller.names.remove(&name);
                }
            }
            match outcome {
                Ok(()) => {
                    shard.change_catalogue(|catalogue| catalogue.put(Arc::clone(&topic)));
                    then(shard, io, Ok(topic));
                }
                Err(error) => then(shard, io, Err(error.into())),
            }
        };
        self.append_record(io, &[record], Box::new(made));
    }

    /// Changes a topic's partitions or configuration: `change` derives the new topic from the current one.
    pub(crate) fn change_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: &str,
        change: impl FnOnce(&Self, &Topic) -> Result<Topic, AppendError> + Send + 'static,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<(), AppendError>) + Send + 'static,
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
            controller.creating_partitions += more;
        }
        let changed = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if let Some(controller) = &mut shard.controller {
                controller.creating_partitions -= more;
            }
            if outcome.is_ok() {
                shard.change_catalogue(|catalogue| catalogue.put(topic));
            }
            then(shard, io, outcome.map_err(AppendError::from));
            shard.has_changed(io, id);
        };
        self.append_record(io, &[record], Box::new(changed));
    }

    /// The changes that wait for the change in progress; `None` if the topic is not being changed.
    fn changes_of(&mut self, id: TopicId) -> Option<&mut Vec<Waiting>> {
        Some(&mut self.controller.as_mut()?.changing.get_mut(&id.0)?.waiting)
    }

    /// Ends the change of a topic and begins those that wait for it.
    fn has_changed(&mut self, io: &mut Io<'_, Mail>, id: TopicId) {
        let changed = self.controller.as_mut().and_then(|controller| controller.changing.remove(&id.0));
        for again in changed.into_iter().flat_map(|changed| changed.waiting) {
            again(self, io);
        }
    }

    /// Deletes a topic and its records.
    pub(crate) fn delete_topic(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: TopicId,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<(), AppendError>) + Send + 'static,
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
                        controller.names.remove(&topic.name);
                        controller.deleted.push(topic);
                    }
                }
            }
            then(shard, io, outcome.map_err(AppendError::from));
            shard.has_changed(io, id);
        };
        self.append_record(io, &[(topic_key(id), None)], Box::new(deleted));
    }

    /// Stores a declaration of another protocol, or removes it if there is no text.
    pub(crate) fn append_declaration(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: Arc<str>,
        text: Option<Arc<str>>,
        then: impl FnOnce(&mut Self, &mut Io<'_, Mail>, Result<(), Error>) + Send + 'static,
    ) {
        let record = (format!("{DECLARED}{name}").into_bytes(), text.as_deref().map(Into::into));
        let stored = move |shard: &mut Self, io: &mut Io<'_, Mail>, outcome: Result<(), Error>| {
            if outcome.is_ok() {
                shard.change_catalogue(|catalogue| catalogue.declare(name, text));
                shard.publish_changes(io);
            }
            then(shard, io, outcome);
        };
        self.append_record(io, &[record], Box::new(stored));
    }

    fn change_catalogue(&mut self, change: impl FnOnce(&mut Catalogue)) {
        if let Some(controller) = &mut self.controller {
            change(&mut controller.catalogue);
            controller.has_changed = true;
        }
    }

    /// Publishes the changes of the catalogue before any client is answered. Publishing copies the catalogue, so many
    /// changes are published together. After it no shard opens a partition of a deleted topic, so those are removed.
    pub(crate) fn publish_changes(&mut self, io: &mut Io<'_, Mail>) {
        let Some(controller) = &mut self.controller else { return };
        if !std::mem::take(&mut controller.has_changed) {
            return;
        }
        self.shared.publish(Arc::new(controller.catalogue.clone()));
        let deleted = std::mem::take(&mut controller.deleted);
        for shard in (0..self.shared.shards).filter(|shard| *shard != self.me) {
            io.send(shard, Mail(ShardMessage::CatalogueChanged));
        }
        self.apply_catalogue_changes();
        self.place(io);
        self.retry_pending_requests(io);
        for topic in deleted {
            self.broadcast_removal(io, &topic);
        }
    }

    fn broadcast_removal(&mut self, io: &mut Io<'_, Mail>, topic: &Topic) {
        let mut by_shard: Vec<Vec<PartitionId>> = vec![Vec::new(); self.shared.shards];
        for index in 0..topic.partitions() {
            if let Some(home) = topic.store_id(index) {
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
                io.send(shard, Mail(ShardMessage::RemovePartitions { partitions }));
            }
        }
    }

    /// Applies the current catalogue to the open partitions.
    pub(crate) fn apply_catalogue_changes(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        let changed = |partition: &Partition| {
            let topic = self.catalogue.topic_by_id(partition.id().topic)?;
            let is_same = Arc::ptr_eq(&topic.config.partition, partition.config());
            (!is_same).then(|| (partition.id(), partition.store_index(), Arc::clone(topic)))
        };
        let changed: Vec<_> = self.partitions.iter().filter_map(changed).collect();
        for (id, store, topic) in changed {
            let store = &mut *self.stores[store].store;
            if let Err(error) = self.partitions.reconfigure(id, &topic.config.partition, store) {
                log::error!("a partition of {} keeps its old configuration: {error}", topic.name);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_log::{BatchBuilder, MemoryStore};

    /// The bytes of `docs/formats/kafka-catalogue.md`.
    #[test]
    fn a_catalogue_that_was_kept_is_read() {
        let mut store = MemoryStore::new();
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
        assert!(topic.config.partition.is_compacted);
        let (key, value) = topic_record(topic);
        assert_eq!(key, records[1].0.as_bytes());
        assert_eq!(value.as_deref(), records[1].1.map(str::as_bytes));
    }
}
