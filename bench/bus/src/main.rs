//! The bus beside other ways to hand messages around in a process: one line of JSON per row and contender.
//!
//! `cargo xtask bench-bus` builds and runs it, together with the programs of peers in other languages, and makes a
//! table of what they say; `docs/benchmarks.md` tells what the rows are. Times are CPU time of the measured thread.

mod bus;
mod channels;
mod meter;

/// Receivers in the row `fan-out`.
const RECEIVERS: u64 = 1_000;
/// Messages that are published before they are received, where that is not at once.
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
