//! `cargo xtask soak many`: many kinds of load on one broker at once, for long, watching that nothing is lost and nothing
//! grows.
//!
//! It fails on a message lost, repeated or out of order; on memory that grows after the warm-up; on a panic in the log;
//! on a broker that ends, or does not end well; and on a gauge that is not back where it was when all clients have left.
//!
//! | file | holds |
//! |---|---|
//! | `load` | the kinds of load |
//! | `watch` | what is sampled meanwhile |

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

/// Most growth of resident memory, from the second quarter of the run to the last: medians of each.
const GROWTH_MIB_MAX: f64 = 16.0;
/// Longest time for the gauges to settle, before the load and after it.
const SETTLE: Duration = Duration::from_secs(20);
/// Longest time that the load may take beyond what it was asked for.
const GRACE: Duration = Duration::from_mins(2);
const SAMPLE_MAX: Duration = Duration::from_secs(10);

/// Tells the loads that it is over.
#[derive(Default)]
struct Stop {
    over: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    fn tell(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    /// Waits so long, or until it is over. Whether it is.
    fn wait(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_timeout_while(over, time, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Runs for so many seconds.
///
/// # Errors
/// All that is amiss.
pub(crate) fn run(root: &Path, seconds: u32) -> Outcome {
    server::raise_file_limit()?;
    let scratch = root.join("target/soak");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
    }
    fs::create_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
    // A copy, so that a build meanwhile changes nothing.
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
    let (samples, mut faults) = load(&target, &mut server, &watch);
    faults.extend(grown(&samples, seconds));
    faults.extend(watch.returned(&before, SETTLE));
    faults.extend(watch.stop().err());
    faults.extend(ended_well(server, &log));
    if faults.is_empty() {
        println!("soak: nothing lost, nothing grown, after {seconds} s");
        return Ok(());
    }
    Err(format!("soak: log in {}\n  {}", log.display(), faults.join("\n  ")))
}

/// Puts all loads on the broker and samples it until they are done. The samples, and what the loads found amiss.
fn load(target: &Target, server: &mut Server, watch: &Watch) -> (Vec<Sample>, Vec<String>) {
    let stop = Stop::default();
    let began = Instant::now();
    let time = Duration::from_secs(target.seconds.into());
    let mut samples = Vec::new();
    let mut faults = Vec::new();
    thread::scope(|scope| {
        let loads: Vec<_> =
            LOADS.iter().map(|(name, run)| (*name, scope.spawn(|| run(target, &stop)))).collect();
        let outcome = sample(&mut samples, began, time, server, watch);
        stop.tell();
        faults.extend(outcome.err());
        for (name, thread) in loads {
            match thread.join() {
                Ok(Ok(summary)) => println!("{name}: {summary}"),
                Ok(Err(fault)) => faults.push(format!("{name}: {fault}")),
                Err(_) => faults.push(format!("{name}: panicked")),
            }
        }
    });
    if began.elapsed() > time + GRACE {
        faults.push(format!("the load took {} s", began.elapsed().as_secs()));
    }
    (samples, faults)
}

/// Samples until the time is over.
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
            return Err(format!("the broker ended: {status}"));
        }
        let sample = watch.sample(began.elapsed())?;
        println!("{sample}");
        samples.push(sample);
        due += interval;
    }
    Ok(())
}

/// A sentence if memory grew by more than is allowed.
fn grown(samples: &[Sample], seconds: u32) -> Option<String> {
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

/// Stops the broker; what is wrong with how it ends, and with what it logged.
fn ended_well(server: Server, log: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    match server.stop() {
        Ok(status) if status.success() => {}
        Ok(status) => faults.push(format!("the broker ended with {status}")),
        Err(fault) => faults.push(format!("the broker: {fault}")),
    }
    match fs::read_to_string(log) {
        Ok(text) => faults.extend(panics(&text)),
        Err(error) => faults.push(at(log, &error)),
    }
    faults
}

/// The lines of a log that tell of a panic.
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
    fn memory_may_grow_while_warming_up_only() {
        assert_eq!(grown(&samples(|at| if at < 10 { 10.0 } else { 90.0 }), 40), None);
        let leak = grown(&samples(|at| f64::from(u32::try_from(at).unwrap())), 40).unwrap();
        assert!(leak.contains("14.5 to 34.5"), "{leak}");
        assert_eq!(grown(&samples(|at| if at == 38 { 900.0 } else { 10.0 }), 40), None);
    }

    #[test]
    fn a_panic_in_the_log_is_found() {
        assert_eq!(panics("INFO fine\nthread 'shard-0' panicked at x.rs:1\n").len(), 1);
        assert!(panics("INFO fine\n").is_empty());
    }
}
