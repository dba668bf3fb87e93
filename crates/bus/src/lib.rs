//! MQTT-style topic publish/subscribe between the parts of one program: typed, bounded, without broker and network.
//!
//! A [`Bus<T>`](Bus) carries values of one type under topics such as `plant/7/temp`. Subscribers name topic filters,
//! with `+` for one level and `#` for all that follow, or join a group with `$share/<group>/<filter>`, of which one
//! member gets each message. Names, filters and matching are those of MQTT 5, and the index is the one that the
//! broker Mainstem uses.
//!
//! ```
//! use mainstem_bus::{Bus, Overflow};
//!
//! let bus = Bus::new();
//! // Run by whoever publishes:
//! let _alarm = bus.subscribe("plant/+/temp").callback(|event| {
//!     if *event.payload() > 90.0 {
//!         println!("{} is too hot", event.topic());
//!     }
//! })?;
//! // Read when it suits the reader:
//! let log = bus.subscribe("plant/#").capacity(1000).overflow(Overflow::DropOldest).mailbox()?;
//!
//! bus.publish("plant/7/temp", 21.5)?;
//! assert_eq!(*log.recv()?.payload(), 21.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Three ways to consume
//! | | made by | runs | good for |
//! |---|---|---|---|
//! | callback | [`Subscribe::callback`] | in the publisher's thread, at once | short reactions; nothing is queued or allocated |
//! | mailbox | [`Subscribe::mailbox`] | wherever it is read: blocking, trying, or as an async `Stream` of any runtime | work that takes time, async code |
//! | cursor | [`Subscribe::cursor`] | wherever it is read, in batches out of a ring that cursors share | many readers of the same flow |
//!
//! # What is promised
//! - **Order.** A subscriber sees what one thread publishes in the order in which it was published. What different
//!   threads publish has no order between them, and neither have a callback and what it publishes itself. What a member
//!   leaves to its group comes behind what the others have already.
//! - **No stale match.** A subscription that has been returned gets every message whose `publish` is called later.
//! - **Nothing is lost in silence.** A message goes missing by the [`Overflow`] policy that its subscriber chose, or
//!   because the subscriber left. Both are counted: [`Bus::stats`], [`Delivered`].
//! - **Nothing waits unasked.** [`publish`](Bus::publish) waits where a subscription with [`Overflow::Block`] is full, and
//!   nowhere else. A subscriber that is to be waited for must not wait for the publisher in turn: a thread that publishes
//!   to its own full mailbox waits for ever.
//! - **Nothing grows.** Each subscription has a capacity, retained messages and remembered topics have bounds
//!   ([`Builder`]); topics that flow through leave nothing behind.
//! - **Failures stay where they are.** A callback that returns an error or panics is counted and reported
//!   ([`Builder::on_fault`]); all others get the message.
//!
//! # What it is not
//! It has no network, no persistence and no acknowledgements: a message is handed over or it is dropped, and that is all
//! there is to know. Programs that need more talk to a broker; `examples/bridge.rs` joins the two.
//!
//! # How it works
//! A publish looks the topic up in a cache of its own thread, which costs no write to memory that other threads write
//! to. A result in the cache is good for one *epoch*: a number that each subscribe and unsubscribe moves while it holds
//! the index, and that was read *before* the match. A subscribe changes the index in place; an unsubscribe also empties
//! the caches, so that nothing keeps its callback alive.
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `bus.rs` | [`Bus`] and what is put together for it: [`Builder`], [`Draft`], [`Subscribe`] |
//! | `core.rs` | what all handles share; the way of a publish |
//! | `ticket.rs` | subscribing and unsubscribing |
//! | `receivers.rs` | the subscriptions of a filter, and delivery to them |
//! | `shards.rs` | the match caches |
//! | `callback.rs`, `queue.rs`, `ring.rs`, `group.rs` | the four kinds of receivers |
//! | `mailbox.rs`, `cursor.rs` | what the reader of a queue, or of a ring, holds |
//! | `retained.rs` | the last message of each topic |
//! | `event.rs`, `options.rs`, `stats.rs`, `error.rs` | messages, options, numbers, errors |
//! | `sync.rs` | locks and atomics: the standard library's, or those of a test scheduler |

mod bus;
mod callback;
mod core;
mod cursor;
mod error;
mod event;
mod group;
mod mailbox;
mod options;
mod queue;
mod receivers;
mod retained;
mod ring;
mod shards;
mod stats;
mod sync;
mod ticket;

pub use bus::{Builder, Bus, Draft, Subscribe, Subscription};
pub use callback::{BoxError, Cause, Fault, Outcome};
pub use core::MAX_NESTED;
pub use cursor::{Batch, Cursor};
pub use error::{PublishError, RecvError, SubscribeError, TopicError};
pub use event::{Event, Message};
pub use mailbox::Mailbox;
pub use options::{DEFAULT_CAPACITY, MAX_CAPACITY, Overflow};
pub use stats::{BusStats, Delivered, Kind, SubscriptionStats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
