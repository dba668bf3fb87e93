//! `cargo xtask soak kill`: the broker is killed under load, again and again, and started anew on what it left behind.
//!
//! Publishers and subscribers with durable sessions go on where they were, as the protocol wants it of them. At the end
//! nothing that was acknowledged may be missing anywhere, nothing of QoS 2 may have come twice, and everything must have
//! come in its order. The moments, the shards of each life and the choices of each client come from a seed; how the
//! threads interleave does not.
//!
//! | file | holds |
//! |---|---|
//! | `life` | the broker's process |
//! | `lazyfs` | loss of power: what was not synced is gone |
//! | `clients` | who takes part |
//! | `publisher`, `subscriber`, `retained`, `will` | what each does and checks |
//! | `link`, `track`, `random` | a connection; what came of a stream; choices |
//! | `world` | what all of them share |
//!
//! The packets are the test kit's own, from `mainstem-conformance`: not the broker's.

mod clients;
mod lazyfs;
mod life;
mod link;
mod publisher;
mod random;
mod retained;
mod subscriber;
mod track;
mod will;
mod world;

use crate::Outcome;
use crate::bench::server::End;
use crate::bench::{at, binary, median, positive};
use clients::Receivers;
use life::{Conditions, Kind, Life};
use random::Random;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use world::{LOST, REPEATED_QOS2, Stream, World};

/// How long a life lasts.
const LIFE: Range<Duration> = Duration::from_millis(300)..Duration::from_secs(4);
/// One in so many lives is far shorter: the broker dies while clients come back and logs are read.
const SHORT_LIVES: u64 = 6;
const SHORT_LIFE: Range<Duration> = Duration::from_millis(5)..Duration::from_millis(200);
/// One in so many ends by SIGTERM, where both are asked for.
const POLITE_ENDS: u64 = 6;
/// Most shards of a life.
const SHARDS_MAX: u64 = 3;
/// Longest time for all first subscriptions.
const SETTLE: Duration = Duration::from_secs(20);
/// Longest time without a delivery, at the end, until what is missing counts as lost.
const DRAIN: Duration = Duration::from_secs(10);
/// For what must not come any more.
const AFTER: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// How lives end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Most are killed, some asked to end.
    Either,
    Always(End),
    /// They do not: only the clients come and go. A broker without a disk passes.
    Never,
}

/// What to do, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Options {
    seconds: u32,
    /// Decides the moments and the shards; by default the time does.
    seed: u64,
    /// Messages per second, of all publishers together.
    rate: u32,
    ends: Ends,
    kind: Kind,
    /// The shards of each life; from the seed, if not said.
    shards: Option<u32>,
    is_forgetful: bool,
    /// As the broker's own setting; what is the default there, if not said.
    durability: Option<String>,
    /// The program that mounts LazyFS.
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
    /// What is done by default, for so many seconds.
    pub(super) fn lasting(seconds: u32) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// Reads what stands behind `soak kill`.
    ///
    /// # Errors
    /// If something is not known.
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
                _ => return Err(format!("soak kill does not know `{argument}`")),
            }
        }
        if options.is_forgetful && options.lazyfs.is_some() {
            return Err("--forget and LazyFS are not for one run".to_owned());
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

/// A run of some seconds that must pass, and one with a broker that forgets, which must not. Both keep to two shards:
/// numbers that change are for longer runs.
///
/// # Errors
/// All that is amiss.
pub(super) fn smoke(root: &Path, seconds: u32) -> Outcome {
    let options = Options { shards: Some(2), lazyfs: None, ..Options::lasting(seconds) };
    run(root, &options)?;
    let forgetful = Options { seconds: seconds.div_ceil(5), is_forgetful: true, ..options };
    match run(root, &forgetful) {
        Err(found) if found.contains(LOST) => {
            println!("kill: as it must be, a broker that forgets is found out");
            Ok(())
        }
        Err(other) => Err(format!("with a broker that forgets: {other}")),
        Ok(()) => Err("kill: a broker that forgets everything was not found out".to_owned()),
    }
}

/// Runs for so many seconds, and until everything has come.
///
/// # Errors
/// All that is amiss.
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
    let life = Life::begin(&conditions, executable(root, options, &scratch)?, scratch)?;
    let power = if options.lazyfs.is_some() { ", with loss of power (LazyFS)" } else { "" };
    println!("kill: {} s from seed {} (--seed {}){power}", options.seconds, options.seed, options.seed);
    let world = World::new(life.port, options.seed, clients::streams());
    let mut run = Run { options, world: &world, life, ends: Vec::new(), restarts_ms: Vec::new() };
    let outcome = thread::scope(|scope| {
        let length = Duration::from_secs(options.seconds.into());
        let receivers = clients::receive(scope, &world, length);
        let outcome = run.live(&receivers, length, || clients::publish(scope, &world, options.rate.into()));
        world.is_closing.store(true, Ordering::SeqCst);
        world.is_over.store(true, Ordering::SeqCst);
        receivers.settle(&world);
        outcome
    });
    if let Err(what) = outcome {
        world.faults.add("broker", what);
    }
    println!("{}", run.summary());
    let faults = world.faults.lines();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(format!("kill: seed {}\n  {}", options.seed, faults.join("\n  ")))
    }
}

/// A copy of the broker, so that a build meanwhile changes nothing.
fn executable(root: &Path, options: &Options, scratch: &Path) -> Outcome<PathBuf> {
    if options.kind == Kind::Mosquitto {
        return Ok("/usr/sbin/mosquitto".into());
    }
    let (built, copy) = (binary(root)?, scratch.join("mainstem"));
    fs::copy(&built, &copy).map_err(|error| at(&built, &error))?;
    Ok(copy)
}

/// One run, from the first life to the last.
struct Run<'a> {
    options: &'a Options,
    world: &'a World,
    life: Life,
    ends: Vec<End>,
    /// From the start of the process to its first connection.
    restarts_ms: Vec<f64>,
}

impl Run<'_> {
    /// The lives, then the drain. `publish` begins the load.
    fn live(&mut self, receivers: &Receivers, length: Duration, publish: impl FnOnce()) -> Outcome {
        let settled = Instant::now() + SETTLE;
        while !receivers.are_ready() || !self.world.is_watching.load(Ordering::SeqCst) {
            if Instant::now() > settled {
                return Err("not all could subscribe".to_owned());
            }
            thread::sleep(POLL);
        }
        publish();
        let mut random = Random::new(self.options.seed);
        let over = Instant::now() + length;
        while Instant::now() < over {
            let life = if random.once_in(SHORT_LIVES) { SHORT_LIFE } else { LIFE };
            thread::sleep(random.time(&life));
            let is_polite = random.once_in(POLITE_ENDS);
            let shards = 1 + random.below(SHARDS_MAX);
            let end = match self.options.ends {
                Ends::Never => continue,
                Ends::Always(end) => end,
                Ends::Either if is_polite => End::Term,
                Ends::Either => End::Kill,
            };
            self.life.end(end)?;
            self.ends.push(end);
            let took = self.life.resume(self.options.shards.map_or(shards, u64::from))?;
            self.restarts_ms.push(took.as_secs_f64() * 1e3);
            self.world.lives.fetch_add(1, Ordering::SeqCst);
        }
        self.drain(receivers);
        self.life.end(End::Term)
    }

    /// Waits until everybody has everything, or nothing comes any more.
    fn drain(&self, receivers: &Receivers) {
        self.world.is_closing.store(true, Ordering::SeqCst);
        let mut before = self.progress();
        let mut moved = Instant::now();
        while !(receivers.are_complete() && self.is_acknowledged() && will::all_have_come(self.world))
            && moved.elapsed() < DRAIN
        {
            thread::sleep(POLL);
            let now = self.progress();
            if now != before {
                (before, moved) = (now, Instant::now());
            }
        }
        thread::sleep(AFTER);
        will::judge(self.world);
    }

    fn progress(&self) -> (u64, Vec<u64>) {
        (self.world.delivered.load(Ordering::Relaxed), self.world.acked())
    }

    fn is_acknowledged(&self) -> bool {
        self.world.streams.iter().all(|stream| stream.acked() == stream.sent())
    }

    /// What happened, in a few lines.
    fn summary(&self) -> String {
        let world = self.world;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let total = |of: fn(&Stream) -> u64| world.streams.iter().map(of).sum::<u64>();
        let ends = |wanted: End| self.ends.iter().filter(|end| **end == wanted).count();
        let longest = self.restarts_ms.iter().copied().fold(0.0, f64::max);
        let wills = world.wills.lock().unwrap_or_else(PoisonError::into_inner).len();
        let late_wills = world.late_wills.lock().unwrap_or_else(PoisonError::into_inner).len();
        format!(
            "kill: {} kills, {} ends by SIGTERM; back within {:.0} ms (median), {longest:.0} ms (longest); {} MiB of data\n\
             kill: {} messages published, {} acknowledged, {} sent again; {} delivered, {} repeated at QoS 1\n\
             kill: {} lost, {} repeated at QoS 2; {} retained messages checked, {wills} wills, {late_wills} of them late",
            ends(End::Kill),
            ends(End::Term),
            median(self.restarts_ms.clone()).unwrap_or(0.0),
            self.life.data_bytes() >> 20,
            total(Stream::sent),
            total(Stream::acked),
            count(&world.resent),
            count(&world.delivered),
            count(&world.repeated),
            world.faults.count(LOST),
            world.faults.count(REPEATED_QOS2),
            count(&world.retained_checked),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_in_any_order_and_what_is_not_known_is_refused() {
        let options = Options::parse(&["--end", "term", "--seed", "7", "--broker", "mosquitto"]).unwrap();
        assert!(Options::parse(&["--lazyfs", "lazyfs", "--forget"]).unwrap_err().contains("--forget"));
        assert_eq!((options.ends, options.seed), (Ends::Always(End::Term), 7));
        assert_eq!(options.kind, Kind::Mosquitto);
        for wrong in [["--end", "well"].as_slice(), &["--seed"], &["--rate", "0"], &["--kills", "3"]] {
            assert!(Options::parse(wrong).unwrap_err().contains(wrong[0]));
        }
    }
}
