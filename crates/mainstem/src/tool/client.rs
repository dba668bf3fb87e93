//! One connection to a broker: packets in and out, keep alive, deadlines. No thread, no runtime.
//!
//! The socket does not block; all waiting happens in [`Client::wait`], on the socket and whatever else the
//! caller waits for. Reading goes on while a write waits, so that two full buffers cannot hold up both ends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use mainstem_mqtt::packet::{Disconnect, Packet, QoS, UserProperties, Version};
use mainstem_mqtt::{Header, ReasonCode, decode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::describe::packet_line;
use super::failure::{Failure, io_words};
use super::properties::{Pairs, borrowed};
use super::session::Session;

const READ_BYTES: usize = 64 * 1024;
/// A write that makes no progress for this long will not.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the broker to close the connection after DISCONNECT.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the broker said of itself in CONNACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// It continues a stored session.
    pub(crate) session_present: bool,
    pub(crate) receive_maximum: u16,
    pub(crate) maximum_packet_size: Option<u32>,
    pub(crate) maximum_qos: QoS,
    pub(crate) topic_alias_maximum: u16,
    pub(crate) retain_available: bool,
}

/// What ended a wait. More than one may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The socket has something to read.
    pub(crate) socket: bool,
    /// So does the other descriptor, or it has ended.
    pub(crate) other: bool,
}

/// An open connection, after a successful CONNACK.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    version: Version,
    debug: bool,
    server: Server,
    /// Bytes read; those before `parsed` are done with.
    inbox: Vec<u8>,
    parsed: usize,
    /// Packets not yet written.
    outbox: Vec<u8>,
    keep_alive: Option<Duration>,
    last_sent: Instant,
    /// When the answer to the last ping is due.
    pong_due: Option<Instant>,
    last_packet_id: u16,
}

impl Client {
    /// Connects, and waits until the broker accepts.
    ///
    /// # Errors
    /// If no address answers, or the broker refuses.
    pub(crate) fn connect(session: &Session<'_>) -> Result<Self, Failure> {
        let args = session.args();
        let deadline = Instant::now() + args.connect_timeout;
        let stream = open(session, deadline)?;
        let mut client = Self {
            stream,
            version: args.protocol,
            debug: args.debug,
            server: Server {
                session_present: false,
                receive_maximum: u16::MAX,
                maximum_packet_size: None,
                maximum_qos: QoS::ExactlyOnce,
                topic_alias_maximum: 0,
                retain_available: true,
            },
            inbox: Vec::new(),
            parsed: 0,
            outbox: Vec::new(),
            keep_alive: None,
            last_sent: Instant::now(),
            pong_due: None,
            last_packet_id: 0,
        };
        session.with_connect(|connect| client.send(&Packet::Connect(connect)))?;
        client.accepted(session, deadline)?;
        Ok(client)
    }

    /// Waits for CONNACK and keeps what it says.
    fn accepted(&mut self, session: &Session<'_>, deadline: Instant) -> Result<(), Failure> {
        let mut frame = Vec::new();
        if !self.receive(&mut frame, Some(deadline))? {
            let address = session.target.address();
            return Err(Failure::lost(format!("{address} did not answer CONNECT in time")));
        }
        let connack = match self.decode(&frame)? {
            Packet::ConnAck(connack) => connack,
            Packet::Auth(_) => {
                return Err(Failure::new("the broker wants an authentication that pub and sub do not know"));
            }
            other => return Err(Failure::new(format!("expected CONNACK, got {}", packet_line(&other)))),
        };
        if connack.reason != ReasonCode::Success {
            return Err(Failure::refused("connection refused", connack.reason, connack.reason_string));
        }
        self.server = Server {
            session_present: connack.session_present,
            receive_maximum: connack.receive_maximum.unwrap_or(u16::MAX),
            maximum_packet_size: connack.maximum_packet_size,
            maximum_qos: connack.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            topic_alias_maximum: connack.topic_alias_maximum.unwrap_or(0),
            retain_available: connack.retain_available.unwrap_or(true),
        };
        let seconds = connack.server_keep_alive.unwrap_or(session.args().keep_alive);
        self.keep_alive = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Ok(())
    }

    /// What the broker said of itself.
    pub(crate) fn server(&self) -> Server {
        self.server
    }

    /// The next packet identifier, in turn. The caller keeps few enough exchanges open for it to be free.
    pub(crate) fn next_packet_id(&mut self) -> u16 {
        self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(1);
        self.last_packet_id
    }

    /// Queues a packet; [`Client::wait`] and [`Client::flush`] write it.
    ///
    /// # Errors
    /// If the packet cannot be encoded, or is larger than the broker takes.
    pub(crate) fn send(&mut self, packet: &Packet<'_>) -> Result<(), Failure> {
        let before = self.outbox.len();
        packet.encode(self.version, &mut self.outbox).map_err(|error| Failure::new(error.to_string()))?;
        let bytes = self.outbox.len() - before;
        if let Some(limit) = self.server.maximum_packet_size.filter(|limit| bytes > *limit as usize) {
            self.outbox.truncate(before);
            return Err(Failure::new(format!("a packet of {bytes} bytes; the broker takes {limit} at most")));
        }
        self.trace("sent", packet);
        Ok(())
    }

    /// Bytes queued and not yet written.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.outbox.len()
    }

    /// The next packet, copied to `frame`; false if none came before `until`.
    ///
    /// Keep alive is seen to meanwhile: pings and their answers never show.
    ///
    /// # Errors
    /// If the connection broke, or the broker sent DISCONNECT.
    pub(crate) fn receive(&mut self, frame: &mut Vec<u8>, until: Option<Instant>) -> Result<bool, Failure> {
        loop {
            if self.take(frame)? {
                return Ok(true);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
            self.wait(None, until)?;
        }
    }

    /// The next packet among the bytes already read, copied to `frame`; false if there is none.
    ///
    /// # Errors
    /// If the broker sent DISCONNECT, or what it sent is no packet.
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            let bytes = &self.inbox[self.parsed..];
            let header = Header::parse(bytes).map_err(|error| unreadable(&error))?;
            let Some(len) = header.map(|header| header.packet_len()).filter(|len| *len <= bytes.len()) else {
                self.inbox.drain(..self.parsed);
                self.parsed = 0;
                return Ok(false);
            };
            frame.clear();
            frame.extend_from_slice(&bytes[..len]);
            self.parsed += len;
            let packet = self.decode(frame)?;
            self.trace("received", &packet);
            match packet {
                Packet::PingResp => self.pong_due = None,
                Packet::Disconnect(p) => {
                    return Err(Failure::refused("the broker disconnected", p.reason, p.reason_string));
                }
                _ => return Ok(true),
            }
        }
    }

    /// Decodes a packet of this connection.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn decode<'f>(&self, frame: &'f [u8]) -> Result<Packet<'f>, Failure> {
        decode(self.version, frame).map_err(|error| unreadable(&error))
    }

    /// Writes what is queued, then waits for input on the socket, which it reads, or on `other`, which it
    /// leaves alone, or for `until`, or until a ping is due.
    ///
    /// # Errors
    /// If the connection broke.
    pub(crate) fn wait(
        &mut self,
        other: Option<BorrowedFd<'_>>,
        until: Option<Instant>,
    ) -> Result<Ready, Failure> {
        self.keep_alive()?;
        self.flush()?;
        let until = [until, self.ping_due(), self.pong_due].into_iter().flatten().min();
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ready = self.poll(PollFlags::IN, other, timeout)?;
        if ready.socket {
            self.read()?;
        }
        Ok(ready)
    }

    /// Writes everything that is queued.
    ///
    /// # Errors
    /// If the connection broke, or took nothing for long.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let mut written = 0;
        while written < self.outbox.len() {
            match self.stream.write(&self.outbox[written..]) {
                Ok(bytes) => {
                    written += bytes;
                    self.last_sent = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = self.poll(PollFlags::IN | PollFlags::OUT, None, Some(WRITE_TIMEOUT))?;
                    if ready == Ready::default() {
                        return Err(Failure::lost("the broker takes no more data"));
                    }
                    self.read()?;
                }
                Err(error) => {
                    // What the broker said before it closed is worth more than that it closed.
                    self.read().ok();
                    if !self.has_whole_packet() {
                        return Err(broke(&error));
                    }
                    break;
                }
            }
        }
        self.outbox.clear();
        Ok(())
    }

    /// Takes leave: DISCONNECT, then waits until the broker has closed, so that everything sent has arrived.
    ///
    /// # Errors
    /// If the broker answers with a DISCONNECT of its own, or does not take the last packets.
    pub(crate) fn disconnect(mut self, session_expiry: Option<u32>, user: &Pairs) -> Result<(), Failure> {
        let user = borrowed(user);
        let bye = Disconnect {
            session_expiry,
            user_properties: UserProperties::Pairs(&user),
            ..Disconnect::default()
        };
        self.send(&Packet::Disconnect(bye))?;
        self.flush()?;
        // The broker may have closed already.
        self.stream.shutdown(Shutdown::Write).ok();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let mut frame = Vec::new();
        loop {
            while self.take(&mut frame)? {}
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.poll(PollFlags::IN, None, Some(left))?.socket {
                return Ok(());
            }
            if self.read().is_err() {
                while self.take(&mut frame)? {}
                return Ok(());
            }
        }
    }

    /// Reads what the socket has.
    fn read(&mut self) -> Result<(), Failure> {
        loop {
            let filled = self.inbox.len();
            self.inbox.resize(filled + READ_BYTES, 0);
            let result = self.stream.read(&mut self.inbox[filled..]);
            self.inbox.truncate(filled + *result.as_ref().unwrap_or(&0));
            match result {
                // What came before the end is looked at first: it may be a DISCONNECT that says why.
                Ok(0) if self.has_whole_packet() => return Ok(()),
                Ok(0) => return Err(Failure::lost("the broker closed the connection")),
                Ok(READ_BYTES) => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) if self.has_whole_packet() => return Ok(()),
                Err(error) => return Err(broke(&error)),
            }
        }
    }

    fn has_whole_packet(&self) -> bool {
        let bytes = &self.inbox[self.parsed..];
        matches!(Header::parse(bytes), Ok(Some(header)) if header.packet_len() <= bytes.len())
    }

    fn poll(
        &self,
        events: PollFlags,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<Ready, Failure> {
        let mut fds = vec![PollFd::new(&self.stream, events)];
        fds.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::new(format!("poll: {}", io_words(&error.into())))),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready { socket: fds.first().is_some_and(is_ready), other: fds.get(1).is_some_and(is_ready) })
    }

    /// Pings when nothing else was sent for a while [MQTT-3.1.2-20], and gives up when no answer comes.
    fn keep_alive(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if self.pong_due.is_some_and(|due| due <= now) {
            return Err(Failure::lost("the broker did not answer a ping in time"));
        }
        if self.ping_due().is_some_and(|due| due <= now) {
            self.send(&Packet::PingReq)?;
            self.pong_due = self.keep_alive.map(|interval| now + interval);
        }
        Ok(())
    }

    /// When to ping: at three quarters of the keep alive, if the last ping was answered.
    fn ping_due(&self) -> Option<Instant> {
        if self.pong_due.is_some() {
            return None;
        }
        self.keep_alive.map(|interval| self.last_sent + interval * 3 / 4)
    }

    fn trace(&self, what: &str, packet: &Packet<'_>) {
        if self.debug {
            eprintln!("{what} {}", packet_line(packet));
        }
    }
}

fn broke(error: &io::Error) -> Failure {
    Failure::lost(format!("the connection broke: {}", io_words(error)))
}

fn unreadable(error: &mainstem_mqtt::DecodeError) -> Failure {
    Failure::new(format!("the broker sent what is no MQTT packet: {error}"))
}

/// Opens a socket to the first address that answers.
fn open(session: &Session<'_>, deadline: Instant) -> Result<TcpStream, Failure> {
    let target = &session.target;
    let cannot = |error: &io::Error| {
        Failure::lost(format!("cannot connect to {}: {}", target.address(), io_words(error)))
    };
    let addresses = (target.host.as_str(), target.port)
        .to_socket_addrs()
        .map_err(|error| Failure::lost(format!("cannot find {}: {}", target.host, io_words(&error))))?;
    let mut last = Failure::lost(format!("cannot find {}: no address", target.host));
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let result = match session.args().bind {
            None => TcpStream::connect_timeout(&address, left),
            Some(source) => connect_from(SocketAddr::new(source, 0), address, left),
        };
        let ready = result.and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        match ready {
            Ok(stream) => return Ok(stream),
            Err(error) => last = cannot(&error),
        }
    }
    Err(last)
}

/// Connects from a given local address, which the standard library cannot.
fn connect_from(source: SocketAddr, address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &source)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => return Ok(socket.into()),
        Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    if poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let stream = TcpStream::from(socket);
    match stream.take_error()? {
        None => Ok(stream),
        Some(error) => Err(error),
    }
}
