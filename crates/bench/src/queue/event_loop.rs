//! Epoll loop of the queue generator: connections of one protocol, one read buffer, one write per connection per turn.
//!
//! The loop passes server events to a callback. Once a connection is closing, deliveries are dropped and nothing more
//! is sent, so those messages stay unacknowledged and return to the queue.

use std::io::{self, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::blocking::BlockingConnection;
use super::protocol::{Protocol, ServerEvent};
use crate::error::BenchError;
use crate::net::{Clock, io_error_text};
use crate::timer::PollTimer;

const EVENTS_PER_TURN: usize = 256;
/// Maximum reads of one connection per turn, so that one connection cannot starve the others.
const READS_PER_TURN: usize = 4;
/// Size of the read buffer, far above the size of a message with its framing.
const BUFFER_BYTES: usize = 512 * 1024;

const TIMER: Token = Token(usize::MAX);

/// One connection.
#[derive(Debug)]
struct Connection<T> {
    stream: TcpStream,
    protocol: T,
    out: Vec<u8>,
    /// Bytes of `out` already written.
    written: usize,
    /// The socket is full.
    is_blocked: bool,
    /// Incomplete input at the end of the last read.
    carry: Vec<u8>,
    is_closing: bool,
    is_closed: bool,
}

/// All connections of a load.
#[derive(Debug)]
pub(super) struct EventLoop<T> {
    poll: Poll,
    events: Events,
    timer: PollTimer,
    clock: Clock,
    connections: Vec<Connection<T>>,
    buffer: Vec<u8>,
    /// Connections whose sockets may hold more input.
    unread: Vec<usize>,
}

impl<T: Protocol> EventLoop<T> {
    /// A loop without connections.
    ///
    /// # Errors
    /// Errors of epoll and timerfd.
    pub(super) fn new(clock: Clock) -> Result<Self, BenchError> {
        let poll = Poll::new()?;
        let timer = PollTimer::new(poll.registry(), TIMER)?;
        let events = Events::with_capacity(EVENTS_PER_TURN);
        let buffer = vec![0; BUFFER_BYTES];
        Ok(Self { poll, events, timer, clock, connections: Vec::new(), buffer, unread: Vec::new() })
    }

    /// Adds an open connection, numbered from 0.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn add(&mut self, conn: BlockingConnection, protocol: T) -> Result<(), BenchError> {
        let (stream, carry) = conn.into_parts();
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(self.connections.len()), interest)?;
        self.connections.push(Connection {
            stream,
            protocol,
            out: Vec::new(),
            written: 0,
            is_blocked: false,
            carry,
            is_closing: false,
            is_closed: false,
        });
        Ok(())
    }

    /// Protocol state and output buffer of a connection. The next [`EventLoop::flush`] writes the output.
    #[inline]
    pub(super) fn output(&mut self, conn: usize) -> (&mut T, &mut Vec<u8>) {
        let conn = &mut self.connections[conn];
        (&mut conn.protocol, &mut conn.out)
    }

    /// Unsent output bytes of a connection.
    #[inline]
    pub(super) fn pending_bytes(&self, conn: usize) -> usize {
        self.connections[conn].out.len() - self.connections[conn].written
    }

    /// Whether the socket of a connection was full at the last write.
    #[inline]
    pub(super) fn is_blocked(&self, conn: usize) -> bool {
        self.connections[conn].is_blocked
    }

    /// Starts closing all connections.
    pub(super) fn start_close(&mut self) {
        for conn in &mut self.connections {
            conn.is_closing = true;
            conn.protocol.close(&mut conn.out);
        }
    }

    /// Whether the server has closed or confirmed all connections.
    pub(super) fn all_closed(&self) -> bool {
        self.connections.iter().all(|conn| conn.is_closed)
    }

    /// Writes all collected output.
    ///
    /// # Errors
    /// If a connection broke.
    pub(super) fn flush(&mut self) -> Result<(), BenchError> {
        self.connections.iter_mut().try_for_each(Connection::write)
    }

    /// Waits for events until `until_ns` at most, and calls `on_event` with each server event: connection number,
    /// event, time.
    ///
    /// # Errors
    /// If a connection broke, or the server violated the protocol.
    pub(super) fn turn(
        &mut self,
        until_ns: Option<u64>,
        mut on_event: impl FnMut(usize, ServerEvent<'_>, u64),
    ) -> Result<(), BenchError> {
        let timeout = if self.unread.is_empty() {
            self.timer.poll_timeout(until_ns, self.clock.now_ns())?
        } else {
            Duration::ZERO
        };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for id in std::mem::take(&mut self.unread) {
            self.read(id, &mut on_event)?;
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let Token(id) = event.token();
            if event.token() == TIMER {
                continue;
            }
            if event.is_writable() {
                self.connections[id].is_blocked = false;
            }
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                self.read(id, &mut on_event)?;
            }
        }
        self.events = events;
        Ok(())
    }

    fn read(
        &mut self,
        id: usize,
        on_event: &mut impl FnMut(usize, ServerEvent<'_>, u64),
    ) -> Result<(), BenchError> {
        let conn = &mut self.connections[id];
        for _ in 0..READS_PER_TURN {
            if conn.is_closed {
                return Ok(());
            }
            let carried = conn.carry.len();
            self.buffer[..carried].copy_from_slice(&conn.carry);
            let read = match conn.stream.read(&mut self.buffer[carried..]) {
                Ok(0) if conn.is_closing => {
                    conn.is_closed = true;
                    return Ok(());
                }
                Ok(0) => return Err(BenchError::Broken("the server closed a connection".into())),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(&error)),
            };
            let filled = carried + read;
            let now_ns = self.clock.now_ns();
            conn.handle_input(&self.buffer[..filled], |event| on_event(id, event, now_ns))?;
            if conn.carry.len() == BUFFER_BYTES {
                return Err(BenchError::Broken(format!(
                    "the server sent a message larger than the buffer of {BUFFER_BYTES} bytes"
                )));
            }
            if filled < self.buffer.len() && !conn.is_closing {
                // A short read emptied the socket; epoll reports the next arrival (epoll(7)). The end of the stream may
                // have arrived already, so keep reading while closing.
                return Ok(());
            }
        }
        self.unread.push(id);
        Ok(())
    }
}

impl<T: Protocol> Connection<T> {
    /// Handles all complete input in `bytes`, and keeps the rest.
    fn handle_input(
        &mut self,
        mut bytes: &[u8],
        mut on_event: impl FnMut(ServerEvent<'_>),
    ) -> Result<(), BenchError> {
        loop {
            let out_len = self.out.len();
            let (is_closing, is_closed) = (self.is_closing, &mut self.is_closed);
            let taken = self.protocol.handle_input(bytes, &mut self.out, |event| match event {
                ServerEvent::Closed => *is_closed = true,
                // It stays unacknowledged: no output is sent after the close.
                ServerEvent::Delivered(_) if is_closing => {}
                event => on_event(event),
            })?;
            if is_closing {
                self.out.truncate(out_len);
            }
            if taken == 0 {
                break;
            }
            bytes = &bytes[taken..];
        }
        self.carry.clear();
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self) -> Result<(), BenchError> {
        while !self.is_blocked && self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_blocked = true,
                Err(error) => return Err(broken(&error)),
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        Ok(())
    }
}

fn broken(error: &io::Error) -> BenchError {
    BenchError::Broken(format!("a connection broke: {}", io_error_text(error)))
}
