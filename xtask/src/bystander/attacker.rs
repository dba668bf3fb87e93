//! What an attack is, and the tools of its attackers: connections that never block longer than the attack lasts.
//!
//! An attack is a function that plays one round: it opens sockets, sends bytes and returns. The runner repeats it on
//! some threads until the time is over. Rounds are bounded in bytes and connections by the functions, and the number of
//! rounds by [`ROUNDS_MAX`], so a broker that refuses quickly is not attacked forever.

use rustix::event::{PollFd, PollFlags, poll};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Rounds of one attacker per attack.
const ROUNDS_MAX: u64 = 1_000_000;
/// Timeout of a TCP connect; the accept queue of an overloaded broker may be full.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Interval in which a waiting attacker looks whether the attack is over.
const TICK: Duration = Duration::from_millis(50);
/// Pause after a failed connect.
const RETRY: Duration = Duration::from_millis(10);
/// Longest reply that an attacker reads as a whole.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Protocol that an attack speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Mqtt,
    Kafka,
    /// Work queues over the HTTP API.
    Http,
}

/// One row: an attack, as data.
#[derive(Clone, Copy)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) protocol: Protocol,
    /// Number of concurrent attackers, each on its own thread.
    pub(super) attackers: usize,
    /// Whether the attack aims at memory, so that the result includes the memory after it.
    pub(super) memory: bool,
    /// Whether the smoke run includes it.
    pub(super) smoke: bool,
    /// Plays one round.
    pub(super) round: fn(&mut Attacker<'_>) -> io::Result<()>,
}

/// Ports of the attacked broker on 127.0.0.1. Protocols that it does not speak have port 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Target {
    pub(super) mqtt: u16,
    pub(super) kafka: u16,
    pub(super) http: u16,
}

impl Target {
    fn port(self, protocol: Protocol) -> u16 {
        match protocol {
            Protocol::Mqtt => self.mqtt,
            Protocol::Kafka => self.kafka,
            Protocol::Http => self.http,
        }
    }
}

/// The end of an attack.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    ended: AtomicBool,
}

impl Deadline {
    pub(super) fn after(time: Duration) -> Self {
        Self { at: Instant::now() + time, ended: AtomicBool::new(false) }
    }

    /// Ends the attack early.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || Instant::now() >= self.at
    }
}

/// Counts what attackers do.
#[derive(Debug, Default)]
pub(super) struct Tally {
    rounds: AtomicU64,
    connections: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    /// What was done so far.
    pub(super) fn effort(&self) -> Effort {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Effort { rounds: load(&self.rounds), connections: load(&self.connections), bytes: load(&self.bytes) }
    }
}

/// What attackers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effort {
    /// Rounds begun.
    pub(super) rounds: u64,
    /// Connections opened.
    pub(super) connections: u64,
    /// Bytes sent.
    pub(super) bytes: u64,
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, connections, bytes } = self;
        write!(f, "{rounds} rounds, {connections} connections, {bytes} bytes")
    }
}

/// Runs all attackers of an attack until `deadline`. A round that the broker interrupts is followed by the next.
pub(super) fn run(attack: &Attack, target: Target, deadline: &Deadline, tally: &Tally) {
    thread::scope(|scope| {
        for number in 0..attack.attackers {
            scope.spawn(move || {
                let mut attacker =
                    Attacker { protocol: attack.protocol, target, number, round: 0, deadline, tally };
                while !deadline.is_over() && attacker.round < ROUNDS_MAX {
                    tally.rounds.fetch_add(1, Ordering::Relaxed);
                    // The expected answer to an attack is a closed connection.
                    if (attack.round)(&mut attacker).is_err_and(|error| is_refused(&error)) {
                        attacker.pause(RETRY);
                    }
                    attacker.round += 1;
                }
            });
        }
    });
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::TimedOut | ErrorKind::AddrNotAvailable)
}

/// One attacker.
pub(super) struct Attacker<'a> {
    protocol: Protocol,
    target: Target,
    /// Number of this attacker among those of the attack.
    pub(super) number: usize,
    /// Number of rounds before this one.
    pub(super) round: u64,
    deadline: &'a Deadline,
    tally: &'a Tally,
}

impl<'a> Attacker<'a> {
    /// Opens a connection to the listener of the attack's protocol.
    pub(super) fn open(&self) -> io::Result<Link<'a>> {
        self.open_to(self.protocol)
    }

    pub(super) fn open_to(&self, protocol: Protocol) -> io::Result<Link<'a>> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.target.port(protocol)));
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.tally.connections.fetch_add(1, Ordering::Relaxed);
        Ok(Link { stream, deadline: self.deadline, tally: self.tally, reads: true })
    }

    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_over()
    }

    /// Waits for `time`, or until the attack is over.
    pub(super) fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.is_over() && Instant::now() < end {
            thread::sleep(TICK.min(end.saturating_duration_since(Instant::now())));
        }
    }

    /// A name that no other attacker, round or process uses.
    pub(super) fn unique(&self, what: &str) -> String {
        format!("{what}-{}-{}-{}", std::process::id(), self.number, self.round)
    }
}

/// A connection of an attacker. While it sends, it discards what the broker sends, unless [`Link::unread`] was called.
pub(super) struct Link<'a> {
    stream: TcpStream,
    deadline: &'a Deadline,
    tally: &'a Tally,
    reads: bool,
}

impl Link<'_> {
    /// From now on nothing is read, as by a client that hangs.
    pub(super) fn unread(mut self) -> Self {
        self.reads = false;
        self
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// If the broker closes the connection, or the attack is over.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let ready = self.wait(PollFlags::OUT | self.read_flag())?;
            if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && self.reads {
                self.discard_once()?;
            }
            bytes = &bytes[self.write(bytes)?..];
        }
        Ok(())
    }

    /// Sends all bytes, and leaves what the broker sends for [`Link::read_exact`].
    ///
    /// # Errors
    /// As [`Link::send`].
    pub(super) fn send_unread(&mut self, bytes: &[u8]) -> io::Result<()> {
        let reads = std::mem::replace(&mut self.reads, false);
        let sent = self.send(bytes);
        self.reads = reads;
        sent
    }

    /// Sends as many of the bytes as the broker takes within `time`. The rest is lost.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub(super) fn send_some(&mut self, mut bytes: &[u8], time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        while !bytes.is_empty() && Instant::now() < end {
            if self.wait_at_most(PollFlags::OUT, end.saturating_duration_since(Instant::now()))?.is_empty() {
                continue;
            }
            bytes = &bytes[self.write(bytes)?..];
        }
        Ok(())
    }

    /// Writes once. Returns the number of bytes written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes) {
            Ok(count) => {
                self.tally.bytes.fetch_add(count as u64, Ordering::Relaxed);
                Ok(count)
            }
            Err(error) if is_temporary(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Reads and discards for `time`.
    ///
    /// # Errors
    /// If the broker closes the connection, or the attack is over.
    pub(super) fn discard(&mut self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.wait_at_most(PollFlags::IN, end.saturating_duration_since(Instant::now()))?.is_empty() {
                continue;
            }
            self.discard_once()?;
        }
        Ok(())
    }

    /// Waits until the broker closes the connection, at most for `time`.
    pub(super) fn await_close(&mut self, time: Duration) {
        // Closed, or over: both end the wait.
        self.discard(time).ok();
    }

    /// Waits for the first bytes of a reply, and reads what there is.
    ///
    /// # Errors
    /// If the broker closes the connection, or the attack is over.
    pub(super) fn await_reply(&mut self) -> io::Result<()> {
        self.wait(PollFlags::IN)?;
        self.discard_once()
    }

    /// Reads exactly `count` bytes.
    ///
    /// # Errors
    /// If they are too many, the broker closes the connection, or the attack is over.
    pub(super) fn read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        if count > REPLY_BYTES_MAX {
            return Err(io::Error::other("a reply that is too long"));
        }
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while filled < count {
            self.wait(PollFlags::IN)?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                Ok(read) => filled += read,
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    fn read_flag(&self) -> PollFlags {
        if self.reads { PollFlags::IN } else { PollFlags::empty() }
    }

    /// Reads and discards what has arrived.
    ///
    /// # Errors
    /// If the broker closes the connection.
    pub(super) fn discard_once(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(ErrorKind::ConnectionReset.into()),
            Ok(_) => Ok(()),
            Err(error) if is_temporary(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until one of `events` is there.
    fn wait(&self, events: PollFlags) -> io::Result<PollFlags> {
        loop {
            let ready = self.wait_at_most(events, TICK)?;
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
    }

    /// Events that are there; empty after `time` or a tick.
    fn wait_at_most(&self, events: PollFlags, time: Duration) -> io::Result<PollFlags> {
        if self.deadline.is_over() {
            return Err(io::Error::other("the attack is over"));
        }
        let timeout = time.min(TICK).try_into().map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.stream, events)];
        poll(&mut fds, Some(&timeout))?;
        Ok(fds[0].revents())
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn attack(round: fn(&mut Attacker<'_>) -> io::Result<()>) -> Attack {
        let (name, about, protocol) = ("test", "", Protocol::Mqtt);
        Attack { name, about, protocol, attackers: 2, memory: false, smoke: false, round }
    }

    #[test]
    fn an_attack_ends_in_time_although_nobody_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target { mqtt: listener.local_addr().unwrap().port(), ..Target::default() };
        let (deadline, tally) = (Deadline::after(Duration::from_millis(200)), Tally::default());
        let began = Instant::now();
        run(&attack(|attacker| attacker.open()?.send(&vec![0; 1 << 30])), target, &deadline, &tally);
        assert!(began.elapsed() < Duration::from_secs(20));
        let Effort { rounds, connections, bytes } = tally.effort();
        assert_eq!((rounds, connections), (2, 2));
        assert!(bytes > 0 && bytes < 2 << 30);
    }

    #[test]
    fn a_closed_connection_starts_the_next_round() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target { mqtt: listener.local_addr().unwrap().port(), ..Target::default() };
        let (deadline, tally) = (Deadline::after(Duration::from_mins(1)), Tally::default());
        thread::scope(|scope| {
            let attack = attack(|attacker| attacker.open()?.await_reply());
            let (deadline, tally) = (&deadline, &tally);
            scope.spawn(move || run(&attack, target, deadline, tally));
            for _ in 0..10 {
                drop(listener.accept().unwrap());
            }
            deadline.end();
        });
        assert!(tally.effort().connections >= 10 && tally.effort().rounds >= 10);
    }
}
