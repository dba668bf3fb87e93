//! The handle of a queue, for one of its groups.
//!
//! Every call takes the lock of all queues, changes the queue, and waits without the lock until the change is durable.
//! The thread that finds completions hands them to all waiters, so concurrent callers share a sync.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use mainstem_log::{Appended, BatchBuilder};
use mainstem_queue_core::{DEFAULT_GROUP, Disposition, GroupId, LeaseRequest, QueueError, Settlement};
use smallvec::SmallVec;

use crate::common::{Queues, RECHECK_INTERVAL};
use crate::delivery::Delivery;
use crate::error::Error;
use crate::group_handle::GroupHandle;
use crate::host::{Host, OpenQueue};
use crate::message::Message;
use crate::settings::Settings;
use crate::time::{as_ms, now_ms};

/// Limit of the initial capacity for deliveries.
const ROOM_MAX: usize = 1024;

/// A queue. Each clone is another consumer.
#[derive(Debug)]
pub struct Queue {
    handle: Arc<GroupHandle>,
    consumer: u64,
    /// Failed posts that `flush` has reported.
    losses: AtomicU64,
}

fn new_consumer() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Clone for Queue {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.handle), self.losses.load(Ordering::Relaxed))
    }
}

impl Queues {
    /// Opens the queue of this name; creates it if it does not exist. The settings replace its earlier settings, for
    /// all handles and for all messages in it.
    ///
    /// A name consists of 1 to 247 ASCII letters, digits, `.`, `_` and `-`.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid name, a setting out of bounds, or a queue that is its own dead-letter queue; a
    /// disk error.
    pub fn queue(&self, name: &str, settings: impl Into<Settings>) -> Result<Queue, Error> {
        let settings = settings.into();
        settings.check(name)?;
        let at = self.common.lock().open(name, settings)?;
        // The new settings may make messages due.
        self.common.due.notify();
        Ok(Queue::new(self.clone(), at))
    }
}

impl Queue {
    pub(crate) fn new(queues: Queues, at: usize) -> Self {
        let losses = queues.common.lock().queues[at].sent.losses();
        Self::of(Arc::new(GroupHandle { queues, at, group: DEFAULT_GROUP.into() }), losses)
    }

    fn of(handle: Arc<GroupHandle>, losses: u64) -> Self {
        Self { handle, consumer: new_consumer(), losses: AtomicU64::new(losses) }
    }

    /// A handle of the same queue for another group. Each group gets every message.
    #[must_use]
    pub fn group(&self, name: &str) -> Self {
        let GroupHandle { queues, at, .. } = &*self.handle;
        let handle = Arc::new(GroupHandle { queues: queues.clone(), at: *at, group: name.into() });
        Self::of(handle, self.losses.load(Ordering::Relaxed))
    }

    /// Appends a message. Returns its offset when it is as durable as the queue is configured.
    ///
    /// # Errors
    /// The queue is full, the message or its deduplication identifier is too long, or a disk error. The message is not
    /// in the queue then.
    pub fn enqueue<'a>(&self, message: impl Into<Message<'a>>) -> Result<u64, Error> {
        self.enqueue_batch([message]).map(|offsets| offsets.start)
    }

    /// Appends several messages of at most 1 GiB, all or none. Returns their offsets. The iterator must not use queues
    /// of this directory: it runs under their lock.
    ///
    /// # Errors
    /// As [`Queue::enqueue`].
    pub fn enqueue_batch<'a, M: Into<Message<'a>>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Range<u64>, Error> {
        let GroupHandle { queues, at, .. } = &*self.handle;
        let (common, now_ms) = (&*queues.common, now_ms());
        let mut inner = common.lock();
        let Some((appended, count)) = self.put(&mut inner, now_ms, messages)? else { return Ok(0..0) };
        inner.queues[*at].sent.wait();
        let is_durable =
            common.finish(inner, *at, now_ms, |inner| inner.queues[*at].sent.outcome(appended.ticket));
        common.arrivals.notify();
        if is_durable {
            Ok(appended.base_offset..appended.base_offset + count)
        } else {
            Err(QueueError::Storage.into())
        }
    }

    /// Appends a message without waiting. It becomes durable, and available to consumers, with [`Queue::flush`] or
    /// another call that waits, or after half a second.
    ///
    /// # Errors
    /// The queue is full, or the append fails at once.
    pub fn post<'a>(&self, message: impl Into<Message<'a>>) -> Result<(), Error> {
        let mut inner = self.handle.queues.common.lock();
        if let Some((appended, _)) = self.put(&mut inner, now_ms(), [message])? {
            inner.queues[self.handle.at].sent.post(appended.ticket);
        }
        Ok(())
    }

    /// Waits until all earlier messages are as durable as the queue is configured.
    ///
    /// # Errors
    /// A message posted by any handle since the last flush of this handle, or since its creation, could not be stored.
    pub fn flush(&self) -> Result<(), Error> {
        let GroupHandle { queues, at, .. } = &*self.handle;
        let inner = queues.common.lock();
        let last = inner.queues[*at].sent.last();
        let losses = queues.common.finish(inner, *at, now_ms(), |inner| {
            let sent = &inner.queues[*at].sent;
            sent.is_done(last).then_some(sent.losses())
        });
        queues.common.arrivals.notify();
        let reported = self.losses.swap(losses, Ordering::Relaxed);
        if reported == losses { Ok(()) } else { Err(QueueError::Storage.into()) }
    }

    /// Appends messages if the queue admits all of them.
    fn put<'a, M: Into<Message<'a>>>(
        &self,
        inner: &mut Host,
        now_ms: u64,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Option<(Appended, u64)>, Error> {
        let at = self.handle.at;
        let put = inner.put_together(at, now_ms, messages).and_then(|(count, bytes)| {
            if count == 0 {
                return Ok(None);
            }
            Ok(Some((inner.append(at, count, bytes)?, count)))
        });
        if put.is_err() {
            inner.queues[at].builder = BatchBuilder::default();
        }
        put
    }

    /// Receives at most `max` messages; waits at most `wait` for the first. The caller holds them for the [lease
    /// time](mainstem_queue_core::Config::lease_ms) of the queue. The deliveries are counted before this returns; the
    /// counts survive the process, but not always a power failure.
    ///
    /// # Errors
    /// A disk error. The group does not exist, and there are 256 others or its name is invalid.
    pub fn receive(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        self.receive_with(max, wait, None)
    }

    /// [`Queue::receive`] with another lease time, 1 ms to 12 hours.
    ///
    /// # Errors
    /// As [`Queue::receive`].
    pub fn receive_for(&self, lease: Duration, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        self.receive_with(max, wait, Some(as_ms(lease)))
    }

    fn receive_with(
        &self,
        max: usize,
        wait: Duration,
        lease_ms: Option<u64>,
    ) -> Result<Vec<Delivery>, Error> {
        let common = &*self.handle.queues.common;
        let mut until = None;
        loop {
            let seen = common.arrivals.seen();
            let deliveries = self.try_receive(max, lease_ms)?;
            if !deliveries.is_empty() || wait.is_zero() {
                return Ok(deliveries);
            }
            let now = Instant::now();
            // A wait beyond the range of the clock has no end.
            let left = match *until.get_or_insert_with(|| now.checked_add(wait)) {
                Some(until) => until.saturating_duration_since(now),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return Ok(deliveries);
            }
            common.arrivals.wait(seen, left.min(RECHECK_INTERVAL));
        }
    }

    fn try_receive(&self, max: usize, lease_ms: Option<u64>) -> Result<Vec<Delivery>, Error> {
        let Self { handle, consumer, .. } = self;
        let now_ms = now_ms();
        let mut inner = handle.queues.common.lock();
        inner.look(handle.at, now_ms)?;
        let (mut inner, group) = self.open_group(inner, now_ms)?;
        let Host { store, queues, .. } = &mut *inner;
        let OpenQueue { engine, maintained_ms, .. } = &mut queues[handle.at];
        let queue = engine.queue_mut();
        // Runs the timers once per ms: a due message may be the next one in the order, or the only one.
        if now_ms != *maintained_ms || queue.machine().ready(group) == 0 {
            queue.maintain(now_ms);
            *maintained_ms = now_ms;
        }
        let taking = LeaseRequest { group, consumer: *consumer, max, bytes_max: usize::MAX, lease_ms };
        let ready = usize::try_from(queue.machine().ready(group)).unwrap_or(usize::MAX);
        let mut deliveries = Vec::with_capacity(ready.min(max).min(ROOM_MAX));
        queue.lease(store, &taking, now_ms, |taken| {
            deliveries.push(Delivery::new(Arc::clone(handle), taken));
        })?;
        if !deliveries.is_empty() {
            // The count must survive a message that crashes its consumer. A power failure may lose it, so this does not
            // wait for the sync.
            inner.commit(handle.at, now_ms);
        }
        Ok(deliveries)
    }

    /// Opens the group of this handle; creates it if it does not exist. Waits until the group is durable; releases the
    /// lock meanwhile.
    fn open_group<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Host>,
        now_ms: u64,
    ) -> Result<(MutexGuard<'a, Host>, GroupId), Error> {
        let handle = &*self.handle;
        loop {
            let queue = inner.queues[handle.at].engine.queue_mut();
            if queue.is_stuck() {
                return Err(QueueError::Storage.into());
            }
            let group = queue.open_group(&handle.group, now_ms)?;
            if !queue.machine().is_pending_creation(group) {
                return Ok((inner, group));
            }
            handle.wait_until_durable(inner, now_ms)?;
            inner = handle.queues.common.lock();
        }
    }

    /// Acknowledges many deliveries at once.
    ///
    /// # Errors
    /// The first error; the other deliveries are acknowledged all the same.
    pub fn ack_all(&self, deliveries: impl IntoIterator<Item = Delivery>) -> Result<(), Error> {
        self.settle_all(deliveries, Disposition::Ack)
    }

    /// Negatively acknowledges many deliveries: see [`Delivery::nack`].
    ///
    /// # Errors
    /// As [`Queue::ack_all`].
    pub fn nack_all(
        &self,
        deliveries: impl IntoIterator<Item = Delivery>,
        after: Option<Duration>,
    ) -> Result<(), Error> {
        self.settle_all(deliveries, Disposition::Nack(after.map(as_ms)))
    }

    /// Rejects many deliveries: they become dead letters.
    ///
    /// # Errors
    /// As [`Queue::ack_all`].
    pub fn reject_all(&self, deliveries: impl IntoIterator<Item = Delivery>) -> Result<(), Error> {
        self.settle_all(deliveries, Disposition::Reject)
    }

    fn settle_all(
        &self,
        deliveries: impl IntoIterator<Item = Delivery>,
        disposition: Disposition,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut own: SmallVec<[Settlement; 8]> = SmallVec::new();
        for delivery in deliveries {
            if delivery.is_of(&self.handle) {
                own.push(delivery.into_settlement(disposition));
            } else {
                // Receipts belong to their queue and group.
                outcome = outcome.and(delivery.settle(disposition));
            }
        }
        if own.is_empty() { outcome } else { self.handle.settle(&own, now_ms()).and(outcome) }
    }

    pub(crate) fn handle(&self) -> &GroupHandle {
        &self.handle
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut inner = self.handle.queues.common.lock();
        let queue = inner.queues[self.handle.at].engine.queue_mut().machine_mut();
        if let Some(group) = queue.group(&self.handle.group) {
            queue.leave(group, self.consumer, now_ms());
        }
    }
}
