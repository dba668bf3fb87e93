//! Slow calls of the file system: files and directories are created, named, removed and synced here.
//!
//! Nothing here depends on what the committer knows of logs and journal. So a thread of its own can make these calls
//! ([`Batch`](crate::batch::Batch)), while the committer syncs the appends of other logs. The inline committer makes
//! them itself.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstem_log::{Error, LogId};

use crate::checkpoint;
use crate::deferred::{CheckpointRequest, Deferred, Removals, SealedIndex};
use crate::failure::{Failure, store_error};
use crate::fs::Fs;
use crate::group::{Ack, DirSync};
use crate::index::{self, Index};
use crate::name;
use crate::report::Report;
use crate::scan::Place;

/// The directories of a store.
pub(crate) struct Directories {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Removals of old segments.
    removals: Mutex<Removals>,
}

impl Directories {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self { fs, dir, removals: Mutex::default() }
    }

    /// Directory of the store.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes new logs durable, and gives files the names of segments. Returns the logs for which that failed.
    pub(crate) fn name_segments(&self, dirs: &mut BTreeMap<LogId, DirSync>) -> Vec<(LogId, Failure)> {
        let mut failures = Vec::new();
        let has_new = dirs.values().any(|names| names.is_new);
        let is_listed = if has_new { self.fs.sync_dir(&self.dir) } else { Ok(()) };
        for (log, names) in dirs {
            let outcome = match &is_listed {
                Err(error) if names.is_new => {
                    Err(Failure::Broken(io::Error::new(error.kind(), error.to_string())))
                }
                _ => name_segments(&*self.fs, names),
            };
            if let Err(failure) = outcome {
                failures.push((*log, failure));
            }
        }
        failures
    }

    /// Runs deferred work, except removals of whole logs. Returns what the shard should know of it.
    pub(crate) fn run(&self, deferred: Deferred) -> Report {
        let Deferred {
            checkpoint,
            removals: _,
            indexes,
            logs,
            files,
            reservations,
            segments,
            syncs,
            replacements,
            closing,
        } = deferred;
        let mut report = Report::default();
        drop(closing);
        for (log, request) in logs {
            request.run(&*self.fs);
            report.created.push(log);
        }
        for request in files {
            request.run(&*self.fs);
        }
        for reservation in reservations.values() {
            reservation.run();
        }
        for SealedIndex { path, bytes, .. } in &indexes {
            if let Err(error) = index::write_sealed(&*self.fs, path, bytes) {
                log::debug!("cannot save {}: {error}", path.display());
            }
        }
        for sync in syncs {
            sync.run();
        }
        for (log, removal) in segments {
            let acks = &mut report.acks;
            let removed = |base| acks.push(Ack { removed: Some(base), ..Ack::of(log, Place::default()) });
            if !self.removals().run(&*self.fs, log, removal, removed) {
                report.stalled.push(log);
            }
        }
        for (log, replacement) in replacements {
            report.replaced.push((log, replacement.run(&*self.fs)));
        }
        if let Some(CheckpointRequest { number, bytes }) = checkpoint {
            match checkpoint::store(&*self.fs, &self.dir, &bytes) {
                Ok(()) => report.checkpoint = Some(number),
                Err(error) => {
                    log::warn!("store {}: cannot write the checkpoint: {error}", self.dir.display());
                }
            }
        }
        report
    }

    /// Deletes the files of logs. Returns those that are gone: all or none.
    pub(crate) fn remove_logs(&self, logs: BTreeMap<LogId, Arc<str>>) -> BTreeMap<LogId, Arc<str>> {
        if logs.is_empty() {
            return logs;
        }
        for log in logs.keys() {
            self.removals().forget(*log);
        }
        let names: Vec<&str> = logs.values().map(|name| &**name).collect();
        match self.remove_dirs(&names) {
            Ok(()) => logs,
            Err(error) => {
                log::error!("store {}: cannot delete removed logs: {error}", self.dir.display());
                BTreeMap::new()
            }
        }
    }

    /// Deletes the directories of logs with these names.
    ///
    /// # Errors
    /// Some files may remain.
    pub(crate) fn remove_dirs(&self, names: &[&str]) -> io::Result<()> {
        let mut outcome = Ok(());
        let mut set_aside = Vec::with_capacity(names.len());
        for name in names {
            let gone = self.dir.join(name::gone_dir(name));
            match self.set_aside(&self.dir.join(name::log_dir(name)), &gone) {
                Ok(true) => set_aside.push(gone),
                Ok(false) => {}
                Err(error) => outcome = Err(error),
            }
        }
        self.fs.sync_dir(&self.dir)?;
        set_aside.iter().fold(outcome, |outcome, gone| outcome.and(remove_dir(&*self.fs, gone)))
    }

    /// Renames the directory of a removed log. An earlier attempt may have renamed it already, or may have left
    /// nothing. Returns whether there is a renamed directory.
    fn set_aside(&self, dir: &Path, gone: &Path) -> io::Result<bool> {
        let exists = |dir: &Path| match self.fs.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|_| true),
        };
        if exists(gone)? {
            if !exists(dir)? {
                return Ok(true);
            }
            remove_dir(&*self.fs, gone)?;
        }
        match self.fs.rename(dir, gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Ignores poisoning: no panic leaves the removals inconsistent.
    fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives files the names of segments, and syncs the directory of their log.
///
/// # Errors
/// [`Failure::Full`]: the segments that are left have no names yet, and may get them later.
fn name_segments(fs: &dyn Fs, names: &mut DirSync) -> Result<(), Failure> {
    let sync = |dir: &Path| {
        fs.sync_dir(dir).map_err(|error| match store_error(&error) {
            // The directory could not be opened. Any other failed sync cannot be repeated.
            Error::TooManyFiles => Failure::Full(Error::TooManyFiles),
            _ => Failure::Broken(error),
        })
    };
    if names.is_new && !names.segments.is_empty() {
        // The second segment must not become durable before the first one.
        sync(&names.dir)?;
    }
    while let Some((base, path)) = names.segments.first() {
        // Left by an append that was rolled back.
        Index::remove(fs, &names.dir.join(name::index(*base))).map_err(Failure::Broken)?;
        fs.rename(path, &names.dir.join(name::segment(*base)))?;
        names.segments.remove(0);
    }
    sync(&names.dir)
}

/// Removes a directory and its files.
pub(crate) fn remove_dir(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    for file in fs.list(dir)? {
        fs.remove_file(&dir.join(file))?;
    }
    fs.remove_dir(dir)
}
