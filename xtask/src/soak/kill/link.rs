//! One connection of a client that expects the broker to die at any moment.

use mainstem_conformance::Version;
use mainstem_conformance::packet::{self, ConnAck, Packet};
use mainstem_conformance::wire::{Connect, Wire};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest time that the broker may leave a client without an answer, or its output unread.
const PATIENCE: Duration = Duration::from_secs(30);
const BUFFER_BYTES: usize = 64 * 1024;

/// Why a connection is of no more use.
#[derive(Debug)]
pub(super) enum Lost {
    /// It ended, as connections of a broker that dies do.
    Gone,
    /// The broker did what it must not.
    Wrong(String),
}

/// A connection after its CONNACK.
pub(super) struct Link {
    stream: TcpStream,
    version: Version,
    input: Vec<u8>,
    /// Bytes of `input` that have been parsed.
    parsed: usize,
    output: Vec<u8>,
    buffer: Vec<u8>,
}

impl Link {
    /// Connects, and waits for a CONNACK that accepts.
    ///
    /// # Errors
    /// If nobody listens, the connection ends, or the broker refuses for another reason than that it drains.
    pub(super) fn open(port: u16, version: Version, connect: &Connect) -> Result<(Self, ConnAck), Lost> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect(address).map_err(|_| Lost::Gone)?;
        let set = stream.set_nodelay(true).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        set.map_err(|error| Lost::Wrong(format!("a socket: {error}")))?;
        let buffer = vec![0; BUFFER_BYTES];
        let (input, output) = (Vec::new(), Vec::new());
        let mut link = Self { stream, version, input, parsed: 0, output, buffer };
        link.put(connect);
        link.flush()?;
        let mut packets = Vec::new();
        let until = Instant::now() + PATIENCE;
        while packets.is_empty() {
            link.take_one(until.saturating_duration_since(Instant::now()), &mut packets)?;
            if Instant::now() > until {
                return Err(Lost::Wrong("no CONNACK".to_owned()));
            }
        }
        match packets.remove(0) {
            Packet::ConnAck(connack) if connack.reason == 0 => Ok((link, connack)),
            Packet::ConnAck(ConnAck { reason: 0x88 | 3, .. }) => Err(Lost::Gone),
            other => Err(Lost::Wrong(format!("instead of an accepting CONNACK came {other:?}"))),
        }
    }

    /// Sends a packet with the next [`Link::flush`].
    pub(super) fn put(&mut self, what: &(impl Wire + ?Sized)) {
        self.output.extend(what.bytes(self.version));
    }

    /// Sends what was put, in one write.
    ///
    /// # Errors
    /// If the connection has ended, or the broker does not read.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        if self.output.is_empty() {
            return Ok(());
        }
        let written = self.stream.write_all(&self.output);
        self.output.clear();
        written.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Lost::Wrong(format!("the broker reads nothing for {PATIENCE:?}"))
            }
            _ => Lost::Gone,
        })
    }

    /// Reads once, for at most `wait`, and appends all whole packets that have come.
    ///
    /// # Errors
    /// If the connection has ended, or something came that no server may send.
    pub(super) fn take(&mut self, wait: Duration, packets: &mut Vec<Packet>) -> Result<(), Lost> {
        self.read(wait)?;
        while let Some(packet) = self.parse()? {
            match packet {
                // 0x8B: the server is shutting down.
                Packet::Disconnect(disconnect) if disconnect.reason == 0x8B => return Err(Lost::Gone),
                Packet::Disconnect(disconnect) => {
                    return Err(Lost::Wrong(format!("DISCONNECT {:#04x}", disconnect.reason)));
                }
                packet => packets.push(packet),
            }
        }
        Ok(())
    }

    /// Leaves what came behind the first packet for later.
    fn take_one(&mut self, wait: Duration, packets: &mut Vec<Packet>) -> Result<(), Lost> {
        self.read(wait)?;
        packets.extend(self.parse()?);
        Ok(())
    }

    fn read(&mut self, wait: Duration) -> Result<(), Lost> {
        let wait = wait.max(Duration::from_millis(1));
        self.stream
            .set_read_timeout(Some(wait))
            .map_err(|error| Lost::Wrong(format!("a socket: {error}")))?;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err(Lost::Gone),
            Ok(count) => {
                self.input.drain(..std::mem::take(&mut self.parsed));
                self.input.extend_from_slice(&self.buffer[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
                _ => Err(Lost::Gone),
            },
        }
    }

    /// The next whole packet.
    fn parse(&mut self) -> Result<Option<Packet>, Lost> {
        let unparsed = &self.input[self.parsed..];
        match packet::packet_len(unparsed).map_err(Lost::Wrong)? {
            Some(len) if unparsed.len() >= len => {
                self.parsed += len;
                packet::decode(self.version, &unparsed[..len]).map(Some).map_err(Lost::Wrong)
            }
            _ => Ok(None),
        }
    }
}
