//! The order to create a log, and what a log knows of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fs::{File, Fs, Mode};
use crate::log_dir::LogDir;

/// Order to create a log. Whoever comes first, the committer or the shard, carries it out.
pub(crate) struct NewLog {
    dir: PathBuf,
    segment: PathBuf,
    progress: Mutex<Progress>,
}

enum Progress {
    Requested,
    Done(io::Result<Arc<dyn File>>),
    Taken,
}

impl NewLog {
    pub(crate) fn of(dir: &LogDir) -> Self {
        let progress = Mutex::new(Progress::Requested);
        Self { dir: dir.path().to_owned(), segment: dir.segment(0), progress }
    }

    /// Creates the directory and the file, unless that was done.
    pub(crate) fn run(&self, fs: &dyn Fs) {
        let mut progress = self.progress();
        if matches!(*progress, Progress::Requested) {
            *progress = Progress::Done(create(fs, &self.dir, &self.segment));
        }
    }

    /// Takes the file once it was created.
    pub(crate) fn take(&self) -> Option<io::Result<Arc<dyn File>>> {
        let mut progress = self.progress();
        if matches!(*progress, Progress::Requested) {
            return None;
        }
        match std::mem::replace(&mut *progress, Progress::Taken) {
            Progress::Done(outcome) => Some(outcome),
            Progress::Requested | Progress::Taken => None,
        }
    }

    /// Ignores poisoning: no panic leaves the progress inconsistent.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn create(fs: &dyn Fs, dir: &Path, segment: &Path) -> io::Result<Arc<dyn File>> {
    fs.create_dir(dir)?;
    match fs.open(segment, Mode::New) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Left by an attempt that failed.
            let file = fs.open(segment, Mode::Existing)?;
            if file.len()? == 0 { Ok(file) } else { Err(error) }
        }
        outcome => outcome,
    }
}

/// State of a log whose first file does not exist.
#[derive(Default)]
pub(crate) struct Creation {
    /// `None` if nobody was asked, or the last attempt failed.
    pub(crate) request: Option<Arc<NewLog>>,
    /// Bytes of its held appends.
    pub(crate) held_bytes: usize,
    /// A failure was logged.
    pub(crate) is_reported: bool,
}
