//! What a store is told when it is opened.

use std::fmt;
use std::sync::Arc;

use mainstem_log::Compression;

/// Turns the compressed records of a batch into plain ones; nothing if it cannot, or if they would take more
/// than it allows.
pub type Decompress = Arc<dyn Fn(Compression, &[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Bounds and means of a store, for all its logs together.
#[derive(Clone)]
pub struct Settings {
    /// Segments that are held open. As many again may be held for what the journal has and they have not.
    pub open_files: usize,
    /// Memory for the newest entries of all logs, bytes. What is not yet written comes on top.
    pub cache_bytes: usize,
    /// The most of it that one log takes, bytes.
    pub tail_bytes: usize,
    /// Size of each of the journal's two files, bytes. 0 for no journal: every log syncs its own segment.
    pub journal_bytes: u64,
    /// Bytes committed after which the next checkpoint is written: about what a recovery has to read.
    pub checkpoint_bytes: u64,
    /// Segments whose index is held in memory, beside those that are appended to. Each takes up to 48 KiB.
    pub indexes: usize,
    /// Time between two looks for what is too old or too much, ms; 0 to look each time. Compaction does not wait
    /// for it. The first comes after a tenth of it.
    pub retention_check_ms: u64,
    /// Whether logs that ask for no more than the page cache ([`Durability::Os`](mainstem_log::Durability::Os)) are appended
    /// to by way of a mapping of their newest segment, without a system call. A disk that fails under a mapping, or somebody who
    /// cuts off a segment from outside, ends the process by SIGBUS, instead of an error. On file systems other than ext4,
    /// XFS and tmpfs it changes nothing.
    pub mapped_writes: bool,
    /// Reads compressed batches for compaction and for looking up times. Without it they are kept as they are.
    pub decompress: Option<Decompress>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            open_files: 1024,
            cache_bytes: 64 << 20,
            tail_bytes: 1 << 20,
            journal_bytes: 32 << 20,
            checkpoint_bytes: 16 << 20,
            indexes: 256,
            retention_check_ms: 0,
            mapped_writes: false,
            decompress: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("open_files", &self.open_files)
            .field("cache_bytes", &self.cache_bytes)
            .field("tail_bytes", &self.tail_bytes)
            .field("journal_bytes", &self.journal_bytes)
            .field("checkpoint_bytes", &self.checkpoint_bytes)
            .field("indexes", &self.indexes)
            .field("retention_check_ms", &self.retention_check_ms)
            .field("mapped_writes", &self.mapped_writes)
            .field("decompress", &self.decompress.is_some())
            .finish()
    }
}

/// Who waits for the disk.
pub enum Committer {
    /// Whoever calls `commit`, which returns when everything is on disk. No thread, no clock.
    Inline,
    /// A thread of its own. `commit` returns at once.
    Thread {
        /// Called by that thread when completions have arrived.
        wake: Arc<dyn Fn() + Send + Sync>,
    },
}
