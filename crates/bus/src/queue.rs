//! The bounded queue behind a mailbox.
//!
//! Publishers append under the lock, subject to the overflow policy; the reader takes from the front. Wakers are called
//! and displaced messages are dropped only after the lock is released, because both run user code. Replayed retained
//! messages are in a queue of their own that does not count against the capacity.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::RecvError;
use crate::event::{Message, SharedMessage, View};
use crate::offer::{DeferredDrops, OfferResult};
use crate::options::Overflow;
use crate::room_signal::RoomSignal;
use crate::stats::{Backlog, Delivered, SubscriptionInfo};
use crate::subscriber_list::Subscriber;
use crate::sync::{Condvar, Deadline, Mutex, MutexGuard, lock};

pub(crate) struct Queue<T> {
    pub(crate) info: Arc<SubscriptionInfo>,
    /// Of the group that the mailbox is a member of.
    room_signal: Option<Arc<RoomSignal>>,
    state: Mutex<State<T>>,
    /// Notified when a message arrives or the queue ends.
    arrived: Condvar,
    /// Notified when a message is taken or the queue ends.
    room: Condvar,
}

struct State<T> {
    /// Retained messages for a new subscription. They come first and do not count against the capacity.
    replay: VecDeque<Arc<SharedMessage<T>>>,
    messages: VecDeque<Arc<SharedMessage<T>>>,
    phase: Phase,
    sleeping_receivers: usize,
    /// Publishers that wait for room. While there are any, a closed queue does not end.
    waiting_publishers: usize,
    /// Messages dropped since the reader was last told, if it wants to know.
    unreported_drops: u64,
    /// Waker of the task that polls the mailbox.
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The bus is closed. Queued messages are still received, and concurrent publishes are still accepted.
    Closing,
    /// Ended by an overflow. Queued messages are still received, but no more are accepted.
    Disconnected,
    /// The reader has received the end-of-stream error or was dropped.
    Ended,
}

enum Admission {
    Accepted,
    Full,
    Ended,
}

impl<T> Subscriber for Arc<Queue<T>> {
    fn id(&self) -> u64 {
        self.info.id
    }

    /// Once it is abandoned, the queue that stays accepts no messages.
    fn vacate(&mut self) -> Self {
        Self::clone(self)
    }
}

impl<T> Queue<T> {
    pub(crate) fn new(
        info: Arc<SubscriptionInfo>,
        replay: VecDeque<Arc<SharedMessage<T>>>,
        room_signal: Option<Arc<RoomSignal>>,
    ) -> Self {
        let state = State {
            replay,
            messages: VecDeque::new(),
            phase: Phase::Open,
            sleeping_receivers: 0,
            waiting_publishers: 0,
            unreported_drops: 0,
            waker: None,
        };
        Self { info, room_signal, state: Mutex::new(state), arrived: Condvar::new(), room: Condvar::new() }
    }

    /// Appends `messages` in order, subject to the overflow policy. Blocks for room if the policy is `Block`.
    pub(crate) fn push(&self, messages: &[Arc<SharedMessage<T>>]) -> Delivered {
        let mut tally = Delivered::default();
        let mut deferred = DeferredDrops::new();
        let mut state = lock(&self.state);
        let mut remaining = messages;
        while let [message, rest @ ..] = remaining {
            match self.admit(&mut state, message, &mut tally, &mut deferred) {
                Admission::Accepted => remaining = rest,
                Admission::Ended => break,
                Admission::Full => state = self.wait_for_room(state),
            }
        }
        self.wake_receivers(state);
        self.info.count_dropped(tally.dropped);
        tally
    }

    /// Appends one message without blocking. Displaced messages go to `deferred`.
    pub(crate) fn offer(
        &self,
        message: &Arc<SharedMessage<T>>,
        deferred: &mut DeferredDrops<T>,
    ) -> OfferResult {
        let mut tally = Delivered::default();
        let mut state = lock(&self.state);
        let offer = match self.admit(&mut state, message, &mut tally, deferred) {
            Admission::Accepted => OfferResult::Done(tally),
            Admission::Full => OfferResult::Full,
            Admission::Ended => OfferResult::Ended,
        };
        self.wake_receivers(state);
        self.info.count_dropped(tally.dropped);
        offer
    }

    /// Appends a message handed over by a leaving group member, even beyond the capacity. Returns `false` if the queue
    /// has ended.
    pub(crate) fn push_unbounded(&self, message: &Arc<SharedMessage<T>>) -> bool {
        let mut state = lock(&self.state);
        let is_accepting = matches!(state.phase, Phase::Open | Phase::Closing);
        if is_accepting {
            state.messages.push_back(Arc::clone(message));
        }
        self.wake_receivers(state);
        is_accepting
    }

    fn admit(
        &self,
        state: &mut State<T>,
        message: &Arc<SharedMessage<T>>,
        tally: &mut Delivered,
        deferred: &mut DeferredDrops<T>,
    ) -> Admission {
        if matches!(state.phase, Phase::Disconnected | Phase::Ended) {
            return Admission::Ended;
        }
        if state.messages.len() >= self.info.options.capacity {
            match self.info.options.overflow {
                // A publisher must not wait for the reader of a closed bus. The excess is bounded by what publishers
                // had in hand when it was closed.
                Overflow::Block if state.phase == Phase::Closing => {}
                Overflow::Block => return Admission::Full,
                Overflow::DropOldest => deferred.messages.extend(state.messages.pop_front()),
                Overflow::DropNewest => {
                    tally.dropped += 1;
                    state.unreported_drops += 1;
                    return Admission::Accepted;
                }
                Overflow::Disconnect => {
                    tally.dropped += 1;
                    state.unreported_drops += 1;
                    state.phase = Phase::Disconnected;
                    return Admission::Accepted;
                }
            }
            if self.info.options.overflow == Overflow::DropOldest {
                tally.dropped += 1;
                state.unreported_drops += 1;
            }
        }
        state.messages.push_back(Arc::clone(message));
        tally.delivered += 1;
        Admission::Accepted
    }

    /// Waits until there may be room. Wakes the reader first, since it may not yet have been notified of the messages
    /// that fill the queue.
    fn wait_for_room<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        state.waiting_publishers += 1;
        if state.waker.is_some() {
            self.wake_receivers(state);
            state = lock(&self.state);
        } else {
            if state.sleeping_receivers > 0 {
                self.arrived.notify_all();
            }
            state = match Deadline::Never.wait(&self.room, state) {
                Ok(state) | Err(state) => state,
            };
        }
        state.waiting_publishers -= 1;
        state
    }

    /// Releases the lock before it calls the waker, which is user code.
    fn wake_receivers(&self, mut state: MutexGuard<'_, State<T>>) {
        if state.sleeping_receivers > 0 {
            self.arrived.notify_all();
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for the next message. Returns `None` if `deadline` passes first.
    pub(crate) fn receive(&self, deadline: Deadline) -> Result<Option<Message<T>>, RecvError> {
        let mut state = lock(&self.state);
        loop {
            self.report_lag(&mut state)?;
            if let Some(message) = self.take(&mut state) {
                return Ok(Some(message));
            }
            self.check_ended(&mut state)?;
            state.sleeping_receivers += 1;
            let waited = deadline.wait(&self.arrived, state);
            let is_timed_out = waited.is_err();
            state = match waited {
                Ok(state) | Err(state) => state,
            };
            state.sleeping_receivers -= 1;
            if is_timed_out {
                return Ok(None);
            }
        }
    }

    /// Polls for the next message. If there is none, registers the waker of the task.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<Message<T>, RecvError>> {
        let mut state = lock(&self.state);
        if let Err(error) = self.report_lag(&mut state) {
            return Poll::Ready(Err(error));
        }
        if let Some(message) = self.take(&mut state) {
            return Poll::Ready(Ok(message));
        }
        if let Err(error) = self.check_ended(&mut state) {
            return Poll::Ready(Err(error));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            empty => *empty = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Appends up to `max` messages to `into` and returns their number.
    pub(crate) fn drain(&self, max: usize, into: &mut Vec<Message<T>>) -> Result<usize, RecvError> {
        let mut state = lock(&self.state);
        self.report_lag(&mut state)?;
        let before = into.len();
        while into.len() - before < max {
            let Some(message) = self.take(&mut state) else { break };
            into.push(message);
        }
        if into.len() == before && max > 0 {
            self.check_ended(&mut state)?;
        }
        Ok(into.len() - before)
    }

    /// Returns an error if messages were dropped, and the reader wants to know and has not been told.
    fn report_lag(&self, state: &mut State<T>) -> Result<(), RecvError> {
        if !self.info.options.report_lag || state.unreported_drops == 0 {
            return Ok(());
        }
        Err(RecvError::Lagged(std::mem::take(&mut state.unreported_drops)))
    }

    /// Returns an error if no more messages can arrive. Call only with an empty queue.
    fn check_ended(&self, state: &mut State<T>) -> Result<(), RecvError> {
        match state.phase {
            Phase::Open => Ok(()),
            Phase::Disconnected => Err(RecvError::Disconnected),
            Phase::Closing if state.waiting_publishers > 0 => Ok(()),
            Phase::Closing if self.room_signal.as_ref().is_some_and(|signal| signal.has_waiters()) => Ok(()),
            Phase::Closing | Phase::Ended => {
                state.phase = Phase::Ended;
                Err(RecvError::Closed)
            }
        }
    }

    fn take(&self, state: &mut MutexGuard<'_, State<T>>) -> Option<Message<T>> {
        let metadata = self.info.options.metadata;
        if let Some(shared) = state.replay.pop_front() {
            return Some(Message::new(shared, View { metadata, is_replay: true }));
        }
        let shared = state.messages.pop_front()?;
        if state.waiting_publishers > 0 {
            self.room.notify_one();
        }
        if let Some(room_signal) = &self.room_signal {
            room_signal.notify();
        }
        Some(Message::new(shared, View { metadata, is_replay: false }))
    }

    /// Called when the bus is closed.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
            self.room.notify_all();
            self.wake_receivers(state);
        }
    }

    /// Makes the reader look again whether the queue has ended.
    pub(crate) fn wake_reader(&self) {
        self.wake_receivers(lock(&self.state));
    }

    /// Ends the queue when its reader is dropped. Returns the queued messages, without the replayed ones.
    pub(crate) fn abandon(&self) -> VecDeque<Arc<SharedMessage<T>>> {
        let mut state = lock(&self.state);
        state.phase = Phase::Ended;
        state.waker = None;
        self.room.notify_all();
        self.arrived.notify_all();
        let replay = std::mem::take(&mut state.replay);
        let messages = std::mem::take(&mut state.messages);
        drop(state);
        drop(replay);
        messages
    }

    pub(crate) fn backlog(&self) -> Backlog {
        let state = lock(&self.state);
        let lag = state.replay.len() + state.messages.len();
        Backlog { lag, missed: 0, is_disconnected: state.phase == Phase::Disconnected }
    }
}
