//! MQTT 3.1, 3.1.1 and 5: packets to and from bytes, and the connection and session machines.

pub mod packet;
pub mod reason;
