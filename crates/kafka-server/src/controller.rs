//! The controller on shard 0: creates, changes and deletes topics, and owns the log of the catalogue. Which changes are
//! valid is in `topic_validation.rs`.
//!
//! A change takes effect when its record is durable: only then do the shards see the new catalogue. Until that, names
//! and partitions that are being created count against collisions and limits. Changes of one topic run one after the
//! other.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_coordinator::group::Response;
use mainstem_kafka::ErrorCode;
use mainstem_log::{Completion, Durability, Error, Store};
use mainstem_partition::{CompactedLog, KeyValue, NameCollisions, Outcome};
use mainstem_queue_server::ReplyTo;
use mainstem_runtime::Clock;
use serde::{Deserialize, Serialize};

use crate::append_error::AppendError;
use crate::catalogue::{Catalogue, Topic, TopicId};
use crate::config::Config;
use crate::groups::GroupCoordinator;
use crate::pending::{AfterGroupReply, AfterTopicChange};
use crate::shared::Shared;
use crate::topic_change::TopicChange;
use crate::topic_config::TopicConfig;
use crate::transactions::TransactionCoordinator;

/// The log of the catalogue, in the first shard's store.
const LOG: &str = "kafka-catalogue";
/// Key of the record with the cluster id. Keys of topics are `topic/` and the topic identifier.
const CLUSTER: &[u8] = b"cluster";
const TOPIC: &str = "topic/";
/// Prefix of the keys of declarations; the name follows.
const DECLARED: &str = "declared/";

/// What a record in the catalogue's log does when it is durable, and what continues then.
#[derive(Debug)]
pub(crate) enum CatalogueWrite {
    ClusterId,
    Create {
        topic: Arc<Topic>,
        then: AfterTopicChange,
    },
    /// `more` is the number of partitions that the change adds.
    Change {
        topic: Arc<Topic>,
        more: i32,
        then: AfterTopicChange,
    },
    Delete {
        id: TopicId,
        then: AfterTopicChange,
    },
    /// A declaration of another protocol; without text it is removed.
    Declare {
        name: Arc<str>,
        text: Option<Arc<str>>,
        to: ReplyTo,
    },
}

/// An operation on a topic that waits until the topic's change in progress has ended.
#[derive(Debug)]
pub(crate) enum WaitingOperation {
    Change { name: String, change: TopicChange, then: AfterTopicChange },
    Delete { id: TopicId, then: AfterTopicChange },
}

/// A change that was refused: what continues, and why.
#[derive(Debug)]
pub(crate) struct RefusedChange {
    pub(crate) then: AfterTopicChange,
    pub(crate) error: AppendError,
}

/// What has waited for the logs of the controller and the coordinators, and continues now.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) writes: Vec<Outcome<CatalogueWrite>>,
    pub(crate) group_answers: Vec<(AfterGroupReply, Response)>,
    pub(crate) has_transaction_effects: bool,
}

/// A new catalogue for all shards.
pub(crate) struct Published {
    pub(crate) catalogue: Arc<Catalogue>,
    /// The topics that were changed.
    pub(crate) changed: Arc<[TopicId]>,
    pub(crate) deleted: Vec<Arc<Topic>>,
}

/// A topic that is being changed or deleted.
struct Changing {
    /// The new topic; `None` if it is being deleted.
    next: Option<Arc<Topic>>,
    waiting: Vec<WaitingOperation>,
}

/// The state that only shard 0 has.
pub(crate) struct Controller {
    shared: Arc<Shared>,
    log: CompactedLog<CatalogueWrite>,
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
    /// Topics that were changed and are not published yet.
    changed: Vec<TopicId>,
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
    #[serde(rename = "homes")]
    store_ids: Vec<u16>,
    /// The configuration keys that are set.
    config: BTreeMap<String, String>,
}

/// The cluster id in the catalogue's log.
#[derive(Debug, Serialize, Deserialize)]
struct ClusterRecord {
    v: u8,
    id: String,
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
        store_ids: topic.store_ids.clone(),
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
    pub(crate) fn restore(store: &mut dyn Store, shared: &Arc<Shared>, clock: Clock) -> Result<Self, Error> {
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
                    Some(Ok(TopicRecord { name, store_ids, config, .. })) => catalogue.put(Arc::new(Topic {
                        name: name.into(),
                        id,
                        store_ids,
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
        let mut groups = GroupCoordinator::restore(store, shared, clock)?;
        groups.forget_unknown_topics(&catalogue);
        groups.resolve_topics(&catalogue);
        let transactions = TransactionCoordinator::restore(store, shared, clock)?;
        Ok(Self {
            shared: Arc::clone(shared),
            log,
            catalogue,
            creating: BTreeMap::new(),
            names,
            creating_partitions: 0,
            changing: BTreeMap::new(),
            has_changed: false,
            deleted: Vec::new(),
            changed: Vec::new(),
            groups,
            transactions,
        })
    }

    /// The settings of the server.
    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Stores for `count` partitions, assigned round-robin from `first`.
    pub(crate) fn store_ids_from(&self, first: usize, count: i32) -> Vec<u16> {
        self.shared.store_ids_from(first, count)
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
    pub(crate) fn name_collision(&self, name: &str) -> Option<&Arc<str>> {
        self.names.collision(name)
    }

    /// A topic of the durable catalogue.
    pub(crate) fn topic_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.catalogue.topic_by_id(id)
    }

    /// Whether a topic has this name already, or is being created with it.
    pub(crate) fn is_name_taken(&self, name: &str) -> bool {
        self.catalogue.topic(name).is_some() || self.creating.contains_key(name)
    }

    /// The number of partitions, with those being created.
    pub(crate) fn partitions(&self) -> i32 {
        self.catalogue.partitions + self.creating_partitions
    }

    /// Ends the change of a topic and returns the operations that wait for it.
    pub(crate) fn end_change(&mut self, id: TopicId) -> Vec<WaitingOperation> {
        self.changing.remove(&id.0).map(|changed| changed.waiting).unwrap_or_default()
    }
}

/// Writes to the catalogue's log, and their effects when they are durable.
impl Controller {
    /// Stores the cluster id.
    pub(crate) fn store_cluster_id(&mut self, store: &mut dyn Store, unix_ms: u64, id: String) {
        let value = serde_json::to_vec(&ClusterRecord { v: 1, id }).expect("plain data");
        let record = (CLUSTER.to_vec(), Some(value));
        self.log.append(store, unix_ms, &[record], CatalogueWrite::ClusterId);
    }

    /// Starts the creation of a valid topic.
    pub(crate) fn start_creation(
        &mut self,
        store: &mut dyn Store,
        unix_ms: u64,
        topic: Arc<Topic>,
        then: AfterTopicChange,
    ) {
        self.creating.insert(Arc::clone(&topic.name), Arc::clone(&topic));
        self.names.add(&topic.name);
        self.creating_partitions += topic.partitions();
        let record = topic_record(&topic);
        self.log.append(store, unix_ms, &[record], CatalogueWrite::Create { topic, then });
    }

    /// Changes a topic's partitions or configuration, after its change in progress.
    ///
    /// # Errors
    /// The topic does not exist, or the change is invalid.
    pub(crate) fn change(
        &mut self,
        store: &mut dyn Store,
        unix_ms: u64,
        name: &str,
        change: TopicChange,
        then: AfterTopicChange,
    ) -> Result<(), RefusedChange> {
        let Some(known) = self.catalogue.topic(name).cloned() else {
            return Err(RefusedChange { then, error: ErrorCode::UnknownTopicOrPartition.into() });
        };
        if let Some(changing) = self.changing.get_mut(&known.id.0) {
            changing.waiting.push(WaitingOperation::Change { name: name.to_owned(), change, then });
            return Ok(());
        }
        let topic = match self.changed_topic(&known, change) {
            Ok(topic) => Arc::new(topic),
            Err(error) => return Err(RefusedChange { then, error }),
        };
        let more = topic.partitions() - known.partitions();
        let changing = Changing { next: Some(Arc::clone(&topic)), waiting: Vec::new() };
        self.changing.insert(topic.id.0, changing);
        self.creating_partitions += more;
        let record = topic_record(&topic);
        self.log.append(store, unix_ms, &[record], CatalogueWrite::Change { topic, more, then });
        Ok(())
    }

    /// Deletes a topic, after its change in progress.
    ///
    /// # Errors
    /// The topic does not exist, or it is a work queue and its administrator does not delete it.
    pub(crate) fn delete(
        &mut self,
        store: &mut dyn Store,
        unix_ms: u64,
        id: TopicId,
        then: AfterTopicChange,
    ) -> Result<(), RefusedChange> {
        let is_by_administrator = matches!(then, AfterTopicChange::QueueReply(_));
        if let Some(error) = self.queue_deletion_error(id).filter(|_| !is_by_administrator) {
            return Err(RefusedChange { then, error });
        }
        if let Some(changing) = self.changing.get_mut(&id.0) {
            changing.waiting.push(WaitingOperation::Delete { id, then });
            return Ok(());
        }
        if self.catalogue.topic_by_id(id).is_none() {
            return Err(RefusedChange { then, error: ErrorCode::UnknownTopicOrPartition.into() });
        }
        self.changing.insert(id.0, Changing { next: None, waiting: Vec::new() });
        self.log.append(store, unix_ms, &[(topic_key(id), None)], CatalogueWrite::Delete { id, then });
        Ok(())
    }

    /// Stores a declaration of another protocol, or removes it if there is no text.
    pub(crate) fn store_declaration(
        &mut self,
        store: &mut dyn Store,
        unix_ms: u64,
        (name, text): (Arc<str>, Option<Arc<str>>),
        to: ReplyTo,
    ) {
        let record = (format!("{DECLARED}{name}").into_bytes(), text.as_deref().map(Into::into));
        self.log.append(store, unix_ms, &[record], CatalogueWrite::Declare { name, text, to });
    }

    /// Appends the records of this turn to the logs of the catalogue and the coordinators.
    pub(crate) fn store_pending(&mut self, store: &mut dyn Store) {
        self.log.store_pending(store);
        self.groups.store_pending(store);
        self.transactions.store_pending(store);
    }

    /// Takes a completion in the first store: what has ended with it; `None` if it is of another log.
    pub(crate) fn on_completion(&mut self, completion: &Completion, clock: Clock) -> Option<Ended> {
        let mut ended = Ended::default();
        let (is_of_groups, answers) = self.groups.on_completion(completion);
        if is_of_groups {
            ended.group_answers = answers;
            return Some(ended);
        }
        let (is_of_transactions, has_effects) = self.transactions.on_completion(completion, clock);
        if is_of_transactions {
            ended.has_transaction_effects = has_effects;
            return Some(ended);
        }
        self.log.on_completion(completion, &mut ended.writes).then_some(ended)
    }

    /// Applies expired deadlines of the coordinators.
    pub(crate) fn on_timer(&mut self, clock: Clock) {
        self.groups.on_timer(clock);
        self.transactions.on_timer(clock);
    }

    /// Whether a log of the controller or of a coordinator has appends that failed, or need not wait.
    #[inline]
    pub(crate) fn has_outcomes(&self) -> bool {
        self.log.has_outcomes() || self.groups.has_outcomes() || self.transactions.has_outcomes()
    }

    /// Takes what the stores have refused, and what need not wait for them.
    pub(crate) fn take_failed(&mut self, clock: Clock) -> Ended {
        let mut ended = Ended::default();
        self.log.take_failed(&mut ended.writes);
        ended.group_answers = self.groups.take_failed();
        ended.has_transaction_effects = self.transactions.take_failed(clock);
        ended
    }

    /// Applies a write that is durable or has failed.
    pub(crate) fn apply(&mut self, write: &CatalogueWrite, is_durable: bool) {
        match write {
            CatalogueWrite::Create { topic, .. } => {
                self.creating.remove(&topic.name);
                self.creating_partitions -= topic.partitions();
                if !is_durable {
                    self.names.remove(&topic.name);
                }
            }
            CatalogueWrite::Change { more, .. } => self.creating_partitions -= more,
            CatalogueWrite::ClusterId | CatalogueWrite::Delete { .. } | CatalogueWrite::Declare { .. } => {}
        }
        if is_durable {
            self.apply_durable(write);
        }
    }

    fn apply_durable(&mut self, write: &CatalogueWrite) {
        match write {
            CatalogueWrite::ClusterId => return,
            CatalogueWrite::Create { topic, .. } => self.catalogue.put(Arc::clone(topic)),
            CatalogueWrite::Change { topic, .. } => {
                self.catalogue.put(Arc::clone(topic));
                self.changed.push(topic.id);
            }
            CatalogueWrite::Delete { id, .. } => {
                if let Some(topic) = self.catalogue.remove(*id) {
                    self.names.remove(&topic.name);
                    self.deleted.push(topic);
                }
            }
            CatalogueWrite::Declare { name, text, .. } => {
                self.catalogue.declare(Arc::clone(name), text.clone());
            }
        }
        self.has_changed = true;
    }

    /// Takes the new catalogue, and what has changed since the last call; `None` if nothing has.
    pub(crate) fn take_changes(&mut self) -> Option<Published> {
        std::mem::take(&mut self.has_changed).then(|| Published {
            catalogue: Arc::new(self.catalogue.clone()),
            changed: std::mem::take(&mut self.changed).into(),
            deleted: std::mem::take(&mut self.deleted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_log::{BatchBuilder, LogAdmin, LogWriter, MemoryStore};

    fn job(part: usize) -> AfterTopicChange {
        AfterTopicChange::Job { job: 1, part }
    }

    /// A controller with a topic of each of these names; `queue` is a work queue.
    fn with_topics(names: &[&str]) -> (Controller, MemoryStore) {
        let mut store = MemoryStore::new();
        let shared = Shared::new(Config::default(), 1, None);
        let mut controller = Controller::restore(&mut store, &shared, Clock::default()).unwrap();
        for (at, name) in names.iter().enumerate() {
            let set =
                if *name == "queue" { vec![("queue.enabled".to_owned(), "true".to_owned())] } else { vec![] };
            let config = TopicConfig::new(set.into_iter().collect(), controller.config());
            let id = TopicId([at as u8 + 1; 16]);
            let topic = Arc::new(Topic { name: (*name).into(), id, store_ids: vec![0], config });
            controller.start_creation(&mut store, 1, topic, job(0));
            assert_eq!(end_writes(&mut controller, &mut store), 1);
        }
        (controller, store)
    }

    /// Makes the writes durable, and applies them. Returns how many there were.
    fn end_writes(controller: &mut Controller, store: &mut MemoryStore) -> usize {
        let mut completions = Vec::new();
        controller.store_pending(store);
        store.commit();
        store.completions(&mut completions);
        let ended = completions.iter().filter_map(|done| controller.on_completion(done, Clock::default()));
        let ended: Vec<_> = ended.flat_map(|ended| ended.writes).collect();
        for (write, outcome) in &ended {
            controller.apply(write, outcome.is_ok());
        }
        ended.len()
    }

    fn add_partitions(count: i32) -> TopicChange {
        TopicChange::AddPartitions(mainstem_kafka::api::create_partitions::CreatePartitionsTopic {
            name: "orders".into(),
            count,
            ..Default::default()
        })
    }

    #[test]
    fn changes_of_a_topic_run_one_after_the_other() {
        let (mut controller, mut store) = with_topics(&["orders", "other"]);
        let id = controller.catalogue.topic("orders").unwrap().id;
        controller.change(&mut store, 1, "orders", add_partitions(3), job(0)).unwrap();
        assert_eq!(controller.partitions(), 4, "partitions being added count");
        controller.change(&mut store, 1, "orders", add_partitions(4), job(1)).unwrap();
        controller.delete(&mut store, 1, id, job(2)).unwrap();
        assert_eq!(end_writes(&mut controller, &mut store), 1, "the others wait");
        assert_eq!(controller.catalogue.topic("orders").unwrap().partitions(), 3);
        let waiting = controller.end_change(id);
        assert!(
            matches!(&waiting[..], [WaitingOperation::Change { .. }, WaitingOperation::Delete { .. }]),
            "{waiting:?}"
        );
        controller.delete(&mut store, 1, id, job(2)).unwrap();
        assert_eq!(end_writes(&mut controller, &mut store), 1);
        controller.end_change(id);
        let refused = controller.change(&mut store, 1, "orders", add_partitions(4), job(3)).unwrap_err();
        assert_eq!(refused.error.code, ErrorCode::UnknownTopicOrPartition);
        assert!(matches!(refused.then, AfterTopicChange::Job { part: 3, .. }));
    }

    #[test]
    fn only_its_administrator_deletes_a_queue() {
        let (mut controller, mut store) = with_topics(&["queue"]);
        let id = controller.catalogue.topic("queue").unwrap().id;
        let refused = controller.delete(&mut store, 1, id, job(0)).unwrap_err();
        assert_eq!(refused.error.code, ErrorCode::PolicyViolation);
        let to = ReplyTo { shard: 0, requester: mainstem_queue_server::Requester::Token(1) };
        controller.delete(&mut store, 1, id, AfterTopicChange::QueueReply(to)).unwrap();
        assert_eq!(end_writes(&mut controller, &mut store), 1);
        assert!(controller.topic_by_id(id).is_none());
    }

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
        assert_eq!(topic.store_ids, [1, 0, 1]);
        assert!(topic.config.partition.is_compacted);
        let (key, value) = topic_record(topic);
        assert_eq!(key, records[1].0.as_bytes());
        assert_eq!(value.as_deref(), records[1].1.map(str::as_bytes));
    }
}
