//! Due times of an open-loop run.
//!
//! Due times depend only on the rate, never on the broker's progress, which avoids coordinated omission.

/// A fixed schedule: message *k* of the run is due at `start + k / rate`, and belongs to publisher `k mod P`.
///
/// A publisher that falls behind sends late messages with their original due times, so their delay counts as
/// latency.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    start_ns: u64,
    interval_ns: f64,
    publishers: u64,
}

impl Schedule {
    /// A schedule of `rate` messages per second over `publishers` publishers, from `start_ns` on.
    pub(crate) fn new(start_ns: u64, rate: f64, publishers: u32) -> Self {
        Self { start_ns, interval_ns: 1e9 / rate, publishers: u64::from(publishers) }
    }

    /// Due time of a publisher's message `n` (from 0), in nanoseconds on the run's clock.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "exact to a microsecond for 10^12 messages"
    )]
    pub(crate) fn due_ns(&self, publisher: u32, n: u64) -> u64 {
        let k = n * self.publishers + u64::from(publisher);
        self.start_ns + (k as f64 * self.interval_ns) as u64
    }
}

/// Walks a schedule in order for the publishers of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    round: u64,
    position: usize,
}

impl Cursor {
    /// The next message: its due time, and the index of its publisher in `own`, the thread's publishers in ascending
    /// order.
    pub(crate) fn peek(&self, schedule: &Schedule, own: &[u32]) -> Option<(u64, usize)> {
        let publisher = own.get(self.position)?;
        Some((schedule.due_ns(*publisher, self.round), self.position))
    }

    /// Advances to the next message.
    pub(crate) fn advance(&mut self, own: &[u32]) {
        self.position += 1;
        if self.position == own.len() {
            self.position = 0;
            self.round += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_evenly_spaced_over_all_publishers() {
        let schedule = Schedule::new(1_000, 4.0, 2);
        let dues: Vec<u64> = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(p, n)| schedule.due_ns(p, n)).into();
        assert_eq!(dues, [1_000, 250_001_000, 500_001_000, 750_001_000]);
    }

    #[test]
    fn stays_exact_over_an_hour_at_a_million_per_second() {
        let schedule = Schedule::new(0, 1e6, 1);
        assert_eq!(schedule.due_ns(0, 3_600_000_000), 3_600_000_000_000);
    }

    #[test]
    fn cursors_of_all_threads_cover_the_schedule_once() {
        let schedule = Schedule::new(7, 1_000.0, 5);
        let mut dues = Vec::new();
        for own in [[0, 2, 4].as_slice(), &[1, 3]] {
            let mut cursor = Cursor::default();
            for _ in 0..own.len() * 10 {
                let (due, position) = cursor.peek(&schedule, own).unwrap();
                assert!(position < own.len());
                dues.push(due);
                cursor.advance(own);
            }
        }
        dues.sort_unstable();
        let expected: Vec<u64> = (0..50).map(|k| 7 + k * 1_000_000).collect();
        assert_eq!(dues, expected);
    }

    #[test]
    fn thread_without_publishers_has_nothing_due() {
        assert_eq!(Cursor::default().peek(&Schedule::new(0, 1.0, 1), &[]), None);
    }
}
