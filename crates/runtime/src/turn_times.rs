//! Histograms of how long turns take, by shard and phase.
//!
//! Only a shard's own thread records its turns, so that an increment is a plain load and store; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets, microseconds. One more bucket holds everything above.
pub const TURN_BOUNDS_US: [u64; 17] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000,
];
const BUCKETS: usize = TURN_BOUNDS_US.len() + 1;

/// What a duration measures. A phase in which there is nothing to do is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnPhase {
    /// The whole turn, without the sleep before it.
    Total,
    /// Completions from the disk, and work continued from earlier turns.
    Completion,
    /// Messages and connections from other shards.
    Mailbox,
    /// Reads and new connections.
    Input,
    /// Timers.
    Timers,
    /// The commit, and what else a service does at the end of a turn.
    Commit,
    /// Messages to other shards leave, output is written, connections are closed.
    Flush,
    /// Input that was held, of connections that cause more work than their share.
    Held,
}

impl TurnPhase {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Total,
        Self::Completion,
        Self::Mailbox,
        Self::Input,
        Self::Timers,
        Self::Commit,
        Self::Flush,
        Self::Held,
    ];

    /// Name, as a value of a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Completion => "completion",
            Self::Mailbox => "mailbox",
            Self::Input => "input",
            Self::Timers => "timers",
            Self::Commit => "commit",
            Self::Flush => "flush",
            Self::Held => "held",
        }
    }
}

/// Durations recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnHistogram {
    /// Number of durations in each bucket, not cumulative; the last is above all [`TURN_BOUNDS_US`].
    pub buckets: [u64; BUCKETS],
    /// Sum of all durations, ns.
    pub sum_ns: u64,
}

impl TurnHistogram {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    fn record(&self, duration_ns: u64) {
        // Most turns are short, so that a search from the front is the fastest.
        let is_within = |bound_us: &u64| duration_ns <= bound_us * 1_000;
        let bucket = TURN_BOUNDS_US.iter().position(is_within).unwrap_or(BUCKETS - 1);
        add(&self.buckets[bucket], 1);
        add(&self.sum_ns, duration_ns);
    }
}

/// Adds to a counter that no other thread writes.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

/// Durations of the turns of all shards.
#[derive(Debug)]
pub struct TurnTimes {
    by_shard: Vec<[Histogram; TurnPhase::ALL.len()]>,
}

impl TurnTimes {
    pub(crate) fn new(shards: usize) -> Self {
        Self { by_shard: (0..shards).map(|_| Default::default()).collect() }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.by_shard.len()
    }

    /// The durations of a phase on one shard.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn histogram(&self, shard: usize, phase: TurnPhase) -> TurnHistogram {
        let Histogram { buckets, sum_ns } = &self.by_shard[shard][phase as usize];
        TurnHistogram {
            buckets: std::array::from_fn(|bucket| buckets[bucket].load(Ordering::Relaxed)),
            sum_ns: sum_ns.load(Ordering::Relaxed),
        }
    }

    fn record(&self, shard: usize, phase: TurnPhase, from_ns: u64, until_ns: u64) {
        self.by_shard[shard][phase as usize].record(until_ns.saturating_sub(from_ns));
    }
}

/// A clock that starts at 0 ns and is never set. A turn reads it for each phase, and numbers are cheaper to read and to
/// subtract than instants of the standard library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Monotonic {
    started_ns: u64,
}

impl Monotonic {
    /// Starts a clock.
    pub(crate) fn start() -> Self {
        Self { started_ns: system_ns() }
    }

    /// Time since the start, ns.
    #[inline]
    pub(crate) fn now_ns(self) -> u64 {
        system_ns().saturating_sub(self.started_ns)
    }
}

/// Time since the machine was started, ns: 64 bits hold 584 years. Calls the C library, because rustix asks the kernel
/// for the location of its clock in a way that Valgrind does not support.
#[inline]
#[expect(unsafe_code, reason = "a call of the C library")]
fn system_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    debug_assert_eq!(status, 0, "every Linux has a monotonic clock");
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

/// Measures the phases of one turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    shard: usize,
    clock: Monotonic,
    began_ns: u64,
    phase_began_ns: u64,
}

impl Stopwatch {
    /// Begins a turn, by the clock of the shards.
    pub(crate) fn begin(shard: usize, clock: Monotonic) -> Self {
        let now_ns = clock.now_ns();
        Self { shard, clock, began_ns: now_ns, phase_began_ns: now_ns }
    }

    /// When the turn began, ns since the shards started.
    pub(crate) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Records that a phase ends now, and the next begins.
    pub(crate) fn end_phase(&mut self, times: &TurnTimes, phase: TurnPhase) {
        let now_ns = self.clock.now_ns();
        times.record(self.shard, phase, self.phase_began_ns, now_ns);
        self.phase_began_ns = now_ns;
    }

    /// Records the turn, which ends with the phase recorded last.
    pub(crate) fn end(self, times: &TurnTimes) {
        times.record(self.shard, TurnPhase::Total, self.began_ns, self.phase_began_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_the_bucket_of_their_bound() {
        let times = TurnTimes::new(2);
        for (us, bucket) in [(0, 0), (10, 0), (11, 1), (2_000, 7), (2_001, 8), (1_000_001, BUCKETS - 1)] {
            let before = times.histogram(1, TurnPhase::Input);
            times.record(1, TurnPhase::Input, 7, 7 + us * 1_000);
            let mut after = before;
            after.buckets[bucket] += 1;
            after.sum_ns += us * 1_000;
            assert_eq!(times.histogram(1, TurnPhase::Input), after, "{us} us");
        }
        assert_eq!(times.histogram(1, TurnPhase::Input).count(), 6);
        assert_eq!(times.histogram(0, TurnPhase::Input), TurnHistogram::default());
        assert_eq!(times.histogram(1, TurnPhase::Flush), TurnHistogram::default());
    }

    #[test]
    fn phases_of_a_turn_add_up_to_it() {
        let times = TurnTimes::new(1);
        let mut stopwatch = Stopwatch::begin(0, Monotonic::start());
        stopwatch.end_phase(&times, TurnPhase::Completion);
        stopwatch.end_phase(&times, TurnPhase::Input);
        stopwatch.end_phase(&times, TurnPhase::Flush);
        stopwatch.end(&times);
        let sum = |phase| times.histogram(0, phase).sum_ns;
        let parts = sum(TurnPhase::Completion) + sum(TurnPhase::Input) + sum(TurnPhase::Flush);
        assert_eq!(sum(TurnPhase::Total), parts);
        assert_eq!(times.histogram(0, TurnPhase::Timers).count(), 0);
    }
}
