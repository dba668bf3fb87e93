//! Limits of the HTTP server.

use std::time::Duration;

/// Limits of the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names by which requests may address the server, in addition to IP addresses and `localhost`; `*` for any name.
    pub allowed_hosts: Vec<String>,
    /// Origins of the web pages that may use the API, such as `https://console.example.com`.
    pub allowed_origins: Vec<String>,
    /// Largest request body, in bytes. All bodies in memory together take at most eight times as much.
    pub body_bytes_max: usize,
    /// Maximum number of open connections. At the limit, a new connection closes the one that has been idle for
    /// longest.
    pub connections_max: usize,
    /// Longest time for the head of a request to arrive, from its first byte, or from the start of a connection; for a
    /// body to arrive; and for a client to read nothing of a response.
    pub request_timeout: Duration,
    /// Longest time between two requests of a connection.
    pub idle_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            body_bytes_max: 8 * 1024 * 1024,
            connections_max: 256,
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
        }
    }
}
