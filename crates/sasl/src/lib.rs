//! The server side of SASL (RFC 4422): PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and
//! OAUTHBEARER, as state machines without IO.
//!
//! An exchange takes the client's messages and returns what to do next: send a message, or look something up in the
//! user store. The caller may do that at once or later. The framing of the messages, the delay of a refusal and the
//! limit of its rate belong to the protocol that carries the exchange.
//!
//! # What this crate must never know
//! Kafka, MQTT, sockets, clocks, where users are stored. Nonces are parameters.
//!
//! # Entry points
//! [`Exchange`].
//!
//! # Invariants
//! - The answers to an unknown user and to a wrong password are the same, from the first message to the last.
//! - Neither `Debug` nor an error shows a password.
//! - A message is refused by its size before it is parsed.
//!
//! # Names and passwords are not prepared
//! RFC 4616 and RFC 5802 ask both sides for SASLprep (RFC 4013). Kafka's clients and broker do not do it, and the
//! tools that set a password compute the keys from the password as it is. This crate takes names and passwords as
//! the client sends them: a server that prepared them would refuse the passwords of Kafka's clients, while a client
//! that prepares them itself sends a name that needs no more preparation.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `mechanism.rs` | the mechanisms and their names |
//! | `exchange.rs` | the exchange, which is one of the three below, and its steps |
//! | `failure.rs` | why a log-in fails |
//! | `bearer.rs` | OAUTHBEARER: its message, and the answer to a refused token |
//! | `plain.rs` | PLAIN: its only message |
//! | `scram.rs` | SCRAM: the exchange of four messages |
//! | `scram_message.rs` | SCRAM: parsing the client's messages |
//! | `password.rs` | a password in memory |

mod bearer;
mod exchange;
mod failure;
mod mechanism;
mod password;
mod plain;
mod scram;
mod scram_message;

pub use exchange::{Exchange, NONCE_BYTES, Step, TOKEN_BYTES_MAX};
pub use failure::Failure;
pub use mechanism::Mechanism;
pub use password::Password;
