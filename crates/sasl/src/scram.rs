//! The server side of SCRAM (RFC 5802, section 5):
//!
//! ```text
//! client-first ──► look up the keys ──► server-first ──► client-final ──► check the proof ──► server-final
//! ```
//!
//! An unknown user gets keys that no password matches, and fails at the proof, like a wrong password. These keys are
//! computed for every user, so that the time of the answer does not tell them apart.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use mainstem_security::{ScramAlgorithm, ScramKeys};

use crate::failure::Failure;
use crate::scram_message::{ClientFinal, ClientFirst};

/// An exchange whose keys are being looked up.
#[derive(Debug)]
pub(crate) struct Begun {
    algorithm: ScramAlgorithm,
    gs2_header: String,
    client_first_bare: String,
    user: String,
    /// The nonce of both sides.
    nonce: String,
}

impl Begun {
    /// Takes the first message. `server_nonce` is text without commas.
    pub(crate) fn first(
        algorithm: ScramAlgorithm,
        server_nonce: &str,
        token: &[u8],
    ) -> Result<Self, Failure> {
        let ClientFirst { gs2_header, bare, user, nonce } = ClientFirst::parse(token)?;
        let nonce = format!("{nonce}{server_nonce}");
        Ok(Self { algorithm, gs2_header: gs2_header.into(), client_first_bare: bare.into(), user, nonce })
    }

    /// The name of the user.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// The keys have been looked up. Returns the exchange that waits for the proof, and the server's first message.
    pub(crate) fn keys_found(self, found: Option<ScramKeys>, shown: ScramKeys) -> (Challenged, Vec<u8>) {
        let Self { algorithm, gs2_header, client_first_bare, user, nonce } = self;
        let found = found.filter(|keys| keys.algorithm() == algorithm);
        let is_known = found.is_some();
        let keys = found.unwrap_or(shown);
        let salt = BASE64.encode(keys.salt());
        let server_first = format!("r={nonce},s={salt},i={}", keys.iterations());
        let transcript = format!("{client_first_bare},{server_first},");
        (Challenged { gs2_header, user, nonce, transcript, keys, is_known }, server_first.into_bytes())
    }
}

/// An exchange that waits for the client's proof.
#[derive(Debug)]
pub(crate) struct Challenged {
    gs2_header: String,
    user: String,
    nonce: String,
    /// `AuthMessage` so far.
    transcript: String,
    keys: ScramKeys,
    is_known: bool,
}

impl Challenged {
    /// Checks the last message. Returns the name of the user and the server's last message.
    ///
    /// # Errors
    /// The message is malformed or of another exchange, or the proof is wrong.
    pub(crate) fn last(self, token: &[u8]) -> Result<(String, Vec<u8>), Failure> {
        let ClientFinal { channel_binding, nonce, without_proof, proof } = ClientFinal::parse(token)?;
        if channel_binding != self.gs2_header.as_bytes() {
            return Err(Failure::ChannelBinding);
        }
        let auth_message = self.transcript + without_proof;
        let is_proven = self.keys.verify_proof(auth_message.as_bytes(), &proof);
        if nonce != self.nonce || !is_proven || !self.is_known {
            return Err(Failure::Credentials);
        }
        let signature = BASE64.encode(self.keys.server_signature(auth_message.as_bytes()));
        Ok((self.user, format!("v={signature}").into_bytes()))
    }
}
