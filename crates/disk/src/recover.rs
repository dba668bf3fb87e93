//! Opening a log: finding out what is in its files, and where it ends.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{LogId, Options, State};

use crate::checkpoint::Known;
use crate::compact;
use crate::fs::{File, Fs, Mode};
use crate::index::Index;
use crate::name;
use crate::notes::Notes;
use crate::scan::{Gaps, Place, Scan};
use crate::single::{Disk, Log, Segment, closed_bytes};
use crate::space::Space;
use crate::tail::Tail;

/// What recovery writes at once.
const WRITTEN_AGAIN_BYTES: usize = 256 * 1024;

/// What is known of a log before its files are looked at.
pub(crate) struct Before {
    /// There is nothing of it yet but its directory, of which nobody knows whether it is on disk.
    pub(crate) is_new: bool,
    /// From the checkpoint, if it speaks of this log.
    pub(crate) known: Option<Known>,
    /// Whether nothing has been written since that checkpoint.
    pub(crate) was_closed: bool,
}

impl Log {
    /// Opens the log `name` in its directory, which is there, and recovers it.
    pub(crate) fn open(
        disk: &mut Disk,
        id: LogId,
        name: &str,
        dir: PathBuf,
        options: &Options,
        before: &Before,
    ) -> io::Result<Self> {
        let known = before.known.unwrap_or_default();
        let found = Found::in_dir(&*disk.fs, &dir)?;
        let mut recovery = Recovery { fs: &*disk.fs, dir: &dir, name, segments: found.segments };
        let end = recovery.run(known, before)?;
        let segments = recovery.segments;
        let first = segments.front().map_or(0, |segment| segment.base);
        let mut log = Self {
            id,
            name: Arc::from(name),
            dir,
            options: options.clone(),
            closed_bytes: closed_bytes(&segments),
            segments,
            start: known.start.max(first).min(end.offset),
            is_new: before.is_new,
            removed: None,
            committed: end,
            synced: end,
            submitted: end,
            written: end,
            head: end,
            space: Space::default(),
            covered: end.position,
            tail: Tail::default(),
            notes: Notes::default(),
            cached: None,
            state: State::Ready,
            ticket: None,
            syncs_next: false,
            awaited: 0,
            cleaned: known.cleaned.min(end.offset),
            sparse: known.sparse.min(end.offset),
            compaction: None,
            compacted_to: 0,
            tend_after_ms: 0,
            cursors: [Place::default(); 4],
            next_cursor: 0,
        };
        let file = log.file(&mut disk.files, end.base)?;
        log.space.restart(file.len()?);
        Ok(log)
    }
}

/// Makes durable what can be read. A process that was killed need not have synced it, and after a sync that failed
/// it may be in memory only, where no later sync looks for it unless it is written again.
fn write_again(file: &dyn File, bytes: Range<u64>) -> io::Result<()> {
    let mut part = Vec::new();
    let mut at = bytes.start;
    while at < bytes.end {
        part.clear();
        file.read_into(&mut part, WRITTEN_AGAIN_BYTES.min((bytes.end - at) as usize), at)?;
        if part.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(&part, at)?;
        at += part.len() as u64;
    }
    file.sync_data()
}

/// What a log's directory holds.
struct Found {
    segments: VecDeque<Segment>,
}

impl Found {
    fn in_dir(fs: &dyn Fs, dir: &Path) -> io::Result<Self> {
        compact::finish_cut_short(fs, dir)?;
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
    /// Makes the segments what they are to be, and returns where the last one ends.
    fn run(&mut self, known: Known, before: &Before) -> io::Result<Place> {
        if self.segments.is_empty() {
            return self.begin(known.start, before.is_new);
        }
        // One of which the checkpoint does not speak was never opened: not even its name need be on disk.
        let was_closed = before.was_closed && before.known.is_some();
        let end = if was_closed && self.reaches(known.committed) {
            self.keep(known.committed)
        } else {
            self.find_end(known)?
        };
        if end.offset < known.start {
            // What was there was never durable, and its offsets may have been seen.
            self.cut_from(0)?;
            return self.begin(known.start, false);
        }
        Ok(end)
    }

    /// Whether the last segment is the one that the checkpoint names, and has all of what it says.
    fn reaches(&self, place: Place) -> bool {
        self.segments.back().is_some_and(|last| last.base == place.base && last.bytes >= place.position)
    }

    fn keep(&mut self, end: Place) -> Place {
        if let Some(last) = self.segments.back_mut() {
            last.bytes = end.position;
        }
        end
    }

    /// Makes the first segment of a log that has none. That of a new log is synced with what comes to be in it.
    fn begin(&mut self, base: u64, is_new: bool) -> io::Result<Place> {
        self.fs.open(&self.dir.join(name::segment(base)), Mode::New)?;
        if !is_new {
            self.fs.sync_dir(self.dir)?;
        }
        let index = Some(Box::new(Index::new(base)));
        self.segments.push_back(Segment { base, bytes: 0, index, checked: 0 });
        Ok(Place::beginning(base))
    }

    /// Reads what is not known to be on disk, and finds where it ends.
    fn find_end(&mut self, checkpoint: Known) -> io::Result<Place> {
        let Known { committed: known, sparse, .. } = checkpoint;
        let last = self.segments.len() - 1;
        // The segments before the one that was written to are complete.
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
                self.tell_damage(offset);
            }
            self.segments[at].bytes = found.place.position;
            let is_complete = found.place.offset == limit || !found.is_cut_short;
            let is_end = at == last || !(is_complete || self.has_durable_behind(at, known));
            if is_end {
                self.cut_rest(&*file, &mut scan, found.place)?;
            } else if found.place.offset < limit {
                // Damaged up to its end. It is not to look as if there had been nothing.
                self.tell_damage(found.place.offset);
                self.segments[at].bytes = bytes;
            }
            write_again(&*file, from.position..found.place.position)?;
            Index::remove(self.fs, &self.dir.join(name::index(base)))?;
            if is_end {
                self.cut_from(at + 1)?;
                return Ok(found.place);
            }
            at += 1;
        }
    }

    fn tell_damage(&self, offset: u64) {
        log::error!("log {}: damaged at offset {offset}; what follows is kept", self.name);
    }

    /// Whether the checkpoint calls a segment behind `at` durable: then what is missing here was lost later, and
    /// what follows is to stay.
    fn has_durable_behind(&self, at: usize, known: Place) -> bool {
        self.segments.get(at + 1).is_some_and(|next| next.base <= known.base && known.position > 0)
    }

    /// Cuts off what a write left that was cut short.
    fn cut_rest(&self, file: &dyn File, scan: &mut Scan<'_>, end: Place) -> io::Result<()> {
        if scan.has_rest(end.position)? {
            log::warn!("log {}: a write was cut short; the log ends at offset {}", self.name, end.offset);
            file.set_len(end.position)?;
            file.sync_data()?;
        }
        Ok(())
    }

    /// Removes the segments from number `at` on, the last first. What else has been removed is durable then, too.
    fn cut_from(&mut self, at: usize) -> io::Result<()> {
        while self.segments.len() > at {
            let Some(gone) = self.segments.pop_back() else { break };
            Index::remove(self.fs, &self.dir.join(name::index(gone.base)))?;
            self.fs.remove_file(&self.dir.join(name::segment(gone.base)))?;
            self.fs.sync_dir(self.dir)?;
        }
        self.fs.sync_dir(self.dir)
    }
}
