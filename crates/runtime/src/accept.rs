//! Listeners: accept connections and assign them to shards.
//!
//! The first shard owns all listeners and assigns each connection to the shard with the fewest connections. It passes
//! the socket through [`Arrivals`] and wakes the target.
//!
//! A connection beyond a limit of [`Admission`] is accepted and closed at once: left in the backlog it would keep the
//! clients behind it waiting, and the shard busy.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mainstem_quota::LogThrottle;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;

use crate::admission::{Admission, ListenerQuota, Permit};
use crate::links::Baggage;
use crate::listener::{BoundListener, LISTENERS_MAX, ListenerAddress, ListenerConfig, ProtocolTag};
use crate::proxy::TrustedProxies;
use crate::transport::{ListenerTransport, Transport};
use crate::unix::UnixListener;

/// Maximum number of connections accepted per turn, so that a connection storm does not stall existing connections: a
/// turn reads each ready connection before it accepts more.
pub(crate) const ACCEPTS_PER_TURN: usize = 16;
/// Pause after `accept` failed, for example because the process has no file descriptors left.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A socket in transit to the shard that will own it.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: TcpStream,
    pub(crate) permit: Option<Permit>,
    pub(crate) protocol: ProtocolTag,
    pub(crate) transport: Transport,
    /// Input that the previous shard read but did not consume.
    pub(crate) input: Vec<u8>,
    /// What the service of the previous shard hands over.
    pub(crate) baggage: Baggage,
}

/// Sockets in transit to each shard, and the connection count of each shard.
#[derive(Debug)]
pub(crate) struct Arrivals {
    in_transit: Vec<Mutex<Vec<Arrival>>>,
    connections: Vec<AtomicUsize>,
}

impl Arrivals {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            in_transit: (0..shards).map(|_| Mutex::default()).collect(),
            connections: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Chooses the shard for a new connection: the one with the fewest connections. The first `together` connections go
    /// to the first shard: a few connections mostly exchange messages with each other, and a message between shards has
    /// the latency of a thread wakeup.
    pub(crate) fn choose_shard(&self, together: usize) -> usize {
        let count =
            |shard: usize| self.connections[shard].load(Ordering::Relaxed) + self.in_transit_to(shard);
        if count(0) < together {
            return 0;
        }
        (0..self.connections.len()).min_by_key(|shard| count(*shard)).unwrap_or(0)
    }

    fn in_transit_to(&self, shard: usize) -> usize {
        self.in_transit[shard].lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Counts a new connection of `shard`.
    pub(crate) fn connection_opened(&self, shard: usize) {
        self.connections[shard].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was closed or left `shard`.
    pub(crate) fn connection_closed(&self, shard: usize) {
        self.connections[shard].fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, shard: usize, arrival: Arrival) {
        self.in_transit[shard].lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    }

    pub(crate) fn take(&self, shard: usize) -> Vec<Arrival> {
        std::mem::take(&mut *self.in_transit[shard].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Binds all listeners of the table, in its order.
///
/// # Errors
/// If the table has duplicate names or too many listeners, or an address cannot be bound.
pub(crate) fn bind_all(table: &[ListenerConfig]) -> io::Result<(Vec<Listener>, Vec<BoundListener>)> {
    if table.len() > LISTENERS_MAX {
        let reason =
            format!("{} listeners configured, but at most {LISTENERS_MAX} are supported", table.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let mut listeners = Vec::new();
    let mut bound: Vec<BoundListener> = Vec::new();
    for config in table {
        let ListenerConfig { name, address, .. } = config;
        if bound.iter().any(|known| known.name == *name) {
            let reason = format!("two listeners are named {name:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let listener = Listener::bind(config)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
        bound.push(BoundListener { name: name.clone(), address: listener.address(config)? });
        listeners.push(listener);
    }
    Ok((listeners, bound))
}

fn bind_tcp(address: SocketAddr, send_buffer_bytes: usize) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    // Accepted sockets inherit these options, which saves system calls: no Nagle delay, since the loop coalesces writes
    // itself, and keep-alive probes for peers that vanish silently.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    // Bound the kernel memory of a slow reader. By default it grows to megabytes per connection, which no accounting
    // covers and no CPU cache holds.
    if send_buffer_bytes > 0 {
        sockopt::set_socket_send_buffer_size(&socket, send_buffer_bytes)?;
    }
    Ok(socket)
}

#[derive(Debug)]
enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[derive(Debug)]
pub(crate) struct Listener {
    socket: ListenerSocket,
    protocol: ProtocolTag,
    transport: ListenerTransport,
    quota: Arc<ListenerQuota>,
    proxies: Option<TrustedProxies>,
    /// The backlog may hold more connections than the last turn accepted.
    pub(crate) has_more: bool,
    /// After an error such as too many open files: no attempt before this time.
    paused_until: Option<Instant>,
    log: LogThrottle,
    log_untrusted: LogThrottle,
}

impl Listener {
    fn bind(config: &ListenerConfig) -> io::Result<Self> {
        Ok(Self {
            socket: match &config.address {
                ListenerAddress::Tcp(address) => {
                    ListenerSocket::Tcp(bind_tcp(*address, config.send_buffer_bytes)?)
                }
                ListenerAddress::Unix(socket) => {
                    ListenerSocket::Unix(UnixListener::bind(socket, config.send_buffer_bytes)?)
                }
            },
            protocol: config.protocol,
            transport: config.transport.clone(),
            quota: Arc::clone(&config.quota),
            proxies: config.proxies.clone(),
            has_more: false,
            paused_until: None,
            log: LogThrottle::default(),
            log_untrusted: LogThrottle::default(),
        })
    }

    /// The bound address of `config`.
    fn address(&self, config: &ListenerConfig) -> io::Result<ListenerAddress> {
        match &self.socket {
            ListenerSocket::Tcp(socket) => socket.local_addr().map(ListenerAddress::Tcp),
            ListenerSocket::Unix(_) => Ok(config.address.clone()),
        }
    }

    /// Whether its peers are proxies, whose connections begin with a header.
    pub(crate) fn has_proxies(&self) -> bool {
        self.proxies.is_some()
    }

    fn accept_one(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        match &self.socket {
            ListenerSocket::Tcp(socket) => {
                socket.accept().map(|(socket, address)| (socket, Some(address.ip())))
            }
            ListenerSocket::Unix(socket) => socket.accept().map(|socket| (socket, None)),
        }
    }

    /// Counts a new connection, unless a limit is reached or it comes from a peer that is not trusted as a proxy.
    fn admit(&mut self, admission: &Arc<Admission>, peer: Option<IpAddr>, now: Instant) -> Option<Permit> {
        let Some(proxies) = &self.proxies else { return admission.admit(&self.quota, peer).ok() };
        if !peer.is_some_and(|peer| proxies.contain(peer)) {
            if let Some(count) = self.log_untrusted.count(now) {
                let name = self.quota.name();
                let peer = peer.map_or_else(String::new, |peer| peer.to_string());
                log::warn!(
                    "{name}: {count} connections closed at once, the last from {peer}, which is none of the proxies in proxy_protocol.from"
                );
            }
            return None;
        }
        admission.admit_proxied(&self.quota, peer).ok()
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            ListenerSocket::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            ListenerSocket::Unix(socket) => {
                registry.register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)
            }
        }
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.socket {
            ListenerSocket::Tcp(socket) => registry.deregister(socket),
            ListenerSocket::Unix(socket) => registry.deregister(&mut SourceFd(&socket.as_raw_fd())),
        }
    }

    /// Accepts up to `count` pending connections and returns the number of attempts. Sets `has_more` if the backlog may
    /// hold more.
    pub(crate) fn accept(
        &mut self,
        admission: &Arc<Admission>,
        now: Instant,
        count: usize,
        mut take: impl FnMut(Arrival),
    ) -> usize {
        self.has_more = true;
        self.paused_until = None;
        for tried in 0..count {
            match self.accept_one() {
                Ok((socket, peer)) => {
                    // Otherwise the socket closes here. Nothing has been read, so its peer sees an orderly end.
                    if let Some(permit) = self.admit(admission, peer, now) {
                        take(Arrival {
                            socket,
                            permit: Some(permit),
                            protocol: self.protocol,
                            transport: self.transport.open(),
                            input: Vec::new(),
                            baggage: None,
                        });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.has_more = false;
                    return tried;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    if let Some(count) = self.log.count(now) {
                        let name = self.quota.name();
                        log::error!("{name}: cannot accept connections: {error}; attempts so far: {count}");
                    }
                    self.paused_until = Some(now + RETRY_DELAY);
                    return tried;
                }
            }
        }
        count
    }

    /// Whether the backlog may hold connections and no pause after an error is on.
    pub(crate) fn may_accept(&self, now: Instant) -> bool {
        self.has_more && self.paused_until.is_none_or(|until| now >= until)
    }

    /// How long to wait before the next attempt, ms.
    pub(crate) fn pause_ms(&self) -> u64 {
        let rest = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
        rest.map_or(0, |rest| rest.as_millis() as u64 + u64::from(!rest.is_zero()))
    }
}
