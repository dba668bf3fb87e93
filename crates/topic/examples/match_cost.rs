//! Benchmark of matching: nanoseconds per operation and bytes per filter, with a million filters.
//!
//! `cargo run --release -p mainstem-topic --example match_cost [filters]`
//!
//! "hot" repeats the same 16 names and "spread" uses a million different ones, so the difference is the cost of cache
//! misses. Each figure is the best of five rounds, since the machine may be shared.

use std::hint::black_box;
use std::time::Instant;

use mainstem_topic::{Index, MatchCache, check_filter, check_name};

const ROUNDS: usize = 5;
const HOT_NAMES: usize = 16;

fn main() {
    let filters =
        std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse()).expect("a number of filters");
    println!("{filters} filters; best of {ROUNDS} rounds");
    exact_only(filters);
    with_wildcards(filters);
    wildcards_only(filters);
    shared_prefix();
    cached();
    checks();
}

/// A topic as used by a fleet of devices.
fn device_topic(device: usize) -> String {
    format!("site/{}/line/{}/device/{device:07}/state", device % 50, device % 1_000)
}

fn exact_only(filters: usize) {
    let index = build("exact", filters, device_topic);
    measure("exact, hot", &hot(filters, device_topic), |name| count(index, name));
    measure("exact, spread", &spread(filters, device_topic), |name| count(index, name));
    measure("exact, no match, hot", &hot(filters, |n| device_topic(n + filters)), |name| count(index, name));
}

/// One filter in ten has a wildcard. Most of these match one device, some a line, and a few a site.
fn with_wildcards(filters: usize) {
    let index = build("10 % wildcards", filters, |n| match n % 1_000 {
        0 => format!("site/{}/line/{}/#", n / 1_000 % 50, n / 1_000),
        1 => format!("+/{}/line/{}/device/+/state", n / 1_000 % 50, n / 1_000),
        2..100 => format!("site/{}/line/{}/device/{n:07}/+", n % 50, n % 1_000),
        _ => device_topic(n),
    });
    measure("10 % wildcards, hot", &hot(filters, device_topic), |name| count(index, name));
    measure("10 % wildcards, spread", &spread(filters, device_topic), |name| count(index, name));
}

fn wildcards_only(filters: usize) {
    let index = build("wildcards only", filters, |n| format!("device/{n:07}/+/#"));
    let name = |n| format!("device/{n:07}/state/power");
    measure("wildcards only, hot", &hot(filters, name), |name| count(index, name));
    measure("wildcards only, spread", &spread(filters, name), |name| count(index, name));
}

/// All combinations of a literal and `+` on six levels: 64 filters, all of which match.
fn shared_prefix() {
    let index = build("64 combinations of a level and +", 64, |bits| {
        let levels: Vec<_> = (0..6).map(|at| if bits >> at & 1 == 0 { "level" } else { "+" }).collect();
        levels.join("/")
    });
    measure("64 matches of 6 levels", &[["level"; 6].join("/")], |name| count(index, name));
}

fn cached() {
    let capacity = 65_536;
    let mut cache = MatchCache::with_seed(capacity, 1);
    let names = spread(capacity, device_topic);
    for name in &names {
        cache.insert(name, 1, 7_u64);
    }
    let hot = hot(capacity, device_topic);
    measure("cache hit, hot", &hot, |name| cache.get(name, 1).copied().unwrap_or_default());
    measure("cache hit, 65,536 names", &names, |name| cache.get(name, 1).copied().unwrap_or_default());
    measure("cache miss, hot", &self::hot(16, |n| device_topic(n + capacity)), |name| {
        cache.get(name, 1).copied().unwrap_or_default()
    });
    let once = spread(1_000_000, device_topic);
    measure("cache insert, evicting", &once, |name| {
        cache.insert(name, 1, 7);
        0
    });
}

fn checks() {
    measure("check_name", &hot(1_000, device_topic), |name| check_name(name).is_ok().into());
    let filters = hot(1_000, |n| format!("{}/#", device_topic(n)));
    measure("check_filter", &filters, |filter| check_filter(filter).is_ok().into());
}

/// Builds an index and prints the time and memory per filter.
///
/// Leaks everything, so that the resident memory of one build is not understated by memory freed by an earlier one.
fn build(label: &str, filters: usize, filter: impl Fn(usize) -> String) -> &'static Index<u32> {
    let texts: &[String] = Vec::leak((0..filters).map(filter).collect());
    let index = Box::leak(Box::new(Index::with_seed(1)));
    let (memory, start) = (resident_bytes(), Instant::now());
    for text in texts {
        index.insert_with(text, || 1);
    }
    let ns = start.elapsed().as_nanos() / texts.len() as u128;
    let bytes =
        resident_bytes().zip(memory).map(|(after, before)| after.saturating_sub(before) / texts.len());
    let bytes = bytes
        .filter(|_| filters > 10_000)
        .map_or(String::new(), |bytes| format!(", {bytes} bytes per filter"));
    println!("\n{label}: {} filters, {ns} ns per insert{bytes}", index.len());
    index
}

/// Returns the resident memory of this process; `None` without procfs.
fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split(' ').nth(1)?.parse::<usize>().ok().map(|pages| pages * 4096)
}

fn hot(filters: usize, name: impl Fn(usize) -> String) -> Vec<String> {
    (0..HOT_NAMES).map(|n| name(n * filters / HOT_NAMES + 777)).collect()
}

/// Returns names in an order that defeats the hardware prefetcher.
fn spread(filters: usize, name: impl Fn(usize) -> String) -> Vec<String> {
    (0..filters).map(|n| name(n * 7_919 % filters)).collect()
}

fn count(index: &Index<u32>, name: &str) -> u64 {
    let mut sum = 0;
    index.for_each_match(name, |_, &value| sum += u64::from(value));
    sum
}

/// Prints the time per call over `names` and the mean result, which for an index is the number of matches.
#[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
fn measure(label: &str, names: &[String], mut call: impl FnMut(&str) -> u64) {
    let passes = (1_000_000 / names.len()).max(1);
    let calls = (passes * names.len()) as f64;
    let (mut best, mut sum) = (f64::INFINITY, 0);
    for _ in 0..ROUNDS {
        sum = 0;
        let start = Instant::now();
        for _ in 0..passes {
            for name in names {
                sum += call(black_box(name));
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / calls);
    }
    println!("{label:28} {best:8.1} ns/op   result {:.2}", black_box(sum) as f64 / calls);
}
