//! Context of a measurement: machine, commit, time.

use crate::Outcome;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Processor, cores, memory and kernel, in one line.
pub(crate) fn describe() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = field(&cpuinfo, "model name").unwrap_or("unknown processor").to_owned();
    let meminfo = read("/proc/meminfo");
    let kib: Option<u64> =
        field(&meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse().ok());
    let memory = kib.map_or("unknown memory".to_owned(), |kib| format!("{} GiB", kib >> 20));
    format!("{model}, {} cores, {memory}, Linux {}", cores(), read("/proc/sys/kernel/osrelease").trim())
}

/// Number of cores available to this process.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The checked-out commit, marked `-dirty` if files differ from it.
pub(crate) fn commit(root: &Path) -> String {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty", "--exclude", "*"]).current_dir(root);
    match command.output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

/// Current time in UTC, sortable and valid in file names: `20260131T235959Z`.
pub(super) fn timestamp() -> Outcome<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    Ok(utc(since.as_secs()))
}

fn utc(unix_s: u64) -> String {
    let (mut days, second) = (unix_s / 86_400, unix_s % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}{month:02}{:02}T{hour:02}{minute:02}{second:02}Z", days + 1)
}

/// Value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_calendar_times() {
        for (unix_s, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
        ] {
            assert_eq!(utc(unix_s), expected);
        }
    }

    #[test]
    fn matches_fields_by_full_name() {
        let text = "model\t: 106\nmodel name\t: A: B\n";
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "name"), None);
    }
}
