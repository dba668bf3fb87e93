//! The delivery state of one MQTT session, as pure machines: what 4.1 calls Session State, less the subscriptions.
//!
//! [`Window`] holds what the server has sent and not seen acknowledged; [`Received`] what the client has sent
//! with QoS 2 and not released. Neither sends anything nor reads a clock.

mod received;
mod window;

pub use received::{Received, ReceivedError};
pub use window::{Acked, LAST_ID, Pending, Resend, Window};
