//! Loss of power: the data directory on LazyFS, a file system that forgets what was not synced when it is told to.
//!
//! LazyFS is a FUSE file system that others wrote. It keeps what is written in memory, and hands it to the file system
//! below when it is synced. Here it runs with one thread, since it makes mistakes with several.

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

/// Longest time until it is mounted, has forgotten, or has ended.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(2);
/// What it keeps in memory at most, far more than is written in one life. Beyond that it would write without being asked.
const CACHE: &str = "0.5GB";
const FORGET: &[u8] = b"lazyfs::clear-cache\n";
const FORGOTTEN: &[u8] = b"finished::clear-cache\n";

/// A directory that is on LazyFS until this is dropped.
pub(super) struct Lazy {
    child: Child,
    mount: PathBuf,
    commands: File,
    answers: File,
}

impl Lazy {
    /// Mounts an empty directory `scratch/data`, by the program at `binary`. What is synced there is kept in
    /// `scratch/disk`.
    ///
    /// # Errors
    /// If it cannot be mounted, or does not forget what it should or keep what it should.
    pub(super) fn mount(binary: &Path, scratch: &Path) -> Outcome<Self> {
        let (mount, below) = (scratch.join("data"), scratch.join("disk"));
        for dir in [&mount, &below] {
            fs::create_dir_all(dir).map_err(|error| at(dir, &error))?;
        }
        let [config, commands, answers, log] =
            ["lazyfs.toml", "lazyfs-commands", "lazyfs-answers", "lazyfs.log"].map(|name| scratch.join(name));
        let text = CONFIG.replace("@COMMANDS@", &commands.display().to_string());
        let text = text.replace("@ANSWERS@", &answers.display().to_string()).replace("@CACHE@", CACHE);
        fs::write(&config, text).map_err(|error| at(&config, &error))?;
        let said = File::create(&log).map_err(|error| at(&log, &error))?;
        let said_too = said.try_clone().map_err(|error| at(&log, &error))?;
        let mut command = Command::new(binary);
        command.arg(&mount).arg("--config-path").arg(&config).args(["-f", "-s", "-o", "modules=subdir"]);
        command.arg("-o").arg(format!("subdir={}", below.display()));
        command.stdin(Stdio::null()).stdout(said).stderr(said_too);
        let mut child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        let opened = wait_for_mount(&mut child, &mount, &log)
            .and_then(|()| Ok((open_fifo(&commands)?, open_fifo(&answers)?)));
        match opened {
            Ok((commands, answers)) => {
                let mut lazy = Self { child, mount, commands, answers };
                lazy.prove()?;
                Ok(lazy)
            }
            Err(error) => {
                end(&mut child, &mount);
                Err(error)
            }
        }
    }

    /// As if power were lost: what was not synced is gone.
    ///
    /// # Errors
    /// If it does not say that it has.
    pub(super) fn forget(&mut self) -> Outcome {
        let failed = |error| format!("LazyFS cannot be told to forget: {error}");
        self.commands.write_all(FORGET).map_err(failed)?;
        let (deadline, mut said) = (Instant::now() + TIMEOUT, Vec::new());
        while said.len() < FORGOTTEN.len() {
            let mut piece = [0; FORGOTTEN.len()];
            match self.answers.read(&mut piece) {
                Ok(some) => said.extend_from_slice(&piece[..some]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            if Instant::now() > deadline {
                return Err("LazyFS does not say that it has forgotten".to_owned());
            }
            thread::sleep(POLL);
        }
        if said == FORGOTTEN {
            Ok(())
        } else {
            Err(format!("LazyFS says {:?}", String::from_utf8_lossy(&said)))
        }
    }

    /// Of two files, the one that was synced is kept, and what the other had is not.
    fn prove(&mut self) -> Outcome {
        let [synced, unsynced] = ["synced", "unsynced"].map(|name| self.mount.join(name));
        fs::write(&unsynced, b"lost").map_err(|error| at(&unsynced, &error))?;
        let kept = File::create(&synced).and_then(|mut file| {
            file.write_all(b"kept")?;
            file.sync_data()
        });
        kept.map_err(|error| at(&synced, &error))?;
        self.forget()?;
        for (path, wanted) in [(synced, b"kept".as_slice()), (unsynced, b"")] {
            let found = fs::read(&path).map_err(|error| at(&path, &error))?;
            if found != wanted {
                return Err(format!("{}: {} bytes are there", path.display(), found.len()));
            }
            fs::remove_file(&path).map_err(|error| at(&path, &error))?;
        }
        Ok(())
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        end(&mut self.child, &self.mount);
    }
}

/// Takes away what a run before, which was killed itself, has left mounted.
pub(super) fn unmount_leftover(scratch: &Path) {
    let mount = scratch.join("data");
    if is_mounted(&mount) {
        unmount(&mount);
    }
}

fn wait_for_mount(child: &mut Child, mount: &Path, log: &Path) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    while !is_mounted(mount) {
        let ended = child.try_wait().map_err(|error| format!("cannot ask for LazyFS: {error}"))?;
        if ended.is_some() || Instant::now() > deadline {
            return Err(format!("LazyFS has not mounted {}; see {}", mount.display(), log.display()));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn is_mounted(mount: &Path) -> bool {
    let (mounts, wanted) = (fs::read_to_string("/proc/self/mounts").unwrap_or_default(), mount.display());
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(wanted.to_string().as_str()))
}

/// Nobody needs to be at the other end: it is opened for both directions, and read without waiting.
fn open_fifo(path: &Path) -> Outcome<File> {
    let without_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).write(true).custom_flags(without_waiting).open(path);
    opened.map_err(|error| at(path, &error))
}

/// Unmounts, at once or as soon as nobody has anything open there.
fn unmount(mount: &Path) {
    let unmounted = Command::new("fusermount3").arg("-uz").arg(mount).status();
    if !unmounted.as_ref().is_ok_and(std::process::ExitStatus::success) {
        eprintln!("{} could not be unmounted: {unmounted:?}", mount.display());
    }
}

/// Unmounts, which ends it. It is killed if it goes on, or has not mounted anything.
fn end(child: &mut Child, mount: &Path) {
    let mut deadline = Instant::now();
    if is_mounted(mount) {
        unmount(mount);
        deadline += TIMEOUT;
    }
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if Instant::now() > deadline {
            eprintln!("LazyFS, process {}, does not end: it is killed", child.id());
            child.kill().and_then(|()| child.wait().map(drop)).ok();
            return;
        }
        thread::sleep(POLL);
    }
}

const CONFIG: &str = r#"
[faults]
fifo_path = "@COMMANDS@"
fifo_path_completed = "@ANSWERS@"

[cache]
apply_eviction = false

[cache.simple]
custom_size = "@CACHE@"
blocks_per_page = 1

[filesystem]
log_all_operations = false
logfile = ""
"#;
