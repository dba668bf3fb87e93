//! Key compaction.

use std::io;
use std::path::Path;

use crate::fs::Fs;
use crate::name;

/// A compaction under way.
pub(crate) struct Compaction;

/// Removes what a compaction that was cut short has left.
pub(crate) fn finish_cut_short(fs: &dyn Fs, dir: &Path, files: &[String]) -> io::Result<()> {
    for file in files.iter().filter(|file| name::is_cleaned(file)) {
        fs.remove_file(&dir.join(file))?;
    }
    Ok(())
}
