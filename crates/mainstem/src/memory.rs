//! The memory limit of the process: from the configuration, its control group, or the machine.

use std::path::Path;
use std::sync::Arc;

use mainstem_mqtt_server::settings;
use mainstem_runtime::MemoryBudget;

/// Share of the available memory that the budget takes without a configured limit, percent. The rest is for what is not
/// counted: the allocator's own overhead, stacks, and the page cache of the logs.
const DEFAULT_PERCENT: u64 = 60;
/// Budget if the system does not tell how much memory there is, bytes.
const FALLBACK_BYTES: u64 = 1024 * 1024 * 1024;

settings! {
    /// The memory of the process.
    pub struct MemoryConfig {
        /// Memory budget of the process, in bytes: see docs/mqtt.md for what counts. 0 takes 60 % of the memory
        /// limit of the control group, or of the machine's memory if there is no such limit.
        max_bytes: u64 = 0_u64, in 0 ..= 1_125_899_906_842_624;
    }
}

/// The budget of the process for `shards` shards.
pub(crate) fn budget(config: &MemoryConfig, shards: usize) -> Arc<MemoryBudget> {
    let bytes_max = if config.max_bytes > 0 {
        config.max_bytes
    } else {
        available(Path::new("/")).map_or(FALLBACK_BYTES, |bytes| bytes / 100 * DEFAULT_PERCENT)
    };
    log::info!("memory budget: {} MiB (memory.max_bytes)", bytes_max / 1024 / 1024);
    MemoryBudget::new(bytes_max, shards)
}

/// Memory that the process may use: the smallest limit of its control groups, at most the machine's memory. `root` is
/// the directory that contains `proc` and `sys`.
fn available(root: &Path) -> Option<u64> {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = meminfo.as_deref().and_then(total_memory);
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| group_limit(root, line)).chain(machine).min()
}

/// `MemTotal` of `/proc/meminfo`, bytes.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The smallest memory limit of a control group and those above it. `line` is one of `/proc/self/cgroup`. In a
/// container the path may be one of the host, so that only the root of the mounted hierarchy exists.
fn group_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|directory| directory.starts_with(&mount));
    // "max" is no number; without a limit, version 1 has a number above any machine's memory.
    let limit = |directory: &Path| std::fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok();
    groups.filter_map(limit).min()
}

/// Resident memory of the process, bytes; 0 if the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn system(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("mainstem-memory-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn available_in(name: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = system(name, files);
        let bytes = available(&root);
        fs::remove_dir_all(&root).unwrap();
        bytes
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:        8000 kB\nMemFree:  1 kB\n");

    #[test]
    fn the_smallest_limit_counts() {
        let v2 = [
            MEMINFO,
            ("proc/self/cgroup", "0::/service/broker\n"),
            ("sys/fs/cgroup/service/memory.max", "3000000\n"),
            ("sys/fs/cgroup/service/broker/memory.max", "max\n"),
        ];
        assert_eq!(available_in("v2", &v2), Some(3_000_000));
        let v1 = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/unknown\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"),
        ];
        assert_eq!(available_in("v1", &v1), Some(2_000_000));
        let unlimited = [
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(available_in("unlimited", &unlimited), Some(8_000 * 1024));
        assert_eq!(available_in("bare", &[MEMINFO]), Some(8_000 * 1024));
        assert_eq!(available_in("unknown", &[("proc/other", "")]), None);
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident_bytes() > 1024 * 1024);
    }
}
