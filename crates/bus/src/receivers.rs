//! The subscriptions of one filter, and the delivery of a message to all filters that match a topic.
//!
//! A [`Matched`] is the cached result of matching one topic. Publishers keep using it while the index changes, so
//! [`Receivers`] are copied on write (`Arc::make_mut`) and never change under a publisher.

use std::sync::Arc;

use crate::callback::{Callback, OnFault, run_all};
use crate::event::{Event, Metadata, SharedMessage, View};
use crate::group::Group;
use crate::queue::Queue;
use crate::ring::Ring;
use crate::stats::{Delivered, Kind, SubscriptionStats};
use crate::subscriber_list::SubscriberList;

/// The subscriptions of one filter. Each list is in the order of subscribing.
pub(crate) struct Receivers<T> {
    pub(crate) callbacks: SubscriberList<Callback<T>>,
    pub(crate) queues: SubscriberList<Arc<Queue<T>>>,
    pub(crate) rings: Vec<Arc<Ring<T>>>,
    pub(crate) groups: Vec<Arc<Group<T>>>,
    /// Number of callbacks behind a replay gate, which may have to keep a message.
    pub(crate) gated: usize,
    /// Number of subscriptions with metadata, including cursors and group members.
    pub(crate) metadata_subscribers: usize,
}

impl<T> Clone for Receivers<T> {
    fn clone(&self) -> Self {
        Self {
            callbacks: self.callbacks.clone(),
            queues: self.queues.clone(),
            rings: self.rings.clone(),
            groups: self.groups.clone(),
            ..*self
        }
    }
}

impl<T: 'static> Receivers<T> {
    pub(crate) const fn new() -> Self {
        Self {
            callbacks: SubscriberList::new(),
            queues: SubscriberList::new(),
            rings: Vec::new(),
            groups: Vec::new(),
            gated: 0,
            metadata_subscribers: 0,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.callbacks.is_empty() && self.queues.is_empty() && self.rings.is_empty() && self.groups.is_empty()
    }

    /// Whether a message for these receivers must be allocated, because it may outlive the publish call.
    const fn need_shared_message(&self) -> bool {
        self.gated > 0 || !(self.queues.is_empty() && self.rings.is_empty() && self.groups.is_empty())
    }

    /// Returns the group called `name`, and creates it if needed.
    pub(crate) fn group_or_insert(&mut self, name: &str) -> Arc<Group<T>> {
        if let Some(group) = self.groups.iter().find(|group| &*group.name == name) {
            return Arc::clone(group);
        }
        let group = Arc::new(Group::new(name));
        self.groups.push(Arc::clone(&group));
        group
    }

    /// Called when the bus is closed.
    pub(crate) fn close(&self) {
        self.queues.iter().for_each(|queue| queue.close());
        self.rings.iter().for_each(|ring| ring.close());
        self.groups.iter().for_each(|group| group.close());
    }

    pub(crate) fn collect_stats(&self, into: &mut Vec<SubscriptionStats>) {
        let callbacks = self.callbacks.iter();
        into.extend(
            callbacks.map(|callback| callback.info.stats(Kind::Callback, crate::stats::Backlog::default())),
        );
        into.extend(self.queues.iter().map(|queue| queue.info.stats(Kind::Mailbox, queue.backlog())));
        for ring in &self.rings {
            ring.for_each_reader(|reader, backlog| into.push(reader.info.stats(Kind::Cursor, backlog)));
        }
        for group in &self.groups {
            into.extend(group.members().iter().map(crate::group::Member::stats));
        }
    }
}

/// The receivers of one topic.
pub(crate) struct Matched<T> {
    pub(crate) topic: Arc<str>,
    filters: Box<[Arc<Receivers<T>>]>,
    /// Whether a message must be allocated. If false, all receivers are callbacks that borrow it.
    pub(crate) is_shared: bool,
    pub(crate) needs_metadata: bool,
}

impl<T: 'static> Matched<T> {
    pub(crate) fn new(topic: &str, filters: Vec<Arc<Receivers<T>>>) -> Self {
        Self {
            topic: topic.into(),
            is_shared: filters.iter().any(|receivers| receivers.need_shared_message()),
            needs_metadata: filters.iter().any(|receivers| receivers.metadata_subscribers > 0),
            filters: filters.into(),
        }
    }

    /// Runs the callbacks with a borrowed message. Only valid if all receivers are callbacks.
    #[inline]
    pub(crate) fn call(&self, payload: &T, metadata: Option<&Metadata>, on_fault: &OnFault) -> Delivered {
        let event = Event::local(&self.topic, payload, metadata);
        let mut tally = Delivered::default();
        for receivers in &self.filters {
            tally += receivers.call(&event, on_fault);
        }
        tally
    }

    /// Delivers messages to all receivers in order. Queues and rings come before callbacks, so that a message published
    /// by a callback is queued behind the message that triggered it.
    pub(crate) fn deliver(&self, messages: &[Arc<SharedMessage<T>>], on_fault: &OnFault) -> Delivered {
        let mut tally = Delivered::default();
        for receivers in &self.filters {
            for queue in receivers.queues.entries() {
                tally += queue.push(messages);
            }
            for ring in &receivers.rings {
                tally += ring.push(messages);
            }
        }
        let view = View { metadata: true, is_replay: false };
        for message in messages {
            for receivers in &self.filters {
                for group in &receivers.groups {
                    tally += group.dispatch(message, on_fault);
                }
                tally += receivers.call(&Event::of(message, view), on_fault);
            }
        }
        tally
    }
}

impl<T> Receivers<T> {
    #[inline]
    fn call(&self, event: &Event<'_, T>, on_fault: &OnFault) -> Delivered {
        if self.callbacks.is_empty() {
            return Delivered::default();
        }
        let failed = run_all(self.callbacks.entries(), event, on_fault);
        Delivered { delivered: self.callbacks.len() - failed, dropped: 0, failed }
    }
}
