//! Epoll loop of the Kafka generator: vectored writes of requests, complete responses to a [`Handler`].
//!
//! A request consists of a small header of its own and a batch shared by all requests, so vectored writes copy the
//! batch only into the socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::control::Control;
use super::wire;
use crate::error::BenchError;
use crate::net::{Clock, io_error_text};
use crate::timer::PollTimer;

const EVENTS_PER_TURN: usize = 256;
/// Maximum reads of one connection per turn, so that a fast response cannot starve the others.
const READS_PER_TURN: usize = 4;
/// Initial size of a connection's inbox.
const INBOX_BYTES_MIN: usize = 8 * 1024;
/// Maximum response size; fits Kafka's `fetch.max.bytes` plus one batch.
const RESPONSE_BYTES_MAX: usize = 256 << 20;
/// Maximum slices per vectored write.
const PIECES_PER_WRITE: usize = 48;

const TIMER: Token = Token(usize::MAX);

/// One encoded request.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) head: Vec<u8>,
    /// The batch, and the bytes after it.
    pub(super) body: Option<(Rc<[u8]>, &'static [u8])>,
}

impl Message {
    fn len(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |(batch, tail)| batch.len() + tail.len())
    }
}

/// Unsent requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: VecDeque<Message>,
    /// Bytes of the first request already written.
    written: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, message: Message) {
        self.queue.push_back(message);
    }

    /// Removes written bytes from the front.
    fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        while let Some(len) = self.queue.front().map(Message::len).filter(|len| *len <= self.written) {
            self.written -= len;
            self.queue.pop_front();
        }
    }

    fn write(&self, stream: &mut TcpStream) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
        let mut count = 0;
        for message in self.queue.iter().take(PIECES_PER_WRITE / 3) {
            let (batch, tail) =
                message.body.as_ref().map_or((&[][..], &[][..]), |(batch, tail)| (batch, tail));
            for piece in [&message.head, batch, tail] {
                slices[count] = IoSlice::new(piece);
                count += 1;
            }
        }
        let mut slices = &mut slices[..count];
        IoSlice::advance_slices(&mut slices, self.written);
        stream.write_vectored(slices)
    }
}

/// Receives the events of the loop. An error ends the run.
pub(super) trait Handler {
    /// Handles a response on a connection, without its length prefix.
    ///
    /// # Errors
    /// If the run cannot continue.
    fn handle_response(
        &mut self,
        conn: usize,
        response: &[u8],
        now_ns: u64,
        out: &mut Outgoing,
    ) -> Result<(), BenchError>;

    /// All requests of a connection were written.
    fn drained(&mut self, conn: usize, out: &mut Outgoing);
}

/// One connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    out: Outgoing,
    /// The socket is full.
    is_blocked: bool,
    inbox: Vec<u8>,
    /// Number of filled bytes in the inbox.
    filled: usize,
}

/// All connections of a run.
#[derive(Debug)]
pub(super) struct EventLoop {
    poll: Poll,
    events: Events,
    timer: PollTimer,
    clock: Clock,
    connections: Vec<Connection>,
    /// Connections whose sockets may hold more input.
    unread: Vec<usize>,
}

impl EventLoop {
    /// Opens `count` connections one after another. Each has completed a request.
    ///
    /// # Errors
    /// If a connection cannot be opened.
    pub(super) fn open(broker: SocketAddr, count: u32, clock: Clock) -> Result<Self, BenchError> {
        let poll = Poll::new()?;
        let timer = PollTimer::new(poll.registry(), TIMER)?;
        let mut connections = Vec::with_capacity(count as usize);
        for id in 0..count as usize {
            let stream = Control::open(broker)?.into_stream();
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(id), interest)?;
            connections.push(Connection {
                stream,
                out: Outgoing::default(),
                is_blocked: false,
                inbox: vec![0; INBOX_BYTES_MIN],
                filled: 0,
            });
        }
        let events = Events::with_capacity(EVENTS_PER_TURN);
        Ok(Self { poll, events, timer, clock, connections, unread: Vec::new() })
    }

    /// Sends the requests that `put` adds to a connection.
    ///
    /// # Errors
    /// If the connection broke.
    pub(super) fn send<H: Handler>(
        &mut self,
        conn: usize,
        handler: &mut H,
        put: impl FnOnce(&mut H, &mut Outgoing),
    ) -> Result<(), BenchError> {
        let connection = &mut self.connections[conn];
        put(handler, &mut connection.out);
        if connection.is_blocked { Ok(()) } else { connection.write(conn, handler) }
    }

    /// Waits for events until `until_ns` at most, and passes responses to the handler.
    ///
    /// # Errors
    /// If a connection broke, or the handler failed.
    pub(super) fn turn<H: Handler>(
        &mut self,
        until_ns: Option<u64>,
        handler: &mut H,
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
            self.receive(id, handler)?;
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let Token(id) = event.token();
            if event.token() == TIMER {
                continue;
            }
            if event.is_writable() && self.connections[id].is_blocked {
                self.connections[id].is_blocked = false;
                self.connections[id].write(id, handler)?;
            }
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                self.receive(id, handler)?;
            }
        }
        self.events = events;
        Ok(())
    }

    /// Reads from a connection, then writes the requests that the handler added.
    fn receive<H: Handler>(&mut self, id: usize, handler: &mut H) -> Result<(), BenchError> {
        let conn = &mut self.connections[id];
        let mut is_empty = false;
        for _ in 0..READS_PER_TURN {
            is_empty = conn.read(id, self.clock, handler)?;
            if is_empty {
                break;
            }
        }
        if !is_empty {
            self.unread.push(id);
        }
        if conn.is_blocked { Ok(()) } else { conn.write(id, handler) }
    }
}

impl Connection {
    /// Reads once and handles complete responses. Returns whether the socket is empty.
    fn read<H: Handler>(&mut self, id: usize, clock: Clock, handler: &mut H) -> Result<bool, BenchError> {
        let room = self.inbox.len() - self.filled;
        let read = match self.stream.read(&mut self.inbox[self.filled..]) {
            Ok(0) => return Err(BenchError::Broken("the broker closed a connection".into())),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => {
                return Err(BenchError::Broken(format!("a connection broke: {}", io_error_text(&error))));
            }
        };
        self.filled += read;
        let now_ns = clock.now_ns();
        let mut begin = 0;
        let missing = loop {
            let Some((length, rest)) = self.inbox[begin..self.filled].split_first_chunk::<4>() else {
                break 0;
            };
            let length = u32::from_be_bytes(*length) as usize;
            if length > RESPONSE_BYTES_MAX {
                return Err(wire::malformed("a response of an impossible length"));
            }
            let Some(response) = rest.get(..length) else { break length + 4 };
            handler.handle_response(id, response, now_ns, &mut self.out)?;
            begin += length + 4;
        };
        self.inbox.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        if missing > self.inbox.len() {
            self.inbox.resize(missing, 0);
        }
        // A short read emptied the socket; epoll reports the next arrival (epoll(7)).
        Ok(read < room)
    }

    fn write<H: Handler>(&mut self, id: usize, handler: &mut H) -> Result<(), BenchError> {
        loop {
            if self.out.queue.is_empty() {
                handler.drained(id, &mut self.out);
                if self.out.queue.is_empty() {
                    return Ok(());
                }
            }
            match self.out.write(&mut self.stream) {
                Ok(written) => self.out.advance(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) => {
                    return Err(BenchError::Broken(format!("a connection broke: {}", io_error_text(&error))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advance_removes_written_messages() {
        let message = |bytes: usize| Message { head: vec![0; bytes], body: Some((Rc::from([1, 2]), &[3])) };
        let mut out = Outgoing::default();
        out.push(message(1));
        out.push(message(5));
        out.advance(3);
        assert_eq!((out.queue.len(), out.written), (2, 3));
        out.advance(3);
        assert_eq!((out.queue.len(), out.written), (1, 2));
        out.advance(6);
        assert_eq!((out.queue.len(), out.written), (0, 0));
    }
}
