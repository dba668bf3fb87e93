//! What the committer gives the thread for slow work, and gets back from it.
//!
//! A log is in the hands of one thread at a time: while its directory changes, what is submitted for it waits for that.
//! So the two threads share nothing that a lock would have to protect.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use mainstem_log::LogId;

use crate::deferred::Deferred;
use crate::directories::Directories;
use crate::failure::Failure;
use crate::files::SegmentKey;
use crate::group::Group;
use crate::journal::Unsynced;
use crate::report::Report;

/// Work that may take long.
#[derive(Default)]
pub(crate) struct Batch {
    /// Everything that was submitted for logs whose directories change, without deferred work.
    pub(crate) changing: Group,
    /// Logs to remove, with their names.
    pub(crate) removals: BTreeMap<LogId, Arc<str>>,
    pub(crate) deferred: Deferred,
    /// Segments to sync, so that they need the journal no longer.
    pub(crate) relieved: Vec<Unsynced>,
}

/// How a batch went.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) changed: Group,
    /// Logs whose segments could not get their names, or could not be synced.
    pub(crate) failures: Vec<(LogId, Failure)>,
    /// Segments of the others.
    pub(crate) synced: Vec<SegmentKey>,
    /// Logs whose directories are gone.
    pub(crate) removed: BTreeMap<LogId, Arc<str>>,
    pub(crate) relieved: Vec<(Unsynced, io::Result<()>)>,
    pub(crate) report: Report,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { changing, removals, deferred, relieved } = self;
        changing.is_empty() && removals.is_empty() && deferred.is_empty() && relieved.is_empty()
    }

    /// Does the work.
    pub(crate) fn run(self, directories: &Directories) -> Done {
        let Self { mut changing, removals, deferred, relieved } = self;
        let mut failures = directories.name_segments(&mut changing.dirs);
        let mut synced = Vec::new();
        for range in changing.ranges.values() {
            if failures.iter().any(|(log, _)| *log == range.key.0) {
                continue;
            }
            match range.sync() {
                Ok(()) => synced.push(range.key),
                Err(error) => failures.push((range.key.0, Failure::Broken(error))),
            }
        }
        let relieve = |segment: Unsynced| {
            let outcome = segment.file.sync_data();
            (segment, outcome)
        };
        Done {
            changed: changing,
            failures,
            synced,
            relieved: relieved.into_iter().map(relieve).collect(),
            report: directories.run(deferred),
            removed: directories.remove_logs(removals),
        }
    }
}
