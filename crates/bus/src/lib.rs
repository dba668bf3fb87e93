//! In-process publish/subscribe with MQTT topics: typed, bounded, with no broker and no network.
//!
//! A [`Bus<T>`](Bus) carries values of one type, published to topics such as `plant/7/temp`. Subscribers use MQTT topic
//! filters: `+` matches one level and `#` matches all remaining levels. A subscription to `$share/<group>/<filter>`
//! joins a group, and each message goes to one member of the group. Topic names, filters and matching follow MQTT 5
//! and use the same index as the Mainstem broker.
//!
//! ```
//! use mainstem_bus::{Bus, Overflow};
//!
//! let bus = Bus::new();
//! // A callback runs on the publisher's thread.
//! let _alarm = bus.subscribe("plant/+/temp").callback(|event| {
//!     if *event.payload() > 90.0 {
//!         println!("{} is too hot", event.topic());
//!     }
//! })?;
//! // A mailbox queues messages until its owner reads them.
//! let log = bus.subscribe("plant/#").capacity(1000).overflow(Overflow::DropOldest).mailbox()?;
//!
//! bus.publish("plant/7/temp", 21.5)?;
//! assert_eq!(*log.recv()?.payload(), 21.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Three ways to consume
//! | | created by | runs | use it for |
//! |---|---|---|---|
//! | callback | [`Subscribe::callback`] | synchronously, on the publisher's thread | short reactions, no allocation |
//! | mailbox | [`Subscribe::mailbox`] | where it is read: blocking, polling, or as an async `Stream` | slow work |
//! | cursor | [`Subscribe::cursor`] | where it is read, in batches from a ring that cursors share | many readers |
//!
//! # Guarantees
//! - **Order.** Each subscriber receives the messages of one publishing thread in the order they were published. There
//!   is no order between publishing threads, nor between a callback and the messages it publishes itself. Messages that
//!   a leaving group member hands over are appended after those the other members already have.
//! - **No stale match.** Once a subscribe call has returned, the subscription receives every message published later.
//! - **No silent loss.** A message is lost only by the [`Overflow`] policy that the subscriber chose, or because the
//!   subscriber left. Both are counted: [`Bus::stats`], [`Delivered`].
//! - **No unrequested blocking.** [`publish`](Bus::publish) blocks only on a full subscription with
//!   [`Overflow::Block`]. Such a subscriber must not wait for the publisher in turn: a thread that publishes to its own
//!   full mailbox deadlocks.
//! - **Bounded memory.** Each subscription has a capacity, and retained messages and cached topics are limited
//!   ([`Builder`]). Publishing to ever new topics does not grow memory.
//! - **Isolated failures.** A callback that returns an error or panics is counted and reported
//!   ([`Builder::on_fault`]); all other subscribers still get the message.
//!
//! # Non-goals
//! There is no network, no persistence and no acknowledgement: a message is either handed to the subscriber or dropped.
//! Programs that need more use a broker; `examples/bridge.rs` connects a bus to one.
//!
//! # How it works
//! `publish` looks the topic up in a match cache that belongs to its thread, which avoids writes to memory shared with
//! other publishers. A cached result is valid for one *epoch*. The epoch is a number that every subscribe and
//! unsubscribe advances while holding the index lock, and a publisher reads it *before* it matches. Subscribing changes
//! the index in place. Unsubscribing also empties the caches, so that no cached match keeps a callback alive.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `bus.rs` | [`Bus`] and its builders: [`Builder`], [`Draft`], [`Subscribe`] |
//! | `core.rs` | state shared by all handles of a bus; the publish path |
//! | `registration.rs` | subscribe and unsubscribe |
//! | `receivers.rs`, `subscriber_list.rs` | the subscriptions of one filter, and delivery to them |
//! | `shards.rs` | the match caches |
//! | `callback.rs`, `queue.rs`, `ring.rs`, `group.rs` | the four kinds of receivers |
//! | `offer.rs`, `chunk.rs`, `room_signal.rs` | results of an offer, chunks of a ring, wakeups of waiting publishers |
//! | `mailbox.rs`, `cursor.rs` | the readers' handles to a queue and to a ring |
//! | `retained.rs` | the last retained message of each topic |
//! | `event.rs`, `options.rs`, `stats.rs`, `error.rs` | messages, subscription options, statistics, errors |
//! | `sync.rs` | locks and atomics, from the standard library or from the shuttle test scheduler |

mod bus;
mod callback;
mod chunk;
mod core;
mod cursor;
mod error;
mod event;
mod group;
mod mailbox;
mod offer;
mod options;
mod queue;
mod receivers;
mod registration;
mod retained;
mod ring;
mod room_signal;
mod shards;
mod stats;
mod subscriber_list;
mod sync;

pub use bus::{Builder, Bus, Draft, Subscribe, Subscription};
pub use callback::{BoxError, Cause, Fault, Outcome};
pub use core::MAX_NESTED;
pub use cursor::{Batch, Cursor};
pub use error::{PublishError, RecvError, SubscribeError, TopicError, TryRecvError};
pub use event::{Event, Message};
pub use mailbox::Mailbox;
pub use options::{DEFAULT_CAPACITY, MAX_CAPACITY, Overflow};
pub use stats::{BusStats, Delivered, Kind, SubscriptionStats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
