//! Blocking connections, for setup before the load and for requests outside it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::BenchError;
use crate::net::io_error_text;

/// Read timeout.
const WAIT_MAX: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 16 * 1024;

/// A blocking connection.
#[derive(Debug)]
pub(super) struct BlockingConnection {
    stream: TcpStream,
    /// Received bytes that were not consumed yet.
    inbox: Vec<u8>,
}

impl BlockingConnection {
    /// Connects.
    ///
    /// # Errors
    /// If the connection cannot be opened.
    pub(super) fn open(server: SocketAddr) -> Result<Self, BenchError> {
        let failed =
            |error| BenchError::Open(format!("cannot connect to {server}: {}", io_error_text(&error)));
        let stream = TcpStream::connect(server).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(WAIT_MAX)).map_err(failed)?;
        Ok(Self { stream, inbox: Vec::new() })
    }

    /// # Errors
    /// If the connection broke.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(bytes).map_err(|error| broken(&error))
    }

    /// Receives until `parse` returns a value, with the number of bytes it consumed.
    ///
    /// # Errors
    /// Errors of `parse`, or if the connection broke or stayed silent for 30 seconds.
    pub(super) fn receive<T>(
        &mut self,
        mut parse: impl FnMut(&[u8]) -> Result<Option<(usize, T)>, BenchError>,
    ) -> Result<T, BenchError> {
        loop {
            if let Some((consumed, value)) = parse(&self.inbox)? {
                self.inbox.drain(..consumed);
                return Ok(value);
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(BenchError::Open("the server closed a connection".into())),
                Ok(read) => self.inbox.extend_from_slice(&bytes[..read]),
                Err(error) => return Err(broken(&error)),
            }
        }
    }

    /// Receives everything until the server closes the connection.
    ///
    /// # Errors
    /// If the connection broke or stayed silent for 30 seconds.
    pub(super) fn receive_to_end(mut self) -> Result<Vec<u8>, BenchError> {
        self.stream.read_to_end(&mut self.inbox).map_err(|error| broken(&error))?;
        Ok(self.inbox)
    }

    /// The stream, and received bytes that were not consumed.
    pub(super) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.inbox)
    }
}

fn broken(error: &std::io::Error) -> BenchError {
    BenchError::Broken(format!("a connection broke: {}", io_error_text(error)))
}
