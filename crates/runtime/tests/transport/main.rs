//! The transport seam, driven with a layer that exists only here: through detached shards, and through sockets.

mod detached;
mod masked;
mod proxies;
mod service;
mod sockets;
mod unix;
