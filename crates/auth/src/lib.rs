//! Users and rules at run time: the log that stores them, the threads that verify log-ins, the audit log.
//!
//! [`Host`] implements the interface of [`mainstem_security`] for all protocols. Threads of its own do what would stall
//! a shard: "security" writes changes to the log, "log-in-N" hash passwords, "audit" writes the audit log.
//!
//! # What this crate must never know
//! Protocols, connections, shards. How a store of logs stores bytes.
//!
//! # Entry points
//! [`Host::open`].
//!
//! # Invariants
//! - A change is durable before it is published, and published before it is answered.
//! - Log-ins that wait, limits that are counted and lines of the audit log that wait are bounded.
//! - An unknown user costs what a known one costs, and gets the same answer.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `host.rs` | [`Host`]: the interface for protocols |
//! | `writer.rs` | the owner of the log |
//! | `log_ins.rs` | deciding log-ins |
//! | `providers.rs` | where users come from besides the user store, and in which order |
//! | `certificate.rs` | users of client certificates |
//! | `service.rs` | what services have in common that decide log-ins: threads, kept answers, pauses |
//! | `hook.rs` | an HTTP service that decides log-ins |
//! | `ldap/` | a directory that decides log-ins: deciding one; filters, names, messages and a connection |
//! | `http_client.rs` | a client of one HTTP service |
//! | `authorities.rs` | the authorities that certificates of services must come from |
//! | `jwt/` | tokens: their keys, and how these change; verifying one token, and what its claims say |
//! | `reply.rs` | a reply that two may give |
//! | `verifier.rs` | the threads that hash passwords |
//! | `failures.rs` | failed log-ins by address and user |
//! | `verified.rs` | credentials that were verified a short time ago |
//! | `audit.rs` | the audit log |
//! | `changes.rs` | its lines about changes |
//! | `clock.rs` | the time of day |

mod audit;
mod authorities;
mod certificate;
mod changes;
mod clock;
mod failures;
mod hook;
mod host;
mod http_client;
mod jwt;
mod ldap;
mod log_ins;
mod providers;
mod reply;
mod service;
mod verified;
mod verifier;
mod writer;

pub use certificate::{CertificateName, CertificateUsers, WithPassword};
pub use hook::{Hook, HookSettings};
pub use host::{Host, Limits, OpenError};
pub use jwt::{TokenRules, TokenSettings, Tokens};
pub use ldap::{GroupSettings, Ldap, LdapSettings, Scope, UserEntry};
pub use providers::{LogInService, Providers};
pub use service::ServiceLimits;
pub use writer::ConfiguredUsers;
