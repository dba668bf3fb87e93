//! The exchange of an enhanced authentication (4.12), as a connection keeps it.

use std::fmt;
use std::sync::Arc;

use mainstem_sasl::{Exchange, Mechanism, NONCE_BYTES, Step};
use mainstem_security::ScramKeys;

/// The methods that are offered if there are users.
const METHODS: [Mechanism; 2] = [Mechanism::ScramSha256, Mechanism::ScramSha512];

/// The method of this name, if it is offered.
pub(crate) fn method(name: &str) -> Option<Mechanism> {
    Mechanism::from_name(name).filter(|method| METHODS.contains(method))
}

/// An exchange, and what is kept of it while the client is connected.
pub(crate) struct Authentication {
    method: Mechanism,
    /// `None` after its end.
    exchange: Option<Exchange>,
    /// Who authenticates, once that is known.
    user: Option<Arc<str>>,
    /// The CONNECT that waits for the end of the exchange.
    connect: Vec<u8>,
    /// The server's last message, for CONNACK.
    last_message: Vec<u8>,
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authentication").field("method", &self.method).finish_non_exhaustive()
    }
}

impl Authentication {
    /// Begins the exchange of a CONNECT. `None` if the operating system has no random numbers.
    pub(crate) fn new(method: Mechanism, connect: &[u8]) -> Option<Self> {
        let exchange = Some(Exchange::new(method, nonce()?));
        Some(Self { method, exchange, user: None, connect: connect.to_vec(), last_message: Vec::new() })
    }

    /// Begins another exchange. False if the operating system has no random numbers.
    pub(crate) fn restart(&mut self) -> bool {
        self.user = None;
        self.exchange = nonce().map(|nonce| Exchange::new(self.method, nonce));
        self.exchange.is_some()
    }

    pub(crate) fn method(&self) -> Mechanism {
        self.method
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub(crate) fn connect(&self) -> &[u8] {
        &self.connect
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.exchange.is_none()
    }

    /// Takes a message of the client.
    pub(crate) fn receive(&mut self, message: &[u8]) -> Step {
        let ended = Step::Failure(mainstem_sasl::Failure::Unexpected);
        self.exchange.as_mut().map_or(ended, |exchange| exchange.receive(message))
    }

    /// The keys of a user have been looked up.
    pub(crate) fn keys_found(&mut self, user: &str, keys: Option<ScramKeys>, shown: ScramKeys) -> Step {
        self.user = Some(user.into());
        let ended = Step::Failure(mainstem_sasl::Failure::Unexpected);
        self.exchange.as_mut().map_or(ended, |exchange| exchange.keys_found(keys, shown))
    }

    /// The client has proven who it is.
    pub(crate) fn end(&mut self, last_message: Vec<u8>) {
        self.exchange = None;
        self.last_message = last_message;
    }

    /// CONNECT has been handled. Returns the server's last message.
    pub(crate) fn take_last_message(&mut self) -> Vec<u8> {
        self.connect = Vec::new();
        std::mem::take(&mut self.last_message)
    }
}

fn nonce() -> Option<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).ok()?;
    Some(nonce)
}

#[cfg(test)]
mod tests {
    use mainstem_security::{ScramAlgorithm, SecurityState};

    use super::*;

    #[test]
    fn scram_alone_is_offered() {
        assert_eq!(method("SCRAM-SHA-256"), Some(Mechanism::ScramSha256));
        assert_eq!(method("SCRAM-SHA-512"), Some(Mechanism::ScramSha512));
        for name in ["PLAIN", "OAUTHBEARER", "scram-sha-256", "SCRAM-SHA-1", ""] {
            assert_eq!(method(name), None, "{name}");
        }
    }

    #[test]
    fn a_second_exchange_begins_after_the_first() {
        let mut authentication = Authentication::new(Mechanism::ScramSha256, b"CONNECT").unwrap();
        assert!(matches!(authentication.receive(b"n,,n=alice,r=abc"), Step::FindKeys { .. }));
        let (keys, shown) = SecurityState::default().scram_keys("alice", ScramAlgorithm::Sha256, b"secret");
        assert!(matches!(authentication.keys_found("alice", keys, shown), Step::Challenge(_)));
        assert_eq!(authentication.user(), Some("alice"));
        authentication.end(b"v=x".to_vec());
        assert!(authentication.has_ended());
        assert!(matches!(authentication.receive(b"n,,n=alice,r=abc"), Step::Failure(_)));
        assert_eq!(authentication.take_last_message(), b"v=x");
        assert!(authentication.restart() && !authentication.has_ended());
        assert!(matches!(authentication.receive(b"n,,n=alice,r=abc"), Step::FindKeys { .. }));
    }
}
