//! The log-in of a connection by SASL (KIP-43, KIP-152, KIP-368): how far it is, and which requests it permits.
//!
//! ```text
//!                 SaslHandshake              last token
//! Required ──────────────────► Exchanging ─────────────► LoggedIn ──┐
//!                                   │  ▲                            │ SaslHandshake, if sessions end
//!                                   ▼  └────────────────────────────┘
//!                                Failed: answered after a delay, then closed
//! ```
//!
//! Before the log-in, a connection may send small requests of three APIs only, so that nobody without a password makes
//! the broker work or hold memory.

use std::sync::Arc;

use mainstem_kafka::api::api_versions::ApiVersionsRequest;
use mainstem_kafka::api::sasl_authenticate::SaslAuthenticateRequest;
use mainstem_kafka::api::sasl_handshake::SaslHandshakeRequest;
use mainstem_kafka::{ErrorCode, Request};
use mainstem_sasl::{Exchange, Mechanism, NONCE_BYTES};
use mainstem_security::Identity;

use crate::shard_message::{Caller, RequestContext};

/// Name of the protocol in the audit log.
pub(crate) const PROTOCOL: &str = "kafka";
/// Largest request of a connection that has not logged in, bytes.
pub(crate) const LOG_IN_FRAME_BYTES_MAX: usize = 32 * 1_024;
/// Shortest time between two log-ins of a connection, ms, as in Kafka.
const RELOG_IN_INTERVAL_MS: u64 = 1_000;

/// How far the log-in of a connection is.
#[derive(Debug, Default)]
pub(crate) enum LogIn {
    /// The listener accepts connections without a user.
    #[default]
    NotRequired,
    /// No mechanism has been chosen yet.
    Required {
        /// When the connection was opened, ms.
        since_ms: u64,
    },
    /// Messages of the mechanism are being exchanged.
    Exchanging(Box<Exchanging>),
    /// The connection has a user.
    LoggedIn(Arc<Session>),
    /// The log-in has failed. The connection will be closed.
    Failed,
}

/// A log-in in progress.
#[derive(Debug)]
pub(crate) struct Exchanging {
    since_ms: u64,
    pub(crate) mechanism: Mechanism,
    pub(crate) exchange: Exchange,
    /// Whether tokens arrive as bare frames, after version 0 of the handshake.
    has_bare_tokens: bool,
    /// Who logs in with keys that the broker has, once that is known.
    pub(crate) user: Option<Arc<str>>,
    /// Who logs in with a password, once it has been checked.
    pub(crate) identity: Option<Identity>,
    /// The session that is being continued.
    pub(crate) earlier: Option<Arc<Session>>,
    /// The token whose check continues on another thread.
    pub(crate) waiting: Option<TokenReply>,
}

/// Who a connection is.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) identity: Identity,
    /// How it has logged in; `None` if its certificate says all of it.
    pub(crate) mechanism: Option<Mechanism>,
    /// When the user logged in, ms.
    pub(crate) since_ms: u64,
    /// When the session ends, unless the client logs in again, ms.
    pub(crate) until_ms: Option<u64>,
}

/// How to answer a token.
#[derive(Debug)]
pub(crate) enum TokenReply {
    /// With a bare frame.
    Frame(Caller),
    /// With a response to `SaslAuthenticate`.
    Response(RequestContext),
}

impl TokenReply {
    pub(crate) fn caller(&self) -> Caller {
        match self {
            Self::Frame(caller) => *caller,
            Self::Response(call) => call.caller,
        }
    }
}

/// Why a handshake is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandshakeError {
    pub(crate) code: ErrorCode,
    /// Whether the connection ends.
    pub(crate) is_fatal: bool,
}

impl LogIn {
    /// The log-in of a new connection of a listener that offers these mechanisms.
    pub(crate) fn of_listener(mechanisms: &[Mechanism], now_ms: u64) -> Self {
        if mechanisms.is_empty() { Self::NotRequired } else { Self::Required { since_ms: now_ms } }
    }

    /// Whether the connection may send all requests.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self, Self::NotRequired | Self::LoggedIn(_))
    }

    /// Whether it has failed: what else arrives is discarded.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self, Self::Failed)
    }

    /// Whether the next frame is a token.
    pub(crate) fn expects_bare_token(&self) -> bool {
        matches!(self, Self::Exchanging(exchanging) if exchanging.has_bare_tokens)
    }

    /// The session, if there is one.
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::LoggedIn(session) => Some(session),
            _ => None,
        }
    }

    /// Whether a connection has not logged in for `timeout_ms`.
    pub(crate) fn is_overdue(&self, now_ms: u64, timeout_ms: u64) -> bool {
        let since_ms = match self {
            Self::Required { since_ms } => *since_ms,
            Self::Exchanging(exchanging) => exchanging.since_ms,
            Self::NotRequired | Self::LoggedIn(_) | Self::Failed => return false,
        };
        now_ms.saturating_sub(since_ms) >= timeout_ms
    }

    /// Checks whether a request may begin now.
    ///
    /// # Errors
    /// It may not, and the connection must be closed: why.
    pub(crate) fn check(&self, api_key: i16, now_ms: u64) -> Result<(), &'static str> {
        let is_handshake = api_key == SaslHandshakeRequest::KEY;
        match self {
            Self::NotRequired => Ok(()),
            Self::LoggedIn(session) => match session.until_ms {
                Some(until_ms) if now_ms >= until_ms && !is_handshake => Err(
                    "its session has ended, and it has not logged in again (kafka.connections_max_reauth_ms)",
                ),
                _ => Ok(()),
            },
            Self::Required { .. } if is_handshake || api_key == ApiVersionsRequest::KEY => Ok(()),
            Self::Required { .. } => {
                Err("a request before the log-in, which the listener requires (kafka.sasl)")
            }
            // A second handshake is answered with an error.
            Self::Exchanging(_) if is_handshake || api_key == SaslAuthenticateRequest::KEY => Ok(()),
            Self::Exchanging(_) => Err("a request during its log-in"),
            Self::Failed => Err("its log-in has failed"),
        }
    }

    /// Chooses a mechanism. `offered`: those of the listener.
    ///
    /// # Errors
    /// The mechanism is not offered, or the connection may not choose one now.
    pub(crate) fn choose(
        &mut self,
        mechanism: Option<Mechanism>,
        has_bare_tokens: bool,
        nonce: [u8; NONCE_BYTES],
        now_ms: u64,
    ) -> Result<(), HandshakeError> {
        const STATE: ErrorCode = ErrorCode::IllegalSaslState;
        let earlier = match self {
            Self::Required { .. } => None,
            Self::LoggedIn(session) if session.may_log_in_again(now_ms) => Some(Arc::clone(session)),
            Self::NotRequired | Self::LoggedIn(_) => {
                return Err(HandshakeError { code: STATE, is_fatal: false });
            }
            Self::Exchanging(_) | Self::Failed => return Err(HandshakeError { code: STATE, is_fatal: true }),
        };
        let Some(mechanism) = mechanism else {
            return Err(HandshakeError { code: ErrorCode::UnsupportedSaslMechanism, is_fatal: true });
        };
        let since_ms = match self {
            Self::Required { since_ms } => *since_ms,
            _ => now_ms,
        };
        let exchange = Exchange::new(mechanism, nonce);
        *self = Self::Exchanging(Box::new(Exchanging {
            since_ms,
            mechanism,
            exchange,
            has_bare_tokens,
            user: None,
            identity: None,
            earlier,
            waiting: None,
        }));
        Ok(())
    }
}

impl Session {
    /// A client logs in again only if its session ends, and not all the time.
    fn may_log_in_again(&self, now_ms: u64) -> bool {
        self.until_ms.is_some() && now_ms.saturating_sub(self.since_ms) >= RELOG_IN_INTERVAL_MS
    }
}

impl Exchanging {
    /// Checks that a session is continued by the same user with the same mechanism (KIP-368).
    pub(crate) fn continues(&self, user: &str) -> bool {
        self.earlier.as_ref().is_none_or(|earlier| {
            let is_same_user = earlier.identity.user().is_some_and(|earlier| **earlier == *user);
            is_same_user && earlier.mechanism == Some(self.mechanism)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: i16 = 3;
    const HANDSHAKE: i16 = SaslHandshakeRequest::KEY;
    const AUTHENTICATE: i16 = SaslAuthenticateRequest::KEY;
    const API_VERSIONS: i16 = ApiVersionsRequest::KEY;
    const NONCE: [u8; NONCE_BYTES] = [0; NONCE_BYTES];

    fn permits(log_in: &LogIn, now_ms: u64) -> Vec<i16> {
        let keys = [METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE];
        keys.into_iter().filter(|key| log_in.check(*key, now_ms).is_ok()).collect()
    }

    fn logged_in(until_ms: Option<u64>) -> LogIn {
        LogIn::LoggedIn(Arc::new(Session {
            identity: Identity::of_user(&"alice".into()),
            mechanism: Some(Mechanism::Plain),
            since_ms: 1_000,
            until_ms,
        }))
    }

    fn choose(log_in: &mut LogIn, now_ms: u64) -> Result<(), HandshakeError> {
        log_in.choose(Some(Mechanism::Plain), false, NONCE, now_ms)
    }

    #[test]
    fn each_state_permits_its_requests() {
        let everything = [METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE];
        assert_eq!(permits(&LogIn::NotRequired, 0), everything);
        let mut log_in = LogIn::of_listener(&[Mechanism::Plain], 100);
        assert_eq!(permits(&log_in, 0), [HANDSHAKE, API_VERSIONS]);
        choose(&mut log_in, 200).unwrap();
        assert_eq!(permits(&log_in, 0), [HANDSHAKE, AUTHENTICATE]);
        assert!(!log_in.is_overdue(599, 500) && log_in.is_overdue(600, 500), "since it was opened");
        let illegal = HandshakeError { code: ErrorCode::IllegalSaslState, is_fatal: true };
        assert_eq!(choose(&mut log_in, 200), Err(illegal));
        assert_eq!(permits(&LogIn::Failed, 0), [0_i16; 0]);
        assert_eq!(permits(&logged_in(None), u64::MAX), everything);
        assert_eq!(permits(&logged_in(Some(5_000)), 4_999), everything);
        assert_eq!(permits(&logged_in(Some(5_000)), 5_000), [HANDSHAKE]);
    }

    #[test]
    fn a_session_that_ends_is_continued_by_the_same_user() {
        let illegal = HandshakeError { code: ErrorCode::IllegalSaslState, is_fatal: false };
        assert_eq!(choose(&mut LogIn::NotRequired, 9_000), Err(illegal));
        assert_eq!(choose(&mut logged_in(None), 9_000), Err(illegal));
        assert_eq!(choose(&mut logged_in(Some(5_000)), 1_999), Err(illegal), "too early");
        let mut log_in = logged_in(Some(5_000));
        choose(&mut log_in, 2_000).unwrap();
        assert!(!log_in.is_overdue(2_100, 500));
        let LogIn::Exchanging(exchanging) = &log_in else { panic!("{log_in:?}") };
        assert!(exchanging.continues("alice") && !exchanging.continues("bob"));
        let mut log_in = logged_in(Some(5_000));
        log_in.choose(Some(Mechanism::ScramSha256), false, NONCE, 2_000).unwrap();
        let LogIn::Exchanging(exchanging) = &log_in else { panic!("{log_in:?}") };
        assert!(!exchanging.continues("alice"), "another mechanism");
    }
}
