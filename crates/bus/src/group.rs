//! Shared subscriptions: each message goes to the least loaded member of the group.
//!
//! A member is chosen and the message is offered to it under the lock of the group, without blocking. If all members
//! are full and block, the publisher waits for any member to make room, not for one particular member. A member that
//! leaves hands its unread messages over to the others. Callbacks run after the lock is released.

use std::sync::Arc;

use crate::callback::{OnFault, Worker, run_all};
use crate::event::{Event, SharedMessage, View};
use crate::offer::{DeferredDrops, OfferResult};
use crate::queue::Queue;
use crate::ring::{Reader, Ring};
use crate::room_signal::RoomSignal;
use crate::stats::{Backlog, Delivered, Kind, SubscriptionInfo, SubscriptionStats};
use crate::sync::{Mutex, Ordering, lock};

/// The subscriptions to `$share/<name>/<filter>` for one name and one filter.
pub(crate) struct Group<T> {
    pub(crate) name: Box<str>,
    state: Mutex<State<T>>,
    room_signal: Arc<RoomSignal>,
}

struct State<T> {
    members: Vec<Member<T>>,
    /// Where the search for the least loaded member starts, so that equally loaded members take turns.
    next_start: usize,
}

/// One subscription in a group.
pub(crate) enum Member<T> {
    Worker(Arc<Worker<T>>),
    Mailbox(Arc<Queue<T>>),
    /// A cursor on a ring that no other cursor reads.
    Cursor(Arc<Ring<T>>, Arc<Reader>),
}

impl<T> Clone for Member<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Worker(worker) => Self::Worker(Arc::clone(worker)),
            Self::Mailbox(queue) => Self::Mailbox(Arc::clone(queue)),
            Self::Cursor(ring, reader) => Self::Cursor(Arc::clone(ring), Arc::clone(reader)),
        }
    }
}

impl<T> Member<T> {
    pub(crate) fn info(&self) -> &Arc<SubscriptionInfo> {
        match self {
            Self::Worker(worker) => &worker.callback.info,
            Self::Mailbox(queue) => &queue.info,
            Self::Cursor(_, reader) => &reader.info,
        }
    }

    pub(crate) fn stats(&self) -> SubscriptionStats {
        let kind = match self {
            Self::Worker(_) => Kind::Callback,
            Self::Mailbox(_) => Kind::Mailbox,
            Self::Cursor(..) => Kind::Cursor,
        };
        self.info().stats(kind, self.backlog())
    }

    fn backlog(&self) -> Backlog {
        match self {
            Self::Worker(worker) => worker.backlog(),
            Self::Mailbox(queue) => queue.backlog(),
            Self::Cursor(ring, reader) => ring.current_backlog(reader),
        }
    }

    /// Offers the message to this member. Returns `None` if the member has ended.
    fn try_assign(
        &self,
        message: &Arc<SharedMessage<T>>,
        deferred: &mut DeferredDrops<T>,
    ) -> Option<Assignment<T>> {
        let offer = match self {
            Self::Worker(worker) => {
                worker.running.fetch_add(1, Ordering::Relaxed);
                return Some(Assignment::RunCallback(Arc::clone(worker)));
            }
            Self::Mailbox(queue) => queue.offer(message, deferred),
            Self::Cursor(ring, _) => ring.offer(message, deferred),
        };
        match offer {
            OfferResult::Done(tally) => Some(Assignment::Done(tally)),
            OfferResult::Full => Some(Assignment::Full),
            OfferResult::Ended => None,
        }
    }

    /// Sort key for choosing a member: those with room first, then those with the smaller backlog.
    fn load_key(&self) -> (bool, usize) {
        let backlog = self.backlog();
        let is_full = !matches!(self, Self::Worker(_)) && backlog.lag >= self.info().options.capacity;
        (is_full || backlog.is_disconnected, backlog.lag)
    }
}

/// Result of assigning a message to a member.
enum Assignment<T> {
    Done(Delivered),
    /// The publisher has to run this callback.
    RunCallback(Arc<Worker<T>>),
    /// All members are full, and the least loaded one has the overflow policy `Block`.
    Full,
    NoMember,
}

impl<T> Group<T> {
    pub(crate) fn new(name: &str) -> Self {
        let state = State { members: Vec::new(), next_start: 0 };
        Self { name: name.into(), state: Mutex::new(state), room_signal: Arc::new(RoomSignal::new()) }
    }

    pub(crate) fn join(&self, member: Member<T>) {
        lock(&self.state).members.push(member);
        self.room_signal.notify();
    }

    /// Returns the signal that members notify when they make room.
    pub(crate) fn room_signal(&self) -> Arc<RoomSignal> {
        Arc::clone(&self.room_signal)
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.state).members.is_empty()
    }

    /// Called when the bus is closed.
    pub(crate) fn close(&self) {
        for member in self.members() {
            match member {
                Member::Worker(_) => {}
                Member::Mailbox(queue) => queue.close(),
                Member::Cursor(ring, _) => ring.close(),
            }
        }
        // Members of a closed bus take messages beyond their capacity.
        self.room_signal.notify();
    }

    /// Readers of a closed bus do not end while a publisher waits for any of them. It no longer does.
    fn wake_readers(&self) {
        for member in self.members() {
            match member {
                Member::Worker(_) => {}
                Member::Mailbox(queue) => queue.wake_reader(),
                Member::Cursor(ring, _) => ring.wake_reader(),
            }
        }
    }

    pub(crate) fn members(&self) -> Vec<Member<T>> {
        lock(&self.state).members.clone()
    }

    /// Delivers one message to one member. Blocks until any member has room if all are full and the least loaded one
    /// has the overflow policy `Block`.
    pub(crate) fn dispatch(&self, message: &Arc<SharedMessage<T>>, on_fault: &OnFault) -> Delivered {
        let mut deferred = DeferredDrops::new();
        let mut assignment = self.assign(message, &mut deferred);
        if matches!(assignment, Assignment::Full) {
            let mut waiter = self.room_signal.register();
            assignment = self.assign(message, &mut deferred);
            while matches!(assignment, Assignment::Full) {
                waiter.wait();
                assignment = self.assign(message, &mut deferred);
            }
            drop(waiter);
            self.wake_readers();
        }
        match assignment {
            Assignment::Done(tally) => tally,
            Assignment::RunCallback(worker) => worker.run(message, on_fault),
            Assignment::Full | Assignment::NoMember => Delivered::default(),
        }
    }

    fn assign(&self, message: &Arc<SharedMessage<T>>, deferred: &mut DeferredDrops<T>) -> Assignment<T> {
        let mut state = lock(&self.state);
        let members = state.members.len();
        let start = state.next_start;
        state.next_start = start.wrapping_add(1);
        let rotated = |at: usize| start.wrapping_add(at) % members;
        let Some(best) = (0..members).map(rotated).min_by_key(|&at| state.members[at].load_key()) else {
            return Assignment::NoMember;
        };
        let others = (0..members).map(rotated).filter(|&at| at != best);
        let mut choices = std::iter::once(best).chain(others).map(|at| &state.members[at]);
        choices.find_map(|member| member.try_assign(message, deferred)).unwrap_or(Assignment::NoMember)
    }

    /// Removes a member and returns its unread messages.
    pub(crate) fn leave(&self, id: u64) -> Vec<Arc<SharedMessage<T>>> {
        let mut state = lock(&self.state);
        let Some(at) = state.members.iter().position(|member| member.info().id == id) else {
            return Vec::new();
        };
        // Removed before it is emptied, so that a blocked publisher moves on to another member.
        let member = state.members.remove(at);
        self.room_signal.notify();
        match member {
            Member::Worker(_) => Vec::new(),
            Member::Mailbox(queue) => queue.abandon().into(),
            Member::Cursor(ring, reader) => ring.leave(&reader).iter().cloned().collect(),
        }
    }

    /// Hands the unread messages of a leaving member over to the others. Never blocks, because unsubscribing must not
    /// wait for other readers. Returns the number of messages that no member could take.
    pub(crate) fn redistribute(&self, messages: &[Arc<SharedMessage<T>>], on_fault: &OnFault) -> u64 {
        messages.iter().filter(|message| !self.redistribute_one(message, on_fault)).count() as u64
    }

    fn redistribute_one(&self, message: &Arc<SharedMessage<T>>, on_fault: &OnFault) -> bool {
        let mut candidates = self.members();
        candidates.sort_by_key(Member::load_key);
        candidates.iter().any(|member| match member {
            Member::Worker(worker) => {
                worker.running.fetch_add(1, Ordering::Relaxed);
                worker.run(message, on_fault);
                true
            }
            Member::Mailbox(queue) => queue.push_unbounded(message),
            Member::Cursor(ring, _) => match ring.offer(message, &mut DeferredDrops::new()) {
                OfferResult::Done(tally) => tally.delivered > 0,
                OfferResult::Full | OfferResult::Ended => false,
            },
        })
    }
}

impl<T> Worker<T> {
    /// Runs the callback. The caller has already incremented `running`.
    fn run(&self, message: &Arc<SharedMessage<T>>, on_fault: &OnFault) -> Delivered {
        let event = Event::of(message, View { metadata: true, is_replay: false });
        let failed = run_all(std::slice::from_ref(&self.callback), &event, on_fault);
        self.running.fetch_sub(1, Ordering::Relaxed);
        Delivered { delivered: 1 - failed, dropped: 0, failed }
    }
}
