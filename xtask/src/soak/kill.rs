//! `cargo xtask soak kill`: kills the broker under load repeatedly, and restarts it on its data.
//!
//! Publishers and subscribers with persistent sessions resume as the protocol requires. At the end no acknowledged
//! message may be missing at any receiver, no QoS 2 message may have arrived twice, and all messages must have arrived
//! in order. A seed determines the times of the kills, the number of shards after each restart, and the choices of each
//! client, but not how threads interleave.
//!
//! | file | holds |
//! |---|---|
//! | `broker` | the broker's process, over its restarts |
//! | `lazyfs` | power loss: unsynced data is dropped |
//! | `clients` | the clients of a run |
//! | `publisher`, `subscriber`, `retained`, `will` | what each client does and checks |
//! | `connection`, `tracker`, `random` | a connection; arrivals of a stream; seeded choices |
//! | `shared` | state shared by all clients |
//!
//! Packets come from the test kit `mainstem-conformance`, independent of the broker's codec.

mod broker;
mod clients;
mod connection;
mod lazyfs;
mod publisher;
mod random;
mod retained;
mod shared;
mod subscriber;
mod tracker;
mod will;

use crate::Outcome;
use crate::bench::server::End;
use crate::bench::{at, binary, median, positive};
use broker::{Broker, Conditions, Kind};
use clients::Receivers;
use random::Random;
use shared::{LOST, REPEATED_QOS2, SharedState, Stream};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time from a start of the broker to its end.
const UPTIME: Range<Duration> = Duration::from_millis(300)..Duration::from_secs(4);
/// One in this many uptimes is much shorter, so that the broker dies while clients reconnect and logs are replayed.
const SHORT_UPTIMES: u64 = 6;
const SHORT_UPTIME: Range<Duration> = Duration::from_millis(5)..Duration::from_millis(200);
/// With [`Ends::Either`], one in this many ends is by SIGTERM.
const TERM_ENDS: u64 = 6;
/// Maximum number of shards.
const SHARDS_MAX: u64 = 3;
/// Timeout for all initial subscriptions.
const SETTLE: Duration = Duration::from_secs(20);
/// Time without progress at the end, after which missing messages count as lost.
const DRAIN: Duration = Duration::from_secs(10);
/// Extra time at the end to detect messages that must not arrive.
const LINGER: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// How the broker is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Mostly by SIGKILL, sometimes by SIGTERM.
    Either,
    Always(End),
    /// Never: only the clients disconnect and reconnect. A broker without persistence passes.
    Never,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub(super) struct Options {
    seconds: u32,
    /// Seed of all random choices; the current time by default.
    seed: u64,
    /// Messages per second, over all publishers.
    rate: u32,
    ends: Ends,
    kind: Kind,
    /// Number of shards; `None` for a random number at each start.
    shards: Option<u32>,
    /// Delete the data at each restart: a planted bug that must be detected.
    is_forgetful: bool,
    /// Value of the broker's durability setting; `None` for its default.
    durability: Option<String>,
    /// Program that mounts LazyFS.
    lazyfs: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = now.as_secs();
        let (ends, kind) = (Ends::Either, Kind::Mainstem);
        let lazyfs = std::env::var_os("LAZYFS").map(PathBuf::from);
        let (shards, durability) = (None, None);
        Self { seconds: 600, seed, rate: 2000, ends, kind, shards, is_forgetful: false, durability, lazyfs }
    }
}

impl Options {
    /// Default options with this duration.
    pub(super) fn for_seconds(seconds: u32) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// Parses the arguments after `soak kill`.
    ///
    /// # Errors
    /// If an argument is unknown or invalid.
    pub(super) fn parse(arguments: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let mut value = || rest.next().copied().ok_or_else(|| format!("{argument} takes a value"));
            match argument {
                "--seconds" => options.seconds = positive(argument, value()?)?,
                "--seed" => options.seed = positive(argument, value()?)?.into(),
                "--rate" => options.rate = positive(argument, value()?)?,
                "--shards" => options.shards = Some(positive(argument, value()?)?),
                "--end" => options.ends = ends_named(value()?)?,
                "--broker" => options.kind = kind_named(value()?)?,
                "--forget" => options.is_forgetful = true,
                "--durability" => options.durability = Some(value()?.to_owned()),
                "--lazyfs" => options.lazyfs = Some(value()?.into()),
                _ => return Err(format!("soak kill: unknown option `{argument}`")),
            }
        }
        if options.is_forgetful && options.lazyfs.is_some() {
            return Err(
                "--forget cannot be combined with LazyFS (--lazyfs or the variable LAZYFS)".to_owned()
            );
        }
        Ok(options)
    }
}

fn ends_named(name: &str) -> Outcome<Ends> {
    match name {
        "kill" => Ok(Ends::Always(End::Kill)),
        "term" => Ok(Ends::Always(End::Term)),
        "never" => Ok(Ends::Never),
        _ => Err(format!("--end takes `kill`, `term` or `never`, not `{name}`")),
    }
}

fn kind_named(name: &str) -> Outcome<Kind> {
    match name {
        "mainstem" => Ok(Kind::Mainstem),
        "mosquitto" => Ok(Kind::Mosquitto),
        _ => Err(format!("--broker takes `mainstem` or `mosquitto`, not `{name}`")),
    }
}

/// A short run that must pass, and one with a broker that loses its data, which must fail. Both use two shards; longer
/// runs vary the number.
///
/// # Errors
/// All violations found, or if the lost data was not detected.
pub(super) fn smoke(root: &Path, seconds: u32) -> Outcome {
    let options = Options { shards: Some(2), lazyfs: None, ..Options::for_seconds(seconds) };
    run(root, &options)?;
    let forgetful = Options { seconds: seconds.div_ceil(5), is_forgetful: true, ..options };
    match run(root, &forgetful) {
        Err(found) if found.contains(LOST) => {
            println!("kill: lost data was detected, as required");
            Ok(())
        }
        Err(other) => Err(format!("with a broker that loses its data: {other}")),
        Ok(()) => Err("kill: a broker that loses its data was not detected".to_owned()),
    }
}

/// Runs for `options.seconds`, then until all messages have arrived.
///
/// # Errors
/// All violations found.
pub(super) fn run(root: &Path, options: &Options) -> Outcome {
    let scratch = root.join("target/soak-kill");
    lazyfs::unmount_leftover(&scratch);
    if scratch.exists() {
        fs::remove_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
    }
    fs::create_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
    let conditions = Conditions {
        kind: options.kind,
        is_forgetful: options.is_forgetful,
        durability: options.durability.as_deref(),
        lazyfs: options.lazyfs.as_deref(),
    };
    let broker = Broker::start(&conditions, executable(root, options, &scratch)?, scratch)?;
    let power = if options.lazyfs.is_some() { ", with power loss (LazyFS)" } else { "" };
    println!("kill: {} s from seed {} (--seed {}){power}", options.seconds, options.seed, options.seed);
    let shared = SharedState::new(broker.port, options.seed, clients::streams());
    let mut run = Run { options, shared: &shared, broker, ends: Vec::new(), restarts_ms: Vec::new() };
    let outcome = thread::scope(|scope| {
        let length = Duration::from_secs(options.seconds.into());
        let receivers = clients::receive(scope, &shared, length);
        let outcome = run.drive(&receivers, length, || clients::publish(scope, &shared, options.rate.into()));
        shared.is_closing.store(true, Ordering::SeqCst);
        shared.is_over.store(true, Ordering::SeqCst);
        receivers.report_lost(&shared);
        outcome
    });
    if let Err(what) = outcome {
        shared.violations.add("broker", what);
    }
    println!("{}", run.summary());
    let violations = shared.violations.lines();
    if violations.is_empty() {
        Ok(())
    } else {
        Err(format!("kill: seed {}\n  {}", options.seed, violations.join("\n  ")))
    }
}

/// Path of the broker: a copy, so that a concurrent build does not affect the run.
fn executable(root: &Path, options: &Options, scratch: &Path) -> Outcome<PathBuf> {
    if options.kind == Kind::Mosquitto {
        return Ok("/usr/sbin/mosquitto".into());
    }
    let (built, copy) = (binary(root)?, scratch.join("mainstem"));
    fs::copy(&built, &copy).map_err(|error| at(&built, &error))?;
    Ok(copy)
}

/// State of a run.
struct Run<'a> {
    options: &'a Options,
    shared: &'a SharedState,
    broker: Broker,
    ends: Vec<End>,
    /// Process start to first connection, per restart.
    restarts_ms: Vec<f64>,
}

impl Run<'_> {
    /// Restarts the broker until `length` is over, then drains. `publish` starts the load.
    fn drive(&mut self, receivers: &Receivers, length: Duration, publish: impl FnOnce()) -> Outcome {
        let settled = Instant::now() + SETTLE;
        while !receivers.are_ready() || !self.shared.is_watching.load(Ordering::SeqCst) {
            if Instant::now() > settled {
                return Err("not all subscribers got their SUBACK".to_owned());
            }
            thread::sleep(POLL);
        }
        publish();
        let mut random = Random::new(self.options.seed);
        let over = Instant::now() + length;
        while Instant::now() < over {
            let uptime = if random.once_in(SHORT_UPTIMES) { SHORT_UPTIME } else { UPTIME };
            thread::sleep(random.time(&uptime));
            let is_term = random.once_in(TERM_ENDS);
            let shards = 1 + random.below(SHARDS_MAX);
            let end = match self.options.ends {
                Ends::Never => continue,
                Ends::Always(end) => end,
                Ends::Either if is_term => End::Term,
                Ends::Either => End::Kill,
            };
            self.broker.stop(end)?;
            self.ends.push(end);
            let took = self.broker.restart(self.options.shards.map_or(shards, u64::from))?;
            self.restarts_ms.push(took.as_secs_f64() * 1e3);
            self.shared.restarts.fetch_add(1, Ordering::SeqCst);
        }
        self.drain(receivers);
        self.broker.stop(End::Term)
    }

    /// Waits until all messages have arrived, or until there is no more progress.
    fn drain(&self, receivers: &Receivers) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        let mut before = self.progress();
        let mut progress_at = Instant::now();
        while !(receivers.are_complete() && self.is_acknowledged() && will::late_wills_published(self.shared))
            && progress_at.elapsed() < DRAIN
        {
            thread::sleep(POLL);
            let now = self.progress();
            if now != before {
                (before, progress_at) = (now, Instant::now());
            }
        }
        thread::sleep(LINGER);
        will::report_lost(self.shared);
    }

    fn progress(&self) -> (u64, Vec<u64>) {
        (self.shared.delivered.load(Ordering::Relaxed), self.shared.acked())
    }

    fn is_acknowledged(&self) -> bool {
        self.shared.streams.iter().all(|stream| stream.acked() == stream.sent())
    }

    /// Summary of the run, in a few lines.
    fn summary(&self) -> String {
        let shared = self.shared;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let total = |of: fn(&Stream) -> u64| shared.streams.iter().map(of).sum::<u64>();
        let ends = |kind: End| self.ends.iter().filter(|end| **end == kind).count();
        let longest = self.restarts_ms.iter().copied().fold(0.0, f64::max);
        let wills = shared.wills.lock().unwrap_or_else(PoisonError::into_inner).len();
        let late_wills = shared.late_wills.lock().unwrap_or_else(PoisonError::into_inner).len();
        format!(
            "kill: {} kills, {} ends by SIGTERM; back within {:.0} ms (median), {longest:.0} ms (longest); {} MiB of data\n\
             kill: {} messages published, {} acknowledged, {} sent again; {} delivered, {} repeated at QoS 1\n\
             kill: {} lost, {} repeated at QoS 2; {} retained messages checked, {wills} wills, {late_wills} of them late",
            ends(End::Kill),
            ends(End::Term),
            median(self.restarts_ms.clone()).unwrap_or(0.0),
            self.broker.data_bytes() >> 20,
            total(Stream::sent),
            total(Stream::acked),
            count(&shared.resent),
            count(&shared.delivered),
            count(&shared.repeated),
            shared.violations.count(LOST),
            shared.violations.count(REPEATED_QOS2),
            count(&shared.retained_checked),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_options_in_any_order_and_rejects_unknown_ones() {
        let options = Options::parse(&["--end", "term", "--seed", "7", "--broker", "mosquitto"]).unwrap();
        assert!(Options::parse(&["--lazyfs", "lazyfs", "--forget"]).unwrap_err().contains("--forget"));
        assert_eq!((options.ends, options.seed), (Ends::Always(End::Term), 7));
        assert_eq!(options.kind, Kind::Mosquitto);
        for wrong in [["--end", "well"].as_slice(), &["--seed"], &["--rate", "0"], &["--kills", "3"]] {
            assert!(Options::parse(wrong).unwrap_err().contains(wrong[0]));
        }
    }
}
