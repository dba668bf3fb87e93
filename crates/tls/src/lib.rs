//! TLS 1.2 and 1.3 for listeners: certificates that reload, client certificates, and the layer between socket and
//! service.
//!
//! A listener has one [`Acceptor`]. It holds the current [`rustls::ServerConfig`], from which each accepted connection
//! gets a layer. Reloading replaces that configuration: connections that are open keep theirs, new ones get the new
//! one. Files that cannot be loaded leave the current configuration in place.
//!
//! # What this crate must never know
//! Protocols above TLS, users, sockets, clocks. It reads the files that its settings name.
//!
//! # Entry points
//! [`Acceptor::load`], [`Acceptor::reload`], [`Acceptor::layer`].
//!
//! # Invariants
//! - A layer holds at most one partial record or handshake message of its peer, and no output.
//! - Certificates, authorities and revocation lists change together or not at all.
//! - A change of them ends the resumption of earlier sessions: a resumed handshake checks no certificate.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `acceptor.rs` | the configuration of a listener, and its replacement |
//! | `settings.rs` | settings: files, client certificates, versions |
//! | `load.rs` | reads PEM files, and builds a configuration of them |
//! | `expiry.rs` | when certificates end |
//! | `by_name.rs` | the choice of a certificate by server name (SNI) |
//! | `layer.rs` | the layer of one connection |

mod acceptor;
mod by_name;
mod expiry;
mod layer;
mod load;
mod settings;

pub use acceptor::{Acceptor, Prepared, Reloaded};
pub use expiry::CertificateEnd;
pub use load::LoadError;
pub use settings::{CertificateFiles, ClientCertificates, MinVersion, Settings};
