//! The queue of one session: the next deliveries in memory, those behind them as references into the journal.
//!
//! References to consecutive messages form a run, so a session that is offline for a million messages of one kind needs
//! one run, not a million entries. Only durable sessions have references.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use mainstem_mqtt::QoS;

use crate::message::Message;
use crate::session::offer::{Delivery, Extra};

/// Deliveries of consecutive messages of the journal that do not differ otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run<E> {
    /// Sequence number of the first delivery; the others follow.
    pub(crate) sequence: u64,
    /// Offset of the first message; the others follow.
    pub(crate) offset: u64,
    pub(crate) count: u32,
    /// Size of all messages, as limits count it.
    pub(crate) bytes: u64,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) extra: Option<Box<E>>,
}

impl<E: PartialEq> Run<E> {
    /// Appends `next` to this run if it continues it. False if it does not.
    pub(crate) fn join(&mut self, next: &Self) -> bool {
        let follows = self.sequence + u64::from(self.count) == next.sequence
            && self.offset + u64::from(self.count) == next.offset
            && self.qos == next.qos
            && self.retain == next.retain
            && self.extra == next.extra;
        if follows {
            self.count += next.count;
            self.bytes += next.bytes;
        }
        follows
    }
}

impl<E> Run<E> {
    /// Removes the first delivery, of a message of `bytes` or else of the average size. Returns the size.
    pub(crate) fn shorten(&mut self, bytes: Option<u64>) -> u64 {
        let left = u64::from(self.count);
        let bytes = if left == 1 { self.bytes } else { bytes.unwrap_or(self.bytes / left).min(self.bytes) };
        self.sequence += 1;
        self.offset += 1;
        self.count -= 1;
        self.bytes -= bytes;
        bytes
    }
}

/// What a run costs. Few have more than a pointer to their extra.
pub(crate) const RUN_BYTES: usize = size_of::<Run<Extra>>();

/// Capacity that an empty queue keeps, messages.
const CAPACITY_KEPT: usize = 64;

/// The queued deliveries of a session, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    near: VecDeque<Delivery>,
    /// Behind all of `near`.
    far: VecDeque<Run<Extra>>,
    far_len: usize,
    bytes: u64,
    /// What the deliveries of `near` cost.
    near_memory: u64,
}

/// The oldest delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    pub(crate) qos: QoS,
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    /// Its message is in memory.
    pub(crate) is_near: bool,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.near.len() + self.far_len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty()
    }

    /// Whether it is empty and has no memory to release.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && self.near.capacity() <= CAPACITY_KEPT && self.far.capacity() == 0
    }

    /// Number of messages in memory.
    pub(crate) fn near_len(&self) -> usize {
        self.near.len()
    }

    /// Whether some messages are only in the journal.
    pub(crate) fn has_far(&self) -> bool {
        !self.far.is_empty()
    }

    /// Size of all messages, as limits count it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the queue keeps in memory.
    pub(crate) fn memory(&self) -> u64 {
        self.near_memory + (self.far.len() * RUN_BYTES) as u64
    }

    /// The same, computed anew.
    pub(crate) fn recomputed_memory(&self) -> u64 {
        self.near.iter().map(Delivery::memory).sum::<u64>() + (self.far.len() * RUN_BYTES) as u64
    }

    pub(crate) fn front(&self) -> Option<Front> {
        if let Some(Delivery { qos, sequence, offset, .. }) = self.near.front() {
            return Some(Front { qos: *qos, sequence: *sequence, offset: *offset, is_near: true });
        }
        let Run { qos, sequence, offset, .. } = self.far.front()?;
        Some(Front { qos: *qos, sequence: *sequence, offset: *offset, is_near: false })
    }

    /// Appends a delivery with its message. There must be no references.
    pub(crate) fn push(&mut self, delivery: Delivery) {
        debug_assert!(self.far.is_empty());
        self.bytes += delivery.size();
        self.near_memory += delivery.memory();
        self.near.push_back(delivery);
    }

    /// Appends a reference to a message in the journal.
    pub(crate) fn push_far(&mut self, run: Run<Extra>) {
        self.bytes += run.bytes;
        self.far_len += run.count as usize;
        if !self.far.back_mut().is_some_and(|last| last.join(&run)) {
            self.far.push_back(run);
        }
    }

    /// Takes the oldest delivery, if its message is in memory.
    pub(crate) fn pop(&mut self) -> Option<Delivery> {
        let delivery = self.near.pop_front()?;
        self.bytes -= delivery.size();
        self.near_memory -= delivery.memory();
        Some(delivery)
    }

    /// Takes the oldest delivery. A reference comes without its message.
    pub(crate) fn drop_oldest(&mut self) -> Option<Delivery> {
        self.pop().or_else(|| {
            let (delivery, bytes) = self.pop_far(None)?;
            self.bytes -= bytes;
            Some(delivery)
        })
    }

    fn pop_far(&mut self, size: Option<u64>) -> Option<(Delivery, u64)> {
        let run = self.far.front_mut()?;
        let delivery = Delivery {
            message: None,
            sequence: run.sequence,
            offset: run.offset,
            qos: run.qos,
            retain: run.retain,
            extra: run.extra.clone(),
        };
        let bytes = run.shorten(size);
        self.far_len -= 1;
        if run.count == 0 {
            self.far.pop_front();
        }
        Some((delivery, bytes))
    }

    /// Loads up to `most` of the oldest deliveries into memory, and no more once they cost `room` bytes. Ends at the
    /// first message that `load` does not find: its delivery is removed and returned.
    pub(crate) fn refill(
        &mut self,
        most: usize,
        room: u64,
        mut load: impl FnMut(u64) -> Option<Arc<Message>>,
    ) -> Option<Delivery> {
        debug_assert!(self.near.is_empty());
        for _ in 0..most {
            let message = load(self.far.front()?.offset);
            let size = message.as_ref().map(|message| message.size() as u64);
            let (mut delivery, bytes) = self.pop_far(size)?;
            self.bytes -= bytes;
            let Some(message) = message else { return Some(delivery) };
            delivery.message = Some(message);
            self.bytes += delivery.size();
            self.near_memory += delivery.memory();
            self.near.push_back(delivery);
            if self.near_memory >= room {
                break;
            }
        }
        None
    }

    /// Takes the deliveries for which `take` returns true. References come without their messages.
    pub(crate) fn take_if(&mut self, take: impl Fn(QoS, Option<&Extra>) -> bool) -> Vec<Delivery> {
        let is_taken = |delivery: &Delivery| take(delivery.qos, delivery.extra.as_deref());
        let (mut taken, rest) = std::mem::take(&mut self.near).into_iter().partition::<Vec<_>, _>(is_taken);
        self.near = rest.into();
        self.bytes -= taken.iter().map(Delivery::size).sum::<u64>();
        self.near_memory -= taken.iter().map(Delivery::memory).sum::<u64>();
        let is_taken = |run: &Run<Extra>| take(run.qos, run.extra.as_deref());
        let (far, rest) = std::mem::take(&mut self.far).into_iter().partition::<Vec<_>, _>(is_taken);
        self.far = rest.into();
        if !far.is_empty() {
            let far_len = far.iter().map(|run| run.count as usize).sum();
            let mut moved = Self { far: far.into(), far_len, ..Self::default() };
            while let Some((delivery, bytes)) = moved.pop_far(None) {
                self.bytes -= bytes;
                self.far_len -= 1;
                taken.push(delivery);
            }
        }
        taken
    }

    /// Takes the deliveries of messages at these offsets of the journal.
    pub(crate) fn take_at(&mut self, offsets: &BTreeSet<u64>) -> Vec<Delivery> {
        let is_taken = |delivery: &Delivery| delivery.sequence > 0 && offsets.contains(&delivery.offset);
        let (mut taken, rest) = std::mem::take(&mut self.near).into_iter().partition::<Vec<_>, _>(is_taken);
        self.near = rest.into();
        self.bytes -= taken.iter().map(Delivery::size).sum::<u64>();
        self.near_memory -= taken.iter().map(Delivery::memory).sum::<u64>();
        let runs = std::mem::take(&mut self.far);
        let mut removed = Self::default();
        for mut run in runs {
            self.far_len -= run.count as usize;
            self.bytes -= run.bytes;
            while run.count > 0 {
                let is_taken = offsets.contains(&run.offset);
                let mut one = Run { count: 1, ..run.clone() };
                one.bytes = run.shorten(None);
                if is_taken { removed.push_far(one) } else { self.push_far(one) }
            }
        }
        while let Some((delivery, _)) = removed.pop_far(None) {
            taken.push(delivery);
        }
        taken
    }

    /// Releases memory that an empty queue does not need.
    pub(crate) fn shrink(&mut self) {
        if self.near.capacity() > CAPACITY_KEPT {
            self.near = VecDeque::new();
        }
        if self.far.is_empty() {
            self.far = VecDeque::new();
        }
    }

    /// The deliveries in memory, oldest first.
    pub(crate) fn near(&self) -> impl Iterator<Item = &Delivery> {
        self.near.iter()
    }

    /// The runs behind them.
    pub(crate) fn far(&self) -> impl Iterator<Item = &Run<Extra>> {
        self.far.iter()
    }

    /// Updates every reference into the journal for which `place` returns a new offset.
    pub(crate) fn replace_each(&mut self, mut place: impl FnMut(u64) -> Option<u64>) {
        for delivery in self.near.iter_mut().filter(|delivery| delivery.sequence > 0) {
            delivery.offset = place(delivery.offset).unwrap_or(delivery.offset);
        }
        let bytes = self.bytes;
        for mut run in std::mem::take(&mut self.far) {
            self.far_len -= run.count as usize;
            while run.count > 0 {
                let mut one = Run { count: 1, ..run.clone() };
                one.bytes = run.shorten(None);
                one.offset = place(one.offset).unwrap_or(one.offset);
                self.push_far(one);
            }
        }
        self.bytes = bytes;
    }

    /// Updates references into the journal for which `moved` returns a new offset. Of each run, `moved` is called until
    /// it returns none: old messages are at the beginning.
    pub(crate) fn relocate(&mut self, mut moved: impl FnMut(u64, Option<&Arc<Message>>) -> Option<u64>) {
        for delivery in self.near.iter_mut().filter(|delivery| delivery.sequence > 0) {
            if let Some(offset) = moved(delivery.offset, delivery.message.as_ref()) {
                delivery.offset = offset;
            }
        }
        let bytes = self.bytes;
        for mut run in std::mem::take(&mut self.far) {
            self.far_len -= run.count as usize;
            while run.count > 0 {
                let Some(offset) = moved(run.offset, None) else {
                    self.push_far(run);
                    break;
                };
                let mut one = Run { count: 1, ..run.clone() };
                one.bytes = run.shorten(None);
                one.offset = offset;
                self.push_far(one);
            }
        }
        self.bytes = bytes;
    }
}
