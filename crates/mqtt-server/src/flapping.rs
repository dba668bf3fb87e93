//! Clients that connect again and again: counted by a hash of the client identifier, within a window, so that long
//! identifiers cost no memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Client identifiers that are counted. If more connect within a window, counting begins anew.
const CLIENTS_MAX: usize = 65_536;

/// Counts connections.
#[derive(Debug)]
pub(crate) struct Flapping {
    /// Connections of a client within the window; 0 if nothing is counted.
    connects_max: u32,
    window_ms: u64,
    hasher: RandomState,
    /// By hash of the client identifier: when its window began, and how often it has connected since.
    counts: Mutex<HashMap<u64, (u64, u32)>>,
}

impl Flapping {
    pub(crate) fn new(connects_max: u32, window_s: u32) -> Self {
        Self {
            connects_max,
            window_ms: u64::from(window_s) * 1000,
            hasher: RandomState::new(),
            counts: Mutex::default(),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.connects_max > 0
    }

    /// Counts a connection. Returns whether there are too many within the window.
    pub(crate) fn count(&self, client_id: &str, now_ms: u64) -> bool {
        let client = self.hasher.hash_one(client_id);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since_ms, count)) = counts.get_mut(&client) {
            if now_ms >= *since_ms + self.window_ms {
                (*since_ms, *count) = (now_ms, 0);
            }
            *count += 1;
            let is_over = *count > self.connects_max;
            if is_over {
                counts.remove(&client);
            }
            return is_over;
        }
        if counts.len() >= CLIENTS_MAX {
            counts.retain(|_, (since_ms, _)| now_ms < *since_ms + self.window_ms);
            if counts.len() >= CLIENTS_MAX {
                log::warn!(
                    "{CLIENTS_MAX} clients have connected within mqtt.flapping_window_s: counting begins anew"
                );
                counts.clear();
            }
        }
        counts.insert(client, (now_ms, 1));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_connect_so_often_within_a_window() {
        let flapping = Flapping::new(3, 10);
        let counts = [0, 1_000, 9_000].map(|now_ms| flapping.count("a", now_ms));
        assert_eq!(counts, [false; 3]);
        assert!(!flapping.count("b", 9_500));
        assert!(flapping.count("a", 9_999));
        // Counting has begun anew, as it does after the window.
        assert_eq!([10_000, 11_000, 12_000, 20_000].map(|now_ms| flapping.count("a", now_ms)), [false; 4]);
    }

    #[test]
    fn memory_is_bounded() {
        let flapping = Flapping::new(1, 10);
        for number in 0..=2 * CLIENTS_MAX {
            flapping.count(&number.to_string(), 0);
        }
        assert!(flapping.counts.lock().unwrap().len() <= CLIENTS_MAX);
    }
}
