//! The creation of a log: its directory and its first file, by the committer.
//!
//! One request may write to thousands of logs that do not exist, and a shard must not wait for the file system once for
//! each. So it asks the committer. Until the file exists, appends stay in memory and their tickets are held. If it
//! cannot be created, they fail, and the next commit with appends asks again.
//!
//! Held appends are bounded ([`HELD_BYTES_MAX`]). Beyond that, and where the file is needed at once, the shard creates
//! it itself. So does the inline committer, which is the caller itself.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::{Error, LogId, Options, State};

use crate::disk::Disk;
use crate::failure::store_error;
use crate::group::{Ack, DirSync};
use crate::index::Index;
use crate::log_dir::LogDir;
use crate::new_log::NewLog;
use crate::scan::Place;
use crate::segments::{Segment, Segments};
use crate::single::Log;

/// Maximum bytes of appends that the logs of a store hold together until their files exist.
const HELD_BYTES_MAX: usize = 16 << 20;

/// The place of an empty log.
const EMPTY: Place = Place { base: 0, position: 0, offset: 0 };

impl Log {
    /// A log of which nothing exists.
    pub(crate) fn uncreated(id: LogId, name: &str, dir: PathBuf, options: &Options) -> Self {
        let first = Segment::new(0, 0, Some(Box::new(Index::new(0))));
        let segments = Segments::new(VecDeque::from([first]));
        let mut log = Self::new(LogDir::new(id, name, dir), options, segments, EMPTY);
        log.creation = Some(Box::default());
        log.is_new = true;
        log
    }

    /// Whether its first file exists.
    #[inline]
    pub(crate) fn has_file(&self) -> bool {
        self.creation.is_none()
    }

    /// Asks the committer to create the file, unless it was asked.
    pub(crate) fn request_file(&mut self, disk: &mut Disk) {
        let Some(creation) = &mut self.creation else { return };
        if creation.request.is_none() {
            let request = Arc::new(NewLog::of(&self.dir));
            disk.group.deferred.logs.insert(self.dir.id(), Arc::clone(&request));
            creation.request = Some(request);
        }
    }

    /// Creates the file now, unless it exists.
    ///
    /// # Errors
    /// IO errors. The appends are as they were.
    #[inline]
    pub(crate) fn create_file(&mut self, disk: &mut Disk) -> io::Result<()> {
        if self.has_file() { Ok(()) } else { self.create_missing(disk) }
    }

    #[cold]
    fn create_missing(&mut self, disk: &mut Disk) -> io::Result<()> {
        self.request_file(disk);
        disk.group.deferred.logs.remove(&self.dir.id());
        if let Some(request) = self.creation.as_ref().and_then(|creation| creation.request.as_ref()) {
            request.run(&*disk.fs);
        }
        self.take_file(disk)
    }

    /// Takes the file, if it was created.
    fn take_file(&mut self, disk: &mut Disk) -> io::Result<()> {
        let Some(creation) = &mut self.creation else { return Ok(()) };
        let Some(outcome) = creation.request.as_ref().and_then(|request| request.take()) else {
            return Ok(());
        };
        creation.request = None;
        let file = outcome?;
        disk.creation_failure = None;
        self.release_held(disk);
        self.creation = None;
        disk.files.hold(self.dir.key(0), file);
        let names = DirSync { dir: self.dir.path().to_owned(), is_new: true, segments: Vec::new() };
        disk.group.dirs.insert(self.dir.id(), names);
        // No ticket depends on this, but the log counts as durable from then on.
        disk.group.acknowledge(Ack { is_synced: true, ..Ack::of(self.dir.id(), EMPTY) });
        Ok(())
    }

    /// The committer has created the file, or could not. Returns whether it exists.
    pub(crate) fn on_created(&mut self, disk: &mut Disk) -> bool {
        if let Err(error) = self.take_file(disk) {
            self.fail_creation(disk, &error);
        }
        self.has_file()
    }

    /// All appends fail. Nothing of them has reached the disk.
    pub(crate) fn fail_creation(&mut self, disk: &mut Disk, error: &io::Error) -> Error {
        let failure = store_error(error);
        // Each log is reported once, or none while all have the same error.
        let was_reported =
            self.creation.as_mut().is_none_or(|creation| std::mem::replace(&mut creation.is_reported, true));
        if !was_reported && disk.creation_failure.as_ref() != Some(&failure) {
            log::error!(
                "log {}: it cannot be created: {failure}; its next append tries again. Other logs with this error are \
                 not reported",
                self.dir.name()
            );
            disk.creation_failure = Some(failure.clone());
        }
        self.release_held(disk);
        self.end_at(EMPTY);
        self.state = State::Full;
        self.acknowledge(disk, false, Err(failure.clone()));
        failure
    }

    /// Holds the appends of this turn until the file exists. Returns whether that is so: otherwise the file exists now.
    #[cold]
    pub(crate) fn hold(&mut self, disk: &mut Disk) -> bool {
        let bytes = self.tail.unwritten().len();
        let Some(creation) = &mut self.creation else { return false };
        if bytes == 0 {
            return true;
        }
        disk.held_bytes += bytes - creation.held_bytes;
        creation.held_bytes = bytes;
        if disk.held_bytes > HELD_BYTES_MAX {
            return match self.create_file(disk) {
                Ok(()) => false,
                Err(error) => {
                    self.fail_creation(disk, &error);
                    true
                }
            };
        }
        self.request_file(disk);
        self.tickets.hold();
        true
    }

    /// Its held appends are written, or gone.
    pub(crate) fn release_held(&mut self, disk: &mut Disk) {
        if let Some(creation) = &mut self.creation {
            disk.held_bytes -= std::mem::take(&mut creation.held_bytes);
        }
    }
}
