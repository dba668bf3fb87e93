//! The queue behind a mailbox: bounded, filled by publishers, emptied by whoever holds the mailbox.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::RecvError;
use crate::event::{Message, Shared, View};
use crate::group::Bell;
use crate::options::Overflow;
use crate::ring::Chunk;
use crate::stats::{Delivered, Profile, Waiting};
use crate::sync::{Condvar, Mutex, MutexGuard, Patience, lock};

/// One mailbox's queue.
pub(crate) struct Queue<T> {
    pub(crate) profile: Arc<Profile>,
    /// That of its group.
    bell: Option<Arc<Bell>>,
    state: Mutex<State<T>>,
    /// Receivers wait here for messages, or for the end.
    arrived: Condvar,
    /// Publishers wait here for room.
    room: Condvar,
}

struct State<T> {
    /// Retained messages that a new subscription is owed. They come first, and take no room from others.
    replay: VecDeque<Arc<Shared<T>>>,
    waiting: VecDeque<Arc<Shared<T>>>,
    phase: Phase,
    sleeping_receivers: usize,
    sleeping_publishers: usize,
    /// The task that polls the mailbox, where one waits.
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The bus is closed: what waits is received, then comes the end.
    Closing,
    /// An overflow has ended it: the same, but nothing more gets in.
    Disconnected,
    /// The receiver has seen the end, or has gone.
    Over,
}

/// What a full subscription lets go of. Dropping a payload runs code of the user's, so it is kept until all locks are
/// given back.
pub(crate) struct Spoils<T> {
    messages: Vec<Arc<Shared<T>>>,
    pub(crate) chunks: Vec<Arc<Chunk<T>>>,
}

impl<T> Spoils<T> {
    pub(crate) const fn new() -> Self {
        Self { messages: Vec::new(), chunks: Vec::new() }
    }
}

/// What became of one message that was offered.
pub(crate) enum Offer {
    Settled(Delivered),
    /// There is no room, and this subscription has publishers wait for some.
    Full,
    /// Nobody receives here any more.
    Gone,
}

enum Admission {
    Taken,
    Full,
    Gone,
}

impl<T> Queue<T> {
    pub(crate) fn new(
        profile: Arc<Profile>,
        replay: VecDeque<Arc<Shared<T>>>,
        bell: Option<Arc<Bell>>,
    ) -> Self {
        let state = State {
            replay,
            waiting: VecDeque::new(),
            phase: Phase::Open,
            sleeping_receivers: 0,
            sleeping_publishers: 0,
            waker: None,
        };
        Self { profile, bell, state: Mutex::new(state), arrived: Condvar::new(), room: Condvar::new() }
    }

    /// Puts all `messages` in, in their order, as far as the overflow policy lets them; waits where it says so.
    pub(crate) fn push(&self, messages: &[Arc<Shared<T>>]) -> Delivered {
        let mut tally = Delivered::default();
        let mut spoils = Spoils::new();
        let mut state = lock(&self.state);
        let mut rest = messages;
        while let [message, behind @ ..] = rest {
            match self.admit(&mut state, message, &mut tally, &mut spoils) {
                Admission::Taken => rest = behind,
                Admission::Gone => break,
                Admission::Full => state = self.wait_for_room(state),
            }
        }
        self.wake_receivers(state);
        self.profile.count_dropped(tally.dropped);
        tally
    }

    /// Puts one message in, unless it would have to wait. What goes in its place goes to `spoils`.
    pub(crate) fn offer(&self, message: &Arc<Shared<T>>, spoils: &mut Spoils<T>) -> Offer {
        let mut tally = Delivered::default();
        let mut state = lock(&self.state);
        let offer = match self.admit(&mut state, message, &mut tally, spoils) {
            Admission::Taken => Offer::Settled(tally),
            Admission::Full => Offer::Full,
            Admission::Gone => Offer::Gone,
        };
        self.wake_receivers(state);
        self.profile.count_dropped(tally.dropped);
        offer
    }

    /// Puts one message in that another member of its group has left, beyond the capacity if need be; `false` where
    /// nobody receives here.
    pub(crate) fn inherit(&self, message: &Arc<Shared<T>>) -> bool {
        let mut state = lock(&self.state);
        let takes = matches!(state.phase, Phase::Open | Phase::Closing);
        if takes {
            state.waiting.push_back(Arc::clone(message));
        }
        self.wake_receivers(state);
        takes
    }

    fn admit(
        &self,
        state: &mut State<T>,
        message: &Arc<Shared<T>>,
        tally: &mut Delivered,
        spoils: &mut Spoils<T>,
    ) -> Admission {
        if matches!(state.phase, Phase::Disconnected | Phase::Over) {
            return Admission::Gone;
        }
        if state.waiting.len() >= self.profile.options.capacity {
            match self.profile.options.overflow {
                Overflow::Block => return Admission::Full,
                Overflow::DropOldest => spoils.messages.extend(state.waiting.pop_front()),
                Overflow::DropNewest => {
                    tally.dropped += 1;
                    return Admission::Taken;
                }
                Overflow::Disconnect => {
                    tally.dropped += 1;
                    state.phase = Phase::Disconnected;
                    return Admission::Taken;
                }
            }
            tally.dropped += 1;
        }
        state.waiting.push_back(Arc::clone(message));
        tally.delivered += 1;
        Admission::Taken
    }

    /// Waits until there may be room. The receiver may not have been told yet of what fills the queue.
    fn wait_for_room<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        if state.waker.is_some() {
            self.wake_receivers(state);
            return lock(&self.state);
        }
        if state.sleeping_receivers > 0 {
            self.arrived.notify_all();
        }
        state.sleeping_publishers += 1;
        state = match Patience::Endless.wait(&self.room, state) {
            Ok(state) | Err(state) => state,
        };
        state.sleeping_publishers -= 1;
        state
    }

    /// Gives the lock back before it wakes a task: what that runs is not ours.
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

    /// The next message, for as long as `patience` lasts; `None` when it has run out.
    pub(crate) fn receive(&self, patience: Patience) -> Result<Option<Message<T>>, RecvError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(message) = self.take(&mut state) {
                return Ok(Some(message));
            }
            state.end()?;
            state.sleeping_receivers += 1;
            let waited = patience.wait(&self.arrived, state);
            let is_out_of_patience = waited.is_err();
            state = match waited {
                Ok(state) | Err(state) => state,
            };
            state.sleeping_receivers -= 1;
            if is_out_of_patience {
                return Ok(None);
            }
        }
    }

    /// The next message; where there is none, the task is woken once there is, or at the end.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<Message<T>, RecvError>> {
        let mut state = lock(&self.state);
        if let Some(message) = self.take(&mut state) {
            return Poll::Ready(Ok(message));
        }
        if let Err(error) = state.end() {
            return Poll::Ready(Err(error));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Moves up to `max` messages to the end of `into`, and returns how many.
    pub(crate) fn drain(&self, max: usize, into: &mut Vec<Message<T>>) -> Result<usize, RecvError> {
        let mut state = lock(&self.state);
        let before = into.len();
        while into.len() - before < max {
            let Some(message) = self.take(&mut state) else { break };
            into.push(message);
        }
        if into.len() == before && max > 0 {
            state.end()?;
        }
        Ok(into.len() - before)
    }

    fn take(&self, state: &mut MutexGuard<'_, State<T>>) -> Option<Message<T>> {
        let metadata = self.profile.options.metadata;
        if let Some(shared) = state.replay.pop_front() {
            return Some(Message::new(shared, View { metadata, is_replay: true }));
        }
        let shared = state.waiting.pop_front()?;
        if state.sleeping_publishers > 0 {
            self.room.notify_one();
        }
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        Some(Message::new(shared, View { metadata, is_replay: false }))
    }

    /// The bus is closed.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
            self.wake_receivers(state);
        }
    }

    /// The receiver goes: nothing gets in any more, and what waited is returned.
    pub(crate) fn abandon(&self) -> VecDeque<Arc<Shared<T>>> {
        let mut state = lock(&self.state);
        state.phase = Phase::Over;
        state.waker = None;
        self.room.notify_all();
        self.arrived.notify_all();
        let replay = std::mem::take(&mut state.replay);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(replay);
        waiting
    }

    pub(crate) fn waiting(&self) -> Waiting {
        let state = lock(&self.state);
        let lag = state.replay.len() + state.waiting.len();
        Waiting { lag, missed: 0, is_disconnected: state.phase == Phase::Disconnected }
    }
}

impl<T> State<T> {
    /// An error where nothing waits and nothing will come.
    fn end(&mut self) -> Result<(), RecvError> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Disconnected => Err(RecvError::Disconnected),
            Phase::Closing | Phase::Over => {
                self.phase = Phase::Over;
                Err(RecvError::Closed)
            }
        }
    }
}
