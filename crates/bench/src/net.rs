//! The epoll loop of one thread: many connections, one read buffer, one write per connection and turn.
//!
//! [`Net`] knows nothing of MQTT beyond where a packet ends. What a packet means is its [`Handler`]'s business,
//! which answers by appending to the connection's output.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_mqtt::Header;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::alarm::Alarm;

/// Events taken from the kernel per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Reads of one connection per turn, so that a fast sender does not keep the others waiting.
const READS_PER_TURN: usize = 4;
/// The read buffer, where no larger packets are expected.
const BUFFER_BYTES_MIN: usize = 256 * 1024;

const TIMER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// The clock that all threads and payloads of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// A clock that starts now, at 0.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the clock started.
    #[inline]
    pub(crate) fn now_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Why a connection broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) String);

impl Fault {
    pub(crate) fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What happens on connections, for whoever gives it a meaning.
pub(crate) trait Handler {
    /// One whole packet arrived on connection `id`, at `now_ns`. Answers go to `out`.
    ///
    /// # Errors
    /// A fault closes the connection and comes back as [`Handler::broken`].
    fn packet(
        &mut self,
        id: usize,
        out: &mut Vec<u8>,
        header: &Header,
        frame: &[u8],
        now_ns: u64,
    ) -> Result<(), Fault>;

    /// All output of connection `id` has left.
    fn drained(&mut self, id: usize);

    /// Connection `id` is closed and will not be heard of again.
    fn broken(&mut self, id: usize, fault: Fault);
}

/// One connection.
#[derive(Debug)]
struct Conn {
    stream: TcpStream,
    open: bool,
    /// The socket took no more: the rest of `out` waits until it is writable.
    blocked: bool,
    /// Listed in [`Net::dirty`].
    dirty: bool,
    out: Vec<u8>,
    /// Bytes of `out` already written.
    written: usize,
    /// The beginning of a packet whose end has not arrived.
    carry: Vec<u8>,
}

/// The connections of one thread.
#[derive(Debug)]
pub(crate) struct Net {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    alarm: Alarm,
    clock: Clock,
    conns: Vec<Conn>,
    buffer: Vec<u8>,
    /// Connections with output to write at the end of the turn.
    dirty: Vec<usize>,
    /// Connections that may hold more to read.
    unread: Vec<usize>,
}

impl Net {
    /// An empty loop that can take packets of up to `packet_bytes_max`.
    ///
    /// # Errors
    /// Those of epoll and timerfd.
    pub(crate) fn new(clock: Clock, packet_bytes_max: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let alarm = Alarm::new(poll.registry(), TIMER)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            waker,
            alarm,
            clock,
            conns: Vec::new(),
            buffer: vec![0; BUFFER_BYTES_MIN.max(2 * packet_bytes_max)],
            dirty: Vec::new(),
            unread: Vec::new(),
        })
    }

    /// Ends a wait from another thread.
    pub(crate) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Adds a connection that is being established; what is sent on it waits until it is.
    ///
    /// # Errors
    /// Those of epoll.
    pub(crate) fn add(&mut self, mut stream: TcpStream) -> io::Result<usize> {
        let id = self.conns.len();
        self.poll.registry().register(&mut stream, Token(id), Interest::READABLE | Interest::WRITABLE)?;
        self.conns.push(Conn {
            stream,
            open: true,
            blocked: true,
            dirty: false,
            out: Vec::new(),
            written: 0,
            carry: Vec::new(),
        });
        Ok(id)
    }

    /// How many connections were added.
    pub(crate) fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether a connection can still be used.
    #[inline]
    pub(crate) fn is_open(&self, id: usize) -> bool {
        self.conns[id].open
    }

    /// Bytes that wait to be written on a connection.
    #[inline]
    pub(crate) fn pending_bytes(&self, id: usize) -> usize {
        self.conns[id].out.len() - self.conns[id].written
    }

    /// The output of a connection, to append to; it leaves with the next [`Net::flush`].
    #[inline]
    pub(crate) fn output(&mut self, id: usize) -> &mut Vec<u8> {
        let conn = &mut self.conns[id];
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
        &mut conn.out
    }

    /// Waits until something happens, but not beyond `until_ns`, and hands on what arrived. Whether another
    /// thread called the waker.
    ///
    /// # Errors
    /// Those of epoll and timerfd; those of connections go to the handler.
    pub(crate) fn turn<H: Handler>(&mut self, until_ns: Option<u64>, handler: &mut H) -> io::Result<bool> {
        let timeout = if self.unread.is_empty() {
            self.alarm.patience(until_ns, self.clock.now_ns())?
        } else {
            Duration::ZERO
        };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for id in std::mem::take(&mut self.unread) {
            self.read(id, handler);
        }
        let mut woken = false;
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            match event.token() {
                TIMER => {}
                WAKER => woken = true,
                Token(id) => {
                    if event.is_writable() && self.conns[id].blocked {
                        self.conns[id].blocked = false;
                        self.write(id, handler);
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.read(id, handler);
                    }
                }
            }
        }
        self.events = events;
        Ok(woken)
    }

    /// Writes all output that has collected.
    pub(crate) fn flush<H: Handler>(&mut self, handler: &mut H) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.conns[id].dirty = false;
            if !self.conns[id].blocked {
                self.write(id, handler);
            }
        }
        // What the handler sent meanwhile waits for the next flush; the larger buffer is kept.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn read<H: Handler>(&mut self, id: usize, handler: &mut H) {
        for _ in 0..READS_PER_TURN {
            let conn = &mut self.conns[id];
            if !conn.open {
                return;
            }
            let carried = conn.carry.len();
            self.buffer[..carried].copy_from_slice(&conn.carry);
            let read = match conn.stream.read(&mut self.buffer[carried..]) {
                Ok(0) => return self.close(id, Fault::new("the broker closed the connection"), handler),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return self.close(id, Fault::new(lower(&error)), handler),
            };
            conn.carry.clear();
            let filled = carried + read;
            let result = dispatch(id, conn, &self.buffer[..filled], self.clock.now_ns(), handler);
            if !conn.out.is_empty() && !conn.dirty {
                conn.dirty = true;
                self.dirty.push(id);
            }
            match result {
                Ok(packet_bytes) if packet_bytes > self.buffer.len() => {
                    let fault = Fault::new(format_args!("a packet of {packet_bytes} bytes"));
                    return self.close(id, fault, handler);
                }
                Ok(_) => {}
                Err(fault) => return self.close(id, fault, handler),
            }
            if filled < self.buffer.len() {
                // A short read emptied the socket; epoll reports the next arrival (epoll(7)).
                return;
            }
        }
        self.unread.push(id);
    }

    fn write<H: Handler>(&mut self, id: usize, handler: &mut H) {
        let conn = &mut self.conns[id];
        while conn.open && conn.written < conn.out.len() {
            match conn.stream.write(&conn.out[conn.written..]) {
                Ok(written) => conn.written += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    conn.blocked = true;
                    return;
                }
                Err(error) => return self.close(id, Fault::new(lower(&error)), handler),
            }
        }
        conn.out.clear();
        conn.written = 0;
        handler.drained(id);
    }

    fn close<H: Handler>(&mut self, id: usize, fault: Fault, handler: &mut H) {
        let conn = &mut self.conns[id];
        if !conn.open {
            return;
        }
        conn.open = false;
        conn.out = Vec::new();
        conn.written = 0;
        // Failure here means that the socket is gone already, which is what is wanted.
        self.poll.registry().deregister(&mut conn.stream).ok();
        conn.stream.shutdown(std::net::Shutdown::Both).ok();
        handler.broken(id, fault);
    }
}

/// Hands every whole packet in `bytes` to the handler and keeps the rest for the next read. The size of the
/// packet that the rest belongs to, 0 if that is unknown or there is none.
fn dispatch<H: Handler>(
    id: usize,
    conn: &mut Conn,
    bytes: &[u8],
    now_ns: u64,
    handler: &mut H,
) -> Result<usize, Fault> {
    let mut rest = bytes;
    let mut incomplete = 0;
    while let Some(header) = Header::parse(rest).map_err(Fault::new)? {
        let len = header.packet_len();
        if len > rest.len() {
            incomplete = len;
            break;
        }
        let (frame, after) = rest.split_at(len);
        handler.packet(id, &mut conn.out, &header, frame, now_ns)?;
        rest = after;
    }
    conn.carry.extend_from_slice(rest);
    Ok(incomplete)
}

/// The text of an I/O error as it reads in the middle of a sentence, without the number.
pub(crate) fn lower(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
