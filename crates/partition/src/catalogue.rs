//! The topic catalogue.
//!
//! Every request looks up topics, on every shard, and topics rarely change. A catalogue is therefore immutable once
//! published: each shard holds a snapshot, replaces it when the version has changed, and takes no lock for a lookup.
//! Only shard 0 changes topics. It writes each change to the catalogue's log, and publishes a new catalogue when the
//! change is durable. Catalogues share what has not changed between them, so that a new one costs little.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::chunked_map::ChunkedMap;
use crate::ids::{PartitionId, TopicId};

/// Longest topic name, bytes.
const NAME_BYTES_MAX: usize = 249;

/// A topic.
#[derive(Clone, Debug)]
pub struct Topic<C> {
    /// Name.
    pub name: Arc<str>,
    /// Identifier.
    pub id: TopicId,
    /// For each partition, the store of its log: the number of the shard that it was created on.
    pub store_ids: Vec<u16>,
    /// Configuration.
    pub config: C,
}

impl<C> Topic<C> {
    /// The store of a partition; `None` if the partition does not exist.
    pub fn store_id(&self, index: i32) -> Option<u16> {
        self.store_ids.get(usize::try_from(index).ok()?).copied()
    }

    /// The identifier of one of its partitions.
    pub fn partition(&self, index: i32) -> PartitionId {
        PartitionId { topic: self.id, index }
    }

    /// Number of partitions.
    pub fn partitions(&self) -> i32 {
        i32::try_from(self.store_ids.len()).expect("partitions are bounded")
    }
}

/// The topics of one bucket, by identifier.
type ById<C> = Arc<HashMap<TopicId, Arc<Topic<C>>, foldhash::fast::RandomState>>;

/// Buckets of the topics by identifier: a change copies one of them.
const BUCKETS: usize = 256;

/// All topics.
#[derive(Debug)]
pub struct Catalogue<C> {
    /// Grows with every change.
    pub version: u64,
    /// The topics by name.
    pub by_name: ChunkedMap<Arc<str>, Arc<Topic<C>>>,
    by_id: Vec<ById<C>>,
    /// Number of partitions of all topics.
    pub partitions: i32,
    /// Declarations by name: texts that the catalogue stores for others and does not interpret.
    pub declared: Arc<BTreeMap<Arc<str>, Arc<str>>>,
}

impl<C> Default for Catalogue<C> {
    fn default() -> Self {
        Self {
            version: 0,
            by_name: ChunkedMap::default(),
            by_id: (0..BUCKETS).map(|_| ById::default()).collect(),
            partitions: 0,
            declared: Arc::default(),
        }
    }
}

impl<C> Clone for Catalogue<C> {
    fn clone(&self) -> Self {
        Self {
            version: self.version,
            by_name: self.by_name.clone(),
            by_id: self.by_id.clone(),
            partitions: self.partitions,
            declared: Arc::clone(&self.declared),
        }
    }
}

/// The bucket of a topic. The last byte of an identifier is random.
fn bucket(id: TopicId) -> usize {
    usize::from(id.0[15])
}

impl<C> Catalogue<C> {
    /// The topic with this name.
    pub fn topic(&self, name: &str) -> Option<&Arc<Topic<C>>> {
        self.by_name.get(name)
    }

    /// The topic with this identifier.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<Topic<C>>> {
        self.by_id[bucket(id)].get(&id)
    }

    /// Adds a topic, or replaces the topic with its identifier.
    pub fn put(&mut self, topic: Arc<Topic<C>>) {
        self.remove(topic.id);
        self.version += 1;
        self.partitions += topic.partitions();
        Arc::make_mut(&mut self.by_id[bucket(topic.id)]).insert(topic.id, Arc::clone(&topic));
        self.by_name.insert(Arc::clone(&topic.name), topic);
    }

    /// Stores a declaration, or removes it if there is no text.
    pub fn declare(&mut self, name: Arc<str>, text: Option<Arc<str>>) {
        self.version += 1;
        match text {
            Some(text) => drop(Arc::make_mut(&mut self.declared).insert(name, text)),
            None => drop(Arc::make_mut(&mut self.declared).remove(&name)),
        }
    }

    /// Removes a topic.
    pub fn remove(&mut self, id: TopicId) -> Option<Arc<Topic<C>>> {
        self.topic_by_id(id)?;
        let removed = Arc::make_mut(&mut self.by_id[bucket(id)]).remove(&id)?;
        self.by_name.remove(&removed.name);
        self.version += 1;
        self.partitions -= removed.partitions();
        Some(removed)
    }
}

/// Why a name is not a valid topic name, in Kafka's words (Kafka's `Topic.validate`).
pub fn name_error(name: &str) -> Option<String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let rule = if name.is_empty() {
        "the empty string is not allowed".to_owned()
    } else if name == "." || name == ".." {
        format!("'{name}' is not allowed")
    } else if name.len() > NAME_BYTES_MAX {
        format!("the length of '{name}' is longer than the max allowed length {NAME_BYTES_MAX}")
    } else if name.bytes().all(is_legal) {
        return None;
    } else {
        format!("'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")
    };
    Some(format!("Topic name is invalid: {rule}"))
}

/// Names of Kafka's internal topics. This broker stores their content in logs of its own.
pub const RESERVED_NAMES: [&str; 4] =
    ["__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"];

/// Why no topic can be created with this name.
pub fn new_name_error(name: &str) -> Option<String> {
    let reserved = || format!("Topic name is invalid: '{name}' is reserved for an internal topic of Kafka");
    name_error(name).or_else(|| RESERVED_NAMES.contains(&name).then(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, id: u8, partitions: usize) -> Arc<Topic<()>> {
        Arc::new(Topic {
            name: name.into(),
            id: TopicId([id; 16]),
            store_ids: vec![0; partitions],
            config: (),
        })
    }

    #[test]
    fn put_and_remove_keep_names_identifiers_and_counts_consistent() {
        let mut catalogue = Catalogue::default();
        catalogue.put(topic("a", 1, 2));
        catalogue.put(topic("b", 2, 3));
        catalogue.put(topic("a", 1, 4));
        assert_eq!((catalogue.partitions, catalogue.by_name.len()), (7, 2));
        let before = catalogue.version;
        assert!(catalogue.remove(TopicId([1; 16])).is_some());
        assert!(catalogue.remove(TopicId([1; 16])).is_none());
        assert!(catalogue.topic("a").is_none() && catalogue.topic_by_id(TopicId([1; 16])).is_none());
        assert!(catalogue.version > before);
        assert_eq!(catalogue.partitions, 3);
    }

    #[test]
    fn invalid_names_get_kafkas_error_messages() {
        for name in ["a", "a.b_c-D9", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(name_error(name), None, "{name}");
        }
        for name in ["", ".", "..", "a b", "a/b", "\u{e9}", &"x".repeat(NAME_BYTES_MAX + 1)] {
            let error = name_error(name).expect(name);
            assert!(error.starts_with("Topic name is invalid: "), "{error}");
        }
        for name in RESERVED_NAMES {
            assert!(name_error(name).is_none() && new_name_error(name).is_some(), "{name}");
        }
        assert_eq!(new_name_error("__consumer_offsets_"), None);
    }
}
