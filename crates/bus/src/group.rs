//! Shared subscriptions: each message goes to one member of the group, the one with the least to do.

use std::sync::Arc;

use crate::callback::{OnFault, Worker, run_all};
use crate::event::{Event, Shared, View};
use crate::queue::{Offer, Queue, Spoils};
use crate::ring::{Reader, Ring};
use crate::stats::{Delivered, Kind, Profile, SubscriptionStats, Waiting};
use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, Patience, lock};

/// All that subscribed to one filter as `$share/<name>/<filter>`.
pub(crate) struct Group<T> {
    pub(crate) name: Box<str>,
    dealing: Mutex<Dealing<T>>,
    bell: Arc<Bell>,
}

struct Dealing<T> {
    members: Vec<Member<T>>,
    /// Where the search for the least busy member begins, so that equals take turns.
    turn: usize,
}

/// One subscription in a group.
pub(crate) enum Member<T> {
    Worker(Arc<Worker<T>>),
    Mailbox(Arc<Queue<T>>),
    /// A ring of its own.
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
    pub(crate) fn profile(&self) -> &Arc<Profile> {
        match self {
            Self::Worker(worker) => &worker.callback.profile,
            Self::Mailbox(queue) => &queue.profile,
            Self::Cursor(_, reader) => &reader.profile,
        }
    }

    pub(crate) fn stats(&self) -> SubscriptionStats {
        let kind = match self {
            Self::Worker(_) => Kind::Callback,
            Self::Mailbox(_) => Kind::Mailbox,
            Self::Cursor(..) => Kind::Cursor,
        };
        self.profile().stats(kind, self.waiting())
    }

    fn waiting(&self) -> Waiting {
        match self {
            Self::Worker(worker) => worker.waiting(),
            Self::Mailbox(queue) => queue.waiting(),
            Self::Cursor(ring, reader) => ring.waiting_now(reader),
        }
    }

    /// Gives it the message, unless it takes none any more.
    fn try_give(&self, message: &Arc<Shared<T>>, spoils: &mut Spoils<T>) -> Option<Pick<T>> {
        let offer = match self {
            Self::Worker(worker) => {
                worker.running.fetch_add(1, Ordering::Relaxed);
                return Some(Pick::Run(Arc::clone(worker)));
            }
            Self::Mailbox(queue) => queue.offer(message, spoils),
            Self::Cursor(ring, _) => ring.offer(message, spoils),
        };
        match offer {
            Offer::Settled(tally) => Some(Pick::Settled(tally)),
            Offer::Full => Some(Pick::Full),
            Offer::Gone => None,
        }
    }

    /// The order in which members are chosen: those with room first, then those with less to do.
    fn burden(&self) -> (bool, usize) {
        let waiting = self.waiting();
        let is_full = !matches!(self, Self::Worker(_)) && waiting.lag >= self.profile().options.capacity;
        (is_full || waiting.is_disconnected, waiting.lag)
    }
}

/// What was found for a message.
enum Pick<T> {
    Settled(Delivered),
    /// To be run by the publisher.
    Run(Arc<Worker<T>>),
    /// All are full, and the one whose turn it is has publishers wait.
    Full,
    Nobody,
}

impl<T> Group<T> {
    pub(crate) fn new(name: &str) -> Self {
        let dealing = Dealing { members: Vec::new(), turn: 0 };
        Self { name: name.into(), dealing: Mutex::new(dealing), bell: Arc::new(Bell::new()) }
    }

    pub(crate) fn join(&self, member: Member<T>) {
        lock(&self.dealing).members.push(member);
        self.bell.ring();
    }

    /// What members ring when they make room.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.dealing).members.is_empty()
    }

    /// The bus is closed.
    pub(crate) fn close(&self) {
        for member in self.members() {
            match member {
                Member::Worker(_) => {}
                Member::Mailbox(queue) => queue.close(),
                Member::Cursor(ring, _) => ring.close(),
            }
        }
    }

    pub(crate) fn members(&self) -> Vec<Member<T>> {
        lock(&self.dealing).members.clone()
    }

    /// Gives one message to one member; waits for whichever has room first, if all are full and that is their wish.
    pub(crate) fn deal(&self, message: &Arc<Shared<T>>, on_fault: &OnFault) -> Delivered {
        let mut spoils = Spoils::new();
        let mut pick = self.pick(message, &mut spoils);
        if matches!(pick, Pick::Full) {
            let mut watch = self.bell.watch();
            pick = self.pick(message, &mut spoils);
            while matches!(pick, Pick::Full) {
                watch.wait();
                pick = self.pick(message, &mut spoils);
            }
        }
        match pick {
            Pick::Settled(tally) => tally,
            Pick::Run(worker) => worker.run(message, on_fault),
            Pick::Full | Pick::Nobody => Delivered::default(),
        }
    }

    fn pick(&self, message: &Arc<Shared<T>>, spoils: &mut Spoils<T>) -> Pick<T> {
        let mut dealing = lock(&self.dealing);
        let members = dealing.members.len();
        let turn = dealing.turn;
        dealing.turn = turn.wrapping_add(1);
        let in_turn = |at: usize| turn.wrapping_add(at) % members;
        let Some(best) = (0..members).map(in_turn).min_by_key(|&at| dealing.members[at].burden()) else {
            return Pick::Nobody;
        };
        let others = (0..members).map(in_turn).filter(|&at| at != best);
        let mut choices = std::iter::once(best).chain(others).map(|at| &dealing.members[at]);
        choices.find_map(|member| member.try_give(message, spoils)).unwrap_or(Pick::Nobody)
    }

    /// Takes a member out, and returns what waited for it.
    pub(crate) fn leave(&self, id: u64) -> Vec<Arc<Shared<T>>> {
        let mut dealing = lock(&self.dealing);
        let Some(at) = dealing.members.iter().position(|member| member.profile().id == id) else {
            return Vec::new();
        };
        // Out of the group first: a publisher that waits then turns to the others.
        let member = dealing.members.remove(at);
        self.bell.ring();
        match member {
            Member::Worker(_) => Vec::new(),
            Member::Mailbox(queue) => queue.abandon().into(),
            Member::Cursor(ring, reader) => ring.leave(&reader).iter().cloned().collect(),
        }
    }

    /// Gives what a member has left to the others, without waiting for room: who leaves must not be held up. Returns
    /// how many messages nobody could take.
    pub(crate) fn bequeath(&self, messages: &[Arc<Shared<T>>], on_fault: &OnFault) -> u64 {
        messages.iter().filter(|message| !self.find_heir(message, on_fault)).count() as u64
    }

    fn find_heir(&self, message: &Arc<Shared<T>>, on_fault: &OnFault) -> bool {
        let mut heirs = self.members();
        heirs.sort_by_key(Member::burden);
        heirs.iter().any(|heir| match heir {
            Member::Worker(worker) => {
                worker.running.fetch_add(1, Ordering::Relaxed);
                worker.run(message, on_fault);
                true
            }
            Member::Mailbox(queue) => queue.inherit(message),
            Member::Cursor(ring, _) => match ring.offer(message, &mut Spoils::new()) {
                Offer::Settled(tally) => tally.delivered > 0,
                Offer::Full | Offer::Gone => false,
            },
        })
    }
}

impl<T> Worker<T> {
    /// Runs the callback of a worker that has been counted as running.
    fn run(&self, message: &Arc<Shared<T>>, on_fault: &OnFault) -> Delivered {
        let event = Event::of(message, View { metadata: true, is_replay: false });
        let failed = run_all(std::slice::from_ref(&self.callback), &event, on_fault);
        self.running.fetch_sub(1, Ordering::Relaxed);
        Delivered { delivered: 1 - failed, dropped: 0, failed }
    }
}

/// Tells publishers that wait for a full group that something has changed. Costs members one look while nobody waits.
pub(crate) struct Bell {
    watching: AtomicUsize,
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { watching: AtomicUsize::new(0), rung: Mutex::new(0), changed: Condvar::new() }
    }

    /// A member may take a message that it would not have taken before.
    pub(crate) fn ring(&self) {
        if self.watching.load(Ordering::SeqCst) > 0 {
            *lock(&self.rung) += 1;
            self.changed.notify_all();
        }
    }

    /// Who looks at the members after this misses no change: it is seen, or it rings.
    fn watch(&self) -> Watch<'_> {
        self.watching.fetch_add(1, Ordering::SeqCst);
        Watch { bell: self, heard: *lock(&self.rung) }
    }
}

/// A publisher that waits for a bell.
struct Watch<'a> {
    bell: &'a Bell,
    /// How often it had rung when the publisher last looked.
    heard: u64,
}

impl Watch<'_> {
    /// Waits until the bell has rung since the last time.
    fn wait(&mut self) {
        let mut rung = lock(&self.bell.rung);
        while *rung == self.heard {
            rung = match Patience::Endless.wait(&self.bell.changed, rung) {
                Ok(rung) | Err(rung) => rung,
            };
        }
        self.heard = *rung;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.bell.watching.fetch_sub(1, Ordering::SeqCst);
    }
}
