//! The ring that cursors share: each message is stored once, however many read it.
//!
//! Messages have numbers, from 0. They stand in chunks; a slot of a chunk is written once, before the ring's `tail`
//! passes it, so whoever has a chunk reads the slots below the tail without a lock. The ring keeps the chunks that
//! the last `capacity` messages stand in, and each cursor the one it is reading: a cursor that nobody moves holds on
//! to one chunk and no more.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::error::RecvError;
use crate::event::Shared;
use crate::group::Bell;
use crate::options::{Options, Overflow};
use crate::queue::{Offer, Spoils};
use crate::stats::{Delivered, Profile, Waiting};
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Patience, lock};

/// The most and the fewest slots of a chunk.
const CHUNK_SLOTS: Range<usize> = 4..256;

/// The messages of one filter, for all cursors with the same capacity and overflow policy.
pub(crate) struct Ring<T> {
    capacity: u64,
    overflow: Overflow,
    chunk_slots: usize,
    /// That of the group of its only reader.
    bell: Option<Arc<Bell>>,
    /// The number that the next message gets. Changed under the lock only.
    tail: AtomicU64,
    state: Mutex<State<T>>,
    /// Readers wait here for messages, or for the end.
    arrived: Condvar,
    /// Publishers wait here for the slowest reader.
    room: Condvar,
}

struct State<T> {
    chunks: VecDeque<Arc<Chunk<T>>>,
    readers: Vec<Arc<Reader>>,
    /// No reader is before this number; looked up anew when that makes no room.
    slowest: u64,
    is_closed: bool,
    sleeping_readers: usize,
    sleeping_publishers: usize,
}

/// Consecutive messages, from the number `first` on.
pub(crate) struct Chunk<T> {
    first: u64,
    slots: Box<[Slot<T>]>,
}

/// Written once, and never moved while somebody has the chunk.
pub(crate) type Slot<T> = OnceLock<Arc<Shared<T>>>;

impl<T> Chunk<T> {
    /// A full chunk with the numbers from 0 on.
    pub(crate) fn of(messages: impl IntoIterator<Item = Arc<Shared<T>>>) -> Self {
        Self { first: 0, slots: messages.into_iter().map(OnceLock::from).collect() }
    }

    /// The slots with these numbers, which must lie in this chunk, and below the tail if they are to be read.
    #[inline]
    pub(crate) fn slots(&self, numbers: Range<u64>) -> &[Slot<T>] {
        &self.slots[(numbers.start - self.first) as usize..(numbers.end - self.first) as usize]
    }

    const fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }
}

/// The messages in slots below the tail.
#[inline]
pub(crate) fn read_slots<T>(slots: &[Slot<T>]) -> impl ExactSizeIterator<Item = &Arc<Shared<T>>> {
    slots.iter().map(|slot| slot.get().expect("a slot below the tail is written"))
}

/// What the ring knows of one cursor.
pub(crate) struct Reader {
    pub(crate) profile: Arc<Profile>,
    /// The number of the message it reads next.
    position: AtomicU64,
    is_disconnected: AtomicBool,
}

/// What a reader that leaves had not read.
pub(crate) struct Unread<T> {
    chunks: Vec<Arc<Chunk<T>>>,
    numbers: Range<u64>,
}

impl<T> Unread<T> {
    pub(crate) const fn len(&self) -> u64 {
        self.numbers.end - self.numbers.start
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shared<T>>> {
        self.chunks.iter().flat_map(|chunk| {
            read_slots(chunk.slots(self.numbers.start.max(chunk.first)..self.numbers.end.min(chunk.end())))
        })
    }
}

impl<T> Ring<T> {
    pub(crate) fn new(options: Options, bell: Option<Arc<Bell>>) -> Self {
        let chunk_slots = options.capacity.next_power_of_two().clamp(CHUNK_SLOTS.start, CHUNK_SLOTS.end);
        let state = State {
            chunks: VecDeque::new(),
            readers: Vec::new(),
            slowest: 0,
            is_closed: false,
            sleeping_readers: 0,
            sleeping_publishers: 0,
        };
        Self {
            capacity: options.capacity as u64,
            overflow: options.overflow,
            chunk_slots,
            bell,
            tail: AtomicU64::new(0),
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// Whether a subscription with these options can read here, too. Where the newest message goes, that is one
    /// reader's own affair, so those who ask for that share with nobody.
    pub(crate) fn suits(&self, options: Options) -> bool {
        self.capacity == options.capacity as u64
            && self.overflow == options.overflow
            && matches!(options.overflow, Overflow::Block | Overflow::DropOldest)
    }

    /// A new reader of whatever is published from now on.
    pub(crate) fn join(&self, profile: Arc<Profile>) -> Arc<Reader> {
        let mut state = lock(&self.state);
        let position = self.tail.load(Ordering::Relaxed);
        if state.readers.is_empty() {
            state.slowest = position;
        }
        let reader = Arc::new(Reader {
            profile,
            position: AtomicU64::new(position),
            is_disconnected: AtomicBool::new(false),
        });
        state.readers.push(Arc::clone(&reader));
        reader
    }

    /// Takes a reader out, and returns what it had still to read.
    pub(crate) fn leave(&self, reader: &Arc<Reader>) -> Unread<T> {
        let mut state = lock(&self.state);
        state.readers.retain(|other| !Arc::ptr_eq(other, reader));
        self.room.notify_all();
        let tail = self.tail.load(Ordering::Relaxed);
        let missed = self.missed(reader, tail);
        reader.profile.count_dropped(missed as usize);
        let numbers = reader.position.load(Ordering::Relaxed) + missed..tail;
        reader.position.store(tail, Ordering::Relaxed);
        let chunks = state.chunks.iter().filter(|chunk| chunk.end() > numbers.start && !numbers.is_empty());
        Unread { chunks: chunks.cloned().collect(), numbers }
    }

    pub(crate) fn has_readers(&self) -> bool {
        !lock(&self.state).readers.is_empty()
    }

    pub(crate) fn each_reader(&self, mut visit: impl FnMut(&Reader, Waiting)) {
        let state = lock(&self.state);
        let tail = self.tail.load(Ordering::Relaxed);
        for reader in &state.readers {
            visit(reader, self.waiting(reader, tail));
        }
    }

    pub(crate) fn waiting_now(&self, reader: &Reader) -> Waiting {
        self.waiting(reader, self.tail.load(Ordering::Acquire))
    }

    fn waiting(&self, reader: &Reader, tail: u64) -> Waiting {
        let lag = tail.saturating_sub(reader.position.load(Ordering::Relaxed));
        let missed = self.missed(reader, tail);
        let is_disconnected = reader.is_disconnected.load(Ordering::Relaxed);
        Waiting { lag: (lag - missed) as usize, missed, is_disconnected }
    }

    /// How many messages have left the ring before `reader` came to them.
    fn missed(&self, reader: &Reader, tail: u64) -> u64 {
        let lag = tail.saturating_sub(reader.position.load(Ordering::Relaxed));
        lag.saturating_sub(self.capacity)
    }

    /// Appends all `messages`; waits for the slowest reader where the overflow policy says so.
    pub(crate) fn push(&self, messages: &[Arc<Shared<T>>]) -> Delivered {
        let mut tally = Delivered::default();
        let mut spoils = Spoils::new();
        let mut state = lock(&self.state);
        for message in messages {
            while self.overflow == Overflow::Block
                && !state.has_room(self.tail.load(Ordering::Relaxed), self.capacity)
            {
                state = self.wait_for_room(state);
            }
            tally += self.admit(&mut state, message, &mut spoils);
        }
        self.wake_readers(&state);
        tally
    }

    /// Appends a message, unless it would have to wait. What leaves the ring goes to `spoils`.
    pub(crate) fn offer(&self, message: &Arc<Shared<T>>, spoils: &mut Spoils<T>) -> Offer {
        let mut state = lock(&self.state);
        if state.readers.iter().all(|reader| reader.is_disconnected.load(Ordering::Relaxed)) {
            return Offer::Gone;
        }
        if self.overflow == Overflow::Block
            && !state.has_room(self.tail.load(Ordering::Relaxed), self.capacity)
        {
            return Offer::Full;
        }
        let tally = self.admit(&mut state, message, spoils);
        self.wake_readers(&state);
        Offer::Settled(tally)
    }

    fn admit(&self, state: &mut State<T>, message: &Arc<Shared<T>>, spoils: &mut Spoils<T>) -> Delivered {
        // Only rings of a single reader drop the newest or disconnect, so the first one stands for all.
        let is_over = |reader: &Arc<Reader>| reader.is_disconnected.load(Ordering::Relaxed);
        if state.readers.first().is_none_or(is_over) {
            return Delivered::default();
        }
        let drops_newest = matches!(self.overflow, Overflow::DropNewest | Overflow::Disconnect);
        if drops_newest && !state.has_room(self.tail.load(Ordering::Relaxed), self.capacity) {
            for reader in &state.readers {
                reader.profile.count_dropped(1);
                reader.is_disconnected.store(self.overflow == Overflow::Disconnect, Ordering::Relaxed);
            }
            return Delivered { dropped: 1, ..Delivered::default() };
        }
        self.append(state, message, spoils);
        Delivered { delivered: state.readers.len(), ..Delivered::default() }
    }

    fn append(&self, state: &mut State<T>, message: &Arc<Shared<T>>, spoils: &mut Spoils<T>) {
        let tail = self.tail.load(Ordering::Relaxed);
        if state.chunks.back().is_none_or(|chunk| chunk.end() == tail) {
            let slots = (0..self.chunk_slots).map(|_| OnceLock::new()).collect();
            state.chunks.push_back(Arc::new(Chunk { first: tail, slots }));
            let oldest_kept = (tail + 1).saturating_sub(self.capacity);
            while state.chunks.front().is_some_and(|chunk| chunk.end() <= oldest_kept) {
                spoils.chunks.extend(state.chunks.pop_front());
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
        state.sleeping_publishers += 1;
        state = match Patience::Endless.wait(&self.room, state) {
            Ok(state) | Err(state) => state,
        };
        state.sleeping_publishers -= 1;
        state
    }

    fn wake_readers(&self, state: &State<T>) {
        if state.sleeping_readers > 0 {
            self.arrived.notify_all();
        }
    }

    /// The numbers of what `reader` reads next, up to `max` of them and none where `patience` ends before one comes;
    /// they lie in `chunk` then.
    pub(crate) fn read(
        &self,
        reader: &Arc<Reader>,
        chunk: &mut Option<Arc<Chunk<T>>>,
        max: usize,
        patience: Patience,
    ) -> Result<Range<u64>, RecvError> {
        let position = reader.position.load(Ordering::Relaxed);
        let mut tail = self.tail.load(Ordering::Acquire);
        if tail == position {
            tail = self.wait_for_messages(reader, position, patience)?;
            if tail == position {
                return Ok(position..position);
            }
        }
        let mut missed = self.missed(reader, tail);
        let at_hand =
            chunk.as_ref().filter(|chunk| (chunk.first..chunk.end()).contains(&(position + missed)));
        let end = if let Some(chunk) = at_hand {
            chunk.end()
        } else {
            let state = lock(&self.state);
            tail = self.tail.load(Ordering::Relaxed);
            missed = self.missed(reader, tail);
            let next = state.chunk_with(position + missed).expect("the ring keeps what nobody has missed");
            let left = chunk.replace(Arc::clone(next));
            drop(state);
            // With it may go the last holder of its messages.
            drop(left);
            chunk.as_ref().map_or(tail, |chunk| chunk.end())
        };
        reader.profile.count_dropped(missed as usize);
        let first = position + missed;
        let end = end.min(tail).min(first.saturating_add(max.max(1) as u64));
        self.advance(reader, end);
        Ok(first..end)
    }

    /// The tail once it has left `position`, or as it is when `patience` ends.
    fn wait_for_messages(
        &self,
        reader: &Arc<Reader>,
        position: u64,
        patience: Patience,
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
            if state.is_closed {
                // It has seen the end: what is still published goes to others.
                state.readers.retain(|other| !Arc::ptr_eq(other, reader));
                return Err(RecvError::Closed);
            }
            state.sleeping_readers += 1;
            let waited = patience.wait(&self.arrived, state);
            let is_out_of_patience = waited.is_err();
            state = match waited {
                Ok(state) | Err(state) => state,
            };
            state.sleeping_readers -= 1;
            if is_out_of_patience {
                return Ok(tail);
            }
        }
    }

    fn advance(&self, reader: &Reader, to: u64) {
        reader.position.store(to, Ordering::Release);
        if self.overflow == Overflow::Block && lock(&self.state).sleeping_publishers > 0 {
            self.room.notify_all();
        }
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// The bus is closed.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.arrived.notify_all();
    }
}

impl<T> State<T> {
    /// Whether one more message at `tail` leaves no reader behind.
    fn has_room(&mut self, tail: u64, capacity: u64) -> bool {
        if tail - self.slowest < capacity {
            return true;
        }
        let positions = self.readers.iter().map(|reader| reader.position.load(Ordering::Relaxed));
        self.slowest = positions.min().unwrap_or(tail);
        tail - self.slowest < capacity
    }

    fn chunk_with(&self, number: u64) -> Option<&Arc<Chunk<T>>> {
        let front = self.chunks.front()?;
        let at = number.checked_sub(front.first)? / front.slots.len() as u64;
        self.chunks.get(at as usize)
    }
}
