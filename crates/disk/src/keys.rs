//! The newest offset of each key in a range of a log, for compaction.
//!
//! Keys are stored as two 64-bit hashes, so that memory does not depend on their length. Offsets of a transaction are
//! held back until its commit marker; an abort marker drops them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use mainstem_log::{BatchHeader, Record};

/// Two hashes of a key, 16 bytes. A collision of both is considered impossible.
type Hashed = (u64, u64);

/// Newest offset of each key. Records of a transaction count once it is committed.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    newest: HashMap<Hashed, u64, BuildHasherDefault<DefaultHasher>>,
    /// Open transactions by producer id.
    open: BTreeMap<i64, Transaction>,
}

/// An open transaction.
#[derive(Debug)]
struct Transaction {
    /// Offset of its first record with a key.
    begin: u64,
    /// Keys and offsets of its records.
    keys: Vec<(Hashed, u64)>,
}

/// Type of a commit marker.
const COMMIT: i16 = 1;

impl Keys {
    /// Number of keys in memory.
    pub(crate) fn len(&self) -> usize {
        self.newest.len() + self.open.values().map(|open| open.keys.len()).sum::<usize>()
    }

    /// Adds a record, which must follow all earlier ones.
    pub(crate) fn note(&mut self, header: &BatchHeader, record: &Record<'_>) {
        if header.is_control() {
            self.end_transaction(header.producer_id, record);
            return;
        }
        let Some(key) = record.key else { return };
        let key = hashed(key);
        if header.is_transactional() {
            let begin = || Transaction { begin: record.offset, keys: Vec::new() };
            self.open.entry(header.producer_id).or_insert_with(begin).keys.push((key, record.offset));
        } else {
            self.newest.insert(key, record.offset);
        }
    }

    fn end_transaction(&mut self, producer_id: i64, marker: &Record<'_>) {
        let Some(ended) = self.open.remove(&producer_id) else { return };
        // The key holds version and type, two bytes each.
        let kind =
            marker.key.and_then(|key| key.get(2..4)).map(|kind| i16::from_be_bytes([kind[0], kind[1]]));
        if kind != Some(COMMIT) {
            return;
        }
        for (key, offset) in ended.keys {
            let newest = self.newest.entry(key).or_insert(offset);
            *newest = offset.max(*newest);
        }
    }

    /// Start of the earliest open transaction.
    pub(crate) fn first_open(&self) -> Option<u64> {
        self.open.values().map(|open| open.begin).min()
    }

    /// Whether a later record has the same key.
    pub(crate) fn has_later(&self, record: &Record<'_>) -> bool {
        record
            .key
            .is_some_and(|key| self.newest.get(&hashed(key)).is_some_and(|newest| *newest > record.offset))
    }
}

fn hashed(key: &[u8]) -> Hashed {
    let with = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        hasher.finish()
    };
    (with(0), with(1))
}
