//! The replacement of segments by a compacted one, in the files.
//!
//! Once the name of the compacted segment lists those that it replaces, and is durable, recovery can finish the
//! replacement. So a crash at any point leaves all of the old segments or the new one. The log is read from the old
//! ones until the committer reports that they are replaced; whoever reads keeps their files open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::failure::Failure;
use crate::fs::Fs;
use crate::index::Index;
use crate::name;

/// Segments to replace by a compacted one, which is complete and on disk.
pub(crate) struct Replacement {
    pub(crate) dir: PathBuf,
    /// Name of the log.
    pub(crate) log: Arc<str>,
    /// Base offsets of the segments, in order. The compacted one has the first of them.
    pub(crate) bases: Vec<u64>,
    /// Base offset of the segment behind them.
    pub(crate) end: u64,
}

impl Replacement {
    /// Puts the compacted segment in the place of the others.
    ///
    /// # Errors
    /// [`Failure::Full`]: nothing has changed. [`Failure::Broken`]: the contents of the directory are unknown.
    pub(crate) fn run(&self, fs: &dyn Fs) -> Result<(), Failure> {
        let base = self.bases[0];
        let swap = self.dir.join(name::swap(base, self.end));
        // A rename that fails, for lack of space in the directory, changes nothing.
        fs.rename(&self.dir.join(name::cleaned(base)), &swap)?;
        self.swap_in(fs, &swap).map_err(Failure::Broken)
    }

    fn swap_in(&self, fs: &dyn Fs, swap: &Path) -> io::Result<()> {
        fs.sync_dir(&self.dir)?;
        for base in &self.bases {
            Index::remove(fs, &self.dir.join(name::index(*base)))?;
            fs.remove_file(&self.dir.join(name::segment(*base)))?;
        }
        // The old segments must be gone durably before the `.swap` name, which lists them, disappears.
        fs.sync_dir(&self.dir)?;
        fs.rename(swap, &self.dir.join(name::segment(self.bases[0])))?;
        fs.sync_dir(&self.dir)
    }
}
