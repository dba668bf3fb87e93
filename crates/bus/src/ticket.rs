//! Subscribing and unsubscribing: how a subscription gets its place in the bus, and how it leaves.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_topic::{FilterId, parse_subscription};

use crate::callback::{Callback, Gate, Worker, run_all};
use crate::core::Core;
use crate::error::SubscribeError;
use crate::event::{Event, Shared, View};
use crate::group::{Bell, Group, Member};
use crate::options::{MAX_CAPACITY, Options};
use crate::queue::Queue;
use crate::receivers::Receivers;
use crate::ring::{Reader, Ring, Unread};
use crate::stats::{Kind, Profile, SubscriptionStats, Waiting};
use crate::sync::{AtomicBool, Ordering, lock, write};

/// A subscription's place in its bus, which it leaves when this is dropped.
pub(crate) struct Ticket<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
    filter: FilterId,
    pub(crate) profile: Arc<Profile>,
    place: Place<T>,
    /// Whether it counts as listening: it is to see the end of the bus, and has not.
    is_listening: AtomicBool,
    is_detached: bool,
}

/// Where among the receivers of its filter a subscription stands.
enum Place<T> {
    Callback { is_gated: bool },
    Queue(Arc<Queue<T>>),
    Ring(Arc<Ring<T>>, Arc<Reader>),
    Group(Box<str>, Member<T>),
}

/// What a new subscription finds.
struct Entrance<'a, T> {
    receivers: &'a mut Receivers<T>,
    group: Option<&'a str>,
    profile: &'a Arc<Profile>,
    /// The retained messages it is owed.
    owed: VecDeque<Arc<Shared<T>>>,
}

/// What a cursor begins with.
pub(crate) struct Start<T> {
    pub(crate) ring: Arc<Ring<T>>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) owed: VecDeque<Arc<Shared<T>>>,
}

impl<T: Send + Sync + 'static> Core<T> {
    /// Subscribes a callback; when this returns, it has been run with what is replayed.
    pub(crate) fn subscribe_callback(
        self: &Arc<Self>,
        text: &str,
        options: Options,
        make: impl FnOnce(Arc<Profile>) -> Callback<T>,
    ) -> Result<Ticket<T>, SubscribeError> {
        let (ticket, replaying) = self.subscribe(text, options, Kind::Callback, |mut entrance| {
            let callback = make(Arc::clone(entrance.profile));
            if let Some(name) = entrance.group {
                let member = Member::Worker(Arc::new(Worker::new(callback)));
                return (entrance.join_group(name, member), None);
            }
            let is_gated = options.replay;
            if !is_gated {
                entrance.receivers.callbacks.push(callback);
                return (Place::Callback { is_gated }, None);
            }
            let (gated, gate) = callback.clone().gated();
            entrance.receivers.gated += 1;
            entrance.receivers.callbacks.push(gated);
            (Place::Callback { is_gated }, Some((gate, callback, entrance.owed)))
        })?;
        if let Some((gate, callback, owed)) = replaying {
            self.replay(&gate, &callback, &owed);
        }
        Ok(ticket)
    }

    /// Hands `owed` to a new callback, then what came meanwhile, and lets publishers run it from then on.
    fn replay(&self, gate: &Gate<T>, callback: &Callback<T>, owed: &VecDeque<Arc<Shared<T>>>) {
        let callback = std::slice::from_ref(callback);
        let run = |message: &Arc<Shared<T>>, view| {
            // Failures are counted and reported there; there is no publisher to tell.
            run_all(callback, &Event::of(message, view), &*self.on_fault);
        };
        for message in owed {
            run(message, View { metadata: true, is_replay: true });
        }
        while let Some((message, view)) = gate.next_or_open() {
            run(&message, view);
        }
    }

    pub(crate) fn subscribe_mailbox(
        self: &Arc<Self>,
        text: &str,
        options: Options,
    ) -> Result<(Ticket<T>, Arc<Queue<T>>), SubscribeError> {
        self.subscribe(text, options, Kind::Mailbox, |mut entrance| {
            let owed = std::mem::take(&mut entrance.owed);
            let queue = Arc::new(Queue::new(Arc::clone(entrance.profile), owed, entrance.bell()));
            let place = if let Some(name) = entrance.group {
                entrance.join_group(name, Member::Mailbox(Arc::clone(&queue)))
            } else {
                entrance.receivers.queues.push(Arc::clone(&queue));
                Place::Queue(Arc::clone(&queue))
            };
            (place, queue)
        })
    }

    pub(crate) fn subscribe_cursor(
        self: &Arc<Self>,
        text: &str,
        options: Options,
    ) -> Result<(Ticket<T>, Start<T>), SubscribeError> {
        self.subscribe(text, options, Kind::Cursor, |mut entrance| {
            let owed = std::mem::take(&mut entrance.owed);
            let bell = entrance.bell();
            let rings = &mut entrance.receivers.rings;
            let known = rings.iter().find(|ring| entrance.group.is_none() && ring.suits(options)).cloned();
            let is_known = known.is_some();
            let ring = known.unwrap_or_else(|| Arc::new(Ring::new(options, bell)));
            let reader = ring.join(Arc::clone(entrance.profile));
            let start = Start { ring: Arc::clone(&ring), reader: Arc::clone(&reader), owed };
            if let Some(name) = entrance.group {
                return (entrance.join_group(name, Member::Cursor(ring, reader)), start);
            }
            if !is_known {
                rings.push(Arc::clone(&ring));
            }
            (Place::Ring(ring, reader), start)
        })
    }

    /// Lets `enter` put a new subscription among the receivers of its filter. Once this has returned, every publish
    /// finds it there.
    fn subscribe<R>(
        self: &Arc<Self>,
        text: &str,
        options: Options,
        kind: Kind,
        enter: impl FnOnce(Entrance<'_, T>) -> (Place<T>, R),
    ) -> Result<(Ticket<T>, R), SubscribeError> {
        let subscription = parse_subscription(text)?;
        if !(1..=MAX_CAPACITY).contains(&options.capacity) {
            return Err(SubscribeError::Capacity);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let profile = Arc::new(Profile::new(id, text, options));
        // Held until the subscription is in its place: see `publish_retained`. As in MQTT, groups get nothing replayed.
        let retained = (options.replay && subscription.group.is_none()).then(|| lock(&self.retained));
        let owed = retained.as_ref().map(|retained| retained.matching(subscription.filter));

        let mut index = write(&self.index);
        if self.is_closed() {
            return Err(SubscribeError::Closed);
        }
        let (filter, _) = index.insert_with(subscription.filter, || Arc::new(Receivers::new()));
        let receivers = Arc::make_mut(index.get_mut(filter).expect("it was inserted above"));
        receivers.wanting_metadata += usize::from(options.metadata);
        let owed = owed.unwrap_or_default();
        let (place, made) = enter(Entrance { receivers, group: subscription.group, profile: &profile, owed });
        index.touch();
        self.epoch.store(index.epoch(), Ordering::SeqCst);
        let is_listening = kind != Kind::Callback;
        if is_listening {
            *lock(&self.listening) += 1;
        }
        drop(index);
        let is_listening = AtomicBool::new(is_listening);
        Ok((
            Ticket { core: Arc::clone(self), filter, profile, place, is_listening, is_detached: false },
            made,
        ))
    }

    fn unsubscribe(&self, ticket: &Ticket<T>) {
        let Ticket { profile, place, .. } = ticket;
        let mut index = write(&self.index);
        let Some(receivers) = index.get_mut(ticket.filter) else { return };
        let receivers = Arc::make_mut(receivers);
        receivers.wanting_metadata -= usize::from(profile.options.metadata);
        let left = receivers.remove(place, profile.id);
        let gone = if receivers.is_empty() { index.remove(ticket.filter) } else { None };
        index.touch();
        if !self.is_closed() {
            self.epoch.store(index.epoch(), Ordering::SeqCst);
        }
        drop(index);
        // All that follows may run code of the user's, and so comes behind the lock.
        self.shards.purge();
        drop(gone);
        let abandoned = match left {
            Left::Callback(callback) => {
                drop(callback);
                0
            }
            Left::Queue(queue) => queue.abandon().len() as u64,
            Left::Unread(unread) => unread.len(),
            Left::ToGroup(group, messages) => group.bequeath(&messages, &*self.on_fault),
            Left::Nothing => 0,
        };
        self.totals.note_end(profile, abandoned);
    }

    /// A mailbox or a cursor has seen the end, or goes.
    fn one_ended(&self) {
        let mut listening = lock(&self.listening);
        *listening -= 1;
        if *listening == 0 {
            self.all_ended.notify_all();
        }
    }
}

impl<T: Send + Sync + 'static> Ticket<T> {
    pub(crate) fn stats(&self) -> SubscriptionStats {
        match &self.place {
            Place::Callback { .. } => self.profile.stats(Kind::Callback, Waiting::default()),
            Place::Queue(queue) => self.profile.stats(Kind::Mailbox, queue.waiting()),
            Place::Ring(ring, reader) => self.profile.stats(Kind::Cursor, ring.waiting_now(reader)),
            Place::Group(_, member) => member.stats(),
        }
    }

    /// The subscription has seen the end of its messages.
    pub(crate) fn note_end(&self) {
        if self.is_listening.swap(false, Ordering::Relaxed) {
            self.core.one_ended();
        }
    }

    /// Keeps the subscription for as long as its bus lives.
    pub(crate) fn detach(mut self) {
        self.is_detached = true;
    }
}

impl<T: Send + Sync + 'static> Drop for Ticket<T> {
    fn drop(&mut self) {
        if !self.is_detached {
            self.core.unsubscribe(self);
        }
        self.note_end();
    }
}

impl<T> Entrance<'_, T> {
    fn bell(&mut self) -> Option<Arc<Bell>> {
        self.group.map(|name| self.receivers.group(name).bell())
    }

    fn join_group(&mut self, name: &str, member: Member<T>) -> Place<T> {
        self.receivers.group(name).join(member.clone());
        Place::Group(name.into(), member)
    }
}

/// What has been taken out of the receivers.
enum Left<T> {
    Callback(Callback<T>),
    Queue(Arc<Queue<T>>),
    Unread(Unread<T>),
    /// What a member leaves to its group.
    ToGroup(Arc<Group<T>>, Vec<Arc<Shared<T>>>),
    Nothing,
}

impl<T> Receivers<T> {
    fn remove(&mut self, place: &Place<T>, id: u64) -> Left<T> {
        match place {
            Place::Callback { is_gated } => {
                self.gated -= usize::from(*is_gated);
                // Ids grow, so the list is in their order.
                let at = self.callbacks.binary_search_by_key(&id, |callback| callback.profile.id);
                at.map_or(Left::Nothing, |at| Left::Callback(self.callbacks.remove(at)))
            }
            Place::Queue(queue) => {
                let at = self.queues.binary_search_by_key(&id, |queue| queue.profile.id);
                if let Ok(at) = at {
                    self.queues.remove(at);
                }
                Left::Queue(Arc::clone(queue))
            }
            Place::Ring(ring, reader) => {
                let unread = ring.leave(reader);
                if !ring.has_readers() {
                    self.rings.retain(|other| !Arc::ptr_eq(other, ring));
                }
                Left::Unread(unread)
            }
            Place::Group(name, _) => {
                let Some(at) = self.groups.iter().position(|group| group.name == *name) else {
                    return Left::Nothing;
                };
                let messages = self.groups[at].leave(id);
                let group = Arc::clone(&self.groups[at]);
                if group.is_empty() {
                    self.groups.remove(at);
                }
                Left::ToGroup(group, messages)
            }
        }
    }
}
