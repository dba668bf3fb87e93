//! How often a log line about clients may be written, by the clock of a shard.

/// Shortest time between two log lines of a kind, ms.
const LOG_INTERVAL_MS: u64 = 10_000;

/// Limits the log lines of a kind that clients can cause.
#[derive(Debug, Default)]
pub(crate) struct LogInterval {
    next_ms: u64,
}

impl LogInterval {
    /// Whether a line may be written now.
    pub(crate) fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = now_ms >= self.next_ms;
        if is_due {
            self.next_ms = now_ms + LOG_INTERVAL_MS;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_due_per_interval() {
        let mut interval = LogInterval::default();
        assert!(interval.is_due(5));
        assert!(!interval.is_due(5 + LOG_INTERVAL_MS - 1));
        assert!(interval.is_due(5 + LOG_INTERVAL_MS));
        assert!(!interval.is_due(5 + LOG_INTERVAL_MS));
    }
}
