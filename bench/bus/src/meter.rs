//! Measurement of a row, and its output as one line of JSON.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Number of slices per row. The best one counts, because other work on the machine only adds time.
const SLICES: usize = 7;
/// Minimum CPU time of a slice, within a factor of 2.
const SLICE: Duration = Duration::from_millis(40);

/// CPU time of this thread so far.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Measures `work`, which performs `ops` operations per call, and prints the result.
pub(crate) fn measure(row: &str, contender: &str, ops: u64, work: impl FnMut()) {
    let (ns, allocations) = cost(ops, work);
    print(row, contender, ns, 1e9 / ns, allocations);
}

/// Prints a result. Values that were not measured are omitted.
pub(crate) fn print(row: &str, contender: &str, ns: f64, per_s: f64, allocations: Option<f64>) {
    match allocations {
        Some(count) => println!(r#"{{"row":"{row}","contender":"{contender}","allocations":{count:.3}}}"#),
        None => {
            println!(r#"{{"row":"{row}","contender":"{contender}","ns":{ns:.3},"per_s":{per_s:.0}}}"#);
        }
    }
}

/// CPU nanoseconds per operation.
#[cfg(not(feature = "allocations"))]
pub(crate) fn cost(ops: u64, mut work: impl FnMut()) -> (f64, Option<f64>) {
    let mut calls = 1_u32;
    let mut best = f64::INFINITY;
    let mut slices = 0;
    while slices < SLICES {
        let start = thread_cpu();
        (0..calls).for_each(|_| work());
        let took = thread_cpu().saturating_sub(start);
        if took < SLICE / 2 {
            calls *= 2;
            continue;
        }
        slices += 1;
        best = best.min(took.as_secs_f64() * 1e9 / f64::from(calls) / to_f64(ops));
    }
    (best, None)
}

/// Allocations per operation, after a warm-up.
#[cfg(feature = "allocations")]
pub(crate) fn cost(ops: u64, mut work: impl FnMut()) -> (f64, Option<f64>) {
    const CALLS: u32 = 300;
    let _ = (SLICES, SLICE);
    (0..CALLS).for_each(|_| work());
    let counted = allocation_counter::measure(|| (0..CALLS).for_each(|_| work()));
    (f64::NAN, Some(to_f64(counted.count_total) / f64::from(CALLS) / to_f64(ops)))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) const fn to_f64(count: u64) -> f64 {
    count as f64
}
