//! The file of a log's next segment, created by the committer before it is needed.
//!
//! Creating a file may take milliseconds, for which a shard must not wait. So the committer creates it, under a name of
//! its own (`.creating`), when the newest segment is nearly full. A roll takes the file and writes into it at once; the
//! committer gives it the name of the segment before it acknowledges anything in it. Recovery removes files that have
//! no other name: nothing in them was acknowledged.
//!
//! Each is an open file. So few logs have one in advance ([`AHEAD_MAX`]); others get theirs when the segment is full.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstem_log::LogId;

use crate::fs::{File, Fs, Mode};
use crate::log_dir::LogDir;
use crate::name;

/// Maximum number of files of a store that are created in advance, and maximum share of its open files.
const AHEAD_MAX: usize = 64;
const AHEAD_SHARE: usize = 8;

/// The files of a store that are requested or created and not yet segments.
pub(crate) struct NextFiles {
    max: usize,
    counted: Arc<()>,
}

impl NextFiles {
    /// For a store with up to `open_files` open files. Returns how many of them are left for other files, too.
    pub(crate) fn within(open_files: usize) -> (Self, usize) {
        let max = (open_files / AHEAD_SHARE).min(AHEAD_MAX);
        (Self { max, counted: Arc::default() }, open_files - max)
    }

    /// Whether there may be another one in advance.
    pub(crate) fn has_room(&self) -> bool {
        Arc::strong_count(&self.counted) <= self.max
    }
}

/// A created file, without the name of a segment.
pub(crate) struct Created {
    pub(crate) file: Arc<dyn File>,
    /// Reserved space, bytes.
    pub(crate) reserved: u64,
}

/// Where the committer puts a created file, or why there is none.
type Slot = Arc<Mutex<Option<io::Result<Created>>>>;

/// Order for the committer to create a file.
pub(crate) struct FileRequest {
    pub(crate) log: LogId,
    path: PathBuf,
    /// Space to reserve, bytes.
    reserve: u64,
    slot: Slot,
}

/// A request that the log has not taken the file of.
struct Requested {
    path: PathBuf,
    slot: Slot,
    _counted: Arc<()>,
}

/// The file of the next segment of one log.
#[derive(Default)]
pub(crate) struct NextFile {
    requested: Option<Requested>,
    /// Number of files requested so far, which makes their names unique.
    count: u64,
}

impl NextFile {
    /// Whether the file was created.
    pub(crate) fn is_created(&self) -> bool {
        self.requested.as_ref().is_some_and(|requested| matches!(&*lock(&requested.slot), Some(Ok(_))))
    }

    /// Requests a file with `reserve` bytes of space, unless one is requested and did not fail.
    pub(crate) fn request(&mut self, files: &NextFiles, dir: &LogDir, reserve: u64) -> Option<FileRequest> {
        if let Some(requested) = &self.requested
            && !matches!(&*lock(&requested.slot), Some(Err(_)))
        {
            return None;
        }
        let path = dir.path().join(name::creating(self.count));
        self.count += 1;
        let slot = Slot::default();
        self.requested =
            Some(Requested { path: path.clone(), slot: slot.clone(), _counted: files.counted.clone() });
        Some(FileRequest { log: dir.id(), path, reserve, slot })
    }

    /// Takes the file and its path once the committer is done; another one can be requested then.
    pub(crate) fn take(&mut self) -> Option<io::Result<(PathBuf, Created)>> {
        let created = lock(&self.requested.as_ref()?.slot).take()?;
        let Requested { path, .. } = self.requested.take()?;
        Some(created.map(|created| (path, created)))
    }

    /// Removes a file that was not used, on a clean shutdown. The committer must be idle.
    pub(crate) fn discard(&mut self, fs: &dyn Fs) {
        if let Some(Ok((path, _))) = self.take()
            && let Err(error) = fs.remove_file(&path)
        {
            log::debug!("cannot remove {}: {error}", path.display());
        }
    }
}

impl FileRequest {
    /// Creates the file.
    pub(crate) fn run(self, fs: &dyn Fs) {
        *lock(&self.slot) = Some(create(fs, &self.path, self.reserve));
    }
}

/// Ignores poisoning: no panic leaves the slot inconsistent.
fn lock(slot: &Slot) -> MutexGuard<'_, Option<io::Result<Created>>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

fn create(fs: &dyn Fs, path: &Path, reserve: u64) -> io::Result<Created> {
    let file = fs.open(path, Mode::New)?;
    match file.allocate(0, reserve) {
        Ok(()) => Ok(Created { file, reserved: reserve }),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Created { file, reserved: 0 }),
        Err(error) => {
            if let Err(error) = fs.remove_file(path) {
                log::debug!("cannot remove {}: {error}", path.display());
            }
            Err(error)
        }
    }
}

/// Removes the files in a log directory that never became segments.
pub(crate) fn remove_unnamed(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    for file in fs.list(dir)?.iter().filter(|file| name::is_creating(file)) {
        fs.remove_file(&dir.join(file))?;
    }
    Ok(())
}
