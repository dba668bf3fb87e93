//! Users: names, verifiers, roles.
//!
//! Each mechanism needs a verifier of its own, and none can be computed from another. All are derived when a password
//! is set, the only moment at which it is known, so that the user can log in by every protocol. The password itself is
//! not kept.

use std::sync::Arc;

use crate::error::SecurityError;
use crate::password::PasswordHash;
use crate::scram::{ScramAlgorithm, ScramKeys};

/// Longest name of a user or role, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Most roles of a user.
pub const MAX_ROLES: usize = 64;

/// A user and what verifies its log-ins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name; valid by [`check_user_name`].
    pub name: Arc<str>,
    /// Verifies passwords.
    pub password: Option<PasswordHash>,
    /// Verifies SCRAM-SHA-256.
    pub scram_sha_256: Option<ScramKeys>,
    /// Verifies SCRAM-SHA-512.
    pub scram_sha_512: Option<ScramKeys>,
    /// Roles, whose rules apply to the user.
    pub roles: Vec<Arc<str>>,
    /// A disabled user cannot log in.
    pub disabled: bool,
}

/// Salts of the verifiers of one password: random bytes.
#[derive(Clone, Copy)]
pub struct Salts(pub [[u8; crate::password::SALT_BYTES]; 3]);

impl User {
    /// A user without verifiers and roles.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(name: &str) -> Result<Self, SecurityError> {
        check_user_name(name)?;
        Ok(Self {
            name: name.into(),
            password: None,
            scram_sha_256: None,
            scram_sha_512: None,
            roles: Vec::new(),
            disabled: false,
        })
    }

    /// Derives all verifiers from a password. Takes tens of milliseconds.
    ///
    /// # Errors
    /// The password is empty or too long.
    pub fn set_password(&mut self, password: &[u8], salts: &Salts) -> Result<(), SecurityError> {
        let Salts([argon2, sha_256, sha_512]) = *salts;
        self.password = Some(PasswordHash::derive(password, argon2)?);
        let scram = |algorithm, salt: [u8; crate::password::SALT_BYTES]| {
            ScramKeys::derive(algorithm, password, &salt, crate::scram::SCRAM_ITERATIONS)
        };
        self.scram_sha_256 = Some(scram(ScramAlgorithm::Sha256, sha_256)?);
        self.scram_sha_512 = Some(scram(ScramAlgorithm::Sha512, sha_512)?);
        Ok(())
    }

    /// Its keys for a mechanism of SCRAM.
    pub fn scram(&self, algorithm: ScramAlgorithm) -> Option<&ScramKeys> {
        match algorithm {
            ScramAlgorithm::Sha256 => self.scram_sha_256.as_ref(),
            ScramAlgorithm::Sha512 => self.scram_sha_512.as_ref(),
        }
    }

    /// Replaces or removes its keys for a mechanism of SCRAM.
    pub fn set_scram(&mut self, algorithm: ScramAlgorithm, keys: Option<ScramKeys>) {
        match algorithm {
            ScramAlgorithm::Sha256 => self.scram_sha_256 = keys,
            ScramAlgorithm::Sha512 => self.scram_sha_512 = keys,
        }
    }

    /// Whether this is the user's password. Takes tens of milliseconds. A user with keys of SCRAM only is verified with
    /// those. The caller also checks [`Self::disabled`], after this, so that both cases take as long.
    pub fn verify_password(&self, password: &[u8]) -> bool {
        if let Some(hash) = &self.password {
            return hash.verify(password);
        }
        let keys = self.scram_sha_512.as_ref().or(self.scram_sha_256.as_ref());
        keys.is_some_and(|keys| keys.verify_password(password))
    }

    /// Whether both have the same verifiers.
    pub fn has_same_verifiers(&self, other: &Self) -> bool {
        (&self.password, &self.scram_sha_256, &self.scram_sha_512)
            == (&other.password, &other.scram_sha_256, &other.scram_sha_512)
    }

    /// Checks the fields that others have set.
    ///
    /// # Errors
    /// A name is invalid, or there are too many roles.
    pub fn check(&self) -> Result<(), SecurityError> {
        check_user_name(&self.name)?;
        if self.roles.len() > MAX_ROLES {
            return Err(SecurityError::Limit("a user has at most 64 roles"));
        }
        self.roles.iter().try_for_each(|role| check_name(role))
    }
}

/// Checks the name of a user. It has no colon, which ends the name in password files and in HTTP basic authentication.
///
/// # Errors
/// As [`check_name`], or it contains a colon.
pub fn check_user_name(name: &str) -> Result<(), SecurityError> {
    check_name(name)?;
    if name.contains(':') { Err(SecurityError::Name("contains a colon")) } else { Ok(()) }
}

/// Checks the name of a role.
///
/// # Errors
/// It is empty, longer than [`MAX_NAME_BYTES`], or contains control characters.
pub fn check_name(name: &str) -> Result<(), SecurityError> {
    if name.is_empty() {
        Err(SecurityError::Name("is empty"))
    } else if name.len() > MAX_NAME_BYTES {
        Err(SecurityError::Name("is longer than 255 bytes"))
    } else if name.chars().any(char::is_control) {
        Err(SecurityError::Name("contains control characters"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_password_sets_all_verifiers() {
        let mut user = User::new("alice").unwrap();
        assert!(!user.verify_password(b"secret"));
        user.set_password(b"secret", &Salts([[1; 16], [2; 16], [3; 16]])).unwrap();
        assert!(user.verify_password(b"secret"));
        assert!(!user.verify_password(b"other"));
        user.password = None;
        assert!(user.verify_password(b"secret"));
        assert!(!user.verify_password(b"other"));
        let keys = user.scram(ScramAlgorithm::Sha256).unwrap();
        assert_ne!(keys.salt(), user.scram(ScramAlgorithm::Sha512).unwrap().salt());
    }

    #[test]
    fn names_are_checked() {
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for name in ["", "a:b", "a\nb", "\0", &long] {
            assert!(User::new(name).is_err(), "{name:?}");
        }
        for name in ["alice", "Ä b", "a@b.example", "CN=alice,O=plant"] {
            assert!(User::new(name).is_ok(), "{name:?}");
        }
        let mut user = User::new("alice").unwrap();
        user.roles = vec!["ops".into(); MAX_ROLES + 1];
        assert!(user.check().is_err());
    }
}
