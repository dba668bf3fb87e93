//! Stored keys of SCRAM (RFC 5802, RFC 7677): what a server needs to verify a client without its password.
//!
//! The exchange of messages belongs to the protocols; this file has the computations.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

use crate::error::SecurityError;
use crate::password::check_password;

/// Iterations of the keys that are derived from a password here.
pub const SCRAM_ITERATIONS: u32 = 16_384;
/// Fewest iterations of stored keys, as in Kafka.
pub const SCRAM_ITERATIONS_MIN: u32 = 4096;
/// Most iterations of stored keys: clients pay for them at each log-in.
pub const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;

/// Longest salt of stored keys, bytes.
const SALT_BYTES_MAX: usize = 128;

/// The hash function of a SCRAM mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScramAlgorithm {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

/// Stored keys of a user for one mechanism.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    algorithm: ScramAlgorithm,
    salt: Vec<u8>,
    iterations: u32,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

/// Shows no keys.
impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramKeys")
            .field("algorithm", &self.algorithm)
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl ScramAlgorithm {
    /// Length of its keys, bytes.
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// The name of the SASL mechanism.
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// The `SaltedPassword` of RFC 5802. Takes milliseconds.
    pub fn salted_password(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut salted = vec![0; self.key_bytes()];
        match self {
            Self::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted),
            Self::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut salted),
        }
        salted
    }

    /// HMAC with this hash function.
    pub fn hmac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => {
                let mac = Hmac::<Sha256>::new_from_slice(key).expect("any length of the key is valid");
                mac.chain_update(message).finalize().into_bytes().to_vec()
            }
            Self::Sha512 => {
                let mac = Hmac::<Sha512>::new_from_slice(key).expect("any length of the key is valid");
                mac.chain_update(message).finalize().into_bytes().to_vec()
            }
        }
    }

    /// This hash function.
    pub fn hash(self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(message).to_vec(),
            Self::Sha512 => Sha512::digest(message).to_vec(),
        }
    }
}

impl ScramKeys {
    /// Derives the keys from a password. Takes milliseconds.
    ///
    /// # Errors
    /// The password is empty or too long, or as [`Self::from_salted_password`].
    pub fn derive(
        algorithm: ScramAlgorithm,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
    ) -> Result<Self, SecurityError> {
        check_password(password)?;
        check_parameters(salt, iterations)?;
        let salted = algorithm.salted_password(password, salt, iterations);
        Self::from_salted_password(algorithm, &salted, salt, iterations)
    }

    /// Derives the keys from a salted password, as clients of Kafka send it.
    ///
    /// # Errors
    /// The number of iterations or the salt exceeds its limits, or the salted password has the wrong length.
    pub fn from_salted_password(
        algorithm: ScramAlgorithm,
        salted_password: &[u8],
        salt: &[u8],
        iterations: u32,
    ) -> Result<Self, SecurityError> {
        if salted_password.len() != algorithm.key_bytes() {
            return Err(SecurityError::Scram("the salted password has the wrong length"));
        }
        let stored_key = algorithm.hash(&algorithm.hmac(salted_password, b"Client Key"));
        let server_key = algorithm.hmac(salted_password, b"Server Key");
        Self::from_keys(algorithm, salt, iterations, stored_key, server_key)
    }

    /// Keys as they are stored.
    ///
    /// # Errors
    /// The number of iterations or the salt exceeds its limits, or a key has the wrong length.
    pub fn from_keys(
        algorithm: ScramAlgorithm,
        salt: &[u8],
        iterations: u32,
        stored_key: Vec<u8>,
        server_key: Vec<u8>,
    ) -> Result<Self, SecurityError> {
        check_parameters(salt, iterations)?;
        if stored_key.len() != algorithm.key_bytes() || server_key.len() != algorithm.key_bytes() {
            return Err(SecurityError::Scram("a key has the wrong length"));
        }
        Ok(Self { algorithm, salt: salt.to_vec(), iterations, stored_key, server_key })
    }

    /// Whether `proof` proves that the client knows the password, given the `AuthMessage` of the exchange. Constant
    /// time.
    pub fn verify_proof(&self, auth_message: &[u8], proof: &[u8]) -> bool {
        let signature = self.algorithm.hmac(&self.stored_key, auth_message);
        if proof.len() != signature.len() {
            return false;
        }
        let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        self.algorithm.hash(&client_key).ct_eq(&self.stored_key).into()
    }

    /// The signature that proves to the client that the server knows its keys.
    pub fn server_signature(&self, auth_message: &[u8]) -> Vec<u8> {
        self.algorithm.hmac(&self.server_key, auth_message)
    }

    /// Whether these are the keys of `password`. Takes as long as [`Self::derive`].
    pub fn verify_password(&self, password: &[u8]) -> bool {
        let derived = Self::derive(self.algorithm, password, &self.salt, self.iterations);
        derived.is_ok_and(|derived| derived.stored_key.ct_eq(&self.stored_key).into())
    }

    /// The mechanism.
    pub fn algorithm(&self) -> ScramAlgorithm {
        self.algorithm
    }

    /// The salt.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The number of iterations.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The key that verifies clients.
    pub fn stored_key(&self) -> &[u8] {
        &self.stored_key
    }

    /// The key that signs for the server.
    pub fn server_key(&self) -> &[u8] {
        &self.server_key
    }
}

fn check_parameters(salt: &[u8], iterations: u32) -> Result<(), SecurityError> {
    if !(SCRAM_ITERATIONS_MIN..=SCRAM_ITERATIONS_MAX).contains(&iterations) {
        return Err(SecurityError::Scram("the number of iterations is not from 4096 to 1000000"));
    }
    if salt.is_empty() || salt.len() > SALT_BYTES_MAX {
        return Err(SecurityError::Scram("the salt is empty or longer than 128 bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// The exchange of RFC 7677, section 3.
    #[test]
    fn the_example_of_rfc_7677() {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let keys = ScramKeys::derive(ScramAlgorithm::Sha256, b"pencil", &salt, 4096).unwrap();
        let auth_message = "n=user,r=rOprNGfwEbeRWgbNEkqO,\
            r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,\
            c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let proof = STANDARD.decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").unwrap();
        assert!(keys.verify_proof(auth_message.as_bytes(), &proof));
        assert!(!keys.verify_proof(b"another exchange", &proof));
        assert!(!keys.verify_proof(auth_message.as_bytes(), &proof[..31]));
        let signature = STANDARD.encode(keys.server_signature(auth_message.as_bytes()));
        assert_eq!(signature, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn keys_match_their_password_only() {
        for algorithm in [ScramAlgorithm::Sha256, ScramAlgorithm::Sha512] {
            let keys = ScramKeys::derive(algorithm, b"secret", b"salt", SCRAM_ITERATIONS_MIN).unwrap();
            assert!(keys.verify_password(b"secret"));
            assert!(!keys.verify_password(b"Secret"));
            assert!(!keys.verify_password(b""));
        }
    }

    #[test]
    fn parameters_are_bounded() {
        let derive = |salt: &[u8], iterations| {
            ScramKeys::derive(ScramAlgorithm::Sha256, b"secret", salt, iterations).is_err()
        };
        assert!(derive(b"salt", 4095));
        assert!(derive(b"salt", 1_000_001));
        assert!(derive(b"", 4096));
        assert!(derive(&[0; 129], 4096));
    }
}
