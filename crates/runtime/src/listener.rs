//! The table of listeners: what the host configures, and the addresses they are bound to.
//!
//! The host finds a listener by its name, and a service dispatches a connection by the protocol of its listener.
//! Nothing depends on the order of the table, and several listeners may have the same protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::admission::ListenerQuota;
use crate::transport::ListenerTransport;

/// Maximum number of listeners per process: as many `mio` tokens are reserved.
pub(crate) const LISTENERS_MAX: usize = 256;

/// Protocol of a listener. The host chooses the values; the runtime does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolTag(pub u16);

/// Configuration of a listener.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Unique name.
    pub name: String,
    /// Address to bind; port 0 selects a free port.
    pub address: SocketAddr,
    /// Passed to [`Service::accepted`](crate::Service::accepted) with each connection.
    pub protocol: ProtocolTag,
    /// Transport of its connections.
    pub transport: ListenerTransport,
    /// Socket send buffer size, bytes; bounds the kernel memory of a slow reader. 0 for the kernel default.
    pub send_buffer_bytes: usize,
    /// Its connections, and how many there may be.
    pub quota: Arc<ListenerQuota>,
}

/// A bound listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundListener {
    /// [`ListenerConfig::name`].
    pub name: String,
    /// Bound address, with the real port.
    pub address: SocketAddr,
}
