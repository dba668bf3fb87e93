//! Subscribing and unsubscribing.
//!
//! A [`Registration`] is the guard of one subscription: dropping it unsubscribes. Subscribing adds a receiver to its
//! filter and advances the epoch under the write lock of the index, so every publish that starts later sees it. With
//! replay, the lock of the retained messages is held meanwhile, so a concurrent retained publish is either replayed or
//! delivered, never both. Unsubscribing drops callbacks and messages only after the lock is released, since that runs
//! user code.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_topic::{FilterId, parse_subscription};

use crate::callback::{Callback, ReplayGate, Worker, run_all};
use crate::core::Core;
use crate::error::SubscribeError;
use crate::event::{Event, SharedMessage, View};
use crate::group::{Group, Member};
use crate::options::{MAX_CAPACITY, Options};
use crate::queue::Queue;
use crate::receivers::Receivers;
use crate::ring::{Reader, Ring, UnreadMessages};
use crate::room_signal::RoomSignal;
use crate::stats::{Backlog, Kind, SubscriptionInfo, SubscriptionStats};
use crate::sync::{AtomicBool, Ordering, lock, write};

/// One subscription. Dropping it unsubscribes, unless it is detached.
pub(crate) struct Registration<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
    filter: FilterId,
    pub(crate) info: Arc<SubscriptionInfo>,
    attachment: Attachment<T>,
    /// Whether this is counted in [`Core::open_readers`].
    is_open_reader: AtomicBool,
    is_detached: bool,
}

/// Where the receiver of a subscription is stored among the [`Receivers`] of its filter.
enum Attachment<T> {
    Callback { is_gated: bool },
    Queue(Arc<Queue<T>>),
    Ring(Arc<Ring<T>>, Arc<Reader>),
    Group(Box<str>, Member<T>),
}

/// The arguments for adding a new subscription to the receivers of its filter.
struct NewSubscription<'a, T> {
    receivers: &'a mut Receivers<T>,
    group: Option<&'a str>,
    info: &'a Arc<SubscriptionInfo>,
    /// Retained messages to replay.
    replay: VecDeque<Arc<SharedMessage<T>>>,
}

/// The initial state of a cursor.
pub(crate) struct CursorStart<T> {
    pub(crate) ring: Arc<Ring<T>>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) replay: VecDeque<Arc<SharedMessage<T>>>,
}

impl<T: Send + Sync + 'static> Core<T> {
    /// Subscribes a callback. Runs it with the replayed messages before returning.
    pub(crate) fn subscribe_callback(
        self: &Arc<Self>,
        text: &str,
        options: Options,
        make: impl FnOnce(Arc<SubscriptionInfo>) -> Callback<T>,
    ) -> Result<Registration<T>, SubscribeError> {
        let (registration, replaying) = self.subscribe(text, options, Kind::Callback, |mut new| {
            let callback = make(Arc::clone(new.info));
            if let Some(name) = new.group {
                let member = Member::Worker(Arc::new(Worker::new(callback)));
                return (new.join_group(name, member), None);
            }
            let is_gated = options.replay;
            if !is_gated {
                new.receivers.callbacks.push(callback);
                return (Attachment::Callback { is_gated }, None);
            }
            let (gated, gate) = callback.clone().gated();
            new.receivers.gated += 1;
            new.receivers.callbacks.push(gated);
            (Attachment::Callback { is_gated }, Some((gate, callback, new.replay)))
        })?;
        if let Some((gate, callback, replay)) = replaying {
            self.replay(&gate, &callback, &replay);
        }
        Ok(registration)
    }

    /// Runs a new callback with the retained messages, then with those parked meanwhile, and then opens the gate.
    fn replay(&self, gate: &ReplayGate<T>, callback: &Callback<T>, replay: &VecDeque<Arc<SharedMessage<T>>>) {
        let callback = std::slice::from_ref(callback);
        let run = |message: &Arc<SharedMessage<T>>, view| {
            // `run_all` counts and reports failures; there is no publisher to return the number to.
            run_all(callback, &Event::of(message, view), &*self.on_fault);
        };
        for message in replay {
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
    ) -> Result<(Registration<T>, Arc<Queue<T>>), SubscribeError> {
        self.subscribe(text, options, Kind::Mailbox, |mut new| {
            let replay = std::mem::take(&mut new.replay);
            let queue = Arc::new(Queue::new(Arc::clone(new.info), replay, new.room_signal()));
            let attachment = if let Some(name) = new.group {
                new.join_group(name, Member::Mailbox(Arc::clone(&queue)))
            } else {
                new.receivers.queues.push(Arc::clone(&queue));
                Attachment::Queue(Arc::clone(&queue))
            };
            (attachment, queue)
        })
    }

    pub(crate) fn subscribe_cursor(
        self: &Arc<Self>,
        text: &str,
        options: Options,
    ) -> Result<(Registration<T>, CursorStart<T>), SubscribeError> {
        self.subscribe(text, options, Kind::Cursor, |mut new| {
            let replay = std::mem::take(&mut new.replay);
            let room_signal = new.room_signal();
            let rings = &mut new.receivers.rings;
            let existing =
                rings.iter().find(|ring| new.group.is_none() && ring.is_compatible(options)).cloned();
            let is_existing = existing.is_some();
            let ring = existing.unwrap_or_else(|| Arc::new(Ring::new(options, room_signal)));
            let reader = ring.join(Arc::clone(new.info));
            let start = CursorStart { ring: Arc::clone(&ring), reader: Arc::clone(&reader), replay };
            if let Some(name) = new.group {
                return (new.join_group(name, Member::Cursor(ring, reader)), start);
            }
            if !is_existing {
                rings.push(Arc::clone(&ring));
            }
            (Attachment::Ring(ring, reader), start)
        })
    }

    /// Adds a new subscription to the receivers of its filter, by calling `attach` under the index lock. Every publish
    /// that starts after this returns finds the subscription.
    fn subscribe<R>(
        self: &Arc<Self>,
        text: &str,
        options: Options,
        kind: Kind,
        attach: impl FnOnce(NewSubscription<'_, T>) -> (Attachment<T>, R),
    ) -> Result<(Registration<T>, R), SubscribeError> {
        let subscription = parse_subscription(text)?;
        if !(1..=MAX_CAPACITY).contains(&options.capacity) {
            return Err(SubscribeError::Capacity);
        }
        // Held until the subscription is added, see `publish_retained`. As in MQTT, groups get no retained messages.
        let retained = (options.replay && subscription.group.is_none()).then(|| lock(&self.retained));
        let replay = retained.as_ref().map(|retained| retained.matching(subscription.filter));

        let mut index = write(&self.index);
        if self.is_closed() {
            return Err(SubscribeError::Closed);
        }
        // Under the lock, so that subscriptions are added in the order of their ids.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let info = Arc::new(SubscriptionInfo::new(id, text, options));
        let (filter, _) = index.insert_with(subscription.filter, || Arc::new(Receivers::new()));
        let receivers = Arc::make_mut(index.get_mut(filter).expect("it was inserted above"));
        receivers.metadata_subscribers += usize::from(options.metadata);
        let replay = replay.unwrap_or_default();
        let (attachment, handle) =
            attach(NewSubscription { receivers, group: subscription.group, info: &info, replay });
        index.touch();
        self.epoch.store(index.epoch(), Ordering::SeqCst);
        let is_open_reader = kind != Kind::Callback;
        if is_open_reader {
            *lock(&self.open_readers) += 1;
        }
        drop(index);
        let is_open_reader = AtomicBool::new(is_open_reader);
        Ok((
            Registration {
                core: Arc::clone(self),
                filter,
                info,
                attachment,
                is_open_reader,
                is_detached: false,
            },
            handle,
        ))
    }

    fn unsubscribe(&self, registration: &Registration<T>) {
        let Registration { info, attachment, .. } = registration;
        let mut index = write(&self.index);
        let Some(receivers) = index.get_mut(registration.filter) else { return };
        let receivers = Arc::make_mut(receivers);
        receivers.metadata_subscribers -= usize::from(info.options.metadata);
        let removed = receivers.remove(attachment, info.id);
        let removed_filter = if receivers.is_empty() { index.remove(registration.filter) } else { None };
        index.touch();
        if !self.is_closed() {
            self.epoch.store(index.epoch(), Ordering::SeqCst);
        }
        drop(index);
        // Everything below may run user code, so the lock is released first.
        self.shards.purge();
        drop(removed_filter);
        let abandoned = match removed {
            Removed::Callback(callback) => {
                drop(callback);
                0
            }
            Removed::Queue(queue) => queue.abandon().len() as u64,
            Removed::UnreadMessages(unread) => unread.len(),
            Removed::GroupMember(group, messages) => group.redistribute(&messages, &*self.on_fault),
            Removed::Nothing => 0,
        };
        self.totals.add_ended(info, abandoned);
    }

    /// Called when a mailbox or cursor has returned its end-of-stream error or is dropped.
    fn reader_ended(&self) {
        let mut open_readers = lock(&self.open_readers);
        *open_readers -= 1;
        if *open_readers == 0 {
            self.readers_ended.notify_all();
        }
    }
}

impl<T: Send + Sync + 'static> Registration<T> {
    pub(crate) fn stats(&self) -> SubscriptionStats {
        match &self.attachment {
            Attachment::Callback { .. } => self.info.stats(Kind::Callback, Backlog::default()),
            Attachment::Queue(queue) => self.info.stats(Kind::Mailbox, queue.backlog()),
            Attachment::Ring(ring, reader) => self.info.stats(Kind::Cursor, ring.current_backlog(reader)),
            Attachment::Group(_, member) => member.stats(),
        }
    }

    /// Called when the reader has received the end-of-stream error.
    pub(crate) fn mark_ended(&self) {
        if self.is_open_reader.swap(false, Ordering::Relaxed) {
            self.core.reader_ended();
        }
    }

    /// Keeps the subscription for the lifetime of the bus.
    pub(crate) fn detach(mut self) {
        self.is_detached = true;
    }
}

impl<T: Send + Sync + 'static> Drop for Registration<T> {
    fn drop(&mut self) {
        if !self.is_detached {
            self.core.unsubscribe(self);
        }
        self.mark_ended();
    }
}

impl<T: 'static> NewSubscription<'_, T> {
    fn room_signal(&mut self) -> Option<Arc<RoomSignal>> {
        self.group.map(|name| self.receivers.group_or_insert(name).room_signal())
    }

    fn join_group(&mut self, name: &str, member: Member<T>) -> Attachment<T> {
        self.receivers.group_or_insert(name).join(member.clone());
        Attachment::Group(name.into(), member)
    }
}

/// What was removed from the receivers of a filter.
enum Removed<T> {
    Callback(Callback<T>),
    Queue(Arc<Queue<T>>),
    UnreadMessages(UnreadMessages<T>),
    /// The group, and the unread messages of the member.
    GroupMember(Arc<Group<T>>, Vec<Arc<SharedMessage<T>>>),
    Nothing,
}

impl<T: Send + Sync + 'static> Receivers<T> {
    fn remove(&mut self, attachment: &Attachment<T>, id: u64) -> Removed<T> {
        match attachment {
            Attachment::Callback { is_gated } => {
                self.gated -= usize::from(*is_gated);
                self.callbacks.remove(id).map_or(Removed::Nothing, Removed::Callback)
            }
            Attachment::Queue(queue) => {
                self.queues.remove(id);
                Removed::Queue(Arc::clone(queue))
            }
            Attachment::Ring(ring, reader) => {
                let unread = ring.leave(reader);
                if !ring.has_readers() {
                    self.rings.retain(|other| !Arc::ptr_eq(other, ring));
                }
                Removed::UnreadMessages(unread)
            }
            Attachment::Group(name, _) => {
                let Some(at) = self.groups.iter().position(|group| group.name == *name) else {
                    return Removed::Nothing;
                };
                let messages = self.groups[at].leave(id);
                let group = Arc::clone(&self.groups[at]);
                if group.is_empty() {
                    self.groups.remove(at);
                }
                Removed::GroupMember(group, messages)
            }
        }
    }
}
