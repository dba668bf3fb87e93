//! Simulated power loss: the data directory is on LazyFS, which drops unsynced data on command.
//!
//! LazyFS is a third-party FUSE file system. It holds writes in memory and passes them to the underlying file system on
//! sync. It runs single-threaded here, because its multi-threaded mode has bugs.

use crate::Outcome;
use crate::bench::at;
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of mounting, of dropping data, and of exit.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(2);
/// Maximum cache size, far above the data of one uptime. Beyond it, LazyFS would write unsynced data.
const CACHE: &str = "0.5GB";
const DROP_UNSYNCED: &[u8] = b"lazyfs::clear-cache\n";
const DROPPED: &[u8] = b"finished::clear-cache\n";

/// A directory mounted on LazyFS. Dropping it unmounts.
pub(super) struct LazyFs {
    child: Child,
    mount: PathBuf,
    commands: File,
    responses: File,
}

impl LazyFs {
    /// Mounts an empty directory `scratch/data` with the program `binary`. Synced data is stored in `scratch/disk`.
    ///
    /// # Errors
    /// If it cannot be mounted, or fails the self-test.
    pub(super) fn mount(binary: &Path, scratch: &Path) -> Outcome<Self> {
        let (mount, below) = (scratch.join("data"), scratch.join("disk"));
        for dir in [&mount, &below] {
            fs::create_dir_all(dir).map_err(|error| at(dir, &error))?;
        }
        let [config, commands, responses, log] =
            ["lazyfs.toml", "lazyfs-commands", "lazyfs-responses", "lazyfs.log"]
                .map(|name| scratch.join(name));
        let text = CONFIG.replace("@COMMANDS@", &commands.display().to_string());
        let text = text.replace("@RESPONSES@", &responses.display().to_string()).replace("@CACHE@", CACHE);
        fs::write(&config, text).map_err(|error| at(&config, &error))?;
        let stdout = File::create(&log).map_err(|error| at(&log, &error))?;
        let stderr = stdout.try_clone().map_err(|error| at(&log, &error))?;
        let mut command = Command::new(binary);
        command.arg(&mount).arg("--config-path").arg(&config).args(["-f", "-s", "-o", "modules=subdir"]);
        command.arg("-o").arg(format!("subdir={}", below.display()));
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let mut child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        let opened = wait_for_mount(&mut child, &mount, &log)
            .and_then(|()| Ok((open_fifo(&commands)?, open_fifo(&responses)?)));
        match opened {
            Ok((commands, responses)) => {
                let mut lazy = Self { child, mount, commands, responses };
                lazy.self_test()?;
                Ok(lazy)
            }
            Err(error) => {
                shut_down(&mut child, &mount);
                Err(error)
            }
        }
    }

    /// Drops all unsynced data, as a power loss does.
    ///
    /// # Errors
    /// If LazyFS does not confirm.
    pub(super) fn drop_unsynced(&mut self) -> Outcome {
        let failed = |error| format!("cannot send a command to LazyFS: {error}");
        self.commands.write_all(DROP_UNSYNCED).map_err(failed)?;
        let (deadline, mut response) = (Instant::now() + TIMEOUT, Vec::new());
        while response.len() < DROPPED.len() {
            let mut piece = [0; DROPPED.len()];
            match self.responses.read(&mut piece) {
                Ok(some) => response.extend_from_slice(&piece[..some]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            if Instant::now() > deadline {
                return Err("LazyFS does not confirm that it dropped the unsynced data".to_owned());
            }
            thread::sleep(POLL);
        }
        if response == DROPPED {
            Ok(())
        } else {
            Err(format!("unexpected response from LazyFS: {:?}", String::from_utf8_lossy(&response)))
        }
    }

    /// Checks that synced data survives [`Self::drop_unsynced`] and that unsynced data does not.
    fn self_test(&mut self) -> Outcome {
        let [synced, unsynced] = ["synced", "unsynced"].map(|name| self.mount.join(name));
        fs::write(&unsynced, b"lost").map_err(|error| at(&unsynced, &error))?;
        let kept = File::create(&synced).and_then(|mut file| {
            file.write_all(b"kept")?;
            file.sync_data()
        });
        kept.map_err(|error| at(&synced, &error))?;
        self.drop_unsynced()?;
        for (path, expected) in [(synced, b"kept".as_slice()), (unsynced, b"")] {
            let found = fs::read(&path).map_err(|error| at(&path, &error))?;
            if found != expected {
                return Err(format!(
                    "{}: found {} bytes after dropping unsynced data",
                    path.display(),
                    found.len()
                ));
            }
            fs::remove_file(&path).map_err(|error| at(&path, &error))?;
        }
        Ok(())
    }
}

impl Drop for LazyFs {
    fn drop(&mut self) {
        shut_down(&mut self.child, &self.mount);
    }
}

/// Unmounts what a previous run left mounted because it was killed.
pub(super) fn unmount_leftover(scratch: &Path) {
    let mount = scratch.join("data");
    if is_mounted(&mount) {
        unmount(&mount);
    }
}

fn wait_for_mount(child: &mut Child, mount: &Path, log: &Path) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    while !is_mounted(mount) {
        let ended = child.try_wait().map_err(|error| format!("cannot query the LazyFS process: {error}"))?;
        if ended.is_some() || Instant::now() > deadline {
            return Err(format!("LazyFS did not mount {}; see {}", mount.display(), log.display()));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn is_mounted(mount: &Path) -> bool {
    let (mounts, expected) = (fs::read_to_string("/proc/self/mounts").unwrap_or_default(), mount.display());
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(expected.to_string().as_str()))
}

/// Opens a FIFO in both directions and non-blocking, so that the open does not wait for a peer.
fn open_fifo(path: &Path) -> Outcome<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).write(true).custom_flags(nonblocking).open(path);
    opened.map_err(|error| at(path, &error))
}

/// Unmounts lazily: immediately, or as soon as no file is open.
fn unmount(mount: &Path) {
    let unmounted = Command::new("fusermount3").arg("-uz").arg(mount).status();
    if !unmounted.as_ref().is_ok_and(std::process::ExitStatus::success) {
        eprintln!("cannot unmount {}: {unmounted:?}", mount.display());
    }
}

/// Unmounts, upon which the process exits. Kills it if it does not exit, or if it mounted nothing.
fn shut_down(child: &mut Child, mount: &Path) {
    let mut deadline = Instant::now();
    if is_mounted(mount) {
        unmount(mount);
        deadline += TIMEOUT;
    }
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if Instant::now() > deadline {
            eprintln!("LazyFS, process {}, does not exit: killing it", child.id());
            child.kill().and_then(|()| child.wait().map(drop)).ok();
            return;
        }
        thread::sleep(POLL);
    }
}

const CONFIG: &str = r#"
[faults]
fifo_path = "@COMMANDS@"
fifo_path_completed = "@RESPONSES@"

[cache]
apply_eviction = false

[cache.simple]
custom_size = "@CACHE@"
blocks_per_page = 1

[filesystem]
log_all_operations = false
logfile = ""
"#;
