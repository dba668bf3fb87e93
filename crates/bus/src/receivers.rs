//! Who receives what is published: the subscriptions of one filter, and those of all filters that match a topic.

use std::sync::Arc;

use crate::callback::{Callback, OnFault, run_all};
use crate::event::{Event, Metadata, Shared, View};
use crate::group::Group;
use crate::queue::Queue;
use crate::ring::Ring;
use crate::stats::{Delivered, Kind, SubscriptionStats};

/// The subscriptions of one filter, each list in the order in which they came.
///
/// Publishers hold on to what a match has found while the index goes on changing, so a change is made to a copy where
/// somebody holds the original (`Arc::make_mut`).
pub(crate) struct Receivers<T> {
    pub(crate) callbacks: Vec<Callback<T>>,
    pub(crate) queues: Vec<Arc<Queue<T>>>,
    pub(crate) rings: Vec<Arc<Ring<T>>>,
    pub(crate) groups: Vec<Arc<Group<T>>>,
    /// How many of the callbacks may have to keep a message.
    pub(crate) gated: usize,
    /// How many subscriptions want metadata, those in rings and groups among them.
    pub(crate) wanting_metadata: usize,
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

impl<T> Receivers<T> {
    pub(crate) const fn new() -> Self {
        Self {
            callbacks: Vec::new(),
            queues: Vec::new(),
            rings: Vec::new(),
            groups: Vec::new(),
            gated: 0,
            wanting_metadata: 0,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.callbacks.is_empty() && self.queues.is_empty() && self.rings.is_empty() && self.groups.is_empty()
    }

    /// Whether a message for these is held by more than its publisher.
    const fn share(&self) -> bool {
        self.gated > 0 || !(self.queues.is_empty() && self.rings.is_empty() && self.groups.is_empty())
    }

    /// The group called `name`, new if there is none.
    pub(crate) fn group(&mut self, name: &str) -> Arc<Group<T>> {
        if let Some(group) = self.groups.iter().find(|group| &*group.name == name) {
            return Arc::clone(group);
        }
        let group = Arc::new(Group::new(name));
        self.groups.push(Arc::clone(&group));
        group
    }

    /// The bus is closed.
    pub(crate) fn close(&self) {
        self.queues.iter().for_each(|queue| queue.close());
        self.rings.iter().for_each(|ring| ring.close());
        self.groups.iter().for_each(|group| group.close());
    }

    pub(crate) fn collect_stats(&self, into: &mut Vec<SubscriptionStats>) {
        let callbacks = self.callbacks.iter();
        into.extend(
            callbacks
                .map(|callback| callback.profile.stats(Kind::Callback, crate::stats::Waiting::default())),
        );
        into.extend(self.queues.iter().map(|queue| queue.profile.stats(Kind::Mailbox, queue.waiting())));
        for ring in &self.rings {
            ring.each_reader(|reader, waiting| into.push(reader.profile.stats(Kind::Cursor, waiting)));
        }
        for group in &self.groups {
            into.extend(group.members().iter().map(crate::group::Member::stats));
        }
    }
}

/// What a topic matched.
pub(crate) struct Matched<T> {
    pub(crate) topic: Arc<str>,
    filters: Box<[Arc<Receivers<T>>]>,
    /// Whether a message for these is held by more than its publisher.
    pub(crate) is_shared: bool,
    pub(crate) wants_metadata: bool,
}

impl<T> Matched<T> {
    pub(crate) fn new(topic: &str, filters: Vec<Arc<Receivers<T>>>) -> Self {
        Self {
            topic: topic.into(),
            is_shared: filters.iter().any(|receivers| receivers.share()),
            wants_metadata: filters.iter().any(|receivers| receivers.wanting_metadata > 0),
            filters: filters.into(),
        }
    }

    /// Hands a message to callbacks, which is all there are.
    #[inline]
    pub(crate) fn call(&self, payload: &T, metadata: Option<&Metadata>, on_fault: &OnFault) -> Delivered {
        let event = Event::local(&self.topic, payload, metadata);
        let mut tally = Delivered::default();
        for receivers in &self.filters {
            tally += receivers.call(&event, on_fault);
        }
        tally
    }

    /// Hands messages to all receivers, in the order of the messages. Those that wait in a queue or a ring come first:
    /// what a callback publishes in turn then comes behind what made it do so.
    pub(crate) fn deliver(&self, messages: &[Arc<Shared<T>>], on_fault: &OnFault) -> Delivered {
        let mut tally = Delivered::default();
        for receivers in &self.filters {
            for queue in &receivers.queues {
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
                    tally += group.deal(message, on_fault);
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
        let failed = run_all(&self.callbacks, event, on_fault);
        Delivered { delivered: self.callbacks.len() - failed, dropped: 0, failed }
    }
}
