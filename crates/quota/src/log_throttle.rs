//! How often a log line about clients may be written.

use std::time::{Duration, Instant};

/// Shortest time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Lets one log line pass per ten seconds, and counts what it stands for: clients must not fill the disk with log
/// lines.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<Instant>,
    count: u64,
}

impl LogThrottle {
    /// Counts an occurrence. Returns the number since the last line if a line is due.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_gets_one_line_per_interval_with_the_number_of_occurrences() {
        let mut throttle = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(throttle.count(start), Some(1));
        assert_eq!(throttle.count(start + LOG_INTERVAL / 2), None);
        assert_eq!(throttle.count(start + LOG_INTERVAL), Some(2));
        assert_eq!(throttle.count(start + LOG_INTERVAL * 2), Some(1));
    }
}
