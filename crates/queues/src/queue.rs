//! A queue as a program holds it, for one of its groups.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use mainstem_log::{Appended, BatchBuilder, Origin};
use mainstem_queue::{DEFAULT_GROUP, GroupId, GroupName, Receipt, Refusal, Settlement, Taking, Verdict};
use smallvec::SmallVec;

use crate::common::Queues;
use crate::delivery::Delivery;
use crate::error::Error;
use crate::inner::{Inner, One};
use crate::message::Message;
use crate::time::{as_ms, now_ms};

/// Deliveries that room is made for before they are there.
const ROOM_MAX: usize = 1024;
/// Longest time between two looks whether a message is there whose time has come.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A queue. Clones take messages as consumers of their own.
#[derive(Debug)]
pub struct Queue {
    side: Arc<Side>,
    consumer: u64,
    /// Losses of which this handle has told.
    losses: AtomicU64,
}

/// A queue from the side of one group.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) queues: Queues,
    /// Its place among them.
    pub(crate) at: usize,
    pub(crate) group: GroupName,
}

fn new_consumer() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Clone for Queue {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.side), self.losses.load(Ordering::Relaxed))
    }
}

impl Side {
    /// Settles deliveries, and waits until that is durable.
    pub(crate) fn settle(&self, settlements: &[Settlement], now_ms: u64) -> Result<(), Error> {
        let common = &*self.queues.common;
        let mut outcome = Ok(());
        let mut inner = common.lock();
        if inner.queues[self.at].keeper.is_stuck() {
            return Err(Refusal::Storage.into());
        }
        let at_once = inner.queues[self.at].keeper.queue().at_once();
        let mut parts = settlements.chunks(at_once).peekable();
        while let Some(part) = parts.next() {
            let queue = inner.queues[self.at].keeper.queue();
            let group = queue.group(&self.group).ok_or(Refusal::UnknownGroup)?;
            for settlement in part {
                let random = inner.random();
                let keeper = &mut inner.queues[self.at].keeper;
                outcome = outcome.and(keeper.settle(group, settlement, now_ms, random));
            }
            if parts.peek().is_some() {
                // Others are served in between.
                drop(inner);
                inner = common.lock();
            }
        }
        self.keep(inner, now_ms)?;
        if settlements.iter().any(|settlement| settlement.verdict != Verdict::Ack) {
            common.due.give();
        }
        outcome.map_err(Error::from)
    }

    /// Gives a delivery back. Nobody needs that to be durable: what was delivered is ready when the queue is opened.
    pub(crate) fn release(&self, receipt: Receipt) {
        let common = &*self.queues.common;
        let now_ms = now_ms();
        let mut inner = common.lock();
        let keeper = &mut inner.queues[self.at].keeper;
        let Some(group) = keeper.queue().group(&self.group) else { return };
        let settlement = Settlement { receipt, verdict: Verdict::Release };
        match keeper.settle(group, &settlement, now_ms, 0) {
            Ok(()) => inner.commit(self.at, now_ms),
            // Its lease had ended.
            Err(refusal) => log::debug!("a delivery is not given back: {refusal}"),
        }
        drop(inner);
        common.due.give();
        common.news.give();
    }

    /// Waits until all that has happened to the queue is durable, and lets everybody know who it may concern.
    pub(crate) fn keep(&self, mut inner: MutexGuard<'_, Inner>, now_ms: u64) -> Result<(), Error> {
        let common = &*self.queues.common;
        let number = inner.queues[self.at].keeper.number();
        let is_kept = common.finish(inner, self.at, now_ms, |inner| {
            let keeper = &inner.queues[self.at].keeper;
            let is_stuck = keeper.is_stuck();
            (is_stuck || keeper.durable() >= number).then_some(!is_stuck)
        });
        common.news.give();
        if is_kept { Ok(()) } else { Err(Refusal::Storage.into()) }
    }

    /// Whether that is the same group of the same queue.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let is_of_the_same = Arc::ptr_eq(&self.queues.common, &other.queues.common);
        is_of_the_same && self.at == other.at && self.group == other.group
    }
}

impl Queue {
    pub(crate) fn new(queues: Queues, at: usize) -> Self {
        let losses = queues.common.lock().queues[at].sent.losses();
        Self::of(Arc::new(Side { queues, at, group: DEFAULT_GROUP.into() }), losses)
    }

    fn of(side: Arc<Side>, losses: u64) -> Self {
        Self { side, consumer: new_consumer(), losses: AtomicU64::new(losses) }
    }

    /// The same queue for the consumers of another group, which gets every message too.
    #[must_use]
    pub fn group(&self, name: &str) -> Self {
        let Side { queues, at, .. } = &*self.side;
        let side = Arc::new(Side { queues: queues.clone(), at: *at, group: name.into() });
        Self::of(side, self.losses.load(Ordering::Relaxed))
    }

    /// Puts a message in. Returns its offset when it is as durable as the queue is set to.
    ///
    /// # Errors
    /// The queue is full, the message or its deduplication identifier is too long, or the disk refuses. Then it is not
    /// there.
    pub fn enqueue<'a>(&self, message: impl Into<Message<'a>>) -> Result<u64, Error> {
        self.enqueue_batch([message]).map(|offsets| offsets.start)
    }

    /// The same for several messages of at most 1 GiB, all or none of them. Returns their offsets. The iterator must not use queues of
    /// this directory, which wait for it.
    ///
    /// # Errors
    /// As [`Queue::enqueue`].
    pub fn enqueue_batch<'a, M: Into<Message<'a>>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Range<u64>, Error> {
        let Side { queues, at, .. } = &*self.side;
        let (common, now_ms) = (&*queues.common, now_ms());
        let mut inner = common.lock();
        let Some((appended, count)) = self.put(&mut inner, now_ms, messages)? else { return Ok(0..0) };
        inner.queues[*at].sent.wait();
        let is_kept =
            common.finish(inner, *at, now_ms, |inner| inner.queues[*at].sent.outcome(appended.ticket));
        common.news.give();
        if is_kept {
            Ok(appended.base_offset..appended.base_offset + count)
        } else {
            Err(Refusal::Storage.into())
        }
    }

    /// Puts a message in and does not wait: it is durable, and delivered, when [`Queue::flush`] or another call that
    /// waits has returned, or after half a second.
    ///
    /// # Errors
    /// The queue is full, or the disk refuses at once.
    pub fn post<'a>(&self, message: impl Into<Message<'a>>) -> Result<(), Error> {
        let mut inner = self.side.queues.common.lock();
        if let Some((appended, _)) = self.put(&mut inner, now_ms(), [message])? {
            inner.queues[self.side.at].sent.post(appended.ticket);
        }
        Ok(())
    }

    /// Waits until all that was put in before is as durable as the queue is set to.
    ///
    /// # Errors
    /// The disk has refused something that was posted since this handle was flushed last, or since it was made: by it
    /// or another handle.
    pub fn flush(&self) -> Result<(), Error> {
        let Side { queues, at, .. } = &*self.side;
        let inner = queues.common.lock();
        let last = inner.queues[*at].sent.last();
        let losses = queues.common.finish(inner, *at, now_ms(), |inner| {
            let sent = &inner.queues[*at].sent;
            sent.is_done(last).then_some(sent.losses())
        });
        queues.common.news.give();
        let told = self.losses.swap(losses, Ordering::Relaxed);
        if told == losses { Ok(()) } else { Err(Refusal::Storage.into()) }
    }

    /// Appends messages, if there is room for all of them.
    fn put<'a, M: Into<Message<'a>>>(
        &self,
        inner: &mut Inner,
        now_ms: u64,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Option<(Appended, u64)>, Error> {
        let at = self.side.at;
        let put = inner.put_together(at, now_ms, messages).and_then(|(count, bytes)| {
            if count == 0 {
                return Ok(None);
            }
            inner.admit(at, count, bytes)?;
            Ok(Some((inner.append(at, &Origin::default(), bytes)?, count)))
        });
        if put.is_err() {
            inner.queues[at].builder = BatchBuilder::default();
        }
        put
    }

    /// Takes at most `max` messages; waits so long for the first. They are the caller's for the
    /// [lease time](mainstem_queue::Config::lease_ms) of the queue. That they were delivered is counted before anybody has
    /// them: it survives the end of the process, but not always loss of power.
    ///
    /// # Errors
    /// The disk refuses. The group is not there, and there are 256 others, or it cannot have that name.
    pub fn receive(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        self.receive_with(max, wait, None)
    }

    /// The same for another lease time, 1 ms to 12 hours.
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
        let common = &*self.side.queues.common;
        let mut until = None;
        loop {
            let seen = common.news.seen();
            let deliveries = self.try_receive(max, lease_ms)?;
            if !deliveries.is_empty() || wait.is_zero() {
                return Ok(deliveries);
            }
            let now = Instant::now();
            // What is longer than clocks run is for ever.
            let left = match *until.get_or_insert_with(|| now.checked_add(wait)) {
                Some(until) => until.saturating_duration_since(now),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return Ok(deliveries);
            }
            common.news.wait(seen, left.min(LOOK));
        }
    }

    fn try_receive(&self, max: usize, lease_ms: Option<u64>) -> Result<Vec<Delivery>, Error> {
        let Self { side, consumer, .. } = self;
        let now_ms = now_ms();
        let mut inner = side.queues.common.lock();
        inner.look(side.at, now_ms)?;
        let (mut inner, group) = self.open_group(inner, now_ms)?;
        let Inner { store, queues, .. } = &mut *inner;
        let One { keeper, tended_ms, .. } = &mut queues[side.at];
        // What is due now may be in the way of what is ready, or be all there is.
        if now_ms != *tended_ms || keeper.queue().ready(group) == 0 {
            keeper.tend(now_ms);
            *tended_ms = now_ms;
        }
        let taking = Taking { group, consumer: *consumer, max, bytes_max: usize::MAX, lease_ms };
        let ready = usize::try_from(keeper.queue().ready(group)).unwrap_or(usize::MAX);
        let mut deliveries = Vec::with_capacity(ready.min(max).min(ROOM_MAX));
        keeper.lease(store, &taking, now_ms, |taken| {
            deliveries.push(Delivery::new(Arc::clone(side), taken));
        })?;
        if !deliveries.is_empty() {
            // Whoever ends the process with what it does to a message is to be counted. Loss of power may forget that:
            // nobody waits for the disk.
            inner.commit(side.at, now_ms);
        }
        Ok(deliveries)
    }

    /// The group of this handle, made if it is not there. Waits until it is durable that there is such a group; others are served
    /// meanwhile.
    fn open_group<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        now_ms: u64,
    ) -> Result<(MutexGuard<'a, Inner>, GroupId), Error> {
        let side = &*self.side;
        loop {
            let keeper = &mut inner.queues[side.at].keeper;
            if keeper.is_stuck() {
                return Err(Refusal::Storage.into());
            }
            let group = keeper.open_group(&side.group, now_ms)?;
            if !keeper.queue().begins(group) {
                return Ok((inner, group));
            }
            side.keep(inner, now_ms)?;
            inner = side.queues.common.lock();
        }
    }

    /// Acknowledges many deliveries at once.
    ///
    /// # Errors
    /// The first refusal; the others are acknowledged all the same.
    pub fn ack_all(&self, deliveries: impl IntoIterator<Item = Delivery>) -> Result<(), Error> {
        self.settle_all(deliveries, Verdict::Ack)
    }

    /// Many deliveries have failed: see [`Delivery::nack`].
    ///
    /// # Errors
    /// As [`Queue::ack_all`].
    pub fn nack_all(
        &self,
        deliveries: impl IntoIterator<Item = Delivery>,
        after: Option<Duration>,
    ) -> Result<(), Error> {
        self.settle_all(deliveries, Verdict::Nack(after.map(as_ms)))
    }

    /// Many deliveries are not worth another try: they become dead letters.
    ///
    /// # Errors
    /// As [`Queue::ack_all`].
    pub fn reject_all(&self, deliveries: impl IntoIterator<Item = Delivery>) -> Result<(), Error> {
        self.settle_all(deliveries, Verdict::Reject)
    }

    fn settle_all(
        &self,
        deliveries: impl IntoIterator<Item = Delivery>,
        verdict: Verdict,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut own: SmallVec<[Settlement; 8]> = SmallVec::new();
        for delivery in deliveries {
            if delivery.is_of(&self.side) {
                own.push(delivery.into_settlement(verdict));
            } else {
                // Its receipt means something else here.
                outcome = outcome.and(delivery.settle(verdict));
            }
        }
        if own.is_empty() { outcome } else { self.side.settle(&own, now_ms()).and(outcome) }
    }

    pub(crate) fn side(&self) -> &Side {
        &self.side
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut inner = self.side.queues.common.lock();
        let queue = inner.queues[self.side.at].keeper.queue_mut();
        if let Some(group) = queue.group(&self.side.group) {
            queue.leave(group, self.consumer, now_ms());
        }
    }
}
