//! One question at a time on a connection: what comes before the load, and beside it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::BenchError;
use crate::net::lower;

/// Longest wait for an answer.
const WAIT_MAX: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 16 * 1024;

/// A connection on which one waits for answers.
#[derive(Debug)]
pub(super) struct Dialogue {
    stream: TcpStream,
    /// What has come and was not looked at.
    inbox: Vec<u8>,
}

impl Dialogue {
    /// Connects.
    ///
    /// # Errors
    /// If that does not work.
    pub(super) fn open(server: SocketAddr) -> Result<Self, BenchError> {
        let failed = |error| BenchError::Open(format!("cannot connect to {server}: {}", lower(&error)));
        let stream = TcpStream::connect(server).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(WAIT_MAX)).map_err(failed)?;
        Ok(Self { stream, inbox: Vec::new() })
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// If the connection broke.
    pub(super) fn say(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(bytes).map_err(|error| broken(&error))
    }

    /// Waits until `take` makes something of the bytes that have come, of which it says how many those were.
    ///
    /// # Errors
    /// Those of `take`, or if the connection broke or nothing came for half a minute.
    pub(super) fn hear<T>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<Option<(usize, T)>, BenchError>,
    ) -> Result<T, BenchError> {
        loop {
            if let Some((taken, value)) = take(&self.inbox)? {
                self.inbox.drain(..taken);
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

    /// Waits until the server has closed the connection. Everything that came.
    ///
    /// # Errors
    /// If the connection broke or nothing came for half a minute.
    pub(super) fn hear_all(mut self) -> Result<Vec<u8>, BenchError> {
        self.stream.read_to_end(&mut self.inbox).map_err(|error| broken(&error))?;
        Ok(self.inbox)
    }

    /// The bare connection, and what has come on it.
    pub(super) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.inbox)
    }
}

fn broken(error: &std::io::Error) -> BenchError {
    BenchError::Broken(format!("a connection broke: {}", lower(error)))
}
