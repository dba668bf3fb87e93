//! The MQTT scenario: clients that publish, subscribe, acknowledge late or never, vanish and come back.
//!
//! | what holds | where |
//! |---|---|
//! | an acknowledged message reaches every session that had subscribed and still exists | `Oracle::check_losses` |
//! | QoS 2 is exactly once from end to end, shared subscriptions included | `Oracle::arrive` |
//! | first deliveries keep the order of each publisher and topic | `Oracle::arrive` |
//! | the retained message is the last acknowledged one, or a later one | `Oracle::check_retained_now` |
//! | a session receives no message without a subscription | `Oracle::arrive` |
//! | a packet identifier keeps its message until it is released | `Client::incoming` |
//! | a will without a delay is published, whatever ends the connection | `Client::leave_will` |
//! | a session whose client saw its CONNACK exists until it expires, and not after a clean start | `Client::connack` |
//! | no more is in flight than Receive Maximum | `Client::incoming` |
//! | queues, sessions and state of work under way are gone when nobody needs them | `engine::invariants` |
//!
//! The Kafka and queue scenarios use its clients and packets too.

pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod oracle;
pub(crate) mod plan;
mod scenario;

pub(crate) use scenario::MqttScenario;
