//! Settings of WebSocket on one listener.

use crate::origin::AllowedOrigin;

/// Settings of WebSocket on one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path of the URL, without a query.
    pub path: String,
    /// Subprotocols, preferred first. A client must offer one of them.
    pub subprotocols: Vec<String>,
    /// Origins of the web pages that may connect, beside pages of this server's own address.
    pub allowed_origins: Vec<AllowedOrigin>,
}
