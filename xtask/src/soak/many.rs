//! `cargo xtask soak many`: runs many kinds of load on one broker for a long time, checking for losses and growth.
//!
//! It fails on a message lost, duplicated or out of order; on memory growth after the warm-up; on a panic in the log;
//! on a broker that exits early or with an error; and on a gauge that does not return to its initial value after all
//! clients have disconnected.
//!
//! | file | holds |
//! |---|---|
//! | `load` | the kinds of load |
//! | `watch` | sampling of the broker |

mod load;
mod watch;

use crate::Outcome;
use crate::bench::server::{self, Server};
use crate::bench::{at, binary};
use load::{LOADS, Target};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use watch::{Sample, Watch};

/// Maximum growth of resident memory between the medians of the second and the last quarter of the run.
const GROWTH_MIB_MAX: f64 = 16.0;
/// Timeout for the gauges to settle, before and after the load.
const SETTLE: Duration = Duration::from_secs(20);
/// Maximum overrun of the load.
const GRACE: Duration = Duration::from_mins(2);
const SAMPLE_MAX: Duration = Duration::from_secs(10);

/// Signal to the loads to stop.
#[derive(Default)]
struct Stop {
    over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn signal(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for `time` or for the signal. Returns whether the signal was given.
    fn wait(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(over, time, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Runs the loads for a number of seconds.
///
/// # Errors
/// All problems found.
pub(crate) fn run(root: &Path, seconds: u32) -> Outcome {
    server::raise_file_limit()?;
    let scratch = root.join("target/soak");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
    }
    fs::create_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
    // A copy, so that a concurrent build does not affect the run.
    let (built, binary) = (binary(root)?, scratch.join("mainstem"));
    fs::copy(&built, &binary).map_err(|error| at(&built, &error))?;
    let log = scratch.join("broker.log");
    let mut server = Server::start(&log, |port| {
        let mut command = Command::new(&binary);
        command.args(["--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(scratch.join("data"));
        command.args(["--set", "mqtt.sys_interval_s=1"]);
        Ok(command)
    })?;
    let watch = Watch::start(&binary, &server)?;
    let before = watch.settle(SETTLE)?;
    println!("{}", Sample::heading());
    let target = Target { binary: &binary, port: server.port, seconds };
    let (samples, mut problems) = load(&target, &mut server, &watch);
    problems.extend(memory_growth(&samples, seconds));
    problems.extend(watch.await_return(&before, SETTLE));
    problems.extend(watch.stop().err());
    problems.extend(stop_and_check(server, &log));
    if problems.is_empty() {
        println!("soak: nothing lost, nothing grown, after {seconds} s");
        return Ok(());
    }
    Err(format!("soak: log in {}\n  {}", log.display(), problems.join("\n  ")))
}

/// Runs all loads and samples the broker until they are done. Returns the samples and the problems found.
fn load(target: &Target, server: &mut Server, watch: &Watch) -> (Vec<Sample>, Vec<String>) {
    let stop = Stop::default();
    let began = Instant::now();
    let time = Duration::from_secs(target.seconds.into());
    let mut samples = Vec::new();
    let mut problems = Vec::new();
    thread::scope(|scope| {
        let loads: Vec<_> =
            LOADS.iter().map(|(name, run)| (*name, scope.spawn(|| run(target, &stop)))).collect();
        let outcome = sample(&mut samples, began, time, server, watch);
        stop.signal();
        problems.extend(outcome.err());
        for (name, thread) in loads {
            match thread.join() {
                Ok(Ok(summary)) => println!("{name}: {summary}"),
                Ok(Err(error)) => problems.push(format!("{name}: {error}")),
                Err(_) => problems.push(format!("{name}: panicked")),
            }
        }
    });
    if began.elapsed() > time + GRACE {
        problems.push(format!("the load took {} s", began.elapsed().as_secs()));
    }
    (samples, problems)
}

/// Samples at intervals until `time` is over.
fn sample(
    samples: &mut Vec<Sample>,
    began: Instant,
    time: Duration,
    server: &mut Server,
    watch: &Watch,
) -> Outcome {
    let interval = (time / 40).min(SAMPLE_MAX);
    let mut due = interval;
    while due <= time {
        thread::sleep(due.saturating_sub(began.elapsed()));
        if let Some(status) = server.exited()? {
            return Err(format!("the broker exited: {status}"));
        }
        let sample = watch.sample(began.elapsed())?;
        println!("{sample}");
        samples.push(sample);
        due += interval;
    }
    Ok(())
}

/// A problem if memory grew by more than the limit.
fn memory_growth(samples: &[Sample], seconds: u32) -> Option<String> {
    let quarter = |from: f64, to: f64| {
        let (from, to) = (from * f64::from(seconds), to * f64::from(seconds));
        let inside = samples.iter().filter(|sample| (from..to).contains(&sample.at.as_secs_f64()));
        crate::bench::median(inside.map(|sample| sample.rss_mib).collect())
    };
    let (early, late) = (quarter(0.25, 0.5)?, quarter(0.75, 2.0)?);
    println!("memory: {early:.1} MiB in the second quarter, {late:.1} MiB in the last");
    (late - early > GROWTH_MIB_MAX)
        .then(|| format!("memory grew from {early:.1} to {late:.1} MiB, more than {GROWTH_MIB_MAX} MiB"))
}

/// Stops the broker. Returns problems with its exit status and its log.
fn stop_and_check(server: Server, log: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    match server.stop() {
        Ok(status) if status.success() => {}
        Ok(status) => problems.push(format!("the broker exited with {status}")),
        Err(error) => problems.push(format!("the broker: {error}")),
    }
    match fs::read_to_string(log) {
        Ok(text) => problems.extend(panics(&text)),
        Err(error) => problems.push(at(log, &error)),
    }
    problems
}

/// Lines of a log that report a panic.
fn panics(log: &str) -> Vec<String> {
    let lines = log.lines().filter(|line| line.contains("panicked"));
    lines.map(|line| format!("in the log: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rss_mib: impl Fn(u64) -> f64) -> Vec<Sample> {
        (0..40).map(|at| Sample::of_memory(Duration::from_secs(at), rss_mib(at))).collect()
    }

    #[test]
    fn allows_memory_growth_only_during_warm_up() {
        assert_eq!(memory_growth(&samples(|at| if at < 10 { 10.0 } else { 90.0 }), 40), None);
        let leak = memory_growth(&samples(|at| f64::from(u32::try_from(at).unwrap())), 40).unwrap();
        assert!(leak.contains("14.5 to 34.5"), "{leak}");
        assert_eq!(memory_growth(&samples(|at| if at == 38 { 900.0 } else { 10.0 }), 40), None);
    }

    #[test]
    fn finds_panics_in_the_log() {
        assert_eq!(panics("INFO fine\nthread 'shard-0' panicked at x.rs:1\n").len(), 1);
        assert!(panics("INFO fine\n").is_empty());
    }
}
