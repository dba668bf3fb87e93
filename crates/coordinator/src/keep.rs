//! What all machines hand out: keyed records to be kept, and the names of those who wait for answers.

/// Who waits for an answer. The owner of a machine chooses the number; it means nothing to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(pub u64);

/// Something to be kept in a log that is compacted by key: of each key the newest record counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// What it speaks of.
    pub key: Vec<u8>,
    /// What is known of that; nothing if it is no more.
    pub value: Option<Vec<u8>>,
}
