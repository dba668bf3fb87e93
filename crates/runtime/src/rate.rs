//! The rate of new connections per address.
//!
//! Each address has a bucket of one second's connections, as the time at which it would be full again (the generic cell
//! rate algorithm). A bucket that is full needs no memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Addresses with a bucket that is not full. Beyond it, new addresses are not limited.
const ADDRESSES_MAX: usize = 65_536;
/// Connections of an address that are accepted at once: those of this time.
const BURST: Duration = Duration::from_secs(1);
/// Shortest time between two searches for full buckets.
const PRUNE_INTERVAL: Duration = Duration::from_millis(100);

/// Buckets of all addresses.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    full_at: HashMap<IpAddr, Instant>,
    pruned_at: Option<Instant>,
}

impl RateLimit {
    /// Counts a new connection of an address at `now`. Returns whether `per_second` allows it.
    pub(crate) fn allow(&mut self, address: IpAddr, per_second: u32, now: Instant) -> bool {
        let interval = BURST / per_second.max(1);
        if let Some(full_at) = self.full_at.get_mut(&address) {
            let from = (*full_at).max(now);
            let is_allowed = from.duration_since(now) + interval <= BURST;
            if is_allowed {
                *full_at = from + interval;
            }
            return is_allowed;
        }
        if self.full_at.len() >= ADDRESSES_MAX {
            self.prune(now);
        }
        if self.full_at.len() < ADDRESSES_MAX {
            self.full_at.insert(address, now + interval);
        }
        true
    }

    fn prune(&mut self, now: Instant) {
        if self.pruned_at.is_none_or(|pruned_at| now.duration_since(pruned_at) >= PRUNE_INTERVAL) {
            self.pruned_at = Some(now);
            self.full_at.retain(|_, full_at| *full_at > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn a_second_has_its_number_of_connections_whenever_they_come() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let allowed_at = |limit: &mut RateLimit, ms: u64| {
            let now = start + Duration::from_millis(ms);
            (0..50).filter(|_| limit.allow(address(1), 10, now)).count()
        };
        assert_eq!(allowed_at(&mut limit, 0), 10);
        assert_eq!(allowed_at(&mut limit, 50), 0);
        assert_eq!(allowed_at(&mut limit, 300), 3);
        assert_eq!(allowed_at(&mut limit, 350), 0);
        assert_eq!(allowed_at(&mut limit, 9_000), 10);
        assert!(limit.allow(address(2), 10, start), "another address");
    }

    #[test]
    fn addresses_are_forgotten_when_their_buckets_are_full() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        for number in 0..ADDRESSES_MAX as u32 + 10 {
            assert!(limit.allow(address(number), 1, start));
        }
        assert_eq!(limit.full_at.len(), ADDRESSES_MAX);
        assert!(!limit.allow(address(0), 1, start));
        let later = start + Duration::from_secs(2);
        assert!(limit.allow(address(u32::MAX), 1, later));
        assert_eq!(limit.full_at.len(), 1);
    }
}
