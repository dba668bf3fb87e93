//! What is published, as its receivers see it: borrowed in a callback or a batch, shared out of a mailbox.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// What can go with a payload: headers, and when it was published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) headers: Vec<(Box<str>, Box<str>)>,
    pub(crate) timestamp: Option<SystemTime>,
}

/// A message that several subscribers hold.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    pub(crate) topic: Arc<str>,
    pub(crate) payload: T,
    pub(crate) metadata: Option<Box<Metadata>>,
}

/// A message, for as long as a callback runs or a [`Batch`](crate::Batch) is held.
pub struct Event<'a, T> {
    topic: &'a str,
    payload: &'a T,
    metadata: Option<&'a Metadata>,
    /// Where the message is one that several hold.
    shared: Option<&'a Arc<Shared<T>>>,
    is_replay: bool,
}

impl<'a, T> Event<'a, T> {
    /// A message on the stack of its publisher.
    #[inline]
    pub(crate) const fn local(topic: &'a str, payload: &'a T, metadata: Option<&'a Metadata>) -> Self {
        Self { topic, payload, metadata, shared: None, is_replay: false }
    }

    #[inline]
    pub(crate) fn of(shared: &'a Arc<Shared<T>>, view: View) -> Self {
        let metadata = if view.metadata { shared.metadata.as_deref() } else { None };
        Self {
            topic: &shared.topic,
            payload: &shared.payload,
            metadata,
            shared: Some(shared),
            is_replay: view.is_replay,
        }
    }

    /// The same message to a subscriber that did not ask for metadata.
    #[inline]
    pub(crate) const fn without_metadata(&self) -> Self {
        Self { metadata: None, ..*self }
    }

    pub(crate) const fn shared(&self) -> Option<&'a Arc<Shared<T>>> {
        self.shared
    }

    pub(crate) const fn view(&self) -> View {
        View { metadata: self.metadata.is_some(), is_replay: self.is_replay }
    }

    /// The topic it was published to.
    #[inline]
    pub const fn topic(&self) -> &'a str {
        self.topic
    }

    /// What was published.
    #[inline]
    pub const fn payload(&self) -> &'a T {
        self.payload
    }

    /// The value of the first header called `key`; always `None` for subscriptions without
    /// [`metadata`](crate::Subscribe::metadata).
    pub fn header(&self, key: &str) -> Option<&'a str> {
        self.headers().find_map(|(name, value)| (name == key).then_some(value))
    }

    /// All headers, in the order they were added; none for subscriptions without
    /// [`metadata`](crate::Subscribe::metadata).
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a, T> {
        self.metadata
            .into_iter()
            .flat_map(|metadata| &metadata.headers)
            .map(|(key, value)| (&**key, &**value))
    }

    /// The timestamp its publisher gave it, otherwise when it was published; `None` for subscriptions without
    /// [`metadata`](crate::Subscribe::metadata).
    pub fn timestamp(&self) -> Option<SystemTime> {
        self.metadata.and_then(|metadata| metadata.timestamp)
    }

    /// Whether this is the retained message of its topic, delivered because of a new subscription.
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

/// What of a message one subscriber is shown, and as what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) metadata: bool,
    pub(crate) is_replay: bool,
}

/// A message out of a [`Mailbox`](crate::Mailbox). All subscribers share one copy of it.
pub struct Message<T> {
    shared: Arc<Shared<T>>,
    view: View,
}

impl<T> Message<T> {
    pub(crate) const fn new(shared: Arc<Shared<T>>, view: View) -> Self {
        Self { shared, view }
    }

    /// The message as callbacks see it.
    #[inline]
    pub fn event(&self) -> Event<'_, T> {
        Event::of(&self.shared, self.view)
    }

    /// The topic it was published to.
    #[inline]
    pub fn topic(&self) -> &str {
        &self.shared.topic
    }

    /// What was published.
    #[inline]
    pub fn payload(&self) -> &T {
        &self.shared.payload
    }

    /// The payload itself.
    ///
    /// # Errors
    /// The message as it was, where another subscriber or the retained messages still hold it.
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
