//! Credentials that were verified a short time ago: clients that reconnect, and HTTP requests one after the other, do
//! not hash the password again.
//!
//! A credential is kept as a keyed hash, with a key that lives in this process only. It is forgotten as soon as any
//! user changes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mainstem_security::{ScramAlgorithm, User};

/// How long a credential counts as verified.
const LIFETIME: Duration = Duration::from_mins(5);
/// Most credentials.
const MAX: usize = 4096;

pub(crate) struct Verified {
    key: [u8; 32],
    epoch: u64,
    entries: HashMap<Vec<u8>, Instant>,
}

impl Verified {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key, epoch: 0, entries: HashMap::new() }
    }

    fn hash(&self, user: &User, password: &[u8]) -> Vec<u8> {
        // The name has no U+0000, so name and password cannot be confused.
        let text = [user.name.as_bytes(), b"\0", password].concat();
        ScramAlgorithm::Sha256.hmac(&self.key, &text)
    }

    /// Whether the password was verified, in the state with this epoch.
    pub(crate) fn contains(&self, epoch: u64, user: &User, password: &[u8], now: Instant) -> bool {
        let since = self.entries.get(&self.hash(user, password));
        self.epoch == epoch && since.is_some_and(|since| now - *since < LIFETIME)
    }

    /// The password has been verified.
    pub(crate) fn insert(&mut self, epoch: u64, user: &User, password: &[u8], now: Instant) {
        if self.epoch != epoch || self.entries.len() >= MAX {
            self.entries.clear();
            self.epoch = epoch;
        }
        let hash = self.hash(user, password);
        self.entries.insert(hash, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_counts_until_it_expires_or_a_user_changes() {
        let (start, user) = (Instant::now(), User::new("alice").unwrap());
        let mut verified = Verified::new([1; 32]);
        verified.insert(7, &user, b"secret", start);
        assert!(verified.contains(7, &user, b"secret", start));
        assert!(!verified.contains(7, &user, b"Secret", start));
        assert!(!verified.contains(7, &User::new("bob").unwrap(), b"secret", start));
        assert!(!verified.contains(8, &user, b"secret", start));
        assert!(!verified.contains(7, &user, b"secret", start + LIFETIME));
        for number in 0..MAX {
            verified.insert(7, &user, number.to_string().as_bytes(), start);
        }
        assert!(verified.entries.len() <= MAX);
    }
}
