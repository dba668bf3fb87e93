//! The epoll loop: connections of one protocol, one read buffer, one write per connection and turn.

use std::io::{self, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::dialogue::Dialogue;
use super::talk::{Heard, Talk};
use crate::alarm::Alarm;
use crate::error::BenchError;
use crate::net::{Clock, lower};

const EVENTS_PER_TURN: usize = 256;
/// Reads of one connection per turn, so that a fast server does not keep the others waiting.
const READS_PER_TURN: usize = 4;
/// Much more than what is said at once takes, which is a message and what is around it.
const BUFFER_BYTES: usize = 512 * 1024;

const TIMER: Token = Token(usize::MAX);

/// One connection.
#[derive(Debug)]
struct Link<T> {
    stream: TcpStream,
    talk: T,
    out: Vec<u8>,
    /// Bytes of `out` already written.
    written: usize,
    /// The socket takes no more for now.
    is_blocked: bool,
    /// The beginning of what has not come whole.
    carry: Vec<u8>,
    is_leaving: bool,
    has_left: bool,
}

/// All connections of a load.
#[derive(Debug)]
pub(super) struct Links<T> {
    poll: Poll,
    events: Events,
    alarm: Alarm,
    clock: Clock,
    connections: Vec<Link<T>>,
    buffer: Vec<u8>,
    /// Connections that may hold more to read.
    unread: Vec<usize>,
}

impl<T: Talk> Links<T> {
    /// A loop without connections.
    ///
    /// # Errors
    /// Those of epoll and timerfd.
    pub(super) fn new(clock: Clock) -> Result<Self, BenchError> {
        let poll = Poll::new()?;
        let alarm = Alarm::new(poll.registry(), TIMER)?;
        let events = Events::with_capacity(EVENTS_PER_TURN);
        let buffer = vec![0; BUFFER_BYTES];
        Ok(Self { poll, events, alarm, clock, connections: Vec::new(), buffer, unread: Vec::new() })
    }

    /// Adds an open connection, which gets the next number from 0 on.
    ///
    /// # Errors
    /// Those of epoll.
    pub(super) fn add(&mut self, dialogue: Dialogue, talk: T) -> Result<(), BenchError> {
        let (stream, carry) = dialogue.into_parts();
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(self.connections.len()), interest)?;
        self.connections.push(Link {
            stream,
            talk,
            out: Vec::new(),
            written: 0,
            is_blocked: false,
            carry,
            is_leaving: false,
            has_left: false,
        });
        Ok(())
    }

    /// What a connection says, and where to append it; it leaves with the next [`Links::flush`].
    #[inline]
    pub(super) fn voice(&mut self, link: usize) -> (&mut T, &mut Vec<u8>) {
        let link = &mut self.connections[link];
        (&mut link.talk, &mut link.out)
    }

    /// Bytes that wait to be written on a connection.
    #[inline]
    pub(super) fn pending_bytes(&self, link: usize) -> usize {
        self.connections[link].out.len() - self.connections[link].written
    }

    /// Whether the socket of a connection took no more when it was last written to.
    #[inline]
    pub(super) fn is_blocked(&self, link: usize) -> bool {
        self.connections[link].is_blocked
    }

    /// Says goodbye on all connections.
    pub(super) fn leave(&mut self) {
        for link in &mut self.connections {
            link.is_leaving = true;
            link.talk.leave(&mut link.out);
        }
    }

    /// All servers' ends have heard it.
    pub(super) fn have_left(&self) -> bool {
        self.connections.iter().all(|link| link.has_left)
    }

    /// Writes what has collected.
    ///
    /// # Errors
    /// If a connection broke.
    pub(super) fn flush(&mut self) -> Result<(), BenchError> {
        self.connections.iter_mut().try_for_each(Link::write)
    }

    /// Waits until something happens, but not beyond `until_ns`, and hands on what was said, with the number of its
    /// connection and the time.
    ///
    /// # Errors
    /// If a connection broke, or the server said what makes no sense.
    pub(super) fn turn(
        &mut self,
        until_ns: Option<u64>,
        mut heard: impl FnMut(usize, Heard<'_>, u64),
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
            self.read(id, &mut heard)?;
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
                self.read(id, &mut heard)?;
            }
        }
        self.events = events;
        Ok(())
    }

    fn read(&mut self, id: usize, heard: &mut impl FnMut(usize, Heard<'_>, u64)) -> Result<(), BenchError> {
        let link = &mut self.connections[id];
        for _ in 0..READS_PER_TURN {
            if link.has_left {
                return Ok(());
            }
            let carried = link.carry.len();
            self.buffer[..carried].copy_from_slice(&link.carry);
            let read = match link.stream.read(&mut self.buffer[carried..]) {
                Ok(0) if link.is_leaving => {
                    link.has_left = true;
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
            link.hear(&self.buffer[..filled], |said| heard(id, said, now_ns))?;
            if link.carry.len() == BUFFER_BYTES {
                return Err(BenchError::Broken(format!(
                    "the server said more than {BUFFER_BYTES} bytes at once"
                )));
            }
            if filled < self.buffer.len() && !link.is_leaving {
                // A short read emptied the socket; epoll reports the next arrival (epoll(7)), unless that is the end and
                // was there already.
                return Ok(());
            }
        }
        self.unread.push(id);
        Ok(())
    }
}

impl<T: Talk> Link<T> {
    /// Hands on everything in `bytes` that has come whole, and keeps the rest.
    fn hear(&mut self, mut bytes: &[u8], mut heard: impl FnMut(Heard<'_>)) -> Result<(), BenchError> {
        loop {
            let said_before = self.out.len();
            let (is_leaving, has_left) = (self.is_leaving, &mut self.has_left);
            let taken = self.talk.take(bytes, &mut self.out, |said| match said {
                Heard::Left => *has_left = true,
                // It stays unacknowledged, since nothing is said after the goodbye.
                Heard::Delivered(_) if is_leaving => {}
                said => heard(said),
            })?;
            if is_leaving {
                self.out.truncate(said_before);
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
    BenchError::Broken(format!("a connection broke: {}", lower(error)))
}
