//! The Kafka wire protocol: frames, requests and responses of every API in all versions.
//!
//! # What this crate must never know
//! Sockets, time, which topics exist, the format of record batches. Both directions of each message have a codec, so
//! tests can act as a client.
//!
//! # Entry points
//! [`frame`] splits a stream into frames, [`RequestHeader::parse`] reads the header, and [`Message::decode`] the body,
//! as the request type that [`api`] has for the key. A response is written with [`frame::begin_frame`],
//! [`put_response_header`], [`Message::encode`] and [`frame::end_frame`]. The two APIs that carry records also have a
//! fast path: [`api::produce::ProduceRequestRef`] borrows from the frame, and [`api::fetch::FetchResponseWriter`]
//! writes record batches to the output without an intermediate copy.
//!
//! # Invariants
//! Any input decodes to a message or to an error. A length is never trusted before the bytes it covers have arrived, so
//! memory use is proportional to the frame, and at most 64 MiB for all arrays of a message. A decoded message can be
//! encoded again in the same version.
//!
//! # Declarations
//! Each API is declared once, in its file under `api/`: name, key and versions, then the fields of all structs in wire
//! order. A line in the list in `api.rs` makes it known.
//!
//! ```text
//! api! {
//!     FindThing, key 99, versions 0..=4, flexible 3..;
//!
//!     request FindThingRequest {
//!         name: Option<String>, null 2..;       in all versions; nullable since version 2
//!         epoch: i32 = -1, in 1..=3;            only in these versions; -1 in all others
//!     }
//!     tagged {
//!         0 => hint: String, in 3..;            a tagged field (KIP-482)
//!     }
//!
//!     response FindThingResponse {
//!         things: Vec<Thing>;
//!     }
//!
//!     struct Thing {
//!         id: i32;
//!     }
//! }
//! ```
//! Field names are those of the protocol schema, in `snake_case`. Defaults are the schema's; a nullable field without
//! one defaults to `None`.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `api.rs` | one file per API, and the list of all of them |
//! | `message.rs` | the traits of messages, and the `api!` macro |
//! | `decoder.rs`, `steps.rs` | decodes a message in steps |
//! | `wire.rs`, `reader.rs`, `uuid.rs` | the types of the protocol and their encodings |
//! | `frame.rs`, `header.rs` | what precedes the body of a request or response |
//! | `error_code.rs` | error codes |
//! | `partitioner.rs` | client-side choice of a partition by key |
//! | `round_trips.rs`, `sample.rs` | tests of all messages with random values |

#[macro_use]
mod message;

pub mod api;
mod decoder;
pub mod error_code;
pub mod frame;
pub mod header;
mod partitioner;
mod reader;
#[cfg(test)]
mod round_trips;
#[cfg(test)]
mod sample;
mod steps;
mod uuid;
mod wire;

pub use decoder::Decoder;
pub use error_code::ErrorCode;
pub use header::{RequestHeader, put_response_header};
pub use message::{Message, Request};
pub use partitioner::partition_for_key;
pub use reader::{DecodeError, Reader};
pub use uuid::Uuid;
