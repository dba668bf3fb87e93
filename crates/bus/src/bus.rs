//! The public handle of a bus, and the builders that create buses, messages and subscriptions.
//!
//! These types only collect arguments; all work happens in [`Core`]. A [`Bus`] is a counted reference to a [`Handle`],
//! which closes the bus when the last clone is dropped. Subscriptions refer to the core alone, so an open subscription
//! does not keep the bus open.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::callback::{Callback, Fault, OnFault, Outcome, print_fault};
use crate::core::{Core, Settings};
use crate::cursor::Cursor;
use crate::error::{PublishError, SubscribeError};
use crate::event::{Event, Message, Metadata, View};
use crate::mailbox::Mailbox;
use crate::options::{Options, Overflow};
use crate::registration::Registration;
use crate::stats::{BusStats, Delivered, SubscriptionStats};
use crate::sync::Deadline;

/// A publish/subscribe bus that carries values of type `T` between the parts of a program.
///
/// A `Bus` is a handle: cloning it is cheap and all clones refer to the same bus. The bus closes when the last clone is
/// dropped or when [`close`](Self::close) is called. A callback that captures a clone of its own bus keeps the bus open
/// until it is unsubscribed.
pub struct Bus<T: Send + Sync + 'static> {
    handle: Arc<Handle<T>>,
}

/// Closes the bus on drop, which happens with the last clone of [`Bus`].
struct Handle<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
}

impl<T: Send + Sync + 'static> Drop for Handle<T> {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl<T: Send + Sync + 'static> Clone for Bus<T> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<T: Send + Sync + 'static> Default for Bus<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync + 'static> Bus<T> {
    /// Creates a bus with the default limits of [`Builder`].
    pub fn new() -> Self {
        Builder::new().build()
    }

    /// Returns a builder, to create a bus with other limits.
    pub fn builder() -> Builder<T> {
        Builder::new()
    }

    /// Publishes a value to all subscriptions whose filter matches `topic`.
    ///
    /// Runs matching callbacks on this thread and returns after they have returned. Puts the value into matching
    /// mailboxes and rings. Blocks only while a matching subscription with [`Overflow::Block`] is full. Each subscriber
    /// receives the messages of one thread in the order they were published.
    ///
    /// The payload is not copied. All mailboxes, cursors and groups share one allocation; a publish that reaches only
    /// callbacks allocates nothing. The first publish to a topic, and the first one after a subscription changed,
    /// allocates a cache entry in addition.
    ///
    /// # Errors
    /// [`PublishError::Topic`] if `topic` is not a valid topic name, [`PublishError::Closed`] if the bus is closed, and
    /// [`PublishError::Nested`] if callbacks publish from callbacks more than [`MAX_NESTED`](crate::MAX_NESTED) deep.
    #[inline]
    pub fn publish(&self, topic: &str, payload: T) -> Result<Delivered, PublishError> {
        self.handle.core.publish(topic, payload, None)
    }

    /// Publishes several values to one topic, in order, at a lower cost than one [`publish`](Self::publish) each.
    ///
    /// On error nothing is published. Mailboxes and rings receive the batch without messages of other publishers in
    /// between, unless the publisher has to wait for room.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
    pub fn publish_batch(
        &self,
        topic: &str,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Delivered, PublishError> {
        self.handle.core.publish_batch(topic, payloads)
    }

    /// Starts a message with optional headers, a timestamp or the retain flag. It is sent by [`Draft::publish`].
    pub fn message<'a>(&'a self, topic: &'a str, payload: T) -> Draft<'a, T> {
        Draft { bus: self, topic, payload, metadata: None, is_retained: false }
    }

    /// Starts a subscription to an MQTT 5 topic filter or to `$share/<group>/<filter>`.
    ///
    /// Finish it with [`Subscribe::callback`], [`Subscribe::mailbox`] or [`Subscribe::cursor`], which also validate the
    /// filter.
    pub fn subscribe<'a>(&'a self, filter: &'a str) -> Subscribe<'a, T> {
        Subscribe { bus: self, filter, options: Options::default() }
    }

    /// Returns the retained message of `topic`, if any. Wildcards are not expanded.
    pub fn retained(&self, topic: &str) -> Option<Message<T>> {
        let view = View { metadata: true, is_replay: true };
        self.handle.core.retained(topic).map(|shared| Message::new(shared, view))
    }

    /// Removes the retained message of `topic`. Returns whether there was one.
    pub fn clear_retained(&self, topic: &str) -> bool {
        self.handle.core.clear_retained(topic)
    }

    /// Closes the bus. Later publish and subscribe calls fail; mailboxes and cursors return what they have queued, and
    /// then [`RecvError::Closed`](crate::RecvError::Closed).
    ///
    /// Returns without waiting, and wakes publishers that wait for room: their messages are queued beyond the capacity
    /// and received before `Closed`. A publish that starts concurrently still reaches readers that have not yet
    /// received `Closed`.
    pub fn close(&self) {
        self.handle.core.close();
    }

    /// Closes the bus and waits up to `timeout` until every mailbox and every cursor has received
    /// [`RecvError::Closed`](crate::RecvError::Closed) or has been dropped. Returns `false` on timeout.
    pub fn close_and_wait(&self, timeout: Duration) -> bool {
        self.close();
        self.handle.core.wait_for_readers(Deadline::after(timeout))
    }

    /// Returns whether the bus is closed.
    pub fn is_closed(&self) -> bool {
        self.handle.core.is_closed()
    }

    /// Returns the statistics of the bus and of each subscription.
    ///
    /// The cost grows with the number of subscriptions. Concurrent subscribe and unsubscribe calls wait meanwhile;
    /// publishers find their topics in the caches as usual.
    pub fn stats(&self) -> BusStats {
        self.handle.core.stats()
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Bus<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// Configures the limits of a new [`Bus`].
#[must_use = "call `build` to create the bus"]
pub struct Builder<T> {
    payload: PhantomData<fn() -> T>,
    retained_max: usize,
    cached_topics: usize,
    on_fault: Box<OnFault>,
}

impl<T: Send + Sync + 'static> Builder<T> {
    fn new() -> Self {
        Self {
            payload: PhantomData,
            retained_max: 65_536,
            cached_topics: 16_384,
            on_fault: Box::new(print_fault),
        }
    }

    /// Maximum number of topics with a retained message; 65,536 by default. Beyond it, retaining on a further topic
    /// fails with [`PublishError::RetainedFull`].
    pub fn retained_max(self, topics: usize) -> Self {
        Self { retained_max: topics, ..self }
    }

    /// Maximum number of topics in each match cache; 16,384 by default. There are about two caches per CPU core, at
    /// least 4 and at most 64.
    ///
    /// A topic that is not cached is matched again on each publish: correct, but slower. A cached topic takes about 200
    /// bytes. Topics longer than 256 bytes are not cached.
    pub fn cached_topics(self, topics: u32) -> Self {
        Self { cached_topics: topics as usize, ..self }
    }

    /// Sets the function that is called when a callback fails, on the thread that ran the callback. The default writes
    /// one line to standard error. Failures are counted in either case.
    pub fn on_fault(self, report: impl Fn(&Fault<'_>) + Send + Sync + 'static) -> Self {
        Self { on_fault: Box::new(report), ..self }
    }

    /// Creates the bus.
    pub fn build(self) -> Bus<T> {
        let Self { retained_max, cached_topics, on_fault, .. } = self;
        let settings = Settings { shards: cache_shards(), cached_topics, retained_max, on_fault };
        Bus { handle: Arc::new(Handle { core: Arc::new(Core::new(settings)) }) }
    }
}

impl<T> fmt::Debug for Builder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("retained_max", &self.retained_max)
            .field("cached_topics", &self.cached_topics)
            .finish_non_exhaustive()
    }
}

/// Number of match caches: enough that threads running in parallel rarely contend for one.
fn cache_shards() -> usize {
    if cfg!(mainstem_shuttle) {
        return 2;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).clamp(4, 64)
}

/// A message under construction, started by [`Bus::message`] and sent by [`publish`](Self::publish).
#[must_use = "call `publish` to send the message"]
pub struct Draft<'a, T: Send + Sync + 'static> {
    bus: &'a Bus<T>,
    topic: &'a str,
    payload: T,
    metadata: Option<Box<Metadata>>,
    is_retained: bool,
}

impl<T: Send + Sync + 'static> Draft<'_, T> {
    /// Appends a header. Only subscriptions with [`metadata`](Subscribe::metadata) see it. Keys may repeat.
    pub fn header(mut self, key: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.metadata.get_or_insert_default().headers.push((key.into(), value.into()));
        self
    }

    /// Sets the timestamp. Without it, subscriptions with [`metadata`](Subscribe::metadata) see the publish time.
    pub fn timestamp(mut self, time: SystemTime) -> Self {
        self.metadata.get_or_insert_default().timestamp = Some(time);
        self
    }

    /// Stores the message as the retained message of its topic, replacing the previous one. Later subscriptions with
    /// [`replay`](Subscribe::replay) receive it.
    pub const fn retain(mut self) -> Self {
        self.is_retained = true;
        self
    }

    /// Publishes the message. Delivery and blocking are those of [`Bus::publish`].
    ///
    /// # Errors
    /// As for [`Bus::publish`], and [`PublishError::RetainedFull`] if the message is to be retained and the limit of
    /// [`Builder::retained_max`] is reached.
    pub fn publish(self) -> Result<Delivered, PublishError> {
        let Self { bus, topic, payload, metadata, is_retained } = self;
        let core = &bus.handle.core;
        if is_retained {
            core.publish_retained(topic, payload, metadata)
        } else {
            core.publish(topic, payload, metadata)
        }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Draft<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("topic", &self.topic)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// A subscription under construction, started by [`Bus::subscribe`].
#[must_use = "call `callback`, `mailbox` or `cursor` to subscribe"]
pub struct Subscribe<'a, T: Send + Sync + 'static> {
    bus: &'a Bus<T>,
    filter: &'a str,
    options: Options,
}

impl<T: Send + Sync + 'static> Subscribe<'_, T> {
    /// Sets the maximum number of queued messages: 1,024 by default, at least 1 and at most
    /// [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    ///
    /// Callbacks queue messages only while retained messages are replayed to them.
    pub const fn capacity(mut self, messages: usize) -> Self {
        self.options.capacity = messages;
        self
    }

    /// Sets the policy for messages beyond the capacity; [`Overflow::DropOldest`] by default.
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.options.overflow = overflow;
        self
    }

    /// Makes headers and timestamps visible to this subscription.
    pub const fn metadata(mut self) -> Self {
        self.options.metadata = true;
        self
    }

    /// Delivers the matching retained messages first. Has no effect in a group: as in MQTT, groups get none.
    pub const fn replay(mut self) -> Self {
        self.options.replay = true;
        self
    }

    /// Makes receive calls return [`RecvError::Lagged`](crate::RecvError::Lagged) when messages were dropped since the
    /// previous call, before they return further messages. Without it, drops are only counted ([`SubscriptionStats`]).
    pub const fn report_lag(mut self) -> Self {
        self.options.report_lag = true;
        self
    }

    /// Subscribes a callback, which each publisher runs synchronously on its own thread. Several threads may run it at
    /// the same time.
    ///
    /// A callback fails by returning an error or by panicking. The failure is counted and reported to
    /// [`Builder::on_fault`]; other subscribers still get the message.
    ///
    /// With [`replay`](Self::replay), this call runs the callback with the retained messages before it returns.
    /// Messages published meanwhile are parked, up to the capacity, and this call runs the callback with them
    /// afterwards.
    ///
    /// # Errors
    /// The filter is invalid, the capacity is out of range, or the bus is closed.
    pub fn callback<R: Outcome>(
        self,
        callback: impl Fn(&Event<'_, T>) -> R + Send + Sync + 'static,
    ) -> Result<Subscription<T>, SubscribeError> {
        let Self { bus, filter, options } = self;
        let make = |profile| Callback::new(profile, callback);
        Ok(Subscription { registration: bus.handle.core.subscribe_callback(filter, options, make)? })
    }

    /// Subscribes with a queue of its own, read through the returned [`Mailbox`].
    ///
    /// # Errors
    /// The filter is invalid, the capacity is out of range, or the bus is closed.
    pub fn mailbox(self) -> Result<Mailbox<T>, SubscribeError> {
        let (registration, queue) = self.bus.handle.core.subscribe_mailbox(self.filter, self.options)?;
        Ok(Mailbox::new(registration, queue))
    }

    /// Subscribes with a [`Cursor`] on the ring of the filter. It reads the messages published from now on.
    ///
    /// # Errors
    /// The filter is invalid, the capacity is out of range, or the bus is closed.
    pub fn cursor(self) -> Result<Cursor<T>, SubscribeError> {
        let (registration, start) = self.bus.handle.core.subscribe_cursor(self.filter, self.options)?;
        Ok(Cursor::new(registration, start))
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Subscribe<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribe")
            .field("filter", &self.filter)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The subscription of a callback. Dropping it unsubscribes.
///
/// A publish that starts after the drop does not run the callback. A publish already in progress on another thread
/// still may.
#[must_use = "dropping it unsubscribes"]
pub struct Subscription<T: Send + Sync + 'static> {
    registration: Registration<T>,
}

impl<T: Send + Sync + 'static> Subscription<T> {
    /// Returns the statistics of this subscription.
    pub fn stats(&self) -> SubscriptionStats {
        self.registration.stats()
    }

    /// Keeps the callback subscribed for the lifetime of the bus.
    pub fn detach(self) {
        self.registration.detach();
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.stats()).finish()
    }
}
