//! Whether a Kafka broker answers: an open port is not enough, since some open theirs long before.

use super::server::Server;
use crate::Outcome;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(2);
/// Metadata, version 1, correlation id 1, no client id, of no topic.
const REQUEST: [u8; 18] = [0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 0xFF, 0xFF, 0, 0, 0, 0];

/// Waits until the broker names itself in its metadata.
///
/// # Errors
/// If it ends, or does not in a minute.
pub(super) fn await_metadata(server: &mut Server) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    while !names_itself(server.port).unwrap_or(false) {
        if let Some(status) = server.exited()? {
            return Err(format!("it ended at once: {status}"));
        }
        if Instant::now() > deadline {
            return Err("it accepts connections and answers none".to_owned());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Whether there is a broker in its metadata. Refused and broken connections are answers to come.
fn names_itself(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&REQUEST)?;
    // Length, correlation id, number of brokers.
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    Ok(answer[8..] != [0; 4])
}
