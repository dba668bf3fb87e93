//! The exchange of one log-in: the client's messages in, steps out.
//!
//! ```text
//! PLAIN   token ──► CheckPassword ──password_checked──► Success │ Failure
//! BEARER  token ──► CheckToken ──token_checked──► Success │ Challenge ──^A──► Failure
//! SCRAM   token ──► FindKeys ──keys_found──► Challenge ──token──► Success │ Failure
//! ```
//!
//! An exchange ends with [`Step::Success`] or [`Step::Failure`]; anything after that fails.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use mainstem_security::{ScramAlgorithm, ScramKeys};

use crate::failure::{Failure, check_authorization};
use crate::mechanism::Mechanism;
use crate::password::Password;
use crate::{bearer, plain, scram};

/// Largest message of a client, bytes. All parts of a valid message together are shorter.
pub const TOKEN_BYTES_MAX: usize = 16 * 1_024;
/// Random bytes in the nonce of the server.
pub const NONCE_BYTES: usize = 24;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Look up the keys of the user and call [`Exchange::keys_found`].
    FindKeys {
        /// Name of the user, as the client sent it.
        user: String,
        /// Which of its keys.
        algorithm: ScramAlgorithm,
    },
    /// Check the password and call [`Exchange::password_checked`].
    CheckPassword {
        /// Name of the user, as the client sent it.
        user: String,
        /// The password.
        password: Password,
    },
    /// Check the token and call [`Exchange::token_checked`].
    CheckToken {
        /// The token.
        token: Password,
    },
    /// Send this, and wait for the client's next message.
    Challenge(Vec<u8>),
    /// The client is this user. Send the message with the outcome; it may be empty.
    Success {
        /// Name of the user.
        user: String,
        /// The last message of the server.
        message: Vec<u8>,
    },
    /// The log-in failed.
    Failure(Failure),
}

/// One log-in of a client.
#[derive(Debug)]
pub struct Exchange(State);

#[derive(Debug)]
enum State {
    Plain,
    CheckingPassword {
        user: String,
    },
    Bearer,
    CheckingToken {
        authorization: String,
    },
    /// The client has been told that its token is not valid.
    RefusedToken,
    Scram {
        algorithm: ScramAlgorithm,
        nonce: String,
    },
    FindingKeys(Box<scram::Begun>),
    AwaitingProof(Box<scram::Challenged>),
    Ended,
}

impl Exchange {
    /// Begins an exchange. The nonce must be unpredictable; SCRAM alone uses it.
    pub fn new(mechanism: Mechanism, nonce: [u8; NONCE_BYTES]) -> Self {
        Self(match mechanism.scram_algorithm() {
            None if mechanism == Mechanism::OauthBearer => State::Bearer,
            None => State::Plain,
            Some(algorithm) => State::Scram { algorithm, nonce: BASE64.encode(nonce) },
        })
    }

    /// Takes a message of the client.
    pub fn receive(&mut self, token: &[u8]) -> Step {
        let state = std::mem::replace(&mut self.0, State::Ended);
        if token.len() > TOKEN_BYTES_MAX {
            return Step::Failure(Failure::Malformed("the message is too long"));
        }
        let outcome = match state {
            State::Plain => plain::parse(token).map(|(user, password)| {
                self.0 = State::CheckingPassword { user: user.clone() };
                Step::CheckPassword { user, password }
            }),
            State::Bearer => bearer::parse(token).map(|(authorization, token)| {
                self.0 = State::CheckingToken { authorization };
                Step::CheckToken { token }
            }),
            State::RefusedToken if token == bearer::ACKNOWLEDGMENT => Err(Failure::Credentials),
            State::Scram { algorithm, nonce } => scram::Begun::first(algorithm, &nonce, token).map(|begun| {
                let user = begun.user().to_owned();
                self.0 = State::FindingKeys(Box::new(begun));
                Step::FindKeys { user, algorithm }
            }),
            State::AwaitingProof(challenged) => {
                challenged.last(token).map(|(user, message)| Step::Success { user, message })
            }
            State::CheckingPassword { .. }
            | State::CheckingToken { .. }
            | State::RefusedToken
            | State::FindingKeys(_)
            | State::Ended => Err(Failure::Unexpected),
        };
        outcome.unwrap_or_else(Step::Failure)
    }

    /// The answer to [`Step::FindKeys`]: `None` if there is no such user, it has no such keys, or may not log in.
    /// `shown` are the keys whose salt and iterations the client sees then: the log-in fails whatever it proves.
    pub fn keys_found(&mut self, found: Option<ScramKeys>, shown: ScramKeys) -> Step {
        match std::mem::replace(&mut self.0, State::Ended) {
            State::FindingKeys(begun) => {
                let (challenged, message) = begun.keys_found(found, shown);
                self.0 = State::AwaitingProof(Box::new(challenged));
                Step::Challenge(message)
            }
            _ => Step::Failure(Failure::Unexpected),
        }
    }

    /// The answer to [`Step::CheckToken`]: the user of the token, if it is valid.
    pub fn token_checked(&mut self, user: Option<&str>) -> Step {
        match (std::mem::replace(&mut self.0, State::Ended), user) {
            (State::CheckingToken { authorization }, Some(user)) => {
                match check_authorization(&authorization, user) {
                    Ok(()) => Step::Success { user: user.to_owned(), message: Vec::new() },
                    Err(failure) => Step::Failure(failure),
                }
            }
            (State::CheckingToken { .. }, None) => {
                self.0 = State::RefusedToken;
                Step::Challenge(bearer::REFUSAL.to_vec())
            }
            _ => Step::Failure(Failure::Unexpected),
        }
    }

    /// The answer to [`Step::CheckPassword`]: whether the user exists and has this password.
    pub fn password_checked(&mut self, is_right: bool) -> Step {
        match std::mem::replace(&mut self.0, State::Ended) {
            State::CheckingPassword { user } if is_right => Step::Success { user, message: Vec::new() },
            State::CheckingPassword { .. } => Step::Failure(Failure::Credentials),
            _ => Step::Failure(Failure::Unexpected),
        }
    }
}
