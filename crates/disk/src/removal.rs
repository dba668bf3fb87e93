//! What precedes the removal of segments: nothing may bring them back, or describe others by their name.

use std::io;

use crate::deferred::SealedIndex;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::index::Index;
use crate::journal::Journal;
use crate::log_dir::LogDir;
use crate::segments::Segments;

/// Deletes the files of a segment that is no longer part of its log.
pub(crate) fn remove_segment(dir: &LogDir, disk: &mut Disk, base: u64) -> io::Result<()> {
    disk.files.close(dir.key(base));
    Index::remove(&*disk.fs, &dir.index(base))?;
    disk.fs.remove_file(&dir.segment(base))
}

/// The index of these segments must not be written any more.
pub(crate) fn forget_unsealed(
    dir: &LogDir,
    segments: &mut Segments,
    disk: &mut Disk,
    is_affected: impl Fn(u64) -> bool,
) {
    segments.forget_unsealed(&is_affected);
    let is_affected = |index: &SealedIndex| index.key.0 == dir.id() && is_affected(index.key.1);
    disk.group.deferred.indexes.retain(|index| !is_affected(index));
}

/// Excludes a log from journal replay, which would restore removed data. First syncs the segments that depend on the
/// journal.
///
/// # Errors
/// The log is as it was after [`Failure::Full`], and broken otherwise.
pub(crate) fn forget_journal(
    dir: &LogDir,
    segments: &Segments,
    disk: &mut Disk,
    journal: &mut Journal,
) -> Result<(), Failure> {
    for segment in segments.iter() {
        let key = dir.key(segment.base);
        if journal.needs(key) {
            dir.file(&mut disk.files, segment.base)?.sync_data().map_err(Failure::Broken)?;
            journal.synced(key);
        }
    }
    Ok(journal.forget(&[dir.name()])?)
}
