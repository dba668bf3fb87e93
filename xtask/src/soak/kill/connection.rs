//! Connection of a client that expects the broker to die at any time.
//!
//! A closed connection is normal and leads to a reconnect. A protocol violation is reported. [`ConnectionError`]
//! separates the two.

use mainstem_conformance::Version;
use mainstem_conformance::packet::{self, ConnAck, Packet};
use mainstem_conformance::wire::{Connect, Wire};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Maximum time for the broker to respond, or to read a client's output.
const TIMEOUT: Duration = Duration::from_secs(30);
const BUFFER_BYTES: usize = 64 * 1024;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// Closed, as on a kill of the broker.
    Closed,
    /// The broker violated the protocol.
    Violation(String),
}

/// A connection after CONNACK.
pub(super) struct Connection {
    stream: TcpStream,
    version: Version,
    input: Vec<u8>,
    /// Number of parsed bytes of `input`.
    parsed: usize,
    output: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects, and waits for a successful CONNACK.
    ///
    /// # Errors
    /// If the port is closed, the connection ends, or the broker refuses. A refusal because the broker is shutting down
    /// counts as closed.
    pub(super) fn open(
        port: u16,
        version: Version,
        connect: &Connect,
    ) -> Result<(Self, ConnAck), ConnectionError> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect(address).map_err(|_| ConnectionError::Closed)?;
        let set = stream.set_nodelay(true).and_then(|()| stream.set_write_timeout(Some(TIMEOUT)));
        set.map_err(|error| ConnectionError::Violation(format!("a socket: {error}")))?;
        let buffer = vec![0; BUFFER_BYTES];
        let (input, output) = (Vec::new(), Vec::new());
        let mut connection = Self { stream, version, input, parsed: 0, output, buffer };
        connection.put(connect);
        connection.flush()?;
        let mut packets = Vec::new();
        let until = Instant::now() + TIMEOUT;
        while packets.is_empty() {
            connection.receive_one(until.saturating_duration_since(Instant::now()), &mut packets)?;
            if Instant::now() > until {
                return Err(ConnectionError::Violation("no CONNACK".to_owned()));
            }
        }
        match packets.remove(0) {
            Packet::ConnAck(connack) if connack.reason == 0 => Ok((connection, connack)),
            Packet::ConnAck(ConnAck { reason: 0x88 | 3, .. }) => Err(ConnectionError::Closed),
            other => Err(ConnectionError::Violation(format!("expected a successful CONNACK, got {other:?}"))),
        }
    }

    /// Queues a packet for the next [`Connection::flush`].
    pub(super) fn put(&mut self, what: &(impl Wire + ?Sized)) {
        self.output.extend(what.bytes(self.version));
    }

    /// Sends all queued packets, in one write.
    ///
    /// # Errors
    /// If the connection ended, or the broker does not read.
    pub(super) fn flush(&mut self) -> Result<(), ConnectionError> {
        if self.output.is_empty() {
            return Ok(());
        }
        let written = self.stream.write_all(&self.output);
        self.output.clear();
        written.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                ConnectionError::Violation(format!("the broker read nothing for {TIMEOUT:?}"))
            }
            _ => ConnectionError::Closed,
        })
    }

    /// Reads once, for at most `wait`, and appends all complete packets.
    ///
    /// # Errors
    /// If the connection ended, or the broker sent a malformed packet or a DISCONNECT.
    pub(super) fn receive(
        &mut self,
        wait: Duration,
        packets: &mut Vec<Packet>,
    ) -> Result<(), ConnectionError> {
        self.read(wait)?;
        while let Some(packet) = self.parse()? {
            match packet {
                // 0x8B: the server is shutting down.
                Packet::Disconnect(disconnect) if disconnect.reason == 0x8B => {
                    return Err(ConnectionError::Closed);
                }
                Packet::Disconnect(disconnect) => {
                    return Err(ConnectionError::Violation(format!("DISCONNECT {:#04x}", disconnect.reason)));
                }
                packet => packets.push(packet),
            }
        }
        Ok(())
    }

    /// Like [`Self::receive`], but appends at most one packet and buffers the rest.
    fn receive_one(&mut self, wait: Duration, packets: &mut Vec<Packet>) -> Result<(), ConnectionError> {
        self.read(wait)?;
        packets.extend(self.parse()?);
        Ok(())
    }

    fn read(&mut self, wait: Duration) -> Result<(), ConnectionError> {
        let wait = wait.max(Duration::from_millis(1));
        self.stream
            .set_read_timeout(Some(wait))
            .map_err(|error| ConnectionError::Violation(format!("a socket: {error}")))?;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(count) => {
                self.input.drain(..std::mem::take(&mut self.parsed));
                self.input.extend_from_slice(&self.buffer[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
                _ => Err(ConnectionError::Closed),
            },
        }
    }

    /// Parses the next complete packet.
    fn parse(&mut self) -> Result<Option<Packet>, ConnectionError> {
        let unparsed = &self.input[self.parsed..];
        match packet::packet_len(unparsed).map_err(ConnectionError::Violation)? {
            Some(len) if unparsed.len() >= len => {
                self.parsed += len;
                packet::decode(self.version, &unparsed[..len]).map(Some).map_err(ConnectionError::Violation)
            }
            _ => Ok(None),
        }
    }
}
