//! The ring shared by cursors: each message is stored once, for any number of readers.
//!
//! Messages are numbered from 0 and stored in chunks. Each slot of a chunk is written once, before the ring's `tail`
//! moves past it, so a reader that holds a chunk reads the slots below the tail without a lock. The ring holds the
//! chunks of the last `capacity` messages, and each cursor holds the chunk it reads. An idle cursor therefore retains
//! at most one chunk beyond the ring.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::chunk::{Chunk, read_slots};
use crate::error::RecvError;
use crate::event::SharedMessage;
use crate::offer::{DeferredDrops, OfferResult};
use crate::options::{Options, Overflow};
use crate::room_signal::RoomSignal;
use crate::stats::{Backlog, Delivered, SubscriptionInfo};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Deadline, Mutex, MutexGuard, Ordering, lock};

/// Minimum and maximum number of slots per chunk.
const CHUNK_SLOTS: Range<usize> = 4..256;

/// The messages of one filter, for all cursors with the same capacity and overflow policy.
pub(crate) struct Ring<T> {
    capacity: u64,
    overflow: Overflow,
    chunk_slots: usize,
    /// Of the group that the only reader is a member of.
    room_signal: Option<Arc<RoomSignal>>,
    /// Number of the next message. Written under the lock only.
    tail: AtomicU64,
    state: Mutex<State<T>>,
    /// Notified when a message arrives or the ring ends.
    arrived: Condvar,
    /// Notified when a reader advances or leaves.
    room: Condvar,
}

struct State<T> {
    chunks: VecDeque<Arc<Chunk<T>>>,
    readers: Vec<Arc<Reader>>,
    /// Lower bound of all reader positions. Recomputed only when the ring seems full.
    slowest: u64,
    is_closed: bool,
    sleeping_readers: usize,
    /// Publishers that wait for room. While there are any, a closed ring does not end.
    waiting_publishers: usize,
}

/// Per-cursor state of the ring.
pub(crate) struct Reader {
    pub(crate) info: Arc<SubscriptionInfo>,
    /// Number of the message to read next.
    position: AtomicU64,
    is_disconnected: AtomicBool,
    /// Messages dropped by `DropNewest` or `Disconnect` since the reader was last told, if it wants to know.
    unreported_drops: AtomicU64,
    /// Index among the readers of the ring. Changes under the lock only.
    slot: AtomicUsize,
}

/// Messages that a leaving reader had not read.
pub(crate) struct UnreadMessages<T> {
    chunks: Vec<Arc<Chunk<T>>>,
    numbers: Range<u64>,
}

impl<T> UnreadMessages<T> {
    pub(crate) const fn len(&self) -> u64 {
        self.numbers.end - self.numbers.start
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<SharedMessage<T>>> {
        self.chunks.iter().flat_map(|chunk| {
            read_slots(chunk.slots(self.numbers.start.max(chunk.first)..self.numbers.end.min(chunk.end())))
        })
    }
}

impl<T> Ring<T> {
    pub(crate) fn new(options: Options, room_signal: Option<Arc<RoomSignal>>) -> Self {
        let chunk_slots = options.capacity.next_power_of_two().clamp(CHUNK_SLOTS.start, CHUNK_SLOTS.end);
        let state = State {
            chunks: VecDeque::new(),
            readers: Vec::new(),
            slowest: 0,
            is_closed: false,
            sleeping_readers: 0,
            waiting_publishers: 0,
        };
        Self {
            capacity: options.capacity as u64,
            overflow: options.overflow,
            chunk_slots,
            room_signal,
            tail: AtomicU64::new(0),
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// Whether a cursor with these options can share this ring. With `DropNewest` and `Disconnect`, whether a message
    /// is appended depends on a single reader, so those rings are not shared.
    pub(crate) fn is_compatible(&self, options: Options) -> bool {
        self.capacity == options.capacity as u64
            && self.overflow == options.overflow
            && matches!(options.overflow, Overflow::Block | Overflow::DropOldest)
    }

    /// Adds a reader that starts at the current tail.
    pub(crate) fn join(&self, info: Arc<SubscriptionInfo>) -> Arc<Reader> {
        let mut state = lock(&self.state);
        let position = self.tail.load(Ordering::Relaxed);
        if state.readers.is_empty() {
            state.slowest = position;
        }
        let reader = Arc::new(Reader {
            info,
            position: AtomicU64::new(position),
            is_disconnected: AtomicBool::new(false),
            unreported_drops: AtomicU64::new(0),
            slot: AtomicUsize::new(state.readers.len()),
        });
        state.readers.push(Arc::clone(&reader));
        reader
    }

    /// Removes a reader and returns its unread messages.
    pub(crate) fn leave(&self, reader: &Arc<Reader>) -> UnreadMessages<T> {
        let mut state = lock(&self.state);
        state.remove_reader(reader);
        self.room.notify_all();
        let tail = self.tail.load(Ordering::Relaxed);
        let missed = self.missed(reader, tail);
        reader.info.count_dropped(missed as usize);
        let numbers = reader.position.load(Ordering::Relaxed) + missed..tail;
        reader.position.store(tail, Ordering::Relaxed);
        let chunks = state.chunks.iter().filter(|chunk| chunk.end() > numbers.start && !numbers.is_empty());
        UnreadMessages { chunks: chunks.cloned().collect(), numbers }
    }

    pub(crate) fn has_readers(&self) -> bool {
        !lock(&self.state).readers.is_empty()
    }

    pub(crate) fn for_each_reader(&self, mut f: impl FnMut(&Reader, Backlog)) {
        let state = lock(&self.state);
        let tail = self.tail.load(Ordering::Relaxed);
        for reader in &state.readers {
            f(reader, self.backlog(reader, tail));
        }
    }

    pub(crate) fn current_backlog(&self, reader: &Reader) -> Backlog {
        self.backlog(reader, self.tail.load(Ordering::Acquire))
    }

    fn backlog(&self, reader: &Reader, tail: u64) -> Backlog {
        let lag = tail.saturating_sub(reader.position.load(Ordering::Relaxed));
        let missed = self.missed(reader, tail);
        let is_disconnected = reader.is_disconnected.load(Ordering::Relaxed);
        Backlog { lag: (lag - missed) as usize, missed, is_disconnected }
    }

    /// Number of messages that were overwritten before `reader` read them.
    fn missed(&self, reader: &Reader, tail: u64) -> u64 {
        if self.overflow == Overflow::Block {
            // Messages beyond the capacity were appended while the bus was closing, and are kept.
            return 0;
        }
        let lag = tail.saturating_sub(reader.position.load(Ordering::Relaxed));
        lag.saturating_sub(self.capacity)
    }

    /// Appends `messages`. Blocks for the slowest reader if the overflow policy is `Block`.
    pub(crate) fn push(&self, messages: &[Arc<SharedMessage<T>>]) -> Delivered {
        let mut tally = Delivered::default();
        let mut deferred = DeferredDrops::new();
        let mut state = lock(&self.state);
        for message in messages {
            while self.must_wait(&mut state) {
                state = self.wait_for_room(state);
            }
            tally += self.admit(&mut state, message, &mut deferred);
        }
        self.wake_readers(&state);
        tally
    }

    /// Appends a message without blocking. Displaced chunks go to `deferred`.
    pub(crate) fn offer(
        &self,
        message: &Arc<SharedMessage<T>>,
        deferred: &mut DeferredDrops<T>,
    ) -> OfferResult {
        let mut state = lock(&self.state);
        if state.readers.iter().all(|reader| reader.is_disconnected.load(Ordering::Relaxed)) {
            return OfferResult::Ended;
        }
        if self.must_wait(&mut state) {
            return OfferResult::Full;
        }
        let tally = self.admit(&mut state, message, deferred);
        self.wake_readers(&state);
        OfferResult::Done(tally)
    }

    /// Whether a publisher has to wait for readers. It must not wait for those of a closed bus; what it then appends
    /// beyond the capacity is bounded by what publishers had in hand when the bus was closed.
    fn must_wait(&self, state: &mut State<T>) -> bool {
        self.overflow == Overflow::Block
            && !state.is_closed
            && !state.has_room(self.tail.load(Ordering::Relaxed), self.capacity)
    }

    fn admit(
        &self,
        state: &mut State<T>,
        message: &Arc<SharedMessage<T>>,
        deferred: &mut DeferredDrops<T>,
    ) -> Delivered {
        // Rings with `DropNewest` or `Disconnect` have a single reader, so checking the first one is enough.
        let is_disconnected = |reader: &Arc<Reader>| reader.is_disconnected.load(Ordering::Relaxed);
        if state.readers.first().is_none_or(is_disconnected) {
            return Delivered::default();
        }
        let drops_newest = matches!(self.overflow, Overflow::DropNewest | Overflow::Disconnect);
        if drops_newest && !state.has_room(self.tail.load(Ordering::Relaxed), self.capacity) {
            for reader in &state.readers {
                reader.info.count_dropped(1);
                reader.unreported_drops.fetch_add(1, Ordering::Relaxed);
                reader.is_disconnected.store(self.overflow == Overflow::Disconnect, Ordering::Relaxed);
            }
            return Delivered { dropped: 1, ..Delivered::default() };
        }
        self.append(state, message, deferred);
        Delivered { delivered: state.readers.len(), ..Delivered::default() }
    }

    fn append(&self, state: &mut State<T>, message: &Arc<SharedMessage<T>>, deferred: &mut DeferredDrops<T>) {
        let tail = self.tail.load(Ordering::Relaxed);
        if state.chunks.back().is_none_or(|chunk| chunk.end() == tail) {
            let slots = (0..self.chunk_slots).map(|_| OnceLock::new()).collect();
            state.chunks.push_back(Arc::new(Chunk { first: tail, slots }));
            let is_kept = self.overflow == Overflow::Block && state.is_closed;
            let oldest_held = if is_kept { state.slowest } else { (tail + 1).saturating_sub(self.capacity) };
            while state.chunks.front().is_some_and(|chunk| chunk.end() <= oldest_held) {
                deferred.chunks.extend(state.chunks.pop_front());
            }
        }
        if let Some(chunk) = state.chunks.back() {
            let slot = &chunk.slots[(tail - chunk.first) as usize];
            let is_first = slot.set(Arc::clone(message)).is_ok();
            debug_assert!(is_first, "a slot is written once");
        }
        self.tail.store(tail + 1, Ordering::Release);
    }

    fn wait_for_room<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.wake_readers(&state);
        state.waiting_publishers += 1;
        state = match Deadline::Never.wait(&self.room, state) {
            Ok(state) | Err(state) => state,
        };
        state.waiting_publishers -= 1;
        state
    }

    fn wake_readers(&self, state: &State<T>) {
        if state.sleeping_readers > 0 {
            self.arrived.notify_all();
        }
    }

    /// Waits for messages and advances `reader`. Returns the numbers of up to `max` messages, all of which are in
    /// `chunk`; an empty range if `deadline` passes first.
    pub(crate) fn read(
        &self,
        reader: &Arc<Reader>,
        chunk: &mut Option<Arc<Chunk<T>>>,
        max: usize,
        deadline: Deadline,
    ) -> Result<Range<u64>, RecvError> {
        let report_lag = reader.info.options.report_lag;
        let dropped = if report_lag { reader.unreported_drops.swap(0, Ordering::Relaxed) } else { 0 };
        if dropped > 0 {
            return Err(RecvError::Lagged(dropped));
        }
        let position = reader.position.load(Ordering::Relaxed);
        let mut tail = self.tail.load(Ordering::Acquire);
        if tail == position {
            tail = self.wait_for_messages(reader, position, deadline)?;
            if tail == position {
                return Ok(position..position);
            }
        }
        let mut missed = self.missed(reader, tail);
        if report_lag && missed > 0 {
            reader.info.count_dropped(missed as usize);
            self.advance(reader, position + missed);
            return Err(RecvError::Lagged(missed));
        }
        let current =
            chunk.as_ref().filter(|chunk| (chunk.first..chunk.end()).contains(&(position + missed)));
        let end = if let Some(chunk) = current {
            chunk.end()
        } else {
            let state = lock(&self.state);
            tail = self.tail.load(Ordering::Relaxed);
            missed = self.missed(reader, tail);
            let next = state
                .chunk_with(position + missed)
                .expect("the ring holds all messages that are not overwritten");
            let previous = chunk.replace(Arc::clone(next));
            drop(state);
            // May drop the last reference to its messages, hence outside the lock.
            drop(previous);
            chunk.as_ref().map_or(tail, |chunk| chunk.end())
        };
        reader.info.count_dropped(missed as usize);
        let first = position + missed;
        let end = end.min(tail).min(first.saturating_add(max.max(1) as u64));
        self.advance(reader, end);
        Ok(first..end)
    }

    /// Waits until the tail differs from `position` or `deadline` passes. Returns the tail.
    fn wait_for_messages(
        &self,
        reader: &Arc<Reader>,
        position: u64,
        deadline: Deadline,
    ) -> Result<u64, RecvError> {
        let mut state = lock(&self.state);
        loop {
            let tail = self.tail.load(Ordering::Relaxed);
            if tail != position {
                return Ok(tail);
            }
            if reader.is_disconnected.load(Ordering::Relaxed) {
                return Err(RecvError::Disconnected);
            }
            let is_awaited = state.waiting_publishers > 0
                || self.room_signal.as_ref().is_some_and(|signal| signal.has_waiters());
            if state.is_closed && !is_awaited {
                // This reader has ended: messages that are still being published go to the others.
                state.remove_reader(reader);
                return Err(RecvError::Closed);
            }
            state.sleeping_readers += 1;
            let waited = deadline.wait(&self.arrived, state);
            let is_timed_out = waited.is_err();
            state = match waited {
                Ok(state) | Err(state) => state,
            };
            state.sleeping_readers -= 1;
            if is_timed_out {
                return Ok(tail);
            }
        }
    }

    fn advance(&self, reader: &Reader, to: u64) {
        reader.position.store(to, Ordering::Release);
        if self.overflow == Overflow::Block && lock(&self.state).waiting_publishers > 0 {
            self.room.notify_all();
        }
        if let Some(room_signal) = &self.room_signal {
            room_signal.notify();
        }
    }

    /// Called when the bus is closed.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.room.notify_all();
        self.arrived.notify_all();
    }

    /// Makes the reader look again whether the ring has ended.
    pub(crate) fn wake_reader(&self) {
        self.wake_readers(&lock(&self.state));
    }
}

impl<T> State<T> {
    /// Whether a message can be appended at `tail` without overwriting one that a reader has not read.
    fn has_room(&mut self, tail: u64, capacity: u64) -> bool {
        if tail - self.slowest < capacity {
            return true;
        }
        let positions = self.readers.iter().map(|reader| reader.position.load(Ordering::Relaxed));
        self.slowest = positions.min().unwrap_or(tail);
        tail - self.slowest < capacity
    }

    /// Removes a reader, if it is still there.
    fn remove_reader(&mut self, reader: &Arc<Reader>) {
        let slot = reader.slot.load(Ordering::Relaxed);
        if self.readers.get(slot).is_some_and(|other| Arc::ptr_eq(other, reader)) {
            self.readers.swap_remove(slot);
            if let Some(moved) = self.readers.get(slot) {
                moved.slot.store(slot, Ordering::Relaxed);
            }
        }
    }

    fn chunk_with(&self, number: u64) -> Option<&Arc<Chunk<T>>> {
        let front = self.chunks.front()?;
        let at = number.checked_sub(front.first)? / front.slots.len() as u64;
        self.chunks.get(at as usize)
    }
}
