//! Resource usage of a process from /proc (proc(5)): CPU time, memory, context switches.
//!
//! CPU time comes from the process totals and survives threads that end. Context switches and run-queue wait time
//! exist only per thread, so they cover the threads that are alive at the time of the call.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::BenchError;

/// An observed process.
#[derive(Debug)]
pub(crate) struct Process {
    dir: PathBuf,
    ticks_per_s: f64,
    page_bytes: u64,
}

/// Cumulative usage of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
    /// Voluntary context switches (a thread slept) of the threads alive now.
    pub(crate) voluntary_switches: u64,
    /// Time that the threads alive now were runnable without a core.
    pub(crate) waited_s: f64,
}

impl Process {
    /// Observes process `pid`.
    ///
    /// # Errors
    /// If the process does not exist.
    pub(crate) fn of(pid: u32) -> Result<Self, BenchError> {
        Self::at(format!("/proc/{pid}").into())
    }

    /// Observes the current process.
    ///
    /// # Errors
    /// If /proc is not mounted.
    pub(crate) fn current() -> Result<Self, BenchError> {
        Self::at("/proc/self".into())
    }

    #[expect(clippy::cast_precision_loss, reason = "100 or so")]
    fn at(dir: PathBuf) -> Result<Self, BenchError> {
        let process = Self {
            dir,
            ticks_per_s: rustix::param::clock_ticks_per_second() as f64,
            page_bytes: rustix::param::page_size() as u64,
        };
        process.usage()?;
        Ok(process)
    }

    /// Usage so far.
    ///
    /// # Errors
    /// If the process ended.
    pub(crate) fn usage(&self) -> Result<Usage, BenchError> {
        let (user, system) = cpu_ticks(&self.read("stat")?).ok_or_else(|| self.malformed("stat"))?;
        let mut usage = Usage {
            user_s: user / self.ticks_per_s,
            system_s: system / self.ticks_per_s,
            ..Usage::default()
        };
        self.add_threads(&mut usage);
        Ok(usage)
    }

    /// Current resident memory, in bytes.
    ///
    /// # Errors
    /// If the process ended.
    pub(crate) fn resident_bytes(&self) -> Result<u64, BenchError> {
        let statm = self.read("statm")?;
        let pages: Option<u64> = statm.split(' ').nth(1).and_then(|field| field.parse().ok());
        pages.map(|pages| pages * self.page_bytes).ok_or_else(|| self.malformed("statm"))
    }

    /// Peak resident memory since the process started, in bytes.
    ///
    /// # Errors
    /// If the process ended.
    pub(crate) fn resident_bytes_max(&self) -> Result<u64, BenchError> {
        let status = self.read("status")?;
        field(&status, "VmHWM:").map(|kib| kib * 1024).ok_or_else(|| self.malformed("status"))
    }

    fn add_threads(&self, usage: &mut Usage) {
        // A thread that ends during the scan is not counted.
        let Ok(threads) = fs::read_dir(self.dir.join("task")) else { return };
        for thread in threads.flatten() {
            let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            usage.voluntary_switches += field(&read("status"), "voluntary_ctxt_switches:").unwrap_or(0);
            usage.waited_s += waited_s(&read("schedstat")).unwrap_or(0.0);
        }
    }

    fn read(&self, file: &str) -> Result<String, BenchError> {
        let path = self.dir.join(file);
        fs::read_to_string(&path).map_err(|error| BenchError::system(&display(&path), error))
    }

    fn malformed(&self, file: &str) -> BenchError {
        BenchError::system(&display(&self.dir.join(file)), "not in the format of proc(5)")
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// User and system time from `/proc/PID/stat`, in clock ticks. The command in parentheses may contain any character.
fn cpu_ticks(stat: &str) -> Option<(f64, f64)> {
    let (_, after_command) = stat.rsplit_once(')')?;
    let mut fields = after_command.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Run-queue wait time from `/proc/PID/task/TID/schedstat`, which counts nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "exact to a microsecond for a century")]
fn waited_s(schedstat: &str) -> Option<f64> {
    let ns: u64 = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(ns as f64 / 1e9)
}

/// The number after `name` in `/proc/PID/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_cpu_time_after_any_command_name() {
        let stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 3 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some((150.0, 25.0)));
        assert_eq!(cpu_ticks("42 (x"), None);
        assert_eq!(waited_s("1 2500000000 3"), Some(2.5));
    }

    #[test]
    fn matches_status_fields_by_full_name() {
        let status = "VmPeak:\t 10 kB\nVmHWM:\t  777 kB\nnonvoluntary_ctxt_switches:\t5\nvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "VmHWM:"), Some(777));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(3));
        assert_eq!(field(status, "VmSwap:"), None);
    }

    #[test]
    fn reads_usage_of_the_current_process() {
        let process = Process::current().unwrap();
        let resident = process.resident_bytes().unwrap();
        assert!(resident > 100_000 && resident <= process.resident_bytes_max().unwrap() + (1 << 22));
        let before = process.usage().unwrap();
        let mut spin = 0_u64;
        while process.usage().unwrap().user_s + process.usage().unwrap().system_s
            <= before.user_s + before.system_s
        {
            spin = spin.wrapping_mul(31).wrapping_add(1);
        }
        assert!(Process::of(u32::MAX).is_err());
    }
}
