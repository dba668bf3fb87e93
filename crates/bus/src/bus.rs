//! The bus itself: what is made once and handed around.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::callback::{Callback, Fault, OnFault, Outcome, print};
use crate::core::{Core, Settings};
use crate::cursor::Cursor;
use crate::error::{PublishError, SubscribeError};
use crate::event::{Event, Message, Metadata, View};
use crate::mailbox::Mailbox;
use crate::options::{Options, Overflow};
use crate::stats::{BusStats, Delivered, SubscriptionStats};
use crate::sync::Patience;
use crate::ticket::Ticket;

/// Topics, and those who subscribe to them: carries values of one type between the parts of a program.
///
/// Cheap to clone, and all clones are the same bus. It is closed with the last of them, or by [`close`](Self::close).
/// A callback that has captured its own bus keeps it open until it is unsubscribed.
pub struct Bus<T: Send + Sync + 'static> {
    handle: Arc<Handle<T>>,
}

/// Closes the bus when the last one who can publish is gone; subscriptions hold the core alone.
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
    /// A bus with the defaults of [`Builder`].
    pub fn new() -> Self {
        Builder::new().build()
    }

    /// A bus with other limits than the default ones.
    pub fn builder() -> Builder<T> {
        Builder::new()
    }

    /// Publishes a value: runs the callbacks that match the topic, in this thread, and puts the value into the
    /// mailboxes and rings that do.
    ///
    /// Waits for nobody, except where a subscription with [`Overflow::Block`] is full; and for the callbacks to return,
    /// as they run here. A subscriber gets what one thread publishes in its order. Copies nothing; allocates at most
    /// once (for mailboxes, cursors and groups, which share the value), apart from what is new: a topic, a subscription.
    ///
    /// # Errors
    /// The topic is none, the bus is closed, or callbacks are nested too deeply.
    #[inline]
    pub fn publish(&self, topic: &str, payload: T) -> Result<Delivered, PublishError> {
        self.handle.core.publish(topic, payload, None)
    }

    /// Publishes values to one topic, in their order, at less than the cost of publishing them one by one.
    ///
    /// Either all are published or none. Mailboxes and rings get them in one piece, unless they have to wait for room.
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

    /// A message to be published with more than a topic and a payload.
    pub fn message<'a>(&'a self, topic: &'a str, payload: T) -> Draft<'a, T> {
        Draft { bus: self, topic, payload, metadata: None, is_retained: false }
    }

    /// A subscription to be made: to a topic filter as in MQTT 5, or to `$share/<group>/<filter>`.
    pub fn subscribe<'a>(&'a self, filter: &'a str) -> Subscribe<'a, T> {
        Subscribe { bus: self, filter, options: Options::default() }
    }

    /// The retained message of a topic.
    pub fn retained(&self, topic: &str) -> Option<Message<T>> {
        let view = View { metadata: true, is_replay: true };
        self.handle.core.retained(topic).map(|shared| Message::new(shared, view))
    }

    /// Forgets the retained message of a topic, and says whether there was one.
    pub fn clear_retained(&self, topic: &str) -> bool {
        self.handle.core.clear_retained(topic)
    }

    /// Ends the bus: from now on nothing is published, mailboxes and cursors get what waits for them and then the end.
    ///
    /// Returns at once. What is being published meanwhile reaches those that have not seen the end.
    pub fn close(&self) {
        self.handle.core.close();
    }

    /// Ends the bus, and waits for as long as `timeout` until every mailbox and every cursor has seen the end or is
    /// gone. Says whether that is so.
    pub fn close_and_wait(&self, timeout: Duration) -> bool {
        self.close();
        self.handle.core.wait_for_ends(Patience::lasting(timeout))
    }

    /// Whether the bus is closed.
    pub fn is_closed(&self) -> bool {
        self.handle.core.is_closed()
    }

    /// All numbers there are. Looks at each subscription, and holds up those who subscribe meanwhile, not those who
    /// publish.
    pub fn stats(&self) -> BusStats {
        self.handle.core.stats()
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Bus<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// The limits of a bus that is to be made.
#[must_use = "there is no bus yet"]
pub struct Builder<T> {
    carries: PhantomData<fn() -> T>,
    retained_max: usize,
    cached_topics: usize,
    on_fault: Box<OnFault>,
}

impl<T: Send + Sync + 'static> Builder<T> {
    fn new() -> Self {
        Self { carries: PhantomData, retained_max: 65_536, cached_topics: 16_384, on_fault: Box::new(print) }
    }

    /// The most topics that have a retained message; 65,536 by default.
    pub fn retained_max(self, topics: usize) -> Self {
        Self { retained_max: topics, ..self }
    }

    /// The topics for which each publishing thread remembers who subscribes; 16,384 by default. Beyond that they are
    /// matched again: correct and slower. A topic takes some 200 bytes; those of more than 256 bytes are never
    /// remembered.
    pub fn cached_topics(self, topics: u32) -> Self {
        Self { cached_topics: topics as usize, ..self }
    }

    /// What is done when a callback fails, in the thread that ran it; by default a line goes to the standard error. It
    /// is counted in any case.
    pub fn on_fault(self, report: impl Fn(&Fault<'_>) + Send + Sync + 'static) -> Self {
        Self { on_fault: Box::new(report), ..self }
    }

    /// Makes the bus.
    pub fn build(self) -> Bus<T> {
        let Self { retained_max, cached_topics, on_fault, .. } = self;
        let settings = Settings { shards: shards(), cached_topics, retained_max, on_fault };
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

/// Enough match caches that the threads which can run at once rarely meet in one.
fn shards() -> usize {
    if cfg!(mainstem_shuttle) {
        return 2;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).clamp(4, 64)
}

/// A message that is being put together, see [`Bus::message`].
#[must_use = "it is not published yet"]
pub struct Draft<'a, T: Send + Sync + 'static> {
    bus: &'a Bus<T>,
    topic: &'a str,
    payload: T,
    metadata: Option<Box<Metadata>>,
    is_retained: bool,
}

impl<T: Send + Sync + 'static> Draft<'_, T> {
    /// Adds a header, for subscribers that asked for metadata.
    pub fn header(mut self, key: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.metadata.get_or_insert_default().headers.push((key.into(), value.into()));
        self
    }

    /// Says what time the message is of. Without it subscribers that asked for metadata get the time of publishing.
    pub fn timestamp(mut self, time: SystemTime) -> Self {
        self.metadata.get_or_insert_default().timestamp = Some(time);
        self
    }

    /// Keeps the message as the last one of its topic, for those who will subscribe with replay.
    pub const fn retain(mut self) -> Self {
        self.is_retained = true;
        self
    }

    /// Publishes it, see [`Bus::publish`].
    ///
    /// # Errors
    /// As there, and where no more topics can have a retained message.
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

/// A subscription that is being put together, see [`Bus::subscribe`].
#[must_use = "nothing is subscribed yet"]
pub struct Subscribe<'a, T: Send + Sync + 'static> {
    bus: &'a Bus<T>,
    filter: &'a str,
    options: Options,
}

impl<T: Send + Sync + 'static> Subscribe<'_, T> {
    /// The most messages that wait for it, 1,024 by default. Callbacks keep none waiting, other than while retained
    /// messages are replayed.
    pub const fn capacity(mut self, messages: usize) -> Self {
        self.options.capacity = messages;
        self
    }

    /// What happens beyond that; [`Overflow::DropOldest`] by default.
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.options.overflow = overflow;
        self
    }

    /// Asks for headers and timestamps, which are hidden otherwise.
    pub const fn metadata(mut self) -> Self {
        self.options.metadata = true;
        self
    }

    /// Asks for the retained messages that match, before all others. As in MQTT, groups get none.
    pub const fn replay(mut self) -> Self {
        self.options.replay = true;
        self
    }

    /// Has `callback` run by whoever publishes, at once and on its thread; several threads may run it at a time.
    ///
    /// If it fails, by returning an error or by panicking, that is counted and reported
    /// ([`Builder::on_fault`]), and everybody else gets the message all the same. With [`replay`](Self::replay) it has
    /// been run with the retained messages when this returns; what others publish meanwhile is run behind them, by this
    /// thread.
    ///
    /// # Errors
    /// The filter is none, the capacity is out of bounds, or the bus is closed.
    pub fn callback<R: Outcome>(
        self,
        callback: impl Fn(&Event<'_, T>) -> R + Send + Sync + 'static,
    ) -> Result<Subscription<T>, SubscribeError> {
        let Self { bus, filter, options } = self;
        let make = |profile| Callback::new(profile, callback);
        Ok(Subscription { ticket: bus.handle.core.subscribe_callback(filter, options, make)? })
    }

    /// Has messages put into a mailbox.
    ///
    /// # Errors
    /// The filter is none, the capacity is out of bounds, or the bus is closed.
    pub fn mailbox(self) -> Result<Mailbox<T>, SubscribeError> {
        let (ticket, queue) = self.bus.handle.core.subscribe_mailbox(self.filter, self.options)?;
        Ok(Mailbox::new(ticket, queue))
    }

    /// Has messages put into a ring, and makes a cursor that reads it from here on.
    ///
    /// # Errors
    /// The filter is none, the capacity is out of bounds, or the bus is closed.
    pub fn cursor(self) -> Result<Cursor<T>, SubscribeError> {
        let (ticket, start) = self.bus.handle.core.subscribe_cursor(self.filter, self.options)?;
        Ok(Cursor::new(ticket, start))
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

/// A subscribed callback. Dropping this unsubscribes it: what is published later does not run it, what is being
/// published by other threads still may.
#[must_use = "dropping it unsubscribes"]
pub struct Subscription<T: Send + Sync + 'static> {
    ticket: Ticket<T>,
}

impl<T: Send + Sync + 'static> Subscription<T> {
    /// Its numbers.
    pub fn stats(&self) -> SubscriptionStats {
        self.ticket.stats()
    }

    /// Keeps the callback subscribed for as long as the bus is there.
    pub fn detach(self) {
        self.ticket.detach();
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.stats()).finish()
    }
}
