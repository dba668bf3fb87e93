//! Types that all machines of this crate share: compacted-log records, and the identifiers of pending requests.

/// Identifies the request that a reply belongs to. The owner of the machine chooses the number; the machine only passes
/// it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(pub u64);

/// A record for a log that is compacted by key: only the newest record of each key counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Key; its encoding starts with the kind of record.
    pub key: Vec<u8>,
    /// Value; `None` is a tombstone, which deletes the key.
    pub value: Option<Vec<u8>>,
}
