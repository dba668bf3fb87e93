//! The MQTT codec (3.1, 3.1.1 and 5) and the delivery state of connections and sessions.
//!
//! Everything here is a pure state machine or a pure function. The crate does no IO, reads no clock, and has no notion
//! of subscribers or storage. Decoding borrows from the received bytes and allocates nothing.
//!
//! # Entry points
//! - [`decode()`] and [`Packet::encode`]: packets from and to bytes. [`Header::parse`] finds the length of a packet in
//!   a stream.
//! - [`PublishTemplate`]: a PUBLISH that is encoded once and sent to many receivers.
//! - [`session::Window`] and [`session::Received`]: QoS 1 and 2 state of a session, as sender and as receiver.
//! - [`alias`]: topic aliases of a connection.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `packet.rs`, `types.rs`, `lists.rs` | the packet types, the types that they share, and their repeated fields |
//! | `reason.rs`, `reason/`, `error.rs` | reason codes, and the errors of the codec |
//! | `frame.rs` | the fixed header |
//! | `decode.rs`, `decode/` | packets from bytes, one file per group of packets |
//! | `encode.rs`, `encode/` | packets to bytes, likewise |
//! | `properties.rs`, `property_id.rs`, `wire.rs` | property sections, property identifiers, the primitive data types |
//! | `publish_template.rs` | [`PublishTemplate`] |
//! | `session/` | QoS 1 and 2 delivery state |
//! | `alias.rs` | topic aliases |

pub mod alias;
pub mod decode;
pub mod encode;
mod error;
pub mod frame;
mod lists;
pub mod packet;
mod properties;
mod property_id;
pub mod publish_template;
pub mod reason;
pub mod session;
mod types;
mod wire;

pub use decode::{FilterReader, connect_level, decode, short_ack};
pub use error::{DecodeError, EncodeError};
pub use frame::{Header, PacketType};
pub use packet::*;
pub use publish_template::PublishTemplate;
pub use reason::ReasonCode;
