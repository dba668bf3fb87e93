//! The operations door over real sockets, before a broker that is made up.

mod client;
mod fake;
mod limits;
mod messages;
mod queues;
mod waiting;
