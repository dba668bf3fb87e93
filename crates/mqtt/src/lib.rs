//! MQTT 3.1, 3.1.1 and 5: packets to and from bytes, and the connection and session machines.

pub mod alias;
pub mod decode;
pub mod encode;
pub mod frame;
mod lists;
pub mod packet;
mod properties;
pub mod publish_template;
pub mod reason;
pub mod session;
mod wire;

pub use decode::{DecodeError, connect_level, decode};
pub use encode::EncodeError;
pub use frame::{Header, PacketType};
pub use packet::*;
pub use publish_template::PublishTemplate;
pub use reason::ReasonCode;
