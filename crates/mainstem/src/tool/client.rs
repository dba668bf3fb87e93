//! One MQTT connection to a broker: packets, keep alive, deadlines. No thread and no async runtime.
//!
//! The socket does not block. All waiting happens in [`Client::wait`], which polls the socket and one other descriptor
//! of the caller. While a write is blocked, the client keeps reading; otherwise, two peers with full buffers would
//! deadlock.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use mainstem_mqtt::packet::{Disconnect, Packet, QoS, UserProperties, Version};
use mainstem_mqtt::{Header, ReasonCode, decode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::describe::packet_line;
use super::failure::{Failure, io_message};
use super::properties::{Pairs, borrowed};
use super::session::Session;
use super::tls::{Stream, Tls};

const READ_BYTES: usize = 64 * 1024;
/// Longest time without progress of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the broker to close the connection after DISCONNECT.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The broker's session state and limits, from CONNACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnAckInfo {
    pub(crate) session_present: bool,
    pub(crate) receive_maximum: u16,
    pub(crate) maximum_packet_size: Option<u32>,
    pub(crate) maximum_qos: QoS,
    pub(crate) topic_alias_maximum: u16,
    pub(crate) retain_available: bool,
}

/// Which descriptors are ready. Both may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The socket is readable.
    pub(crate) socket: bool,
    /// The other descriptor is readable or closed.
    pub(crate) other: bool,
}

/// An open connection, after a successful CONNACK.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    version: Version,
    debug: bool,
    connack: ConnAckInfo,
    /// Bytes read. Those before `parsed` have been handled.
    input: Vec<u8>,
    parsed: usize,
    /// Packets not yet written.
    output: Vec<u8>,
    keep_alive: Option<Duration>,
    last_sent: Instant,
    /// Deadline of the response to the last PINGREQ.
    pingresp_due: Option<Instant>,
    last_packet_id: u16,
}

impl Client {
    /// Connects and waits for CONNACK.
    ///
    /// # Errors
    /// If no address accepts the connection, or the broker refuses it.
    pub(crate) fn connect(session: &Session<'_>) -> Result<Self, Failure> {
        let args = session.args();
        let deadline = Instant::now() + args.connect_timeout;
        let stream = open(session, deadline)?;
        let mut client = Self {
            stream,
            version: args.protocol,
            debug: args.debug,
            connack: ConnAckInfo {
                session_present: false,
                receive_maximum: u16::MAX,
                maximum_packet_size: None,
                maximum_qos: QoS::ExactlyOnce,
                topic_alias_maximum: 0,
                retain_available: true,
            },
            input: Vec::new(),
            parsed: 0,
            output: Vec::new(),
            keep_alive: None,
            last_sent: Instant::now(),
            pingresp_due: None,
            last_packet_id: 0,
        };
        session.with_connect(|connect| client.send(&Packet::Connect(connect)))?;
        client.await_connack(session, deadline)?;
        Ok(client)
    }

    fn await_connack(&mut self, session: &Session<'_>, deadline: Instant) -> Result<(), Failure> {
        let mut frame = Vec::new();
        if !self.receive(&mut frame, Some(deadline))? {
            let address = session.target.address();
            return Err(Failure::transient(format!("{address} did not answer CONNECT in time")));
        }
        let connack = match self.decode(&frame)? {
            Packet::ConnAck(connack) => connack,
            Packet::Auth(_) => {
                return Err(Failure::new(
                    "the broker requires enhanced authentication, which is not supported",
                ));
            }
            other => return Err(Failure::new(format!("expected CONNACK, got {}", packet_line(&other)))),
        };
        if connack.reason != ReasonCode::Success {
            return Err(Failure::refused("connection refused", connack.reason, connack.reason_string));
        }
        self.connack = ConnAckInfo {
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

    /// The broker's CONNACK.
    pub(crate) fn connack(&self) -> ConnAckInfo {
        self.connack
    }

    /// The next packet identifier. The caller must have fewer exchanges open than there are identifiers.
    pub(crate) fn next_packet_id(&mut self) -> u16 {
        self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(1);
        self.last_packet_id
    }

    /// Queues a packet. [`Client::wait`] and [`Client::flush`] write it.
    ///
    /// # Errors
    /// If the packet cannot be encoded, or exceeds the broker's maximum packet size.
    pub(crate) fn send(&mut self, packet: &Packet<'_>) -> Result<(), Failure> {
        let before = self.output.len();
        packet.encode(self.version, &mut self.output).map_err(|error| Failure::new(error.to_string()))?;
        let bytes = self.output.len() - before;
        if let Some(limit) = self.connack.maximum_packet_size.filter(|limit| bytes > *limit as usize) {
            self.output.truncate(before);
            return Err(Failure::new(format!(
                "packet of {bytes} bytes exceeds the broker's maximum packet size of {limit}"
            )));
        }
        self.trace("sent", packet);
        Ok(())
    }

    /// Bytes queued but not written.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.output.len()
    }

    /// Waits for the next packet and copies it to `frame`. Returns false if none arrived before `until`.
    ///
    /// Handles keep alive: PINGREQ and PINGRESP never appear in `frame`.
    ///
    /// # Errors
    /// If the connection broke, or the broker sent DISCONNECT.
    pub(crate) fn receive(&mut self, frame: &mut Vec<u8>, until: Option<Instant>) -> Result<bool, Failure> {
        loop {
            if self.try_receive(frame)? {
                return Ok(true);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(false);
            }
            self.wait(None, until)?;
        }
    }

    /// Copies the next packet that has already been read to `frame`. Returns false if there is none.
    ///
    /// # Errors
    /// If the broker sent DISCONNECT or a malformed packet.
    pub(crate) fn try_receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            let bytes = &self.input[self.parsed..];
            let header = Header::parse(bytes).map_err(|error| malformed(&error))?;
            let Some(len) = header.map(|header| header.packet_len()).filter(|len| *len <= bytes.len()) else {
                self.input.drain(..self.parsed);
                self.parsed = 0;
                return Ok(false);
            };
            frame.clear();
            frame.extend_from_slice(&bytes[..len]);
            self.parsed += len;
            let packet = self.decode(frame)?;
            self.trace("received", &packet);
            match packet {
                Packet::PingResp => self.pingresp_due = None,
                Packet::Disconnect(p) => {
                    return Err(Failure::refused("the broker disconnected", p.reason, p.reason_string));
                }
                _ => return Ok(true),
            }
        }
    }

    /// Decodes a packet in the connection's protocol version.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn decode<'f>(&self, frame: &'f [u8]) -> Result<Packet<'f>, Failure> {
        decode(self.version, frame).map_err(|error| malformed(&error))
    }

    /// Writes queued packets, then waits until the socket or `other` is readable, `until` is reached, or a ping is due.
    /// Reads from the socket, but not from `other`.
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
        let until = [until, self.ping_due(), self.pingresp_due].into_iter().flatten().min();
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ready = self.poll(PollFlags::IN, other, timeout)?;
        if ready.socket {
            self.read()?;
        }
        Ok(ready)
    }

    /// Writes all queued packets.
    ///
    /// # Errors
    /// If the connection broke, or a write made no progress for [`WRITE_TIMEOUT`].
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(bytes) => {
                    written += bytes;
                    self.last_sent = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_to_write()?,
                Err(error) => {
                    // A packet that the broker sent before it closed may have the reason, so it is handled first.
                    self.read().ok();
                    if !self.has_whole_packet() {
                        return Err(connection_broke(&error));
                    }
                    break;
                }
            }
        }
        self.output.clear();
        self.flush_stream()
    }

    /// Waits until the socket has taken what TLS has encrypted.
    fn flush_stream(&mut self) -> Result<(), Failure> {
        loop {
            match self.stream.flush() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_to_write()?,
                Err(_) if self.has_whole_packet() => return Ok(()),
                Err(error) => return Err(connection_broke(&error)),
            }
        }
    }

    /// Waits until the socket is writable, and reads meanwhile.
    fn wait_to_write(&mut self) -> Result<(), Failure> {
        let ready = self.poll(PollFlags::IN | PollFlags::OUT, None, Some(WRITE_TIMEOUT))?;
        if ready == Ready::default() {
            return Err(Failure::transient("the broker stopped reading"));
        }
        self.read()
    }

    /// Sends DISCONNECT and waits until the broker closes the connection, so that all packets have arrived.
    ///
    /// # Errors
    /// If the broker sends a DISCONNECT itself, or the last packets cannot be written.
    pub(crate) fn disconnect(mut self, session_expiry: Option<u32>, user: &Pairs) -> Result<(), Failure> {
        let user = borrowed(user);
        let disconnect = Disconnect {
            session_expiry,
            user_properties: UserProperties::Pairs(&user),
            ..Disconnect::default()
        };
        self.send(&Packet::Disconnect(disconnect))?;
        self.flush()?;
        self.stream.end_output();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let mut frame = Vec::new();
        loop {
            while self.try_receive(&mut frame)? {}
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() || !self.poll(PollFlags::IN, None, Some(remaining))?.socket {
                return Ok(());
            }
            if self.read().is_err() {
                while self.try_receive(&mut frame)? {}
                return Ok(());
            }
        }
    }

    /// Reads until the socket has no more input.
    fn read(&mut self) -> Result<(), Failure> {
        loop {
            let filled = self.input.len();
            self.input.resize(filled + READ_BYTES, 0);
            let result = self.stream.read(&mut self.input[filled..]);
            self.input.truncate(filled + *result.as_ref().unwrap_or(&0));
            match result {
                // Handle packets before the end of the stream first: one may be a DISCONNECT with the reason.
                Ok(0) if self.has_whole_packet() => return Ok(()),
                Ok(0) => return Err(Failure::transient("the broker closed the connection")),
                Ok(bytes) if bytes == READ_BYTES || self.stream.buffers_input() => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) if self.has_whole_packet() => return Ok(()),
                Err(error) => return Err(connection_broke(&error)),
            }
        }
    }

    fn has_whole_packet(&self) -> bool {
        let bytes = &self.input[self.parsed..];
        matches!(Header::parse(bytes), Ok(Some(header)) if header.packet_len() <= bytes.len())
    }

    fn poll(
        &self,
        events: PollFlags,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<Ready, Failure> {
        let mut fds = vec![PollFd::new(self.stream.socket(), events)];
        fds.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::new(format!("poll: {}", io_message(&error.into())))),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready { socket: fds.first().is_some_and(is_ready), other: fds.get(1).is_some_and(is_ready) })
    }

    /// Sends PINGREQ if nothing else was sent for a while [MQTT-3.1.2-20]. Fails if PINGRESP is overdue.
    fn keep_alive(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if self.pingresp_due.is_some_and(|due| due <= now) {
            return Err(Failure::transient("the broker did not answer a ping in time"));
        }
        if self.ping_due().is_some_and(|due| due <= now) {
            self.send(&Packet::PingReq)?;
            self.pingresp_due = self.keep_alive.map(|interval| now + interval);
        }
        Ok(())
    }

    /// Time of the next PINGREQ: after three quarters of the keep alive, unless a PINGRESP is pending.
    fn ping_due(&self) -> Option<Instant> {
        if self.pingresp_due.is_some() {
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

fn connection_broke(error: &io::Error) -> Failure {
    Failure::transient(format!("the connection broke: {}", io_message(error)))
}

fn malformed(error: &mainstem_mqtt::DecodeError) -> Failure {
    Failure::new(format!("the broker sent a malformed packet: {error}"))
}

/// Opens a connection to the first address that accepts it.
fn open(session: &Session<'_>, deadline: Instant) -> Result<Stream, Failure> {
    let target = &session.target;
    let cannot = |error: &io::Error| {
        Failure::transient(format!("cannot connect to {}: {}", target.address(), io_message(error)))
    };
    let addresses = (target.host.as_str(), target.port).to_socket_addrs().map_err(|error| {
        Failure::transient(format!("cannot find {}: {}", target.host, io_message(&error)))
    })?;
    let tls = target.uses_tls.then(|| Tls::load(&session.args().tls(), Some("mqtt"))).transpose()?;
    let mut last = Failure::transient(format!("cannot find {}: no address", target.host));
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let result = match session.args().bind {
            None => TcpStream::connect_timeout(&address, left),
            Some(source) => connect_from(SocketAddr::new(source, 0), address, left),
        };
        let ready = result.and_then(|stream| {
            stream.set_nodelay(true)?;
            let stream = match &tls {
                None => Stream::Plain(stream),
                Some(tls) => tls.connect(stream, &target.host, deadline)?,
            };
            stream.socket().set_nonblocking(true)?;
            Ok(stream)
        });
        match ready {
            Ok(stream) => return Ok(stream),
            Err(error) => last = cannot(&error),
        }
    }
    Err(last)
}

/// Connects from a local address, which the standard library does not support.
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
