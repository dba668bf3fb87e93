//! The delivery state of one MQTT session: the Session State of 4.1 without the subscriptions.
//!
//! [`Window`] tracks messages that the server sent and the client has not acknowledged. [`Received`] tracks QoS 2
//! messages that the client sent and has not released. Both are pure state machines: they send nothing and read no
//! clock.

mod received;
mod window;

pub use received::{Received, ReceivedError};
pub use window::{Acked, LAST_ID, Pending, Resend, Window};
