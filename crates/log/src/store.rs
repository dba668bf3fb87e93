//! The seam: what a store of logs does for its shard.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::Sound;

/// Names an open log of a [`Store`]. Means nothing to another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId(pub u32);

/// What an append returns: the part of a commit that will carry it. Tickets of one log grow; appends of one
/// log between two commits may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// When an append counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on disk: it survives loss of power.
    #[default]
    Fsync,
    /// When the operating system has it: it survives the process.
    Os,
}

/// What becomes of old entries (Kafka's `cleanup.policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleanup {
    /// Nothing by itself: the owner truncates.
    #[default]
    Manual,
    /// Segments beyond `retention_ms` or `retention_bytes` are removed.
    Delete,
    /// Of each key the newest record stays; a record without value removes its key.
    Compact,
    /// Both.
    CompactAndDelete,
}

/// How one log is kept. The names are those of Kafka's topic configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When an append counts as done.
    pub durability: Durability,
    /// Size from which on a segment is closed and another begun, bytes.
    pub segment_bytes: u64,
    /// Age from which on it is, ms; nothing for never.
    pub segment_ms: Option<u64>,
    /// What becomes of old entries.
    pub cleanup: Cleanup,
    /// Age of its newest record from which on a segment is removed, ms; nothing for never.
    pub retention_ms: Option<u64>,
    /// Size of the log beyond which its oldest segments are removed, bytes; nothing for no limit.
    pub retention_bytes: Option<u64>,
    /// How long compaction keeps a record without value, so that readers see it, ms.
    pub delete_retention_ms: u64,
    /// Part of a log that must be uncompacted before it is compacted again, 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
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
        }
    }
}

/// Where a batch has been put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: u64,
    /// What its completion will name.
    pub ticket: Ticket,
}

/// Every append to `log` with a ticket up to this one, and not completed before, has come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The log.
    pub log: LogId,
    /// The last ticket it speaks of.
    pub ticket: Ticket,
    /// Done as [`Durability`] asks for; or else the records are no part of the log, which ends where it was
    /// committed last, and whatever was appended behind them fails as well.
    pub outcome: Result<(), Error>,
}

/// How far a log reaches, and whether it takes appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Offset of the first record there is, or would be.
    pub start: u64,
    /// Where the log may start after a crash, at the earliest: what is cut off in front goes from the disk later.
    pub start_after_crash: u64,
    /// Offset behind the last record that is as durable as the log asks for.
    pub committed: u64,
    /// Offset that the next record will get.
    pub end: u64,
    /// Size on disk, bytes.
    pub bytes: u64,
    /// Whether it takes appends.
    pub state: State,
}

/// Whether a log takes appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It does.
    #[default]
    Ready,
    /// The last one failed for want of space; the next may succeed.
    Full,
    /// A write or sync has failed: what is on disk is unsure. It is read only until it has been recovered.
    Broken,
}

/// A record found by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its offset.
    pub offset: u64,
    /// Its timestamp, ms since 1970.
    pub timestamp_ms: i64,
}

/// A part of a log that lies in one piece, wherever that is. It stays readable whatever becomes of the log.
#[derive(Clone, Debug)]
pub struct Piece {
    /// What it lies in. Whoever made the store knows what that is, and how to send it.
    pub source: Arc<dyn Any + Send + Sync>,
    /// Byte offset of its beginning there.
    pub position: u64,
    /// Length, bytes.
    pub len: u64,
    /// Offset behind its last batch.
    pub end: u64,
}

/// Why a store did not do what it was asked for, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The batch is not one: it is refused and nothing else is affected.
    Malformed(crate::Malformed),
    /// No such offset: outside [`Status::start`] to [`Status::end`].
    OutOfRange,
    /// No space. It may be tried again.
    Full,
    /// A write or sync failed; the log is read only ([`State::Broken`]).
    Broken,
    /// What stands at this offset cannot be read: a read error, or bytes that fail their checksum.
    Corrupt {
        /// Offset from which on the log is unreadable.
        offset: u64,
    },
    /// The system refused something else, in its own words.
    System(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "not a record batch: {malformed}"),
            Self::OutOfRange => f.write_str("offset out of range"),
            Self::Full => f.write_str("no space left"),
            Self::Broken => f.write_str("the log is read only since a write failed"),
            Self::Corrupt { offset } => write!(f, "unreadable from offset {offset} on"),
            Self::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// All logs of one shard, behind one committer. Owned by the shard's thread.
pub trait Store: Send {
    /// The logs there are, open or not, in order.
    fn names(&self) -> Vec<String>;

    /// Opens the log `name`, recovers it, and makes it if it is not there. A log that is open gets the new
    /// options. Names are ASCII letters, digits, `.`, `_` and `-`, 1 to 249 of them, but not `.` and `..`.
    ///
    /// # Errors
    /// [`Error::System`] if the name is not one or the system refuses; [`Error::Full`].
    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error>;

    /// Removes a log and everything in it. Of its tickets nothing need be heard any more. What it had on disk goes
    /// with the next commits: after a crash before that, the log is there again.
    ///
    /// # Errors
    /// [`Error::System`]. Some of its files may be left; the log is gone in any case.
    fn remove(&mut self, log: LogId) -> Result<(), Error>;

    /// Appends one record batch and no more. Its base offset is set, and its leader epoch to 0; all else is kept
    /// as it is. It can be read at once, and is durable when its ticket completes, which takes a
    /// [`Store::commit`].
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Broken`], [`Error::Full`]. Nothing was appended.
    #[inline]
    fn append(&mut self, log: LogId, batch: &[u8]) -> Result<Appended, Error> {
        self.append_sound(log, Sound::parse(batch).map_err(Error::Malformed)?)
    }

    /// The same for a batch that need not be checked: one that was just made, or was checked before.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Full`]. Nothing was appended.
    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error>;

    /// Has the next commit that carries something of a log synced, with all that came before it, whatever the log's [`Durability`]: for what stands for
    /// something that goes from the disk. Tickets of that commit complete when it is.
    fn sync_next(&mut self, log: LogId);

    /// Keeps a few bytes beside a log until the next append to it, behind those that were kept since the last one, for much
    /// less than an append costs: they survive the end of the process at once, but not always loss of power. Whether
    /// it did; there is little room, and not every store does. Nothing may have been appended that is not committed.
    fn note(&mut self, log: LogId, note: &[u8]) -> bool {
        let _ = (log, note);
        false
    }

    /// What was kept beside a log when it was opened, put together. To be asked before anything is appended or kept, and
    /// to be appended then, if it is to stay: what is kept anew takes its place.
    ///
    /// # Errors
    /// [`Error::System`].
    fn notes(&mut self, log: LogId) -> Result<Vec<u8>, Error> {
        let _ = log;
        Ok(Vec::new())
    }

    /// Sets everything appended since the last commit on its way. To be called once per turn.
    fn commit(&mut self);

    /// Takes the completions that have arrived since this was last called. Never blocks.
    fn completions(&mut self, into: &mut Vec<Completion>);

    /// Appends whole batches to `into`, from the one that holds or follows offset `offsets.start`, as long as
    /// they begin below `offsets.end` and no more than `max_bytes` come together; the first comes whatever its
    /// size. Appends nothing at the end of the log.
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

    /// The bytes that [`Store::read`] would append for the same arguments, for sending them without a copy; nothing
    /// if they are better read. Checksums are not compared.
    ///
    /// # Errors
    /// Those of [`Store::read`].
    fn pieces(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        max_bytes: usize,
    ) -> Result<Option<Vec<Piece>>, Error> {
        let _ = (log, offsets, max_bytes);
        Ok(None)
    }

    /// How far the log reaches.
    fn status(&self, log: LogId) -> Status;

    /// The first record at or behind `timestamp_ms`, in the order of offsets.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error>;

    /// Lets the log start at `offset`, or at its end if that is less. What lies before is removed as far as
    /// whole segments go, and is not read any more; it counts as committed. Tickets complete all the same. After
    /// a crash the log may start where it did before; offsets are not given again.
    ///
    /// # Errors
    /// [`Error::System`]; the log starts there all the same.
    fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error>;

    /// Removes every record from `offset` on, committed or not, and waits until that is durable. Tickets of what
    /// is removed complete all the same.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if it is below [`Status::start`] or inside a batch; [`Error::Broken`].
    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error>;

    /// Does a bounded piece of what is due by itself: rolling by age, retention, compaction. Returns the time
    /// at which to call it again; nothing if nothing will be due before the next append.
    fn tend(&mut self, unix_ms: u64) -> Option<u64>;
}
