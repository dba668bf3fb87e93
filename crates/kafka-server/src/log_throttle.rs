//! Limits log lines about client errors.
//!
//! A client can cause any number of errors, and must not fill the disk with log lines. Each period has a fixed number
//! of lines. The throttle counts further lines and logs their number when the period ends, so that no error goes
//! unnoticed.

/// Most lines per period of [`PERIOD_MS`].
const LINES_MAX: u32 = 20;
const PERIOD_MS: u64 = 10_000;

/// The log lines of one shard about client errors.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    begin_ms: u64,
    lines: u32,
    suppressed: u64,
}

impl LogThrottle {
    /// Whether another line may be logged now.
    pub(crate) fn should_log(&mut self, now_ms: u64) -> bool {
        self.log_suppressed(now_ms);
        if self.lines < LINES_MAX {
            self.lines += 1;
            return true;
        }
        self.suppressed += 1;
        false
    }

    /// After the end of a period, logs the number of suppressed lines. Call it periodically.
    pub(crate) fn log_suppressed(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.begin_ms) < PERIOD_MS {
            return;
        }
        if self.suppressed > 0 {
            log::info!(
                "kafka: suppressed {} log lines about client errors (limit {LINES_MAX} per {} s)",
                self.suppressed,
                PERIOD_MS / 1000
            );
        }
        *self = Self { begin_ms: now_ms, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_logs_up_to_the_limit() {
        let mut throttle = LogThrottle::default();
        for period_ms in [PERIOD_MS, 2 * PERIOD_MS, 9 * PERIOD_MS] {
            let logged = (0..1_000).filter(|at| throttle.should_log(period_ms + at)).count();
            assert_eq!(logged as u32, LINES_MAX);
            assert_eq!(throttle.suppressed, 1_000 - u64::from(LINES_MAX));
        }
        throttle.log_suppressed(20 * PERIOD_MS);
        assert_eq!(throttle.suppressed, 0);
    }
}
