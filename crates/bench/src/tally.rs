//! Counters of one generator thread.
//!
//! Each thread owns its counters, so the hot path has no shared state; [`Tally::add`] merges them after the run.

use hdrhistogram::Histogram;

use crate::net::Fault;

/// Upper bound of the histograms; longer latencies are recorded as this value.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// Empty latency histogram in nanoseconds, with three significant digits.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are constant and valid")
}

/// Counters of one thread. Unless noted, they cover messages due in the measured part.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Messages written to an output buffer.
    pub(crate) published: u64,
    /// Messages written over the whole run.
    pub(crate) sent_ever: u64,
    /// Messages due before the load ended that were never sent.
    pub(crate) unsent: u64,
    /// First arrivals, whenever they arrived.
    pub(crate) delivered: u64,
    /// First arrivals during the measured part, whenever they were due.
    pub(crate) arrivals: u64,
    /// First arrivals over the whole run.
    pub(crate) delivered_ever: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
    /// Received publishes outside the plan: wrong size, unknown stream, or wrong receiver.
    pub(crate) foreign: u64,
    /// Publishes rejected with a reason code, over the whole run.
    pub(crate) refused: u64,
    /// Deliveries written off because a publisher's window stalled for a second, over the whole run.
    pub(crate) written_off: u64,
    /// Connections that broke, over the whole run.
    pub(crate) broken: u64,
    /// Cause of the first broken connection.
    pub(crate) first_fault: Option<Fault>,
    /// Due time to receipt.
    pub(crate) latency: Histogram<u64>,
    /// Due time to output buffer: the generator's own delay.
    pub(crate) lag: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            published: 0,
            sent_ever: 0,
            unsent: 0,
            delivered: 0,
            arrivals: 0,
            delivered_ever: 0,
            duplicates: 0,
            out_of_order: 0,
            foreign: 0,
            refused: 0,
            written_off: 0,
            broken: 0,
            first_fault: None,
            latency: latencies(),
            lag: latencies(),
        }
    }
}

impl Tally {
    /// Merges the counters of another thread.
    pub(crate) fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.sent_ever += other.sent_ever;
        self.unsent += other.unsent;
        self.delivered += other.delivered;
        self.arrivals += other.arrivals;
        self.delivered_ever += other.delivered_ever;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.foreign += other.foreign;
        self.refused += other.refused;
        self.written_off += other.written_off;
        self.broken += other.broken;
        self.latency.add(&other.latency).expect("both have the same bounds");
        self.lag.add(&other.lag).expect("both have the same bounds");
        if self.first_fault.is_none() {
            self.first_fault.clone_from(&other.first_fault);
        }
    }
}
