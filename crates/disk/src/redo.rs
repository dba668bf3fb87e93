//! Replays the journal into the segments, before any log is opened.
//!
//! A segment is written once, from front to back, into zeros. After a crash, the bytes of a journaled write are
//! therefore in the segment already, or zeros are in their place. Anything else that is valid there is newer: the
//! segment was truncated or compacted since. The journal has an entry for that too, which may be damaged, so replay
//! never overwrites valid batches, nor a segment that was closed before the checkpoint.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::fs::{File, Fs, Mode};
use crate::journal::{self, Write};
use crate::name;
use crate::scan::{Gaps, Place, Scan, Step};

/// Replays the journal into the segments and syncs them. Sets a damaged journal aside.
pub(crate) fn redo(fs: &dyn Fs, dir: &Path, known: &Checkpoint) -> io::Result<()> {
    let journal = journal::Found::read(fs, dir)?;
    journal.set_damaged_aside(fs, dir)?;
    redo_from(fs, dir, &journal, known)
}

/// Replays this journal into the segments and syncs them.
pub(crate) fn redo_from(
    fs: &dyn Fs,
    dir: &Path,
    journal: &journal::Found,
    known: &Checkpoint,
) -> io::Result<()> {
    let mut touched: BTreeMap<PathBuf, Arc<dyn File>> = BTreeMap::new();
    journal.replay(|write| {
        // Closed segments were synced before the checkpoint moved on to the next one, and may be compacted since.
        if known.get(write.name).is_some_and(|known| write.base < known.committed.base) {
            return Ok(());
        }
        let path = dir.join(name::log_dir(write.name)).join(name::segment(write.base));
        if !touched.contains_key(&path) {
            match fs.open(&path, Mode::Existing) {
                Ok(file) => touched.insert(path.clone(), file),
                // The segment has been removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        let file = &touched[&path];
        if has_newer(&**file, write)? {
            log::warn!("{}: newer batches at position {} are retained", path.display(), write.position);
            return Ok(());
        }
        file.write_at(write.bytes, write.position)
    })?;
    touched.values().try_for_each(|file| file.sync_data())
}

/// Whether the segment has valid batches other than those of a journaled write in its place.
fn has_newer(file: &dyn File, write: &Write<'_>) -> io::Result<bool> {
    let mut found = Vec::new();
    file.read_into(&mut found, write.bytes.len(), write.position)?;
    let differs = |(found, written): (&u8, &u8)| *found != 0 && found != written;
    let Some(at) = found.iter().zip(write.bytes).position(differs) else { return Ok(false) };
    let different = write.position + at as u64;
    let mut scan = Scan::new(file, file.len()?, u64::MAX, Gaps::Allowed);
    let mut place = Place { base: write.base, position: write.position, offset: 0 };
    while place.position <= different {
        let Step::Batch(header) = scan.step_verified(place)? else { return Ok(false) };
        place = place.after(&header);
    }
    Ok(true)
}
