//! Epoll loop of one thread: many MQTT connections, one read buffer, one write per connection and turn.
//!
//! [`Net`] only splits the input into packets. A [`Handler`] interprets them and responds by appending to the
//! connection's output buffer. Packets are parsed in the shared read buffer; only an incomplete packet at its end is
//! copied, into the connection's carry buffer.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_mqtt::Header;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::timer::PollTimer;
use crate::transport::Stream;

/// Maximum epoll events per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Maximum reads of one connection per turn, so that a fast sender cannot starve the others.
const READS_PER_TURN: usize = 4;
/// Minimum size of the read buffer.
const BUFFER_BYTES_MIN: usize = 256 * 1024;

const TIMER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// Monotonic clock shared by all threads and payloads of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// A clock that reads 0 now.
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

/// Receives the events of a [`Net`].
pub(crate) trait Handler {
    /// Handles a complete packet that arrived on connection `id`. Responses are appended to `out`.
    ///
    /// # Errors
    /// A fault closes the connection and is reported to [`Handler::broken`].
    fn packet(
        &mut self,
        id: usize,
        out: &mut Vec<u8>,
        header: &Header,
        frame: &[u8],
        now_ns: u64,
    ) -> Result<(), Fault>;

    /// All output of connection `id` was written.
    fn drained(&mut self, id: usize);

    /// Connection `id` is closed; no more events follow for it.
    fn broken(&mut self, id: usize, fault: Fault);
}

/// One connection.
#[derive(Debug)]
struct Conn {
    stream: Stream,
    open: bool,
    /// The socket is full; the rest of `out` is written when it becomes writable.
    blocked: bool,
    /// Whether the connection is in [`Net::dirty`].
    dirty: bool,
    out: Vec<u8>,
    /// Bytes of `out` already written.
    written: usize,
    /// Incomplete packet at the end of the last read.
    carry: Vec<u8>,
}

/// The connections of one thread.
#[derive(Debug)]
pub(crate) struct Net {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    timer: PollTimer,
    clock: Clock,
    conns: Vec<Conn>,
    buffer: Vec<u8>,
    /// Connections with output for the next flush.
    dirty: Vec<usize>,
    /// Connections whose sockets may hold more input.
    unread: Vec<usize>,
}

impl Net {
    /// A loop without connections, for packets of up to `packet_bytes_max`.
    ///
    /// # Errors
    /// Errors of epoll and timerfd.
    pub(crate) fn new(clock: Clock, packet_bytes_max: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let timer = PollTimer::new(poll.registry(), TIMER)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            waker,
            timer,
            clock,
            conns: Vec::new(),
            buffer: vec![0; BUFFER_BYTES_MIN.max(2 * packet_bytes_max)],
            dirty: Vec::new(),
            unread: Vec::new(),
        })
    }

    /// Handle to wake this loop from another thread.
    pub(crate) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Adds a connection that is being established. Its output is written once it is connected.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(crate) fn add(&mut self, mut stream: Stream) -> io::Result<usize> {
        let id = self.conns.len();
        self.poll.registry().register(stream.socket(), Token(id), Interest::READABLE | Interest::WRITABLE)?;
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

    /// Number of connections added so far, open or closed.
    pub(crate) fn len(&self) -> usize {
        self.conns.len()
    }

    #[inline]
    pub(crate) fn is_open(&self, id: usize) -> bool {
        self.conns[id].open
    }

    /// Unsent output bytes of a connection.
    #[inline]
    pub(crate) fn pending_bytes(&self, id: usize) -> usize {
        self.conns[id].out.len() - self.conns[id].written
    }

    /// Output buffer of a connection, written by the next [`Net::flush`].
    #[inline]
    pub(crate) fn output(&mut self, id: usize) -> &mut Vec<u8> {
        let conn = &mut self.conns[id];
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
        &mut conn.out
    }

    /// Waits for events until `until_ns` at most, and passes packets to the handler. Returns whether another thread
    /// woke the loop.
    ///
    /// # Errors
    /// Errors of epoll and timerfd; connection errors go to the handler.
    pub(crate) fn turn<H: Handler>(&mut self, until_ns: Option<u64>, handler: &mut H) -> io::Result<bool> {
        let timeout = if self.unread.is_empty() {
            self.timer.poll_timeout(until_ns, self.clock.now_ns())?
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

    /// Writes all collected output.
    pub(crate) fn flush<H: Handler>(&mut self, handler: &mut H) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.conns[id].dirty = false;
            if !self.conns[id].blocked {
                self.write(id, handler);
            }
        }
        // Output that the handler added meanwhile is written by the next flush. Reuse the larger vector.
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.answer_handshake(id),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return self.close(id, Fault::new(io_error_text(&error)), handler),
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
                    let fault = Fault::new(format_args!(
                        "a packet of {packet_bytes} bytes, more than the read buffer"
                    ));
                    return self.close(id, fault, handler);
                }
                Ok(_) => {}
                Err(fault) => return self.close(id, fault, handler),
            }
            let conn = &mut self.conns[id];
            if conn.stream.is_emptied_by_short_reads() && filled < self.buffer.len() {
                // A short read emptied the socket; epoll reports the next arrival (epoll(7)).
                return;
            }
        }
        self.unread.push(id);
    }

    /// Has the next flush write what TLS has to say, and what has waited for the end of its handshake.
    fn answer_handshake(&mut self, id: usize) {
        if self.conns[id].stream.wants_flush() {
            self.conns[id].blocked = false;
            self.output(id);
        }
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
                Err(error) => return self.close(id, Fault::new(io_error_text(&error)), handler),
            }
        }
        match conn.stream.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                conn.blocked = true;
                return;
            }
            Err(error) if conn.open => return self.close(id, Fault::new(io_error_text(&error)), handler),
            _ => {}
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
        // An error means that the socket is already closed.
        self.poll.registry().deregister(conn.stream.socket()).ok();
        conn.stream.shutdown().ok();
        handler.broken(id, fault);
    }
}

/// Passes every complete packet in `bytes` to the handler and keeps the rest for the next read. Returns the size of the
/// incomplete packet, 0 if unknown or absent.
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

/// Text of an I/O error in lower case, without the OS error number.
pub(crate) fn io_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
