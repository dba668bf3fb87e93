//! Where a log is: its directory, and the paths and keys of the files in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::LogId;

use crate::files::{Files, SegmentKey};
use crate::fs::File;
use crate::name;

/// Identity and directory of one log.
pub(crate) struct LogDir {
    id: LogId,
    name: Arc<str>,
    path: PathBuf,
}

impl LogDir {
    pub(crate) fn new(id: LogId, name: &str, path: PathBuf) -> Self {
        Self { id, name: Arc::from(name), path }
    }

    #[inline]
    pub(crate) fn id(&self) -> LogId {
        self.id
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Key of a segment, or of another file of the log, in the cache of open files.
    #[inline]
    pub(crate) fn key(&self, base: u64) -> SegmentKey {
        (self.id, base)
    }

    /// Path of the segment with base offset `base`.
    pub(crate) fn segment(&self, base: u64) -> PathBuf {
        self.path.join(name::segment(base))
    }

    /// Path of the index of that segment.
    pub(crate) fn index(&self, base: u64) -> PathBuf {
        self.path.join(name::index(base))
    }

    /// The file of the segment with base offset `base`, opened if necessary.
    pub(crate) fn file(&self, files: &mut Files, base: u64) -> io::Result<Arc<dyn File>> {
        files.get(self.key(base), || self.segment(base))
    }
}
