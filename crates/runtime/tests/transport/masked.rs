//! A layer with everything that TLS and WebSocket need of the seam: a handshake, records with an encoding, pings that
//! are answered below the service, an end of stream and an alert.
//!
//! The client sends `HELLO`, the server answers `WELCOME`. Then both send records: kind, length (`u16`, big-endian),
//! payload. The payload of a data record is masked.

use std::io;

use mainstem_runtime::{StreamState, TransportLayer};

pub(crate) const HELLO: &[u8] = b"HELLO";
pub(crate) const WELCOME: &[u8] = b"WELCOME";
/// Small and odd, so that records end anywhere.
const RECORD_BYTES_MAX: usize = 1021;
const HEADER_BYTES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Data = b'D',
    Ping = b'P',
    Pong = b'O',
    End = b'E',
    Alert = b'A',
}

/// A record as bytes on the wire.
pub(crate) fn record(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind as u8];
    bytes.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    if kind == Kind::Data {
        bytes.extend(payload.iter().map(|byte| byte ^ 0x5A));
    } else {
        bytes.extend_from_slice(payload);
    }
    bytes
}

/// Takes one whole record from the front of `bytes`.
pub(crate) fn take_record(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let header: [u8; HEADER_BYTES] = *bytes.first_chunk()?;
    let end = HEADER_BYTES + usize::from(u16::from_be_bytes([header[1], header[2]]));
    if bytes.len() < end {
        return None;
    }
    let mut payload = bytes[HEADER_BYTES..end].to_vec();
    bytes.drain(..end);
    if header[0] == Kind::Data as u8 {
        for byte in &mut payload {
            *byte ^= 0x5A;
        }
    }
    Some((header[0], payload))
}

/// The server's side of the layer.
#[derive(Debug, Default)]
pub(crate) struct Masked {
    is_open: bool,
    has_ended: bool,
    passes_output: bool,
    unread: Vec<u8>,
}

impl Masked {
    /// A layer that masks input only.
    pub(crate) fn passing_output() -> Self {
        Self { passes_output: true, ..Self::default() }
    }
}

impl TransportLayer for Masked {
    fn receive(
        &mut self,
        received: &[u8],
        input: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> io::Result<StreamState> {
        self.unread.extend_from_slice(received);
        if !self.is_open {
            if self.unread.len() < HELLO.len() {
                return Ok(StreamState::Open);
            }
            if !self.unread.starts_with(HELLO) {
                to_send.extend(record(Kind::Alert, b"no hello"));
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.unread.drain(..HELLO.len());
            to_send.extend_from_slice(WELCOME);
            self.is_open = true;
        }
        while let Some((kind, payload)) = take_record(&mut self.unread) {
            if kind == Kind::Data as u8 {
                input.extend(payload);
            } else if kind == Kind::Ping as u8 {
                to_send.extend(record(Kind::Pong, &payload));
            } else if kind == Kind::End as u8 {
                return Ok(StreamState::Ended);
            } else {
                to_send.extend(record(Kind::Alert, b"unknown kind"));
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(StreamState::Open)
    }

    fn send(&mut self, output: &[u8], to_send: &mut Vec<u8>) -> usize {
        assert!(!output.is_empty() && !self.has_ended && !self.passes_output());
        if !self.is_open {
            return 0;
        }
        let count = output.len().min(RECORD_BYTES_MAX);
        to_send.extend(record(Kind::Data, &output[..count]));
        count
    }

    fn close(&mut self, to_send: &mut Vec<u8>) {
        assert!(!std::mem::replace(&mut self.has_ended, true), "closed twice");
        if self.is_open && !self.passes_output {
            to_send.extend(record(Kind::End, b""));
        }
    }

    fn is_handshaking(&self) -> bool {
        !self.is_open
    }

    fn passes_output(&self) -> bool {
        self.passes_output && self.is_open
    }
}
