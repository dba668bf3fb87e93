//! The Kafka protocol's bytes: frames, requests and responses of every API in all its versions, record batches.
//!
//! # What this crate must never know
//! Sockets, time, topics that exist. Both directions of each message are coded alike, so tests speak through it too.
//!
//! # Entry points
//! [`frame`] cuts requests out of a stream, [`RequestHeader::parse`] reads what they begin with, and
//! [`Message::decode`] the rest, as the message that [`api`] has for the key. An answer is [`frame::begin`],
//! [`put_response_header`], [`Message::encode`], [`frame::end`]. The two APIs that carry records have a faster way
//! beside: [`api::produce::ProduceRequestRef`] borrows from the frame, and [`api::fetch::FetchResponseWriter`] lets
//! record batches go to the output without a detour. [`record`] looks into records.
//!
//! # What holds
//! Any bytes decode to a message or to an error. No length is believed before the bytes it speaks of are there, so
//! what decoding takes is in proportion to the frame, and not more than 64 MiB for all arrays of a message. What has
//! been decoded encodes again in the same version.
//!
//! # How a message is written down
//! One file for each API under `api/`, and in it a table for each struct, in the order of the wire:
//!
//! ```text
//! request!(FindThingRequest => FindThingResponse, key 99, versions 0..=4, flexible 3..);
//!
//! message! {
//!     pub struct FindThingRequest {
//!         name: Option<String>, null 2..;       in all versions; may be null since version 2
//!         epoch: i32 = -1, in 1..=3;            in these versions; elsewhere it is -1
//!     }
//!     tagged {
//!         0 => hint: String, in 3..;            a tagged field (KIP-482)
//!     }
//! }
//! ```
//! A field is spelt as in the protocol's schema, in `snake_case`. Its default is the schema's, and nothing (`None`)
//! for what may be null and has no default there.

#[macro_use]
mod message;

mod aborted;
pub mod api;
pub mod error_code;
pub mod frame;
pub mod header;
mod partition;
mod reader;
pub mod record;
pub mod registry;
#[cfg(test)]
mod round_trips;
#[cfg(test)]
mod sample;
mod uuid;
mod wire;

pub use aborted::Aborted;
pub use error_code::ErrorCode;
pub use header::{RequestHeader, put_response_header};
pub use message::{Message, Request};
pub use partition::partition_of;
pub use reader::{DecodeError, Reader};
pub use uuid::Uuid;
