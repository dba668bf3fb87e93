//! Recovery: opens a log and finds the end of its valid data.
//!
//! After a clean shutdown the checkpoint gives the end and nothing is read. Otherwise recovery scans from the
//! checkpointed position, truncates a torn write, and rewrites and syncs what remains: after a crash or a failed sync,
//! readable data may exist only in the page cache.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mainstem_log::{LogId, Options};

use crate::checkpoint::Known;
use crate::cleaning::Cleaning;
use crate::compact;
use crate::disk::Disk;
use crate::fs::{File, Fs, Mode};
use crate::index::Index;
use crate::name;
use crate::scan::{Gaps, Place, Scan};
use crate::segments::{Segment, Segments};
use crate::single::Log;

/// Bytes rewritten at a time.
const REWRITE_BYTES: usize = 256 * 1024;

/// What is known of a log before its files are read.
pub(crate) struct Prior {
    /// Whether the log is new: only its directory exists, possibly not yet durably.
    pub(crate) is_new: bool,
    /// Checkpoint entry of this log.
    pub(crate) known: Option<Known>,
    /// Whether the store was closed cleanly after that checkpoint.
    pub(crate) was_closed: bool,
}

impl Log {
    /// Opens and recovers the log `name` in its existing directory.
    pub(crate) fn open(
        disk: &mut Disk,
        id: LogId,
        name: &str,
        dir: PathBuf,
        options: &Options,
        before: &Prior,
    ) -> io::Result<Self> {
        let known = before.known.unwrap_or_default();
        let found = DirContents::in_dir(&*disk.fs, &dir)?;
        let mut recovery = Recovery { fs: &*disk.fs, dir: &dir, name, segments: found.segments };
        let end = recovery.run(known, before)?;
        let segments = recovery.segments;
        let first = segments.front().map_or(0, |segment| segment.base);
        let mut log = Self::new(id, name, dir, options, Segments::new(segments), end);
        log.start = known.start.max(first).min(end.offset);
        log.cleaning = Cleaning::restored(known.cleaned.min(end.offset), known.sparse.min(end.offset));
        if before.is_new {
            log.mark_new();
        }
        let file = log.file(&mut disk.files, end.base)?;
        log.space.restart(file.len()?);
        Ok(log)
    }
}

/// Rewrites and syncs readable data. A killed process may not have synced it. After a failed sync the kernel marks the
/// pages clean, so that a later sync skips them unless they are written again.
fn rewrite(file: &dyn File, bytes: Range<u64>) -> io::Result<()> {
    let mut part = Vec::new();
    let mut at = bytes.start;
    while at < bytes.end {
        part.clear();
        file.read_into(&mut part, REWRITE_BYTES.min((bytes.end - at) as usize), at)?;
        if part.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(&part, at)?;
        at += part.len() as u64;
    }
    file.sync_data()
}

/// Contents of a log directory.
struct DirContents {
    segments: VecDeque<Segment>,
}

impl DirContents {
    fn in_dir(fs: &dyn Fs, dir: &Path) -> io::Result<Self> {
        compact::finish_interrupted(fs, dir)?;
        let files = fs.list(dir)?;
        let mut bases: Vec<u64> = files.iter().filter_map(|file| name::base_of_segment(file)).collect();
        bases.sort_unstable();
        let mut segments = VecDeque::with_capacity(bases.len().max(1));
        for base in bases {
            let bytes = fs.open(&dir.join(name::segment(base)), Mode::Existing)?.len()?;
            segments.push_back(Segment { base, bytes, index: None, checked: 0 });
        }
        Ok(Self { segments })
    }
}

struct Recovery<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    name: &'a str,
    segments: VecDeque<Segment>,
}

impl Recovery<'_> {
    /// Repairs the segments and returns the end of the log.
    fn run(&mut self, known: Known, before: &Prior) -> io::Result<Place> {
        if self.segments.is_empty() {
            return self.create_first_segment(known.start, before.is_new);
        }
        // A log without a checkpoint entry was never opened. Its directory entries may not be durable.
        let was_closed = before.was_closed && before.known.is_some();
        let end = if was_closed && self.reaches(known.committed) {
            self.use_checkpoint_end(known.committed)
        } else {
            self.find_end(known)?
        };
        if end.offset < known.start {
            // The log is empty. Restart at the known log start so that no offset is reused.
            self.remove_segments_from(0)?;
            return self.create_first_segment(known.start, false);
        }
        Ok(end)
    }

    /// Whether the last segment matches the checkpoint and is at least as long.
    fn reaches(&self, place: Place) -> bool {
        self.segments.back().is_some_and(|last| last.base == place.base && last.bytes >= place.position)
    }

    fn use_checkpoint_end(&mut self, end: Place) -> Place {
        if let Some(last) = self.segments.back_mut() {
            last.bytes = end.position;
        }
        end
    }

    /// Creates the first segment. For a new log, its directory entry is synced with the first commit.
    fn create_first_segment(&mut self, base: u64, is_new: bool) -> io::Result<Place> {
        self.fs.open(&self.dir.join(name::segment(base)), Mode::New)?;
        if !is_new {
            self.fs.sync_dir(self.dir)?;
        }
        let index = Some(Box::new(Index::new(base)));
        self.segments.push_back(Segment { base, bytes: 0, index, checked: 0 });
        Ok(Place::beginning(base))
    }

    /// Scans the data beyond the checkpoint and finds its end.
    fn find_end(&mut self, checkpoint: Known) -> io::Result<Place> {
        let Known { committed: known, sparse, .. } = checkpoint;
        let last = self.segments.len() - 1;
        // Segments before the checkpointed one are complete.
        let first = self.segments.iter().position(|segment| segment.base >= known.base).unwrap_or(last);
        let mut at = first;
        loop {
            let Segment { base, bytes, .. } = self.segments[at];
            let file = self.fs.open(&self.dir.join(name::segment(base)), Mode::Existing)?;
            let limit = self.segments.get(at + 1).map_or(i64::MAX as u64, |next| next.base);
            let is_known = base == known.base && bytes >= known.position;
            let gaps = if base < sparse { Gaps::Allowed } else { Gaps::None };
            let from = if is_known { known } else { Place::beginning(base) };
            let mut scan = Scan::new(&*file, bytes, limit, gaps);
            let found = scan.valid_end(from)?;
            if let Some(offset) = found.damaged {
                self.log_damage(offset);
            }
            self.segments[at].bytes = found.place.position;
            let is_complete = found.place.offset == limit || !found.is_torn;
            let is_end = at == last || !(is_complete || self.has_durable_after(at, known));
            if is_end {
                self.truncate_torn_write(&*file, &mut scan, found.place)?;
            } else if found.place.offset < limit {
                // Damaged up to its end. Retain the bytes, so that reads report the damage instead of a gap.
                self.log_damage(found.place.offset);
                self.segments[at].bytes = bytes;
            }
            rewrite(&*file, from.position..found.place.position)?;
            Index::remove(self.fs, &self.dir.join(name::index(base)))?;
            if is_end {
                self.remove_segments_from(at + 1)?;
                return Ok(found.place);
            }
            at += 1;
        }
    }

    fn log_damage(&self, offset: u64) {
        log::error!("log {}: damaged at offset {offset}; later batches are retained", self.name);
    }

    /// Whether the checkpoint lists a segment after `at` as durable. The missing part was then lost later, and the
    /// segments after it are retained.
    fn has_durable_after(&self, at: usize, known: Place) -> bool {
        self.segments.get(at + 1).is_some_and(|next| next.base <= known.base && known.position > 0)
    }

    /// Truncates a torn write.
    fn truncate_torn_write(&self, file: &dyn File, scan: &mut Scan<'_>, end: Place) -> io::Result<()> {
        if scan.has_rest(end.position)? {
            log::warn!("log {}: truncated a torn write; the log ends at offset {}", self.name, end.offset);
            file.set_len(end.position)?;
            file.sync_data()?;
        }
        Ok(())
    }

    /// Removes the segments from index `at` on, the last one first, and makes all removals durable.
    fn remove_segments_from(&mut self, at: usize) -> io::Result<()> {
        while self.segments.len() > at {
            let Some(gone) = self.segments.pop_back() else { break };
            Index::remove(self.fs, &self.dir.join(name::index(gone.base)))?;
            self.fs.remove_file(&self.dir.join(name::segment(gone.base)))?;
            self.fs.sync_dir(self.dir)?;
        }
        self.fs.sync_dir(self.dir)
    }
}
