//! Failed log-ins by address and by user, so that passwords cannot be guessed quickly.
//!
//! Each key may fail a number of times per window; further log-ins are refused unverified until the window has passed.
//! So an attacker who knows a user's name can keep the user from logging in, and a client with an old password those
//! that share its address. Exempt are credentials that were verified a short time ago (`verified.rs`); where the
//! protocol verifies, and no password is known, the same user at the same address.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Length of a window.
const WINDOW: Duration = Duration::from_mins(1);
/// How long a user who has logged in is exempt at an address.
const EXEMPT: Duration = Duration::from_mins(5);
/// Most keys that are counted. Beyond it, all are forgotten whose window has passed, and if none has, all.
const KEYS_MAX: usize = 65_536;

/// Counts failures.
#[derive(Debug)]
pub(crate) struct Failures {
    per_address_max: u32,
    per_user_max: u32,
    /// Keys are hashed, so that a long name takes no memory.
    counts: HashMap<u64, (u32, Instant)>,
    /// When users logged in where, by the hash of both.
    log_ins: HashMap<u64, Instant>,
    hasher: RandomState,
}

/// Where a failure is counted.
#[derive(Clone, Copy, Hash)]
enum Key<'a> {
    Address(IpAddr),
    User(&'a str),
}

impl Failures {
    /// 0 is no limit.
    pub(crate) fn new(per_address_max: u32, per_user_max: u32) -> Self {
        Self {
            per_address_max,
            per_user_max,
            counts: HashMap::new(),
            log_ins: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Sets other limits. What has been counted counts.
    pub(crate) fn set_limits(&mut self, per_address_max: u32, per_user_max: u32) {
        (self.per_address_max, self.per_user_max) = (per_address_max, per_user_max);
    }

    /// Whether a log-in must be refused unverified.
    pub(crate) fn is_limited(&self, user: &str, address: Option<IpAddr>, now: Instant) -> bool {
        self.keys(user, address).any(|(key, max)| {
            let count = self.counts.get(&self.hasher.hash_one(key));
            max > 0 && count.is_some_and(|(count, since)| *count >= max && now - *since < WINDOW)
        })
    }

    /// Counts a failure.
    pub(crate) fn count(&mut self, user: &str, address: Option<IpAddr>, now: Instant) {
        if self.counts.len() >= KEYS_MAX {
            self.counts.retain(|_, (_, since)| now - *since < WINDOW);
            if self.counts.len() >= KEYS_MAX {
                log::warn!(
                    "log-ins of more than {KEYS_MAX} addresses and users have failed: their limits restart"
                );
                self.counts.clear();
            }
        }
        let keys: Vec<u64> = self.keys(user, address).map(|(key, _)| self.hasher.hash_one(key)).collect();
        for key in keys {
            let (count, since) = self.counts.entry(key).or_insert((0, now));
            if now - *since >= WINDOW {
                (*count, *since) = (0, now);
            }
            *count += 1;
        }
    }

    /// Whether this user has logged in from this address a short time ago.
    pub(crate) fn is_exempt(&self, user: &str, address: Option<IpAddr>, now: Instant) -> bool {
        let since = self.log_ins.get(&self.hasher.hash_one((user, address.map(prefix))));
        since.is_some_and(|since| now - *since < EXEMPT)
    }

    /// A user has logged in.
    pub(crate) fn exempt(&mut self, user: &str, address: Option<IpAddr>, now: Instant) {
        if self.log_ins.len() >= KEYS_MAX {
            self.log_ins.retain(|_, since| now - *since < EXEMPT);
            if self.log_ins.len() >= KEYS_MAX {
                self.log_ins.clear();
            }
        }
        self.log_ins.insert(self.hasher.hash_one((user, address.map(prefix))), now);
    }

    fn keys<'a>(&self, user: &'a str, address: Option<IpAddr>) -> impl Iterator<Item = (Key<'a>, u32)> {
        let address = address.map(|address| (Key::Address(prefix(address)), self.per_address_max));
        // Of a token that is not valid, the user is not known.
        let user = (!user.is_empty()).then_some((Key::User(user), self.per_user_max));
        address.into_iter().chain(user)
    }
}

/// One client has a whole /64 of IPv6.
fn prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_by_address_and_by_user_until_the_window_has_passed() {
        let start = Instant::now();
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let mut failures = Failures::new(3, 5);
        for _ in 0..3 {
            assert!(!failures.is_limited("alice", address("192.0.2.1"), start));
            failures.count("alice", address("192.0.2.1"), start);
        }
        assert!(failures.is_limited("alice", address("192.0.2.1"), start));
        assert!(failures.is_limited("bob", address("192.0.2.1"), start));
        assert!(failures.is_limited("bob", address("::ffff:192.0.2.1"), start));
        assert!(!failures.is_limited("alice", address("192.0.2.2"), start));
        for last in 2..4 {
            failures.count("alice", address(&format!("192.0.2.{last}")), start);
        }
        assert!(failures.is_limited("alice", address("192.0.2.9"), start));
        assert!(!failures.is_limited("bob", address("192.0.2.9"), start));
        assert!(!failures.is_limited("alice", address("192.0.2.1"), start + WINDOW));
        failures.count("alice", address("192.0.2.1"), start + WINDOW);
        assert!(!failures.is_limited("alice", address("192.0.2.1"), start + WINDOW));
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut failures = Failures::new(1, 1);
        for number in 0..2 * KEYS_MAX {
            failures.count(&number.to_string(), None, now);
            failures.exempt(&number.to_string(), None, now);
        }
        assert!(failures.counts.len() <= KEYS_MAX && failures.log_ins.len() <= KEYS_MAX);
    }
}
