//! Messages as subscribers see them: [`Event`] borrows, [`Message`] shares ownership.
//!
//! All queues and rings hold the same `Arc<SharedMessage>`, so a payload is stored once. A message that only callbacks
//! receive stays on the publisher's stack and is never allocated. A [`View`] decides per subscription whether metadata
//! is visible.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Optional headers and timestamp of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) headers: Vec<(Box<str>, Box<str>)>,
    pub(crate) timestamp: Option<SystemTime>,
}

/// A message with shared ownership.
#[derive(Debug)]
pub(crate) struct SharedMessage<T> {
    pub(crate) topic: Arc<str>,
    pub(crate) payload: T,
    pub(crate) metadata: Option<Box<Metadata>>,
}

/// A borrowed message, valid while a callback runs or a [`Batch`](crate::Batch) is held.
pub struct Event<'a, T> {
    topic: &'a str,
    payload: &'a T,
    metadata: Option<&'a Metadata>,
    /// `None` for a message on the stack of its publisher.
    shared: Option<&'a Arc<SharedMessage<T>>>,
    is_replay: bool,
}

impl<'a, T> Event<'a, T> {
    /// Wraps a message on the stack of its publisher.
    #[inline]
    pub(crate) const fn local(topic: &'a str, payload: &'a T, metadata: Option<&'a Metadata>) -> Self {
        Self { topic, payload, metadata, shared: None, is_replay: false }
    }

    #[inline]
    pub(crate) fn of(shared: &'a Arc<SharedMessage<T>>, view: View) -> Self {
        let metadata = if view.metadata { shared.metadata.as_deref() } else { None };
        Self {
            topic: &shared.topic,
            payload: &shared.payload,
            metadata,
            shared: Some(shared),
            is_replay: view.is_replay,
        }
    }

    /// Returns the same message with its metadata hidden.
    #[inline]
    pub(crate) const fn without_metadata(&self) -> Self {
        Self { metadata: None, ..*self }
    }

    pub(crate) const fn shared(&self) -> Option<&'a Arc<SharedMessage<T>>> {
        self.shared
    }

    pub(crate) const fn view(&self) -> View {
        View { metadata: self.metadata.is_some(), is_replay: self.is_replay }
    }

    /// Returns the topic the message was published to.
    #[inline]
    pub const fn topic(&self) -> &'a str {
        self.topic
    }

    /// Returns the published value.
    #[inline]
    pub const fn payload(&self) -> &'a T {
        self.payload
    }

    /// Returns the value of the first header named `key`. Always `None` for subscriptions without
    /// [`metadata`](crate::Subscribe::metadata).
    pub fn header(&self, key: &str) -> Option<&'a str> {
        self.headers().find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Returns all headers as key and value, in the order they were added. Empty for subscriptions without
    /// [`metadata`](crate::Subscribe::metadata).
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a, T> {
        self.metadata
            .into_iter()
            .flat_map(|metadata| &metadata.headers)
            .map(|(key, value)| (&**key, &**value))
    }

    /// Returns the timestamp set by the publisher, or the publish time if it set none. Always `None` for subscriptions
    /// without [`metadata`](crate::Subscribe::metadata).
    pub fn timestamp(&self) -> Option<SystemTime> {
        self.metadata.and_then(|metadata| metadata.timestamp)
    }

    /// Returns whether this is a retained message, replayed to a new subscription.
    #[inline]
    pub const fn is_replay(&self) -> bool {
        self.is_replay
    }
}

impl<T> Clone for Event<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Event<'_, T> {}

impl<T: fmt::Debug> fmt::Debug for Event<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("topic", &self.topic)
            .field("payload", &self.payload)
            .field("metadata", &self.metadata)
            .field("is_replay", &self.is_replay)
            .finish_non_exhaustive()
    }
}

/// How one subscription sees a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) metadata: bool,
    pub(crate) is_replay: bool,
}

/// A message received from a [`Mailbox`](crate::Mailbox), or a retained one from
/// [`Bus::retained`](crate::Bus::retained).
///
/// All subscribers share one copy of the payload; cloning a `Message` does not clone the payload.
pub struct Message<T> {
    shared: Arc<SharedMessage<T>>,
    view: View,
}

impl<T> Message<T> {
    pub(crate) const fn new(shared: Arc<SharedMessage<T>>, view: View) -> Self {
        Self { shared, view }
    }

    /// Returns the message as a borrowed [`Event`].
    #[inline]
    pub fn event(&self) -> Event<'_, T> {
        Event::of(&self.shared, self.view)
    }

    /// Returns the topic the message was published to.
    #[inline]
    pub fn topic(&self) -> &str {
        &self.shared.topic
    }

    /// Returns the published value.
    #[inline]
    pub fn payload(&self) -> &T {
        &self.shared.payload
    }

    /// Returns the payload by value, if this is the only reference to the message.
    ///
    /// # Errors
    /// Returns the message unchanged if another subscriber or the retained messages still hold it.
    pub fn try_into_payload(self) -> Result<T, Self> {
        let view = self.view;
        Arc::try_unwrap(self.shared).map(|shared| shared.payload).map_err(|shared| Self { shared, view })
    }

    /// See [`Event::header`].
    pub fn header(&self, key: &str) -> Option<&str> {
        self.event().header(key)
    }

    /// See [`Event::headers`].
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.event().headers()
    }

    /// See [`Event::timestamp`].
    pub fn timestamp(&self) -> Option<SystemTime> {
        self.event().timestamp()
    }

    /// See [`Event::is_replay`].
    pub const fn is_replay(&self) -> bool {
        self.view.is_replay
    }
}

impl<T> Clone for Message<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), view: self.view }
    }
}

impl<T: fmt::Debug> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event().fmt(f)
    }
}
