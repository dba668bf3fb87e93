//! What the kernel knows of a process: CPU time, memory, context switches (proc(5)).

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::BenchError;

/// A process under observation.
#[derive(Debug)]
pub(crate) struct Process {
    dir: PathBuf,
    ticks_per_s: f64,
    page_bytes: u64,
}

/// Running totals of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
    /// Times a thread gave up the CPU of its own accord: it slept. Over the threads alive now.
    pub(crate) voluntary_switches: u64,
    /// Time threads were ready to run and had no core: other processes were in the way. Over the threads alive
    /// now.
    pub(crate) waited_s: f64,
}

impl Process {
    /// Observes process `pid`.
    ///
    /// # Errors
    /// If there is no such process.
    pub(crate) fn of(pid: u32) -> Result<Self, BenchError> {
        Self::at(format!("/proc/{pid}").into())
    }

    /// Observes this process.
    ///
    /// # Errors
    /// If /proc is not mounted.
    pub(crate) fn this() -> Result<Self, BenchError> {
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

    /// CPU time and context switches so far.
    ///
    /// # Errors
    /// If the process ended.
    pub(crate) fn usage(&self) -> Result<Usage, BenchError> {
        let (user, system) = cpu_ticks(&self.read("stat")?).ok_or_else(|| self.odd("stat"))?;
        let mut usage = Usage {
            user_s: user / self.ticks_per_s,
            system_s: system / self.ticks_per_s,
            ..Usage::default()
        };
        self.add_threads(&mut usage);
        Ok(usage)
    }

    /// Resident memory now, in bytes.
    ///
    /// # Errors
    /// If the process ended.
    pub(crate) fn resident_bytes(&self) -> Result<u64, BenchError> {
        let statm = self.read("statm")?;
        let pages: Option<u64> = statm.split(' ').nth(1).and_then(|field| field.parse().ok());
        pages.map(|pages| pages * self.page_bytes).ok_or_else(|| self.odd("statm"))
    }

    /// The most resident memory since the process began, in bytes.
    ///
    /// # Errors
    /// If the process ended.
    pub(crate) fn resident_bytes_max(&self) -> Result<u64, BenchError> {
        let status = self.read("status")?;
        field(&status, "VmHWM:").map(|kib| kib * 1024).ok_or_else(|| self.odd("status"))
    }

    fn add_threads(&self, usage: &mut Usage) {
        // A thread that ends meanwhile is left out.
        let Ok(threads) = fs::read_dir(self.dir.join("task")) else { return };
        for thread in threads.flatten() {
            let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            usage.voluntary_switches += field(&read("status"), "voluntary_ctxt_switches:").unwrap_or(0);
            usage.waited_s += waited_s(&read("schedstat")).unwrap_or(0.0);
        }
    }

    fn read(&self, file: &str) -> Result<String, BenchError> {
        let path = self.dir.join(file);
        fs::read_to_string(&path).map_err(|error| BenchError::system(&shown(&path), error))
    }

    fn odd(&self, file: &str) -> BenchError {
        BenchError::system(&shown(&self.dir.join(file)), "not in the form proc(5) describes")
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// User and system time from `/proc/PID/stat`, in clock ticks. The command in parentheses may hold anything.
fn cpu_ticks(stat: &str) -> Option<(f64, f64)> {
    let (_, after_command) = stat.rsplit_once(')')?;
    let mut fields = after_command.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The time spent waiting for a core, from `/proc/PID/task/TID/schedstat`, which counts nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "exact to a microsecond for a century")]
fn waited_s(schedstat: &str) -> Option<f64> {
    let ns: u64 = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(ns as f64 / 1e9)
}

/// The number after `name` in a `/proc/PID/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_command_name() {
        let stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 3 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some((150.0, 25.0)));
        assert_eq!(cpu_ticks("42 (x"), None);
        assert_eq!(waited_s("1 2500000000 3"), Some(2.5));
    }

    #[test]
    fn status_fields_are_found_by_their_whole_name() {
        let status = "VmPeak:\t 10 kB\nVmHWM:\t  777 kB\nnonvoluntary_ctxt_switches:\t5\nvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "VmHWM:"), Some(777));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(3));
        assert_eq!(field(status, "VmSwap:"), None);
    }

    #[test]
    fn this_process_uses_memory_and_cpu() {
        let process = Process::this().unwrap();
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
