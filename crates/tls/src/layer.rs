//! TLS of one connection: records in, records out.
//!
//! rustls is the state machine; this file moves bytes between it and the driver, and keeps nothing back: what is
//! decrypted goes to the service at once, what is encrypted to the driver. So rustls buffers at most one incomplete
//! record or handshake message of the peer, both of which it bounds. Its interface without buffers was tried, and would
//! save 4 KiB per idle connection; it panics unless each call gets exactly the bytes that the one before has left.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mainstem_runtime::{StreamState, TransportLayer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};

/// Bytes decrypted for one unit.
const BYTES_PER_UNIT: usize = 256;
/// Cost of a handshake that resumes a session: a key exchange, without certificates, units.
const RESUMED_UNITS: u32 = 700;

/// TLS of one connection.
pub(crate) struct TlsLayer {
    /// Nothing once the peer has violated the protocol.
    connection: Option<ServerConnection>,
    /// Cost of a handshake with certificates, units; 0 once it is charged.
    handshake_units: u32,
    /// Work since the last call of `take_charge`, units.
    charge: u32,
}

impl TlsLayer {
    pub(crate) fn new(config: Arc<ServerConfig>, handshake_units: u32) -> Self {
        let connection = ServerConnection::new(config);
        if let Err(error) = &connection {
            log::error!("TLS cannot accept a connection: {error}");
        }
        Self { connection: connection.ok(), handshake_units, charge: 0 }
    }
}

impl TransportLayer for TlsLayer {
    fn receive(
        &mut self,
        received: &[u8],
        input: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> io::Result<StreamState> {
        let connection = self.connection.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let result = decrypt(connection, received, input);
        self.charge += (received.len() / BYTES_PER_UNIT) as u32;
        if self.handshake_units > 0
            && let Some(kind) = connection.handshake_kind()
        {
            let is_resumed = kind == HandshakeKind::Resumed;
            self.charge += if is_resumed { RESUMED_UNITS } else { self.handshake_units };
            self.handshake_units = 0;
        }
        // Responses of the handshake, or the alert of a failure.
        take_records(connection, to_send);
        if result.is_err() {
            self.connection = None;
        }
        result
    }

    fn send(&mut self, output: &[u8], to_send: &mut Vec<u8>) -> usize {
        let Some(connection) = self.connection.as_mut().filter(|connection| !connection.is_handshaking())
        else {
            return 0;
        };
        let written = connection.writer().write(output);
        take_records(connection, to_send);
        written.unwrap_or_else(|error| {
            log::debug!("TLS cannot encrypt: {error}");
            0
        })
    }

    fn is_handshaking(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_handshaking())
    }

    fn peer_certificate(&self) -> Option<&[u8]> {
        let connection = self.connection.as_ref().filter(|connection| !connection.is_handshaking())?;
        connection.peer_certificates()?.first().map(AsRef::as_ref)
    }

    fn take_charge(&mut self) -> u32 {
        std::mem::take(&mut self.charge)
    }

    fn close(&mut self, to_send: &mut Vec<u8>) {
        if let Some(connection) = &mut self.connection {
            connection.send_close_notify();
            take_records(connection, to_send);
        }
    }
}

/// Decrypts what the peer has sent.
///
/// # Errors
/// The peer has violated the protocol. The alert waits in the connection.
fn decrypt(
    connection: &mut ServerConnection,
    mut received: &[u8],
    input: &mut Vec<u8>,
) -> io::Result<StreamState> {
    while !received.is_empty() {
        // Bytes after the end of the stream are ignored.
        if connection.read_tls(&mut received)? == 0 {
            return Ok(StreamState::Ended);
        }
        let state = connection.process_new_packets().map_err(io::Error::other)?;
        let start = input.len();
        input.resize(start + state.plaintext_bytes_to_read(), 0);
        connection.reader().read_exact(&mut input[start..])?;
        if state.peer_has_closed() {
            return Ok(StreamState::Ended);
        }
    }
    Ok(StreamState::Open)
}

/// Moves the records that wait to be sent.
fn take_records(connection: &mut ServerConnection, to_send: &mut Vec<u8>) {
    while connection.wants_write() {
        if let Err(error) = connection.write_tls(to_send) {
            // A vector accepts all bytes.
            log::error!("TLS records are lost: {error}");
            return;
        }
    }
}
