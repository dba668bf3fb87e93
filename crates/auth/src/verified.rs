//! Credentials that were verified a short time ago: clients that reconnect, and HTTP requests one after the other, do
//! not hash the password again.
//!
//! A credential is kept as a keyed hash, with a key that lives in this process only. The hash covers the verifier of
//! the password, which has a random salt: a new password, and another user of the same name, make it worthless, and a
//! change of others does not make everyone hash again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mainstem_security::{ScramAlgorithm, User};

/// How long a credential counts as verified.
const LIFETIME: Duration = Duration::from_mins(5);
/// Most credentials.
const MAX: usize = 4096;

pub(crate) struct Verified {
    key: [u8; 32],
    entries: HashMap<Vec<u8>, Instant>,
}

impl Verified {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key, entries: HashMap::new() }
    }

    /// The hash of a credential; `None` of a user without a password.
    fn hash(&self, user: &User, password: &[u8]) -> Option<Vec<u8>> {
        let verifier = user.password.as_ref()?.to_string();
        // Name and verifier have no U+0000, so the parts cannot be confused.
        let text = [user.name.as_bytes(), b"\0", verifier.as_bytes(), b"\0", password].concat();
        Some(ScramAlgorithm::Sha256.hmac(&self.key, &text))
    }

    /// Whether the password was verified for the user as it is now.
    pub(crate) fn contains(&self, user: &User, password: &[u8], now: Instant) -> bool {
        let since = self.hash(user, password).and_then(|hash| self.entries.get(&hash));
        since.is_some_and(|since| now - *since < LIFETIME)
    }

    /// The password has been verified for this user.
    pub(crate) fn insert(&mut self, user: &User, password: &[u8], now: Instant) {
        let Some(hash) = self.hash(user, password) else { return };
        if self.entries.len() >= MAX {
            self.entries.retain(|_, since| now - *since < LIFETIME);
        }
        if self.entries.len() >= MAX {
            self.entries.clear();
        }
        self.entries.insert(hash, now);
    }
}

#[cfg(test)]
mod tests {
    use mainstem_security::{PasswordHash, SALT_BYTES};

    use super::*;

    #[test]
    fn a_credential_counts_until_it_expires_or_the_password_changes() {
        let start = Instant::now();
        let with_password = |name: &str, salt: u8| {
            let mut user = User::new(name).unwrap();
            user.password = Some(PasswordHash::derive(b"secret", [salt; SALT_BYTES]).unwrap());
            user
        };
        let user = with_password("alice", 1);
        let mut verified = Verified::new([1; 32]);
        verified.insert(&user, b"secret", start);
        assert!(verified.contains(&user, b"secret", start));
        let with_role = User { roles: vec!["ops".into()], ..user.clone() };
        assert!(verified.contains(&with_role, b"secret", start), "its password is the same");
        assert!(!verified.contains(&user, b"Secret", start));
        assert!(!verified.contains(&with_password("bob", 1), b"secret", start));
        assert!(!verified.contains(&with_password("alice", 2), b"secret", start), "set again");
        assert!(!verified.contains(&User::new("alice").unwrap(), b"secret", start), "without a password");
        assert!(!verified.contains(&user, b"secret", start + LIFETIME));
        for number in 0..2 * MAX {
            verified.insert(&user, number.to_string().as_bytes(), start);
            assert!(verified.entries.len() <= MAX);
        }
    }

    #[test]
    fn expired_credentials_make_room_before_others_do() {
        let start = Instant::now();
        let mut user = User::new("alice").unwrap();
        user.password = Some(PasswordHash::derive(b"secret", [1; SALT_BYTES]).unwrap());
        let mut verified = Verified::new([1; 32]);
        for number in 1..MAX {
            verified.insert(&user, number.to_string().as_bytes(), start);
        }
        let later = start + LIFETIME;
        verified.insert(&user, b"kept", later);
        verified.insert(&user, b"one more", later);
        assert!(verified.contains(&user, b"kept", later));
        assert_eq!(verified.entries.len(), 2);
    }
}
