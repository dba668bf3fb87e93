//! Settings of a store: memory bounds, journal and checkpoint sizes, and the committer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainstem_log::Compression;

/// Decompresses the records of a batch. Returns `None` if the codec is not supported, the data is malformed, or the
/// output exceeds the function's limit.
pub type Decompress = Arc<dyn Fn(Compression, &[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Learns how long commits take.
pub type OnCommitted = Arc<dyn Fn(Duration) + Send + Sync>;

/// Settings of a store; all bounds apply to all its logs together.
#[derive(Clone)]
pub struct Settings {
    /// Maximum number of open segments. The journal may hold as many again open, for segments that it must sync.
    pub open_files: usize,
    /// Memory for the newest entries of all logs, bytes, excluding unwritten appends.
    pub cache_bytes: usize,
    /// Share of `cache_bytes` that one log may use, bytes.
    pub tail_bytes: usize,
    /// Size of each of the two journal files, bytes. 0 disables the journal: every log syncs its own segment.
    pub journal_bytes: u64,
    /// Bytes committed between two checkpoints, which is roughly the amount that recovery reads.
    pub checkpoint_bytes: u64,
    /// Number of closed segments whose index stays in memory. Each index takes up to 48 KiB.
    pub indexes: usize,
    /// How long records stay that exceed the retention time of their log when they are appended, ms, unless that time
    /// is shorter. So a producer of old records does not close a segment per append.
    pub retention_check_ms: u64,
    /// Whether logs with [`Durability::Os`](mainstem_log::Durability::Os) append through a memory mapping of their
    /// newest segment instead of a system call. If the disk fails, or another process truncates a segment, the process
    /// ends with SIGBUS instead of an error. No effect on file systems other than ext4, XFS and tmpfs.
    pub mapped_writes: bool,
    /// Called by the committer thread, for each group of appends to existing files, with the time that it took to make
    /// them durable.
    pub on_committed: Option<OnCommitted>,
    /// Decompressor for compaction and timestamp lookup. Without it, compaction copies compressed batches unchanged.
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
            on_committed: None,
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
            .field("on_committed", &self.on_committed.is_some())
            .field("decompress", &self.decompress.is_some())
            .finish()
    }
}

/// Which thread waits for the disk.
pub enum Committer {
    /// The caller of `commit`, which returns when everything is on disk. Uses neither a thread nor a clock.
    Inline,
    /// A dedicated thread. `commit` returns immediately.
    Thread {
        /// Called by the committer thread when completions are available.
        wake: Arc<dyn Fn() + Send + Sync>,
    },
}
