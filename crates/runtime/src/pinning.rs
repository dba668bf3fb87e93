//! Whether the threads of shards are pinned to cores.
//!
//! A pinned thread keeps its caches, but waits whenever anything else runs on its core, also while other cores are
//! idle. On a small machine with other busy processes that costs milliseconds per message and half of the throughput.
//! So shards are pinned only where their cores are their own: where somebody gave the process a part of the machine's
//! cores, or where there are so many that the scheduler moves other threads away.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Number of usable cores from which shards are pinned without being told so.
const MANY_CORES: usize = 16;
/// The cores of the machine that are in use, such as `0-3,8-11`.
const ONLINE_PATH: &str = "/sys/devices/system/cpu/online";

/// Whether each shard is pinned to a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// If the process has cores of its own, as `Pinning::applies` decides.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: the scheduler decides.
    Never,
}

impl Pinning {
    /// Whether shards are pinned in a process that may use `usable` of the `online` cores of the machine.
    fn applies(self, usable: usize, online: usize) -> bool {
        match self {
            Self::Auto => usable < online || usable >= MANY_CORES,
            Self::Always => true,
            Self::Never => false,
        }
    }

    /// The same for this process and machine.
    pub(crate) fn applies_here(self, usable: &[usize]) -> bool {
        let online = fs::read_to_string(ONLINE_PATH).ok().and_then(|list| count(&list));
        let is_pinned = self.applies(usable.len(), online.unwrap_or(usable.len()));
        if self == Self::Auto {
            let cores = usable.len();
            let reason = match online {
                Some(online) if cores < online => format!("the process may use {cores} of {online} cores"),
                _ => format!("{cores} cores, which other processes may use"),
            };
            let what = if is_pinned { "pinned to cores" } else { "not pinned to cores" };
            log::info!("shards are {what}: {reason} (runtime.pin)");
        }
        is_pinned
    }
}

/// Number of cores in a list such as `0-3,8`. `None` if it is not one.
fn count(text: &str) -> Option<usize> {
    let ranges = text.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        (last + 1).checked_sub(first)
    });
    ranges.sum()
}

/// CPUs available to the process; at least one.
pub(crate) fn usable_cpus() -> Vec<usize> {
    let cpus: Vec<usize> = sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        log::warn!("cannot pin a shard to CPU {cpu}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_pinned_where_the_cores_are_their_own() {
        for (usable, online, is_pinned) in [
            (2, 2, false),
            (1, 1, false),
            (8, 8, false),
            (2, 8, true),
            (1, 2, true),
            (16, 16, true),
            (64, 64, true),
        ] {
            assert_eq!(Pinning::Auto.applies(usable, online), is_pinned, "{usable} of {online}");
            assert!(Pinning::Always.applies(usable, online));
            assert!(!Pinning::Never.applies(usable, online));
        }
    }

    #[test]
    fn lists_of_cores_are_counted() {
        for (list, cores) in [
            ("0\n", Some(1)),
            ("0-1\n", Some(2)),
            ("0-3,8-11,15", Some(9)),
            ("", None),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(count(list), cores, "{list:?}");
        }
    }
}
