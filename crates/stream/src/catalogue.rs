//! The topics there are: an immutable picture that every shard has, replaced as a whole when something changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_kafka::Uuid;

use crate::declared::Declared;
use crate::topic_config::TopicConfig;

/// Longest name of a topic.
const NAME_BYTES_MAX: usize = 249;

/// Names a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartitionId {
    pub(crate) topic: Uuid,
    pub(crate) index: i32,
}

/// An identifier as names and keys have it: 32 hexadecimal digits.
pub(crate) fn hex(id: Uuid) -> String {
    format!("{:032x}", u128::from_be_bytes(id.0))
}

/// The identifier that such digits stand for.
pub(crate) fn from_hex(digits: &str) -> Option<Uuid> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let number = u128::from_str_radix(digits, 16).ok()?;
    (digits.len() == 32 && digits.bytes().all(is_digit)).then_some(Uuid(number.to_be_bytes()))
}

/// A topic.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    /// For each partition the store that has it: the number of the shard that it was made on.
    pub(crate) homes: Vec<u16>,
    pub(crate) config: TopicConfig,
}

impl Topic {
    /// The store that has a partition; nothing if there is no such partition.
    pub(crate) fn home(&self, index: i32) -> Option<u16> {
        self.homes.get(usize::try_from(index).ok()?).copied()
    }

    pub(crate) fn partition(&self, index: i32) -> PartitionId {
        PartitionId { topic: self.id, index }
    }

    /// Number of partitions.
    pub(crate) fn partitions(&self) -> i32 {
        i32::try_from(self.homes.len()).expect("there is a bound on partitions")
    }
}

/// All topics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    /// Grows with every change.
    pub(crate) version: u64,
    pub(crate) by_name: BTreeMap<Arc<str>, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>, foldhash::fast::RandomState>,
    pub(crate) partitions: i32,
    /// What other doors have declared.
    pub(crate) declared: Declared,
}

impl Catalogue {
    pub(crate) fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    pub(crate) fn topic_by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// Adds a topic, or puts it in the place of the one with its id.
    pub(crate) fn put(&mut self, topic: Arc<Topic>) {
        self.remove(topic.id);
        self.version += 1;
        self.partitions += topic.partitions();
        self.by_id.insert(topic.id, Arc::clone(&topic));
        self.by_name.insert(Arc::clone(&topic.name), topic);
    }

    /// Puts a declaration in its place, or takes it away.
    pub(crate) fn declare(&mut self, name: Arc<str>, text: Option<Arc<str>>) {
        self.version += 1;
        match text {
            Some(text) => drop(self.declared.insert(name, text)),
            None => drop(self.declared.remove(&name)),
        }
    }

    pub(crate) fn remove(&mut self, id: Uuid) -> Option<Arc<Topic>> {
        let gone = self.by_id.remove(&id)?;
        self.by_name.remove(&gone.name);
        self.version += 1;
        self.partitions -= gone.partitions();
        Some(gone)
    }
}

/// Why a name cannot name a topic, in Kafka's words; nothing if it can (Kafka's `Topic.validate`).
pub(crate) fn name_fault(name: &str) -> Option<String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let fault = if name.is_empty() {
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
    Some(format!("Topic name is invalid: {fault}"))
}
