//! [`DurableQueue`]: the state machine and its two logs.
//!
//! The log of messages belongs to whoever appends to it. The durable queue reads it up to the offset that the caller
//! reports as durable, and reports the first offset that it still needs. The log of the queue's state belongs to the
//! durable queue: it holds events, snapshots, and copies of old messages.

mod cache;
mod catch_up;
mod deliver;
mod delivery_notes;
mod flush;
mod lost;
mod recovery;
mod register;
mod relocate;
mod snapshot;
mod trim;

use std::collections::{BTreeMap, VecDeque};

use mainstem_log::{
    Batch, BatchBuilder, BatchHeader, Durability, Error, INTERNAL_ATTRIBUTES, LogId, Options, Record, Store,
    Ticket,
};

use crate::config::Config;
use crate::machine::{GroupId, Lease, PendingTransfer, Queue};
use crate::meta::Meta;
use crate::request::{GroupName, Info, Payload, QueueError, Settlement};
use crate::tuning::Tuning;
use cache::Cache;
pub use deliver::LeaseRequest;
use recovery::{Recovery, State, read_all};
use snapshot::SnapshotInProgress;

/// Bytes per read.
const READ_BYTES: usize = 256 * 1024;
/// Size of a segment of the state log in bytes.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// A snapshot is written when the events since the last one are this many times as large.
const SNAPSHOT_FACTOR: usize = 4;
/// Bytes of events that could not be written, beyond which the queue stops working.
const STUCK_BYTES: usize = 1024 * 1024;
/// Bytes of messages after which a peek returns no further one.
const PEEK_BYTES: usize = 4 * 1024 * 1024;
/// Messages leased at a time, before their sizes are known.
const LEASES_AT_ONCE: usize = 16;
/// Limits for copies of old messages: their number and total size.
const RELOCATED_MAX: usize = 1024;
const RELOCATED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Keys of the records of the state log. Events have no key.
const SNAPSHOT: &[u8] = b"snapshot";
const BEGIN: &[u8] = b"begin";
const PART: &[u8] = b"part";
const END: &[u8] = b"end";
const RELOCATED: &[u8] = b"aside";

/// Mark of batches with messages that a queue has moved, one of the [internal attributes](INTERNAL_ATTRIBUTES): clients
/// cannot set it.
pub const TRANSFERRED: i16 = 0x100;
/// Mark of a batch without records that fills lost offsets, see `lost.rs`.
const GAP: i16 = 0x200;
const _: () = assert!((TRANSFERRED | GAP) & !INTERNAL_ATTRIBUTES == 0, "both are internal attributes");

/// Decompresses the records of a batch. `None` if they are invalid.
pub type Decompress = fn(&Batch<'_>) -> Option<Vec<u8>>;

/// A queue and its logs. It belongs to the shard that owns the store.
#[derive(Debug)]
pub struct DurableQueue {
    queue: Queue,
    messages: LogId,
    state: LogId,
    /// Name of the state log.
    name: Box<str>,
    durability: Durability,
    decompress: Decompress,
    builder: BatchBuilder,
    /// Buffers that are reused.
    read_buffer: Vec<u8>,
    leases: Vec<Lease>,
    spare_buffers: Vec<Vec<u8>>,
    note_buffer: Vec<u8>,
    /// Batches of events to write, with their numbers.
    unwritten: VecDeque<(u64, Vec<u8>)>,
    /// Appends that are not durable yet.
    in_flight: VecDeque<InFlight>,
    /// Batches of events up to this number are durable.
    durable: u64,
    /// Events in the state log record messages below this offset as registered.
    stored_to: u64,
    cache: Cache,
    /// Bytes of events since the last snapshot, and the size of that snapshot.
    events_bytes: usize,
    snapshot_bytes: usize,
    unfinished: Option<SnapshotInProgress>,
    relocated: BTreeMap<u64, Payload>,
    relocated_bytes: usize,
    /// The first message that will be needed once the events up to this number are durable.
    trim: Option<(u64, u64)>,
    trimmed_to: u64,
    has_failed: bool,
    tuning: Tuning,
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    kind: Written,
}

#[derive(Debug)]
enum Written {
    Events(u64, Vec<u8>),
    /// A complete snapshot that begins at this offset of the state log.
    Snapshot(u64),
    /// Part of an incomplete snapshot.
    Part,
    /// A copy of an old message, with its offset if it is the first copy.
    Relocated(Option<u64>),
}

/// A message on its way to another queue.
#[derive(Debug)]
pub struct Transfer {
    /// Which message, and why it leaves.
    pub leaving: PendingTransfer,
    /// Its record. `None` if it cannot be read any more.
    pub payload: Option<Payload>,
}

impl DurableQueue {
    /// Opens the state log `name` and rebuilds the queue. The caller must then [register](Self::register) its
    /// messages.
    ///
    /// # Errors
    /// Errors of the store. [`Error::Corrupt`] if the state is invalid.
    pub fn open(
        store: &mut dyn Store,
        name: &str,
        messages: LogId,
        durability: Durability,
        config: Config,
        decompress: Decompress,
    ) -> Result<Self, Error> {
        let state = store.open(name, &options(durability))?;
        let mut found = Recovery::new(config);
        read_all(store, state, |record| found.take(record))?;
        let unwritten = found.take_notes(&store.notes(state)?)?;
        let State { mut queue, relocated, bytes } = found.into_state();
        let start = store.status(messages).start;
        // Copies at or after `start` are not needed: a crash has undone the deletion of their originals.
        for payload in relocated.range(..start).map(|(_, payload)| payload) {
            queue.register(meta_of(payload), 0);
        }
        queue.registered(start);
        queue.removed(start);
        // Notes are no part of the log.
        let stored_to = if unwritten.is_empty() { queue.flushed_to() } else { 0 };
        let relocated_bytes = relocated.values().map(|payload| size(&payload.record())).sum();
        Ok(Self {
            queue,
            messages,
            state,
            name: name.into(),
            durability,
            decompress,
            builder: BatchBuilder::default(),
            read_buffer: Vec::new(),
            leases: Vec::new(),
            spare_buffers: Vec::new(),
            note_buffer: Vec::new(),
            unwritten,
            in_flight: VecDeque::new(),
            durable: 0,
            stored_to,
            cache: Cache::default(),
            events_bytes: bytes,
            snapshot_bytes: 0,
            unfinished: None,
            relocated,
            relocated_bytes,
            trim: None,
            trimmed_to: start,
            has_failed: false,
            tuning: Tuning::default(),
        })
    }

    /// Changes the durability of future events.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn set_durability(&mut self, store: &mut dyn Store, durability: Durability) -> Result<(), Error> {
        self.state = store.open(&self.name, &options(durability))?;
        self.durability = durability;
        if self.has_noted() {
            self.flush_all();
        }
        Ok(())
    }

    /// Sets the thresholds of background work.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.queue.set_at_once(tuning.at_once);
        self.queue.set_known_max(tuning.known_max);
    }

    /// The state machine.
    pub fn machine(&self) -> &Queue {
        &self.queue
    }

    /// See [`Queue::begin_incarnation`].
    pub fn begin_incarnation(&mut self, random: u32) {
        self.queue.begin_incarnation(random);
    }

    /// The state machine, for operations that need no log.
    pub fn machine_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Whether the store fails to write events. The caller must not change the queue until it recovers.
    pub fn is_stuck(&self) -> bool {
        let bytes: usize = self.unwritten.iter().map(|(_, events)| events.len()).sum();
        self.has_failed || bytes > STUCK_BYTES
    }

    /// Whether there are events that the store has not taken yet.
    pub fn has_unwritten_events(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Whether [`DurableQueue::take_trim`] waits for events to become durable.
    pub fn is_trimming(&self) -> bool {
        self.trim.is_some()
    }

    /// Frees buffers, and limits the cache of message batches to `cache_bytes`.
    pub fn release_buffers(&mut self, cache_bytes: usize) {
        self.builder = BatchBuilder::default();
        (self.read_buffer, self.leases, self.spare_buffers) = (Vec::new(), Vec::new(), Vec::new());
        self.cache.limit(cache_bytes);
    }

    /// Memory of the messages, bytes, about: their state, and recent batches.
    pub fn memory(&self) -> u64 {
        let unwritten: usize = self.unwritten.iter().map(|(_, events)| events.len()).sum();
        self.machine().memory() + (self.cache.bytes() + unwritten) as u64
    }

    /// Settles a delivery.
    ///
    /// # Errors
    /// [`QueueError::Stale`].
    pub fn settle(
        &mut self,
        group: GroupId,
        settlement: &Settlement,
        now_ms: u64,
        random: u32,
    ) -> Result<(), QueueError> {
        self.queue.settle(group, settlement, now_ms, random)?;
        let offset = settlement.receipt.offset;
        if !self.queue.is_in_memory(offset) {
            self.cache.settled(offset);
        }
        Ok(())
    }

    /// See [`Queue::maintain`].
    pub fn maintain(&mut self, now_ms: u64) {
        self.queue.maintain(now_ms);
    }

    /// See [`Queue::info`].
    pub fn info(&self, into: &mut Info) {
        self.queue.info(into);
    }

    /// See [`Queue::open_group`].
    ///
    /// # Errors
    /// As [`Queue::open_group`].
    pub fn open_group(&mut self, name: &GroupName, now_ms: u64) -> Result<GroupId, QueueError> {
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

/// Options of the state log.
fn options(durability: Durability) -> Options {
    Options { durability, segment_bytes: SEGMENT_BYTES, ..Options::default() }
}

fn meta_of(payload: &Payload) -> Meta {
    Meta::of(&payload.record(), is_transferred(&payload.batch_header()))
}

/// Whether a queue has moved the messages of this batch.
fn is_transferred(header: &BatchHeader) -> bool {
    header.attributes & TRANSFERRED != 0
}

/// Whether this batch fills lost offsets.
fn is_gap(header: &BatchHeader) -> bool {
    header.attributes & GAP != 0
}

/// Size of key, value and headers.
fn size(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len) + record.headers.len()
}
