//! Readiness of a Kafka broker. An open port is not enough, because some brokers open theirs long before they serve.

use super::server::Server;
use crate::Outcome;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(2);
/// Metadata request, version 1, correlation id 1, no client id, no topics.
const REQUEST: [u8; 18] = [0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 0xFF, 0xFF, 0, 0, 0, 0];

/// Waits until the broker lists itself in its metadata.
///
/// # Errors
/// If it exits, or is not ready within a minute.
pub(super) fn await_metadata(server: &mut Server) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    while !lists_a_broker(server.port).unwrap_or(false) {
        if let Some(status) = server.exited()? {
            return Err(format!("the broker exited: {status}"));
        }
        if Instant::now() > deadline {
            return Err("the broker accepts connections and does not respond".to_owned());
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Whether the metadata lists a broker. Refused and broken connections are errors, which mean not ready yet.
fn lists_a_broker(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&REQUEST)?;
    // Length, correlation id, number of brokers.
    let mut response = [0; 12];
    stream.read_exact(&mut response)?;
    Ok(response[8..] != [0; 4])
}
