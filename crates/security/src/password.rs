//! Password hashes: argon2id for new users, and the forms that password files of mosquitto contain.
//!
//! A hash is text in the form of its origin, parsed once. Costs are bounded when a hash is parsed, so that no stored
//! hash makes a log-in take unbounded time or memory.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

use crate::error::SecurityError;

/// Longest password, bytes. Longer ones never match.
pub const MAX_PASSWORD_BYTES: usize = 4096;

/// Length of the salts that [`PasswordHash::derive`] takes, bytes.
pub const SALT_BYTES: usize = 16;

/// Memory of a new argon2id hash, KiB.
const ARGON2_MEMORY_KIB: u32 = 19 * 1024;
/// Passes of a new argon2id hash over its memory.
const ARGON2_PASSES: u32 = 2;
/// Length of a new hash, bytes.
const HASH_BYTES: usize = 32;
/// Limits of stored hashes.
const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1024;
const ARGON2_PASSES_MAX: u32 = 32;
const ARGON2_LANES_MAX: u32 = 16;
const PBKDF2_ITERATIONS_MAX: u32 = 1_000_000;
/// Longest salt and longest hash, bytes.
const FIELD_BYTES_MAX: usize = 128;

/// A stored password hash.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    kind: Kind,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// `$argon2id$v=19$m=…,t=…,p=…$salt$hash` (PHC string format).
    Argon2 { algorithm: Algorithm, params: Params },
    /// `$7$iterations$salt$hash` of mosquitto 2: PBKDF2 with SHA-512.
    Pbkdf2Sha512 { iterations: u32 },
    /// `$6$salt$hash` of older mosquitto: one SHA-512 over password and salt.
    Sha512,
}

/// Shows neither salt nor hash.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl PasswordHash {
    /// Hashes a password with argon2id. Takes tens of milliseconds and 19 MiB of memory.
    ///
    /// # Errors
    /// The password is empty or longer than [`MAX_PASSWORD_BYTES`].
    pub fn derive(password: &[u8], salt: [u8; SALT_BYTES]) -> Result<Self, SecurityError> {
        check_password(password)?;
        let params = Params::new(ARGON2_MEMORY_KIB, ARGON2_PASSES, 1, Some(HASH_BYTES))
            .expect("the parameters are valid");
        let kind = Kind::Argon2 { algorithm: Algorithm::Argon2id, params };
        let hash = compute(&kind, password, &salt, HASH_BYTES);
        Ok(Self { kind, salt: salt.to_vec(), hash: hash.expect("the parameters are valid") })
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// The form is unknown, or a parameter exceeds its limit.
    pub fn parse(text: &str) -> Result<Self, SecurityError> {
        let mut fields = text.split('$');
        if fields.next() != Some("") {
            return Err(SecurityError::PasswordHash("does not begin with $"));
        }
        let parsed = match fields.next() {
            Some("7") => parse_pbkdf2(&mut fields),
            Some("6") => parse_sha512(&mut fields),
            Some("argon2id") => parse_argon2(Algorithm::Argon2id, &mut fields),
            Some("argon2i") => parse_argon2(Algorithm::Argon2i, &mut fields),
            Some("argon2d") => parse_argon2(Algorithm::Argon2d, &mut fields),
            _ => {
                return Err(SecurityError::PasswordHash(
                    "is of an unknown kind; known are argon2, $7$ and $6$",
                ));
            }
        }?;
        if fields.next().is_some() {
            return Err(SecurityError::PasswordHash("has too many fields"));
        }
        Ok(parsed)
    }

    /// Whether this is the hash of `password`. Takes as long as [`Self::derive`]; the comparison takes constant time.
    pub fn verify(&self, password: &[u8]) -> bool {
        // A password that is too long costs as much as one that is wrong.
        let is_possible = check_password(password).is_ok();
        let password = if is_possible { password } else { &[] };
        let computed = compute(&self.kind, password, &self.salt, self.hash.len());
        computed.is_some_and(|computed| bool::from(computed.ct_eq(&self.hash))) && is_possible
    }
}

/// The text form that [`PasswordHash::parse`] reads.
impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (salt, hash) = (&self.salt, &self.hash);
        match &self.kind {
            Kind::Argon2 { algorithm, params } => {
                let (memory, passes, lanes) = (params.m_cost(), params.t_cost(), params.p_cost());
                let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
                write!(f, "${}$v=19$m={memory},t={passes},p={lanes}${salt}${hash}", algorithm.as_str())
            }
            Kind::Pbkdf2Sha512 { iterations } => {
                write!(f, "$7${iterations}${}${}", STANDARD.encode(salt), STANDARD.encode(hash))
            }
            Kind::Sha512 => write!(f, "$6${}${}", STANDARD.encode(salt), STANDARD.encode(hash)),
        }
    }
}

pub(crate) fn check_password(password: &[u8]) -> Result<(), SecurityError> {
    if password.is_empty() {
        Err(SecurityError::Password("is empty"))
    } else if password.len() > MAX_PASSWORD_BYTES {
        Err(SecurityError::Password("is longer than 4096 bytes"))
    } else {
        Ok(())
    }
}

fn compute(kind: &Kind, password: &[u8], salt: &[u8], len: usize) -> Option<Vec<u8>> {
    match kind {
        Kind::Argon2 { algorithm, params } => {
            let mut hash = vec![0; len];
            let argon2 = Argon2::new(*algorithm, Version::V0x13, params.clone());
            argon2.hash_password_into(password, salt, &mut hash).ok()?;
            Some(hash)
        }
        Kind::Pbkdf2Sha512 { iterations } => {
            let mut hash = vec![0; len];
            pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, *iterations, &mut hash);
            Some(hash)
        }
        Kind::Sha512 => Some(Sha512::new().chain_update(password).chain_update(salt).finalize().to_vec()),
    }
}

type Fields<'a, 'b> = &'a mut std::str::Split<'b, char>;

fn parse_pbkdf2(fields: Fields<'_, '_>) -> Result<PasswordHash, SecurityError> {
    let iterations = fields.next().and_then(|field| field.parse().ok());
    let iterations = iterations
        .filter(|iterations| (1..=PBKDF2_ITERATIONS_MAX).contains(iterations))
        .ok_or(SecurityError::PasswordHash("has a number of iterations that is not from 1 to 1000000"))?;
    let (salt, hash) = (decode(fields.next())?, decode(fields.next())?);
    Ok(PasswordHash { kind: Kind::Pbkdf2Sha512 { iterations }, salt, hash })
}

fn parse_sha512(fields: Fields<'_, '_>) -> Result<PasswordHash, SecurityError> {
    let (salt, hash) = (decode(fields.next())?, decode(fields.next())?);
    if hash.len() != 64 {
        return Err(SecurityError::PasswordHash("has a SHA-512 hash that is not 64 bytes long"));
    }
    Ok(PasswordHash { kind: Kind::Sha512, salt, hash })
}

fn parse_argon2(algorithm: Algorithm, fields: Fields<'_, '_>) -> Result<PasswordHash, SecurityError> {
    const PARAMETERS: SecurityError = SecurityError::PasswordHash("has invalid parameters of argon2");
    if fields.next() != Some("v=19") {
        return Err(SecurityError::PasswordHash("is of a version of argon2 other than 19"));
    }
    let mut costs = [None; 3];
    for pair in fields.next().ok_or(PARAMETERS)?.split(',') {
        let (name, value) = pair.split_once('=').ok_or(PARAMETERS)?;
        let at = ["m", "t", "p"].iter().position(|known| *known == name).ok_or(PARAMETERS)?;
        costs[at] = Some(value.parse::<u32>().map_err(|_| PARAMETERS)?);
    }
    let [Some(memory), Some(passes), Some(lanes)] = costs else { return Err(PARAMETERS) };
    if memory > ARGON2_MEMORY_KIB_MAX || passes > ARGON2_PASSES_MAX || lanes > ARGON2_LANES_MAX {
        return Err(SecurityError::PasswordHash("costs more than m=262144,t=32,p=16 of argon2"));
    }
    let (salt, hash) = (decode(fields.next())?, decode(fields.next())?);
    let params = Params::new(memory, passes, lanes, Some(hash.len())).map_err(|_| PARAMETERS)?;
    if salt.len() < argon2::MIN_SALT_LEN {
        return Err(SecurityError::PasswordHash("has a salt that is too short"));
    }
    Ok(PasswordHash { kind: Kind::Argon2 { algorithm, params }, salt, hash })
}

/// Decodes base64 with or without padding.
fn decode(field: Option<&str>) -> Result<Vec<u8>, SecurityError> {
    let field = field.ok_or(SecurityError::PasswordHash("has too few fields"))?;
    let bytes = STANDARD_NO_PAD.decode(field.trim_end_matches('='));
    let bytes = bytes.map_err(|_| SecurityError::PasswordHash("has a field that is not base64"))?;
    if bytes.is_empty() || bytes.len() > FIELD_BYTES_MAX {
        return Err(SecurityError::PasswordHash("has a field that is empty or too long"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_hash_matches_its_password_only() {
        let hash = PasswordHash::derive(b"secret", [7; SALT_BYTES]).unwrap();
        assert!(hash.verify(b"secret"));
        assert!(!hash.verify(b"secres"));
        assert!(!hash.verify(b""));
        let text = hash.to_string();
        assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
        assert_eq!(PasswordHash::parse(&text).unwrap(), hash);
    }

    // As `mosquitto_passwd` writes them; the bytes were computed with Python's hashlib.
    #[test]
    fn hashes_of_mosquitto_are_read() {
        let pbkdf2 = "$7$101$c2FsdHNhbHRzYWx0$Hd71hnNoKcARd6Fkl1rUE+opfs3V78ZJB2AgXXC1kaKQ\
            iWfi5S5qX7D1mY5b+bIzvyidWMnS8VA+YAsAygq9EA==";
        let sha512 = "$6$c2FsdHNhbHRzYWx0$3aiBbchfIZo+1WYrkPzJjQxZ79F/NmwLQ+wF073kTd+6\
            ANhaic8G/jWF/X4sqSFUKpLNdm1FZjBck6HQ8knM3A==";
        for text in [pbkdf2, sha512] {
            let hash = PasswordHash::parse(text).unwrap();
            assert_eq!(hash.to_string(), text);
            assert!(hash.verify(b"secret"), "{text}");
            assert!(!hash.verify(b"Secret"), "{text}");
        }
    }

    #[test]
    fn hashes_beyond_the_limits_are_rejected() {
        for text in [
            "",
            "secret",
            "$1$abc$def",
            "$7$0$YWJj$YWJj",
            "$7$1000001$YWJj$YWJj",
            "$7$101$YWJj",
            "$7$101$YWJj$YWJj$YWJj",
            "$6$YWJj$YWJj",
            "$6$YWJj$!",
            "$argon2id$v=16$m=8,t=1,p=1$YWJjZGVmZ2g$YWJjZGVmZ2g",
            "$argon2id$v=19$m=262145,t=1,p=1$YWJjZGVmZ2g$YWJjZGVmZ2g",
            "$argon2id$v=19$m=8,t=33,p=1$YWJjZGVmZ2g$YWJjZGVmZ2g",
            "$argon2id$v=19$m=8,t=1$YWJjZGVmZ2g$YWJjZGVmZ2g",
            "$argon2id$v=19$m=8,t=1,p=1$YWJj$YWJjZGVmZ2g",
        ] {
            assert!(matches!(PasswordHash::parse(text), Err(SecurityError::PasswordHash(_))), "{text}");
        }
        assert!(PasswordHash::derive(&[b'x'; MAX_PASSWORD_BYTES + 1], [0; SALT_BYTES]).is_err());
        assert!(PasswordHash::derive(b"", [0; SALT_BYTES]).is_err());
    }

    #[test]
    fn secrets_do_not_show() {
        let hash = PasswordHash::parse("$7$101$c2FsdHNhbHRzYWx0$YWJjZGVm").unwrap();
        assert!(!format!("{hash:?}").contains("YWJj"));
    }
}
