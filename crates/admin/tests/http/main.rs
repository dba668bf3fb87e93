//! The HTTP API over real sockets, with a fake broker.

mod client;
mod connections;
mod fake;
mod limits;
mod messages;
mod queues;
mod waiting;
