//! Recovery: opens a log and finds the end of its valid data.
//!
//! After a clean shutdown the checkpoint gives the end and nothing is read. Otherwise recovery scans from the
//! checkpointed position, truncates a torn write, and rewrites and syncs what remains: after a crash or a failed sync,
//! readable data may exist only in the page cache.
//!
//! Only what a crash can explain is repaired by truncation. Two kinds of evidence tell it from damage: the checkpoint,
//! and the sealed index of a closed segment, which exists only once the segment and the directory entry of the next
//! one were synced. Damaged and missing segments leave a hole in the log: reading it is an error, everything around it
//! stays, and the log continues at an offset that it has never assigned.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mainstem_log::{LogId, Options};

use crate::checkpoint::Known;
use crate::cleaning::Cleaning;
use crate::compact;
use crate::disk::Disk;
use crate::fs::{File, Fs, Mode, create_dir_durably};
use crate::index::Index;
use crate::log_dir::LogDir;
use crate::log_start::LogStart;
use crate::name;
use crate::next_file;
use crate::scan::{Gaps, Place, Scan};
use crate::segments::{Segment, Segments};
use crate::single::Log;

/// Bytes rewritten at a time.
const REWRITE_BYTES: usize = 256 * 1024;

/// Offsets that are skipped after durable records were lost, if it is unknown how many: more than there can be.
const SKIPPED_OFFSETS: u64 = 1 << 32;

/// What is known of a log before its files are read.
pub(crate) struct Prior {
    /// Checkpoint entry of this log.
    pub(crate) known: Option<Known>,
    /// Whether the store was closed cleanly after that checkpoint.
    pub(crate) was_closed: bool,
}

impl Prior {
    /// Whether the checkpoint entry says exactly where the log starts and ends.
    fn is_exact(&self) -> bool {
        // A log without a checkpoint entry was never opened. Its directory entries may not be durable.
        self.was_closed && self.known.is_some()
    }
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
        let found = match DirContents::in_dir(&*disk.fs, &dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_dir_durably(&*disk.fs, &dir)?;
                DirContents { segments: VecDeque::new() }
            }
            outcome => outcome?,
        };
        let oldest = found.segments.front().map(|segment| segment.base);
        let mut recovery = Recovery { fs: &*disk.fs, dir: &dir, name, segments: found.segments };
        let end = recovery.run(known, before)?;
        let segments = Segments::new(recovery.segments);
        let mut log = Self::new(LogDir::new(id, name, dir), options, segments, end);
        // Retention may have removed segments since the checkpoint. If it cannot have, reading them is an error.
        let start = match oldest {
            Some(oldest) if !before.is_exact() => oldest.max(known.start),
            _ => known.start,
        };
        if start < log.start.offset() {
            log::error!("log {name}: its records from offset {start} to {} are missing", log.start.offset());
        }
        log.start = LogStart::new(start.min(end.offset));
        log.cleaning = Cleaning::restored(known.cleaned.min(end.offset), known.sparse.min(end.offset));
        let file = log.dir.file(&mut disk.files, end.base)?;
        log.writer.set_reserved(file.len()?);
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
        next_file::remove_unnamed(fs, dir)?;
        compact::finish_interrupted(fs, dir)?;
        let files = fs.list(dir)?;
        let mut bases: Vec<u64> = files.iter().filter_map(|file| name::base_of_segment(file)).collect();
        bases.sort_unstable();
        let mut segments = VecDeque::with_capacity(bases.len().max(1));
        for base in bases {
            let bytes = fs.open(&dir.join(name::segment(base)), Mode::Existing)?.len()?;
            segments.push_back(Segment::new(base, bytes, None));
        }
        Ok(Self { segments })
    }
}

/// Whether the segment at `at` of these, which is not the newest and ends at `end`, was once durable as a whole. A
/// missing part was then lost later.
pub(crate) fn is_durable(
    fs: &dyn Fs,
    dir: &Path,
    bases: &[u64],
    at: usize,
    end: Place,
    committed: Place,
) -> io::Result<bool> {
    if bases[at + 1] <= committed.base || end.base == committed.base && end.position < committed.position {
        return Ok(true);
    }
    // Segments become durable in order.
    for later in &bases[at..] {
        if Index::sealed_end(fs, &dir.join(name::index(*later)), *later)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
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
            if before.known.is_some() {
                return self.continue_after_loss(Place::default(), known, before, None);
            }
            return self.create_segment(0);
        }
        if before.is_exact() && self.matches(known.committed) {
            return Ok(known.committed);
        }
        let end = self.find_end(known)?;
        let next = self.sealed_end(self.segments.len() - 1)?;
        if next.is_some() || end.offset < known.committed.offset.max(known.start) {
            return self.continue_after_loss(end, known, before, next);
        }
        Ok(end)
    }

    /// Whether the newest segment is as the checkpoint says.
    fn matches(&self, place: Place) -> bool {
        self.segments.back().is_some_and(|last| last.base == place.base && last.bytes == place.position)
    }

    /// Starts a segment behind durable records that are missing. `next` is the offset of the segment after the last one
    /// that exists, if it is known to have existed.
    fn continue_after_loss(
        &mut self,
        end: Place,
        known: Known,
        before: &Prior,
        next: Option<u64>,
    ) -> io::Result<Place> {
        let from = end.offset.max(if self.segments.is_empty() { known.start } else { 0 });
        let durable = known.committed.offset.max(known.start).max(end.offset).max(next.unwrap_or(0));
        // After a clean shutdown the checkpoint has the exact end of the log.
        let base = if before.is_exact() { durable } else { durable.saturating_add(SKIPPED_OFFSETS) };
        log::error!(
            "log {} ({}): records from offset {from} on are missing or damaged, although they were durable; what is \
             left stays as it is, and the log continues at offset {base}",
            self.name,
            self.dir.display(),
        );
        self.create_segment(base)
    }

    /// Creates a segment.
    fn create_segment(&mut self, base: u64) -> io::Result<Place> {
        self.fs.open(&self.dir.join(name::segment(base)), Mode::New)?;
        self.fs.sync_dir(self.dir)?;
        self.segments.push_back(Segment::new(base, 0, Some(Box::new(Index::new(base)))));
        Ok(Place::beginning(base))
    }

    /// Scans the data beyond the checkpoint and finds its end.
    fn find_end(&mut self, known: Known) -> io::Result<Place> {
        let last = self.segments.len() - 1;
        // Segments before the checkpointed one are complete.
        let first = self.segments.iter().position(|segment| segment.base >= known.committed.base);
        let mut at = first.unwrap_or(last);
        loop {
            let Segment { base, bytes, .. } = self.segments[at];
            let file = self.fs.open(&self.dir.join(name::segment(base)), Mode::Existing)?;
            let limit = self.segments.get(at + 1).map_or(i64::MAX as u64, |next| next.base);
            let is_known = base == known.committed.base && bytes >= known.committed.position;
            let gaps = if base < known.sparse { Gaps::Allowed } else { Gaps::None };
            let from = if is_known { known.committed } else { Place::beginning(base) };
            let mut scan = Scan::new(&*file, bytes, limit, gaps);
            let found = scan.valid_end(from)?;
            if let Some(offset) = found.damaged {
                self.log_damage(base, offset);
            }
            let end = found.place;
            self.segments[at].bytes = end.position;
            let is_sealed = self.sealed_end(at)?.is_some();
            // What follows is damage, not a torn write.
            let bases: Vec<u64> = self.segments.iter().map(|segment| segment.base).collect();
            let is_damaged = if at == last {
                base == known.committed.base && end.position < known.committed.position
            } else {
                end.offset != limit
                    && (!found.is_torn || is_durable(self.fs, self.dir, &bases, at, end, known.committed)?)
            };
            let is_end = at == last || !is_damaged && end.offset != limit;
            if is_damaged {
                // Retain the bytes, so that reads report the damage.
                self.log_damage(base, end.offset);
                self.segments[at].bytes = bytes;
            } else if is_end {
                self.truncate_torn_write(&*file, &mut scan, end)?;
            }
            rewrite(&*file, from.position..end.position)?;
            if !is_sealed {
                Index::remove(self.fs, &self.dir.join(name::index(base)))?;
            }
            if is_end {
                self.remove_segments_from(at + 1)?;
                return Ok(end);
            }
            at += 1;
        }
    }

    fn log_damage(&self, base: u64, offset: u64) {
        log::error!(
            "log {}: {} is damaged at offset {offset}; what follows is retained",
            self.name,
            self.dir.join(name::segment(base)).display()
        );
    }

    /// First offset of the next segment, according to the sealed index of the one at `at`.
    fn sealed_end(&self, at: usize) -> io::Result<Option<u64>> {
        let base = self.segments[at].base;
        Index::sealed_end(self.fs, &self.dir.join(name::index(base)), base)
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

    /// Removes the segments from index `at` on, which a crash has left behind a torn write. The last one goes first,
    /// and all removals are durable.
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
