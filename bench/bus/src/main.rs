//! Compares the bus with other in-process messaging: prints one line of JSON per row and contender.
//!
//! `cargo xtask bench-bus` builds and runs it, together with programs of peers in other languages, and prints a table;
//! `docs/benchmarks.md` describes the rows. Times are CPU time of the measured thread.

mod bus;
mod channels;
mod meter;

/// Number of receivers in the row `fan-out`.
const RECEIVERS: u64 = 1_000;
/// Number of messages published before they are received, for pull-based receivers.
const BURST: u64 = 256;

fn main() {
    bus::publish();
    bus::fan_out();
    bus::one_to_one();
    channels::all();
    bus::concurrent();
    bus::subscribe();
    bus::matching();
}
