//! The test kit: starts the real broker and talks to it over raw TCP with hand-made packets.
//!
//! It must never know the broker's own code: it has a packet builder ([`wire`]) and a strict packet reader
//! ([`packet`]) of its own, so a mistake in the broker's codec cannot hide itself. It knows the binary's
//! command line and the `mqtt listening on` line, nothing else.
//!
//! # How to write a test
//!
//! ```no_run
//! use mainstem_conformance::prelude::*;
//!
//! // [MQTT5-3.3.1-8] [MQTT3-3.3.1-9]
//! #[test]
//! fn a_live_message_does_not_carry_retain() {
//!     for version in BOTH {
//!         let broker = Broker::shared(); // one per test file, default configuration, two shards
//!         let topic = unique("live"); // unique topics and client ids: tests run in parallel
//!         let mut subscriber = Client::connect(broker, version);
//!         subscriber.subscribe(&topic, 1);
//!         let mut publisher = Client::connect(broker, version);
//!         publisher.send(&Publish::new(&topic, b"x").qos(1).id(7).retain());
//!         assert_eq!(publisher.expect_ack(PUBACK).id, 7);
//!         let message = subscriber.expect_message();
//!         assert!(!message.retain);
//!     }
//! }
//! ```
//!
//! - The comment line directly above the test names the statements it shows: `MQTT5-` for version 5,
//!   `MQTT3-` for 3.1.1. `cargo xtask conformance` turns them into the tables in `docs/conformance/`.
//! - Every `expect_*` has a deadline ([`DEADLINE`]) and panics with what came instead.
//! - `expect_refused(reason)` means DISCONNECT with that reason and then a close in version 5, a mere close in 3.x.
//! - To show that nothing arrives, never wait: [`Client::drain`] has another client send a marker and returns
//!   the messages that came before it; [`Client::expect_silence`] does the same with a ping, for what the
//!   connection itself would have answered.
//! - An acknowledgement does not say that all subscribers have been served: where a test depends on that,
//!   [`Witnesses`] tell it. While one client misbehaves, [`Bystanders`] show that others notice nothing.
//! - A broker that ends and comes back with its data: `broker.restart(End::Kill)`.
//! - A broker with other settings: `Broker::with(&["mqtt.maximum_qos=1"])`; it dies with its value.
//! - Bytes that no builder makes: `client.send(&[0xC0, 0x01, 0x00])`, or build from [`wire::frame`] and friends.
//!
//! # The environment
//!
//! `MAINSTEM_BROKER=127.0.0.1:1883` makes [`Broker::shared`] use a broker that already runs.
//! `MAINSTEM_BIN=path` names the binary; otherwise it is `mainstem` in the profile directory of the test.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `broker.rs` | the broker process |
//! | `client.rs` | a raw client connection |
//! | `wire.rs`, `encoding.rs`, `packet.rs` | packets to and from bytes, malformed ones included |
//! | `property.rs`, `reason.rs` | identifiers and codes of the specification |
//! | `bystanders.rs` | clients that watch for side effects |

mod broker;
mod bystanders;
mod client;
mod encoding;
pub mod packet;
pub mod property;
pub mod reason;
pub mod wire;

pub use broker::{Broker, End, unique};
pub use bystanders::{Bystanders, Witnesses};
pub use client::{Client, DEADLINE, Event};

/// The protocol level of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.
    V3 = 3,
    /// MQTT 3.1.1.
    V4 = 4,
    /// MQTT 5.
    V5 = 5,
}

/// The versions that most rules hold for alike: 3.1.1 and 5.
pub const BOTH: [Version; 2] = [Version::V4, Version::V5];

/// What nearly every test needs.
pub mod prelude {
    pub use crate::Version::{V3, V4, V5};
    pub use crate::packet::{
        Ack, Answer, ConnAck, Disconnect, Message, PUBACK, PUBCOMP, PUBREC, PUBREL, Packet, SUBACK, UNSUBACK,
    };
    pub use crate::property::{self, Props};
    pub use crate::reason;
    pub use crate::wire::{self, Connect, Publish, Subscribe, Unsubscribe, Will};
    pub use crate::{BOTH, Broker, Client, Event, Version, unique};
}
