//! What one thread of the generator counted.

use hdrhistogram::Histogram;

use crate::net::Fault;

/// Longest latency told apart from longer ones.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// Latencies in nanoseconds, to three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are constant and valid")
}

/// What one thread counted. Unless said otherwise, of messages due in the measured part.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Messages handed to a socket.
    pub(crate) published: u64,
    /// Messages handed to a socket over the whole run.
    pub(crate) sent_ever: u64,
    /// Messages that were due before the load ended and never sent.
    pub(crate) unsent: u64,
    /// First arrivals at their receivers, whenever they came.
    pub(crate) delivered: u64,
    /// First arrivals during the measured part, whenever they were due.
    pub(crate) arrivals: u64,
    /// First arrivals of all messages, whenever they were due.
    pub(crate) delivered_ever: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
    /// Publishes with no place in the plan: wrong size, unknown stream, or not this receiver's.
    pub(crate) foreign: u64,
    /// Publishes that the broker refused with a reason code, over the whole run.
    pub(crate) refused: u64,
    /// Deliveries given up by a publisher whose window did not move for a second, over the whole run.
    pub(crate) written_off: u64,
    /// Connections that broke, over the whole run.
    pub(crate) broken: u64,
    /// Why the first of them did.
    pub(crate) first_fault: Option<Fault>,
    /// From due to received.
    pub(crate) latency: Histogram<u64>,
    /// From due to handed to the socket's output: how far the generator itself fell behind.
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
    /// Adds what another thread counted.
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
