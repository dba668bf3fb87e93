//! The machine and its two logs: messages are read from one, what has become of them is kept in the other.
//!
//! The log of messages belongs to whoever appends to it. The keeper reads it up to where it is told that messages are
//! durable, and says from where on it is needed. The log of the queue's state is the keeper's own.

mod aside;
mod cache;
mod come;
mod found;
mod last;
mod learn;
mod lost;
mod noted;
mod snapshot;
mod take;
mod trim;
mod tuning;

use std::collections::{BTreeMap, VecDeque};

use mainstem_log::{Batch, BatchBuilder, Durability, Error, LogId, Options, Record, Store, Ticket};

use crate::ask::{GroupName, Info, Payload, Refusal, Settlement};
use crate::config::Config;
use crate::machine::{GroupId, Lease, Leaving, Queue};
use crate::meta::Meta;
use cache::Cache;
use found::{Found, State, read_all};
use snapshot::Unfinished;
pub use take::Taking;
pub use tuning::Tuning;

/// Bytes read at once.
const READ_BYTES: usize = 256 * 1024;
/// Size of a segment of the state's log, bytes.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// How many times as large as the last snapshot events have to be before the next one is written.
const SNAPSHOT_FACTOR: usize = 4;
/// Events that could not be written, bytes, beyond which the queue does nothing that makes more.
const STUCK_BYTES: usize = 1024 * 1024;
/// Bytes of messages that are looked at, beyond which no further one is.
const PEEK_BYTES: usize = 4 * 1024 * 1024;
/// Messages leased at once, before their bytes are counted.
const LEASES_AT_ONCE: usize = 16;
/// Messages that may be copied out of the way of what can be forgotten, and their bytes.
const ASIDES_MAX: usize = 1024;
const ASIDE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Keys of the records of the state's log: events have none.
const SNAPSHOT: &[u8] = b"snapshot";
const BEGIN: &[u8] = b"begin";
const PART: &[u8] = b"part";
const END: &[u8] = b"end";
const ASIDE: &[u8] = b"aside";

/// A producer id that no client can have: of batches with messages that a queue has moved.
pub const MOVER: i64 = -2;

/// Decompresses the records of a batch; nothing if they cannot be.
pub type Decompress = fn(&Batch<'_>) -> Option<Vec<u8>>;

/// A queue and its logs. Owned by the shard that owns the store.
#[derive(Debug)]
pub struct Keeper {
    queue: Queue,
    messages: LogId,
    state: LogId,
    /// Of the log of the state.
    name: Box<str>,
    durability: Durability,
    decompress: Decompress,
    builder: BatchBuilder,
    /// Memory that is used again: of batches that are read, of leases, and of events.
    read: Vec<u8>,
    leases: Vec<Lease>,
    spare: Vec<Vec<u8>>,
    note: Vec<u8>,
    /// What is to be written, by number, in order.
    gathered: VecDeque<(u64, Vec<u8>)>,
    /// What has been written and is not durable.
    in_flight: VecDeque<Flight>,
    /// Events up to this number are durable.
    durable: u64,
    cache: Cache,
    /// Bytes of events since the last snapshot, and its size.
    events_bytes: usize,
    snapshot_bytes: usize,
    /// A snapshot that is being written.
    unfinished: Option<Unfinished>,
    asides: BTreeMap<u64, Payload>,
    aside_bytes: usize,
    /// From where on messages will be needed when events up to this number are durable.
    trim: Option<(u64, u64)>,
    trimmed_to: u64,
    has_failed: bool,
    tuning: Tuning,
}

#[derive(Debug)]
struct Flight {
    ticket: Ticket,
    what: Written,
}

#[derive(Debug)]
enum Written {
    Events(u64, Vec<u8>),
    /// A snapshot is whole, which begins at this offset of the state's log.
    Snapshot(u64),
    /// Of a snapshot that is not.
    Part,
    /// A copy of an old message: the first one of that offset, or another one.
    Aside(Option<u64>),
}

/// A message on its way to another queue.
#[derive(Debug)]
pub struct Departure {
    /// Which one, and why.
    pub leaving: Leaving,
    /// Its record; nothing if that cannot be read any more.
    pub payload: Option<Payload>,
}

impl Keeper {
    /// Opens the log `name` of a queue's state and makes the queue again. Its messages are to be registered next.
    ///
    /// # Errors
    /// What the store says. [`Error::Corrupt`] if the state makes no sense.
    pub fn open(
        store: &mut dyn Store,
        name: &str,
        messages: LogId,
        durability: Durability,
        config: Config,
        decompress: Decompress,
    ) -> Result<Self, Error> {
        let state = store.open(name, &options(durability))?;
        let mut found = Found::new(config);
        read_all(store, state, |record| found.take(record))?;
        let gathered = found.take_notes(&store.notes(state)?)?;
        let State { mut queue, asides, bytes } = found.into_state();
        let start = store.status(messages).start;
        // Of the others the originals are there, if the end of the process has undone what was removed, and what stands between
        // them.
        for payload in asides.range(..start).map(|(_, payload)| payload) {
            queue.register(meta_of(payload), 0);
        }
        queue.registered(start);
        queue.removed(start);
        let aside_bytes = asides.values().map(|payload| size(&payload.record())).sum();
        Ok(Self {
            queue,
            messages,
            state,
            name: name.into(),
            durability,
            decompress,
            builder: BatchBuilder::default(),
            read: Vec::new(),
            leases: Vec::new(),
            spare: Vec::new(),
            note: Vec::new(),
            gathered,
            in_flight: VecDeque::new(),
            durable: 0,
            cache: Cache::default(),
            events_bytes: bytes,
            snapshot_bytes: 0,
            unfinished: None,
            asides,
            aside_bytes,
            trim: None,
            trimmed_to: start,
            has_failed: false,
            tuning: Tuning::default(),
        })
    }

    /// Lets what happens from now on be kept as `durability` says.
    ///
    /// # Errors
    /// What the store says.
    pub fn set_durability(&mut self, store: &mut dyn Store, durability: Durability) -> Result<(), Error> {
        self.state = store.open(&self.name, &options(durability))?;
        self.durability = durability;
        if self.has_noted() {
            self.gather_all();
        }
        Ok(())
    }

    /// Sets when it does what it does now and then.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.queue.set_at_once(tuning.at_once);
        self.queue.set_known_max(tuning.known_max);
    }

    /// The machine.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// See [`Queue::begin_life`].
    pub fn begin_life(&mut self, random: u32) {
        self.queue.begin_life(random);
    }

    /// The machine, for what needs no log.
    pub fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Whether the disk refuses what happens: nothing should happen until it does not.
    pub fn is_stuck(&self) -> bool {
        let bytes: usize = self.gathered.iter().map(|(_, events)| events.len()).sum();
        self.has_failed || bytes > STUCK_BYTES
    }

    /// Whether something that has happened could not be written.
    pub fn is_behind(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Whether [`Keeper::take_trim`] has something to say when what has happened is durable.
    pub fn is_trimming(&self) -> bool {
        self.trim.is_some()
    }

    /// Gives back memory that is not in use: of messages that were read lately it keeps so many bytes.
    pub fn rest(&mut self, cache_bytes: usize) {
        self.builder = BatchBuilder::default();
        (self.read, self.leases, self.spare) = (Vec::new(), Vec::new(), Vec::new());
        self.cache.limit(cache_bytes);
    }

    /// Settles a delivery.
    ///
    /// # Errors
    /// [`Refusal::Stale`].
    pub fn settle(
        &mut self,
        group: GroupId,
        settlement: &Settlement,
        now_ms: u64,
        random: u32,
    ) -> Result<(), Refusal> {
        self.queue.settle(group, settlement, now_ms, random)?;
        let offset = settlement.receipt.offset;
        if !self.queue.knows(offset) {
            self.cache.settled(offset);
        }
        Ok(())
    }

    /// Does what is due at this time.
    pub fn tend(&mut self, now_ms: u64) {
        self.queue.tend(now_ms);
    }

    /// How the queue is, but for its name, settings and consumers.
    pub fn info(&self, into: &mut Info) {
        self.queue.info(into);
    }

    /// The group of this name, made if it is not there.
    ///
    /// # Errors
    /// As [`Queue::open_group`].
    pub fn open_group(&mut self, name: &GroupName, now_ms: u64) -> Result<GroupId, Refusal> {
        self.queue.open_group(name, now_ms)
    }

    /// The log of its messages.
    pub fn messages_log(&self) -> LogId {
        self.messages
    }

    /// The log of its state.
    pub fn state_log(&self) -> LogId {
        self.state
    }
}

/// How the log of a queue's state is kept.
fn options(durability: Durability) -> Options {
    Options { durability, segment_bytes: SEGMENT_BYTES, ..Options::default() }
}

/// What is known of a message that is copied.
fn meta_of(payload: &Payload) -> Meta {
    Meta::of(&payload.record(), payload.batch_header().producer_id == MOVER)
}

/// Key, value and headers, bytes.
fn size(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len) + record.headers.len()
}
