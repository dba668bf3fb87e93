//! The table of listeners: what the host configures, and the addresses they are bound to.
//!
//! The host finds a listener by its name, and a service dispatches a connection by the protocol of its listener.
//! Nothing depends on the order of the table, and several listeners may have the same protocol.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::admission::ListenerQuota;
use crate::proxy::TrustedProxies;
use crate::transport::ListenerTransport;
use crate::unix::UnixSocket;

/// Maximum number of listeners per process: as many `mio` tokens are reserved.
pub(crate) const LISTENERS_MAX: usize = 256;

/// Protocol of a listener. The host chooses the values; the runtime does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolTag(pub u16);

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerAddress {
    /// An address and a port; port 0 selects a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(UnixSocket),
}

impl fmt::Display for ListenerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(socket) => write!(f, "unix:{}", socket.path.display()),
        }
    }
}

impl From<SocketAddr> for ListenerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

/// Configuration of a listener.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Unique name.
    pub name: String,
    /// Where to listen.
    pub address: ListenerAddress,
    /// Passed to [`Service::accepted`](crate::Service::accepted) with each connection.
    pub protocol: ProtocolTag,
    /// Transport of its connections.
    pub transport: ListenerTransport,
    /// Socket send buffer size, bytes; bounds the kernel memory of a slow reader. 0 for the kernel default.
    pub send_buffer_bytes: usize,
    /// Its connections, and how many there may be.
    pub quota: Arc<ListenerQuota>,
    /// Its peers, if they are proxies that name their clients by the PROXY protocol.
    pub proxies: Option<TrustedProxies>,
}

/// A bound listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundListener {
    /// [`ListenerConfig::name`].
    pub name: String,
    /// Bound address, with the real port.
    pub address: ListenerAddress,
}
