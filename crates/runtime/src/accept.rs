//! Listeners: taking connections in and dealing them out to the shards in turn.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;

/// Connections accepted per turn and listener, so that a connection storm does not stall those who are in.
const ACCEPTS_PER_TURN: usize = 128;

/// A socket on its way to the shard that is to serve it.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: TcpStream,
    pub(crate) listener: usize,
    /// Input that another shard has read already.
    pub(crate) input: Vec<u8>,
}

/// Sockets handed to each shard by the others, and how many connections each has.
#[derive(Debug)]
pub(crate) struct Arrivals {
    waiting: Vec<Mutex<Vec<Arrival>>>,
    /// Connections that each shard serves.
    connections: Vec<AtomicUsize>,
}

impl Arrivals {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            waiting: (0..shards).map(|_| Mutex::default()).collect(),
            connections: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// The shard that a new connection should go to: the one with the fewest. But the first `together` stay on
    /// the first shard, since few connections mostly talk to each other, and between shards a message waits for
    /// another thread to wake.
    pub(crate) fn place(&self, together: usize) -> usize {
        let count = |shard: usize| self.connections[shard].load(Ordering::Relaxed) + self.waiting_for(shard);
        if count(0) < together {
            return 0;
        }
        (0..self.connections.len()).min_by_key(|shard| count(*shard)).unwrap_or(0)
    }

    fn waiting_for(&self, shard: usize) -> usize {
        self.waiting[shard].lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// A connection has come to `shard`.
    pub(crate) fn settled(&self, shard: usize) {
        self.connections[shard].fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has left `shard`.
    pub(crate) fn left(&self, shard: usize) {
        self.connections[shard].fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, shard: usize, arrival: Arrival) {
        self.waiting[shard].lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    }

    pub(crate) fn take(&self, shard: usize) -> Vec<Arrival> {
        std::mem::take(&mut *self.waiting[shard].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    number: usize,
    /// The kernel may hold more connections than the last turn took.
    pub(crate) more: bool,
    /// An error such as too many open files was logged and has not gone away.
    failing: bool,
}

impl Listener {
    pub(crate) fn bind(address: SocketAddr, number: usize, send_buffer_bytes: usize) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        // Accepted sockets inherit all of this, which saves the calls for each: no delay, since the loop coalesces
        // by itself, and probes for peers that vanished without a word.
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        // What the kernel may hold for a reader that is behind. Left to itself it grows to megabytes for each,
        // which nobody has counted and no cache holds.
        if send_buffer_bytes > 0 {
            sockopt::set_socket_send_buffer_size(&socket, send_buffer_bytes)?;
        }
        Ok(Self { socket, number, more: false, failing: false })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE)
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut self.socket)
    }

    /// Accepts what is there, up to one turn's share. `more` says whether to come back without an event.
    pub(crate) fn accept(&mut self, mut take: impl FnMut(Arrival)) {
        self.more = false;
        for _ in 0..ACCEPTS_PER_TURN {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    self.failing = false;
                    take(Arrival { socket, listener: self.number, input: Vec::new() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    if !self.failing {
                        self.failing = true;
                        log::error!("cannot accept connections: {error}; trying on");
                    }
                    self.more = true;
                    return;
                }
            }
        }
        self.more = true;
    }

    /// Whether the last attempt failed for want of a resource: then waiting beats trying at once.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }
}
