//! The [`Store`] trait and its types: the storage interface of a shard.
//!
//! All logs of a shard share one committer, so that one `fsync` covers the appends of every log in a turn. The
//! interface is asynchronous for that reason: an append returns a ticket, [`Store::commit`] submits a turn's appends,
//! and [`Store::completions`] reports what became durable. No call except opening, reading and truncating waits for
//! the disk.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::batch::ValidBatch;

/// Handle of an open log. Valid only for the [`Store`] that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId(pub u32);

/// Identifies the commit that carries an append. Tickets of one log increase; appends to one log between two
/// commits may share a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// When an append completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After `fsync`: it survives a power failure.
    #[default]
    Fsync,
    /// Once the operating system has it: it survives a crash of the process, not of the machine.
    Os,
}

/// Cleanup policy (Kafka's `cleanup.policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleanup {
    /// No automatic cleanup; the owner truncates.
    #[default]
    Manual,
    /// Removes segments beyond `retention_ms` or `retention_bytes`.
    Delete,
    /// Retains the newest record of each key. A record without a value (tombstone) removes its key.
    Compact,
    /// Applies both policies.
    CompactAndDelete,
}

/// Options of one log, named after Kafka's topic configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When an append completes.
    pub durability: Durability,
    /// Segment size at which the log rolls to a new segment, bytes.
    pub segment_bytes: u64,
    /// Segment age at which the log rolls, ms; `None` for no limit.
    pub segment_ms: Option<u64>,
    /// Cleanup policy for old entries.
    pub cleanup: Cleanup,
    /// A segment is removed when its newest record is older than this, ms; `None` for no limit.
    pub retention_ms: Option<u64>,
    /// Log size beyond which the oldest segments are removed, bytes; `None` for no limit.
    pub retention_bytes: Option<u64>,
    /// How long compaction retains a tombstone so that readers see it, ms.
    pub delete_retention_ms: u64,
    /// Minimum uncompacted fraction of the log before it is compacted again, 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// Age of records below which compaction leaves them alone, ms (KIP-58).
    pub min_compaction_lag_ms: u64,
    /// Age of records at which they are compacted whatever the ratio, ms; `None` for no limit (KIP-354).
    pub max_compaction_lag_ms: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            segment_bytes: 64 * 1024 * 1024,
            segment_ms: None,
            cleanup: Cleanup::Manual,
            retention_ms: None,
            retention_bytes: None,
            delete_retention_ms: 24 * 60 * 60 * 1000,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: None,
        }
    }
}

/// Outcome of a [`LogAdmin::maintain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Unix time of the next call, ms; `None` if nothing is due before the next commit.
    pub due_ms: Option<u64>,
    /// Work done, as an estimate in units of about 100 ns of a core.
    pub units: u32,
}

/// Result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset assigned to the first record of the batch.
    pub base_offset: u64,
    /// Ticket that the completion of this append carries.
    pub ticket: Ticket,
}

/// Completes every append to `log` with a ticket up to `ticket` that has not completed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The log.
    pub log: LogId,
    /// Last ticket that it covers.
    pub ticket: Ticket,
    /// `Ok` if the appends are as durable as [`Durability`] requires. On an error their records are not part of the
    /// log, which ends at the last committed offset, and later appends fail as well.
    pub outcome: Result<(), Error>,
}

/// Offsets, size and state of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// First offset of the log. Equals `end` if the log is empty.
    pub start: u64,
    /// Lowest offset at which the log may start after a crash: a truncated prefix leaves the disk with a delay.
    pub start_after_crash: u64,
    /// One past the last record that is as durable as the log's options require.
    pub committed: u64,
    /// Offset that the next record receives.
    pub end: u64,
    /// Size on disk, bytes.
    pub bytes: u64,
    /// Whether the log accepts appends.
    pub state: State,
}

/// Whether a log accepts appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The log accepts appends.
    #[default]
    Ready,
    /// The last append failed for lack of space or file descriptors, or a file of the log could not be created. A later
    /// one may succeed.
    Full,
    /// A write or sync failed, so the state on disk is unknown. The log is read-only until it is recovered.
    Broken,
}

/// Result of a lookup by timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampOffset {
    /// Offset of the record.
    pub offset: u64,
    /// Timestamp of the record, Unix time in ms.
    pub timestamp_ms: i64,
}

/// A contiguous byte range of a log inside one file. It stays readable after the log is truncated or removed.
#[derive(Clone, Debug)]
pub struct FileSlice {
    /// The underlying file. Its concrete type, and how to send it, is defined by the store implementation.
    pub source: Arc<dyn Any + Send + Sync>,
    /// Position of the first byte in the source.
    pub position: u64,
    /// Length, bytes.
    pub len: u64,
    /// Log offset one past its last record.
    pub end: u64,
}

/// Store error, classified by how the caller can respond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The batch is malformed. It was rejected and nothing else is affected.
    Malformed(crate::Malformed),
    /// The offset lies outside [`Status::start`] to [`Status::end`].
    OutOfRange,
    /// No space left. The caller may retry.
    Full,
    /// The process or the system has no file descriptors left. The caller may retry.
    TooManyFiles,
    /// A write or sync failed; the log is read-only ([`State::Broken`]).
    Broken,
    /// The entry at this offset cannot be read: a read error or a checksum mismatch.
    Corrupt {
        /// First unreadable offset.
        offset: u64,
    },
    /// Any other operating system error, as text.
    System(String),
}

impl Error {
    /// Whether the same call may succeed later, without a repair.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full | Self::TooManyFiles)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "not a record batch: {malformed}"),
            Self::OutOfRange => f.write_str("offset out of range"),
            Self::Full => f.write_str("no space left"),
            Self::TooManyFiles => {
                f.write_str("too many open files: raise the limit of open files (ulimit -n, LimitNOFILE)")
            }
            Self::Broken => f.write_str("the log is read only since a write failed"),
            Self::Corrupt { offset } => write!(f, "unreadable from offset {offset} on"),
            Self::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// The readable part of a store.
pub trait LogReader {
    /// Appends whole batches to `into`, starting with the one that contains or follows `offsets.start`. Stops at
    /// `offsets.end` or before exceeding `max_bytes`, but returns the first batch whatever its size. Appends nothing
    /// at the end of the log.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `offsets.start` is below [`Status::start`] or above [`Status::end`];
    /// [`Error::Corrupt`].
    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error>;

    /// Like [`LogReader::read`], but returns file ranges for zero-copy sending. Returns `None` if the caller should use
    /// [`LogReader::read`] instead. Does not verify checksums.
    ///
    /// # Errors
    /// As for [`LogReader::read`].
    fn file_slices(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<FileSlice>>, Error> {
        let _ = (log, offsets, max_bytes);
        Ok(None)
    }

    /// Returns the offsets, size and state of the log.
    fn status(&self, log: LogId) -> Status;

    /// Finds the first record, in offset order, whose timestamp is at least `timestamp_ms`.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error>;
}

/// The appendable part of a store.
pub trait LogWriter {
    /// Appends exactly one record batch. The store sets its base offset and sets its leader epoch to 0; all other
    /// fields stay unchanged. The batch is readable immediately and durable when its ticket completes, which requires
    /// a [`Store::commit`].
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Broken`], [`Error::Full`]. Nothing was appended.
    #[inline]
    fn append(&mut self, log: LogId, batch: &[u8]) -> Result<Appended, Error> {
        self.append_valid(log, ValidBatch::parse(batch).map_err(Error::Malformed)?)
    }

    /// Like [`LogWriter::append`], for a batch that is already validated: freshly built, or checked before.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Full`]. Nothing was appended.
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error>;

    /// Forces an `fsync` for the next commit that carries an append to this log, whatever the log's [`Durability`].
    /// Everything appended before is synced as well, and the tickets of that commit complete after the sync. Call this
    /// when the append replaces data that is about to be deleted from disk.
    fn force_sync(&mut self, log: LogId);

    /// Stores a few bytes beside a log until its next append, at much lower cost than an append. The bytes follow the
    /// notes stored since the last append. They survive a crash of the process immediately, but not always a power
    /// failure. Returns whether they were stored: space is small, and not every store supports notes. All appends to
    /// the log must be committed.
    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        let _ = (log, note);
        false
    }
}

/// The part of a store that makes, opens, truncates and removes logs.
pub trait LogAdmin {
    /// Names of all logs, open or not, sorted.
    fn names(&self) -> Vec<String>;

    /// Opens and recovers the log `name`, creating it if it does not exist. Reopening an open log updates its options.
    /// A log may be created later, together with its first append: after a crash before that completes it may not
    /// exist, and if it cannot be created, that append completes with the error.
    /// A name consists of 1 to 249 ASCII letters, digits, `.`, `_` and `-`, and is neither `.` nor `..`.
    ///
    /// # Errors
    /// [`Error::System`] for an invalid name or an operating system error; [`Error::Full`].
    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error>;

    /// Removes a log and its data. Its outstanding tickets may never complete. Its files are deleted with the next
    /// commits; after a crash before that, the log exists again.
    ///
    /// # Errors
    /// [`Error::System`]. Some files may remain; the log is removed regardless.
    fn remove(&mut self, log: LogId) -> Result<(), Error>;

    /// Returns the concatenated notes that the log had when it was opened. Call this before the first append or note.
    /// To retain the notes, append their content: new notes overwrite them.
    ///
    /// # Errors
    /// [`Error::System`].
    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        let _ = log;
        Ok(Vec::new())
    }

    /// Advances the log start to `offset`, capped at the log end. Earlier records are no longer readable and count as
    /// committed; the store deletes whole segments of them. Outstanding tickets still complete. After a crash the log
    /// may start at its previous start; offsets are not reused.
    ///
    /// # Errors
    /// [`Error::System`]; the log starts at `offset` regardless. [`Error::Full`] and [`Error::TooManyFiles`] if the
    /// records before `offset` cannot become durable now; the log starts where it did.
    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error>;

    /// Removes every record from `offset` on, committed or not, and waits until the removal is durable. Tickets of the
    /// removed records still complete.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `offset` is below [`Status::start`] or inside a batch; [`Error::Full`] if there is no
    /// space to record the removal, and nothing was removed; [`Error::Broken`].
    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error>;

    /// Runs one small piece of the maintenance that is due: rolling by age, retention, compaction. Call it again while
    /// [`Maintained::due_ms`] is not later than `unix_ms`, as the work budget allows.
    fn maintain(&mut self, unix_ms: u64) -> Maintained;
}

/// All logs of one shard behind one committer.
///
/// Whoever uses the logs needs only [`LogReader`], [`LogWriter`] or [`LogAdmin`]. The owner of the store, usually
/// [`Stores`](crate::Stores), commits once per turn for all of them and passes on what has completed.
pub trait Store: LogReader + LogWriter + LogAdmin + Send {
    /// Submits everything appended since the last commit. Call it once per turn.
    fn commit(&mut self);

    /// Moves the completions that arrived since the last call to `into`. Never blocks.
    fn completions(&mut self, into: &mut Vec<Completion>);

    /// Lets every file that exists stay until [`Store::release_files`]: removals and replacements of files wait. Call
    /// it before [`Store::capture`]. Without files it does nothing.
    fn hold_files(&mut self) {}

    /// Whether [`Store::hold_files`] has come into effect. Removals that had begun end first.
    fn are_files_held(&mut self) -> bool {
        true
    }

    /// Lets files be removed again. Returns whether all have stayed, so that what was captured and linked in between
    /// is as it was captured. A log that is removed and made again, or loses its end, is a reason why not.
    fn release_files(&mut self) -> bool {
        true
    }

    /// Commits, and notes what all logs contain at this moment, for [`Store::take_image`].
    ///
    /// # Errors
    /// [`Error::Broken`] or [`Error::System`] if a log cannot be captured, or the store has no files.
    fn capture(&mut self) -> Result<(), Error> {
        Err(Error::System("the store has no files to capture".into()))
    }

    /// Returns the image that [`Store::capture`] noted, once everything in it is durable; `None` before that. What was
    /// appended to new logs becomes durable with later commits only.
    ///
    /// # Errors
    /// [`Error::Broken`] if something in it cannot become durable.
    fn take_image(&mut self) -> Result<Option<Box<dyn StoreImage>>, Error> {
        Ok(None)
    }
}

/// What the files of a store contain at one moment. It refers to the files, so it is of use only while they are
/// [held](Store::hold_files).
pub trait StoreImage: Send {
    /// Creates the directory `into`, whose parent exists, with the image: hard links where the file system has them.
    /// Returns the files, which may be longer than the image says: the store still appends to some. Not synced. They
    /// stay as they are when the store removes or replaces its own, but not if [`LogAdmin::truncate_suffix`] shortens
    /// a log.
    ///
    /// # Errors
    /// [`Error::System`] with the file: one is missing or too short, or `into` cannot be written. [`Error::Full`].
    fn link(&self, into: &Path) -> Result<Vec<ImageFile>, Error>;
}

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Path below the directory of the image, with `/` between its parts.
    pub path: String,
    /// Length: what follows in the file does not belong to the image.
    pub bytes: u64,
}
