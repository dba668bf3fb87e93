//! The epoll loop: connections that send requests piece by piece and take answers whole.
//!
//! A request is a few bytes of its own before a batch that all requests share, so sending it copies nothing but
//! into the socket. What an answer means is the business of a [`Handler`].

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::control::Control;
use super::wire;
use crate::alarm::Alarm;
use crate::error::BenchError;
use crate::net::{Clock, lower};

const EVENTS_PER_TURN: usize = 256;
/// Reads of one connection per turn, so that a fast answer does not keep the others waiting.
const READS_PER_TURN: usize = 4;
/// Where answers go that are small.
const INBOX_BYTES_MIN: usize = 8 * 1024;
/// The largest answer that is taken: Kafka's `fetch.max.bytes` and one batch beyond it fit.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Pieces handed to the kernel in one call.
const PIECES_PER_WRITE: usize = 48;

const TIMER: Token = Token(usize::MAX);

/// One request on its way.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) head: Vec<u8>,
    /// The batch, and what stands behind it.
    pub(super) body: Option<(Rc<[u8]>, &'static [u8])>,
}

impl Message {
    fn len(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |(batch, tail)| batch.len() + tail.len())
    }
}

/// Requests that wait for one socket.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: VecDeque<Message>,
    /// Bytes of the first that have left.
    written: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, message: Message) {
        self.queue.push_back(message);
    }

    /// Takes away what has left.
    fn left(&mut self, bytes: usize) {
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

/// What happens on the connections, for whoever gives it a meaning. An error ends the run.
pub(super) trait Handler {
    /// An answer has arrived on connection `link`: all of it but its length.
    ///
    /// # Errors
    /// If the run makes no sense any more.
    fn answer(
        &mut self,
        link: usize,
        answer: &[u8],
        now_ns: u64,
        out: &mut Outgoing,
    ) -> Result<(), BenchError>;

    /// Every request on connection `link` has left.
    fn drained(&mut self, link: usize, out: &mut Outgoing);
}

/// One connection.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    out: Outgoing,
    /// The socket takes no more for now.
    is_blocked: bool,
    inbox: Vec<u8>,
    /// Bytes of the inbox that are filled.
    filled: usize,
}

/// All connections of a run.
#[derive(Debug)]
pub(super) struct Links {
    poll: Poll,
    events: Events,
    alarm: Alarm,
    clock: Clock,
    connections: Vec<Link>,
    /// Connections that may hold more to read.
    unread: Vec<usize>,
}

impl Links {
    /// Opens so many connections, one after the other; each has had an answer from the broker.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub(super) fn open(broker: SocketAddr, count: u32, clock: Clock) -> Result<Self, BenchError> {
        let poll = Poll::new()?;
        let alarm = Alarm::new(poll.registry(), TIMER)?;
        let mut connections = Vec::with_capacity(count as usize);
        for id in 0..count as usize {
            let stream = Control::open(broker)?.into_stream();
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(id), interest)?;
            connections.push(Link {
                stream,
                out: Outgoing::default(),
                is_blocked: false,
                inbox: vec![0; INBOX_BYTES_MIN],
                filled: 0,
            });
        }
        let events = Events::with_capacity(EVENTS_PER_TURN);
        Ok(Self { poll, events, alarm, clock, connections, unread: Vec::new() })
    }

    /// Sends on connection `link` what `put` adds to its requests.
    ///
    /// # Errors
    /// If the connection is gone.
    pub(super) fn send<H: Handler>(
        &mut self,
        link: usize,
        handler: &mut H,
        put: impl FnOnce(&mut H, &mut Outgoing),
    ) -> Result<(), BenchError> {
        let connection = &mut self.connections[link];
        put(handler, &mut connection.out);
        if connection.is_blocked { Ok(()) } else { connection.write(link, handler) }
    }

    /// Waits until something happens, but not beyond `until_ns`, and hands on what arrived.
    ///
    /// # Errors
    /// If a connection is gone, or the handler says so.
    pub(super) fn turn<H: Handler>(
        &mut self,
        until_ns: Option<u64>,
        handler: &mut H,
    ) -> Result<(), BenchError> {
        let timeout = if self.unread.is_empty() {
            self.alarm.patience(until_ns, self.clock.now_ns())?
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

    /// Takes what has arrived on a connection, and sends what is said to it.
    fn receive<H: Handler>(&mut self, id: usize, handler: &mut H) -> Result<(), BenchError> {
        let link = &mut self.connections[id];
        let mut is_empty = false;
        for _ in 0..READS_PER_TURN {
            is_empty = link.read(id, self.clock, handler)?;
            if is_empty {
                break;
            }
        }
        if !is_empty {
            self.unread.push(id);
        }
        if link.is_blocked { Ok(()) } else { link.write(id, handler) }
    }
}

impl Link {
    /// Reads once and hands on whole answers. Whether the socket is empty.
    fn read<H: Handler>(&mut self, id: usize, clock: Clock, handler: &mut H) -> Result<bool, BenchError> {
        let room = self.inbox.len() - self.filled;
        let read = match self.stream.read(&mut self.inbox[self.filled..]) {
            Ok(0) => return Err(BenchError::Broken("the broker closed a connection".into())),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(BenchError::Broken(format!("a connection broke: {}", lower(&error)))),
        };
        self.filled += read;
        let now_ns = clock.now_ns();
        let mut begin = 0;
        let missing = loop {
            let Some((length, rest)) = self.inbox[begin..self.filled].split_first_chunk::<4>() else {
                break 0;
            };
            let length = u32::from_be_bytes(*length) as usize;
            if length > ANSWER_BYTES_MAX {
                return Err(wire::odd("an answer of an impossible length"));
            }
            let Some(answer) = rest.get(..length) else { break length + 4 };
            handler.answer(id, answer, now_ns, &mut self.out)?;
            begin += length + 4;
        };
        self.inbox.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        if missing > self.inbox.len() {
            self.inbox.resize(missing, 0);
        }
        // A short read has emptied the socket: the next arrival is an event of its own (epoll(7)).
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
                Ok(written) => self.out.left(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) => {
                    return Err(BenchError::Broken(format!("a connection broke: {}", lower(&error))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_left_is_taken_away_across_messages() {
        let message = |bytes: usize| Message { head: vec![0; bytes], body: Some((Rc::from([1, 2]), &[3])) };
        let mut out = Outgoing::default();
        out.push(message(1));
        out.push(message(5));
        out.left(3);
        assert_eq!((out.queue.len(), out.written), (2, 3));
        out.left(3);
        assert_eq!((out.queue.len(), out.written), (1, 2));
        out.left(6);
        assert_eq!((out.queue.len(), out.written), (0, 0));
    }
}
