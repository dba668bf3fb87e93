//! WebSocket (RFC 6455) for listeners: the upgrade of a connection, frames, and the layer between socket and service.
//!
//! A WebSocket connection carries the byte stream of a protocol, such as MQTT (section 6 of its specifications), in
//! binary frames. Frame boundaries mean nothing to that protocol, so this layer passes payloads on as they arrive and
//! never collects a frame or a message. Output leaves unmasked in frames, behind a header: its bytes do not change, and
//! a payload that many connections share is not copied.
//!
//! # What this crate must never know
//! Protocols inside the frames, sockets, TLS.
//!
//! # Entry points
//! [`Acceptor::new`], [`Acceptor::layer`].
//!
//! # Invariants
//! - A layer holds at most one request head (8 KiB), then one frame header and one payload of a control frame (125
//!   bytes).
//! - Every violation of the protocol gets a close frame with its code, or an HTTP error before the upgrade.
//! - Pings of one read get one pong.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `settings.rs`, `acceptor.rs` | the settings of a listener; its log |
//! | `upgrade.rs` | the request that opens a connection, and the response |
//! | `origin.rs` | which web pages may connect |
//! | `frame.rs` | headers of frames; frames from the peer |
//! | `mask.rs` | the mask on payloads from the peer |
//! | `close.rs` | close codes |
//! | `layer.rs` | the layer of one connection |

mod acceptor;
mod close;
mod frame;
mod layer;
mod mask;
mod origin;
mod settings;
mod upgrade;

pub use acceptor::Acceptor;
pub use origin::{AllowedOrigin, InvalidOrigin};
pub use settings::Settings;
