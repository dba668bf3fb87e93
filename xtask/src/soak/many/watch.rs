//! Sampling of the broker: memory and open files from /proc, gauges from `$SYS`.

use crate::Outcome;
use crate::bench::at;
use crate::bench::server::{Server, terminate};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Gauges that must return to their initial values.
const RETURNING: [&str; 6] = [
    "clients/total",
    "clients/connected",
    "connections/socket/count",
    "subscriptions/count",
    "shared_subscriptions/count",
    RETAINED,
];
const RETAINED: &str = "retained messages/count";
const POLL: Duration = Duration::from_millis(200);
const PREFIX: &str = "$SYS/broker/";

type Gauges = BTreeMap<String, i64>;

/// State of the broker at one time.
#[derive(Debug)]
pub(super) struct Sample {
    /// Time since the load began.
    pub(super) at: Duration,
    pub(super) rss_mib: f64,
    files: usize,
    gauges: Gauges,
}

impl Sample {
    pub(super) fn heading() -> &'static str {
        "     s   RSS MiB  files  connected  sessions  subscriptions  queued  retained    received        sent     dropped"
    }

    /// A sample with only a memory size, for tests.
    #[cfg(test)]
    pub(super) fn of_memory(at: Duration, rss_mib: f64) -> Self {
        Self { at, rss_mib, files: 0, gauges: Gauges::new() }
    }

    fn gauge(&self, name: &str) -> i64 {
        self.gauges.get(name).copied().unwrap_or(0)
    }

    /// Messages queued for sessions.
    fn queued(&self) -> i64 {
        self.gauge("messages/stored") - self.gauge(RETAINED)
    }

    /// Values that differ from those before the load; empty if all clients were cleaned up.
    fn differences(&self, before: &Self) -> Vec<String> {
        let mut found: Vec<String> = RETURNING
            .iter()
            .map(|name| (*name, before.gauge(name), self.gauge(name)))
            .chain([("queued messages", 0, self.queued())])
            .filter(|(_, before, after)| before != after)
            .map(|(name, before, after)| format!("{name}: {after} at the end, {before} before"))
            .collect();
        if self.files > before.files {
            found.push(format!("open files: {} at the end, {} before", self.files, before.files));
        }
        found
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:6.0}  {:8.1}  {:5}  {:9}  {:8}  {:13}  {:6}  {:8}  {:10}  {:10}  {:10}",
            self.at.as_secs_f64(),
            self.rss_mib,
            self.files,
            self.gauge("clients/connected"),
            self.gauge("clients/total"),
            self.gauge("subscriptions/count"),
            self.queued(),
            self.gauge(RETAINED),
            self.gauge("publish/messages/received"),
            self.gauge("publish/messages/sent"),
            self.gauge("publish/messages/dropped"),
        )
    }
}

/// Follows the gauges with a long-running `mainstem sub`.
pub(super) struct Watch {
    process: PathBuf,
    subscriber: Child,
    gauges: Arc<Mutex<Gauges>>,
}

impl Watch {
    /// # Errors
    /// If the subscriber cannot be started.
    pub(super) fn start(binary: &Path, server: &Server) -> Outcome<Self> {
        let mut command = Command::new(binary);
        command.args(["sub", "-p", &server.port.to_string(), "-t", &format!("{PREFIX}#"), "-v"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut subscriber = command.spawn().map_err(|error| at(binary, &error))?;
        let output = subscriber.stdout.take().ok_or("the subscriber has no output")?;
        let gauges = Arc::new(Mutex::new(Gauges::new()));
        let known = Arc::clone(&gauges);
        // The thread ends with the subscriber's output.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((name, value)) = gauge(&line) {
                    known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value);
                }
            }
        });
        Ok(Self { process: format!("/proc/{}", server.pid()).into(), subscriber, gauges })
    }

    /// Samples the broker.
    ///
    /// # Errors
    /// If its process has exited.
    pub(super) fn sample(&self, at_time: Duration) -> Outcome<Sample> {
        let (status, files) = (self.process.join("status"), self.process.join("fd"));
        let text = fs::read_to_string(&status).map_err(|error| at(&status, &error))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = kib
            .and_then(|value| value.split_whitespace().next()?.parse().ok())
            .ok_or_else(|| format!("{}: no VmRSS", status.display()))?;
        let files = fs::read_dir(&files).map_err(|error| at(&files, &error))?;
        // The number of open log segments varies, within a limit of its own.
        let is_segment = |link: &Path| link.components().any(|part| part.as_os_str() == "log");
        let files = files
            .flatten()
            .filter(|file| !fs::read_link(file.path()).is_ok_and(|link| is_segment(&link)))
            .count();
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Sample { at: at_time, rss_mib: kib / 1024.0, files, gauges })
    }

    /// Waits until this watch is the only client, and returns that sample.
    ///
    /// # Errors
    /// If the gauges do not settle in time.
    pub(super) fn settle(&self, longest: Duration) -> Outcome<Sample> {
        let is_alone = |sample: &Sample| {
            // The first updates may not cover all gauges.
            sample.gauge("clients/total") == 1
                && sample.gauge("subscriptions/count") == 1
                && sample.gauge("uptime") >= 3
        };
        let (sample, alone) = self.poll(longest, is_alone)?;
        if alone { Ok(sample) } else { Err(format!("the gauges do not settle: {:?}", sample.gauges)) }
    }

    /// Waits until all values have returned to those before the load. Returns the remaining differences.
    pub(super) fn await_return(&self, before: &Sample, longest: Duration) -> Vec<String> {
        match self.poll(longest, |sample| sample.differences(before).is_empty()) {
            Ok((sample, _)) => sample.differences(before),
            Err(error) => vec![error],
        }
    }

    fn poll(&self, longest: Duration, is_expected: impl Fn(&Sample) -> bool) -> Outcome<(Sample, bool)> {
        let began = Instant::now();
        loop {
            let sample = self.sample(began.elapsed())?;
            let matches = is_expected(&sample);
            if matches || began.elapsed() > longest {
                return Ok((sample, matches));
            }
            thread::sleep(POLL);
        }
    }

    /// Stops the subscriber.
    ///
    /// # Errors
    /// If it exited before.
    pub(super) fn stop(mut self) -> Outcome {
        let gone = |error: std::io::Error| format!("the watching subscriber: {error}");
        if let Some(status) = self.subscriber.try_wait().map_err(gone)? {
            return Err(format!("the watching subscriber exited: {status}"));
        }
        terminate(&self.subscriber)?;
        self.subscriber.wait().map(drop).map_err(gone)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let ended = self.subscriber.try_wait().is_ok_and(|status| status.is_some());
        if !ended && let Err(error) = self.subscriber.kill().and_then(|()| self.subscriber.wait()) {
            eprintln!("cannot stop the watching subscriber: {error}");
        }
    }
}

/// Parses a gauge from a line of `mainstem sub -v`. Names may contain spaces; `uptime` has a unit.
fn gauge(line: &str) -> Option<(&str, i64)> {
    let line = line.strip_prefix(PREFIX)?;
    let (name, value) = line.strip_suffix(" seconds").unwrap_or(line).rsplit_once(' ')?;
    Some((name, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(files: usize, gauges: &[(&str, i64)]) -> Sample {
        let gauges = gauges.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Sample { at: Duration::ZERO, rss_mib: 0.0, files, gauges }
    }

    #[test]
    fn parses_gauges_with_spaces_and_units() {
        assert_eq!(gauge("$SYS/broker/retained messages/count 7"), Some(("retained messages/count", 7)));
        assert_eq!(gauge("$SYS/broker/uptime 12 seconds"), Some(("uptime", 12)));
        assert_eq!(gauge("$SYS/broker/version mainstem version 0.1.0"), None);
    }

    #[test]
    fn names_values_that_do_not_return() {
        let before = sample(20, &[("clients/total", 1), ("messages/stored", 50), (RETAINED, 50)]);
        let same = sample(19, &[("clients/total", 1), ("messages/stored", 50), (RETAINED, 50)]);
        assert!(same.differences(&before).is_empty());
        let after = sample(21, &[("clients/total", 3), ("messages/stored", 54), (RETAINED, 50)]);
        assert_eq!(
            after.differences(&before),
            [
                "clients/total: 3 at the end, 1 before",
                "queued messages: 4 at the end, 0 before",
                "open files: 21 at the end, 20 before"
            ]
        );
    }
}
