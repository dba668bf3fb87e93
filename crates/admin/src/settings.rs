//! Limits of the HTTP server.

use std::time::Duration;

/// Limits of the server.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Largest request body, in bytes. All bodies in memory together take at most eight times as much.
    pub body_bytes_max: usize,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Longest time for the head of a request to arrive, counted from the previous response; for a body to arrive; and
    /// for a client to read nothing of a response.
    pub io_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { body_bytes_max: 8 * 1024 * 1024, connections_max: 256, io_timeout: Duration::from_secs(30) }
    }
}
