//! State of a store that its logs share.

use std::sync::Arc;

use mainstem_log::Error;

use crate::files::{Files, Recent};
use crate::fs::Fs;
use crate::group::Group;
use crate::next_file::NextFiles;
use crate::queue::CommitQueue;
use crate::settings::Settings;

/// State of the store that its logs share.
pub(crate) struct Disk {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) settings: Settings,
    pub(crate) files: Files,
    /// Closed segments whose index is in memory.
    pub(crate) indexes: Recent,
    /// Writes of the current turn.
    pub(crate) group: Group,
    pub(crate) queue: Arc<CommitQueue>,
    pub(crate) next_files: NextFiles,
    /// Bytes of appends to logs whose files do not exist yet.
    pub(crate) held_bytes: usize,
    /// Why the last log could not be created, until one is.
    pub(crate) creation_failure: Option<Error>,
}

impl Disk {
    pub(crate) fn new(fs: Arc<dyn Fs>, settings: Settings, queue: Arc<CommitQueue>) -> Self {
        let (next_files, open_files) = NextFiles::within(settings.open_files);
        Self {
            files: Files::new(fs.clone(), open_files),
            indexes: Recent::new(settings.indexes),
            fs,
            settings,
            group: Group::default(),
            queue,
            next_files,
            held_bytes: 0,
            creation_failure: None,
        }
    }
}
