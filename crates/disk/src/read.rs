//! Reading: new entries from memory, older ones from the segment files.
//!
//! A sequential reader continues at a cursor without a search. Otherwise the index gives a position at or before the
//! offset and a scan of batch headers finds it. Checksums are verified once per byte since the store was opened. A
//! header damaged at rest can mislead a scan of headers, so that a failed read repeats the scan with checksums.

mod by_time;
mod indexes;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use mainstem_log::{Batch, BatchHeader, Error, HEADER_BYTES, batches};

use crate::cleaning::Cleaning;
use crate::disk::Disk;
use crate::fs::File;
use crate::index::Index;
use crate::log_dir::LogDir;
use crate::positions::Positions;
use crate::scan::{Gaps, Place, Scan, Step};
use crate::segments::Segments;
use crate::tail::Tail;

/// A contiguous range of batches in a file.
#[derive(Clone)]
pub struct FileRange {
    /// The file. It stays readable after the log is truncated or removed.
    pub file: Arc<dyn File>,
    /// Position of the first batch, bytes.
    pub position: u64,
    /// Length of the range, bytes.
    pub len: u64,
    /// Log offset one past the last record.
    pub end: u64,
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.len, self.position)
    }
}

/// Result of locating an offset in a segment.
#[derive(Clone, Copy, Debug)]
enum Located {
    /// The batch at this position.
    Batch(Place, BatchHeader),
    /// The segment has no such batch.
    End,
    /// The bytes are not a valid batch.
    Damaged,
}

/// Limits of a read.
struct ReadLimits {
    /// Batches with a base offset at or above this are excluded.
    end: u64,
    /// Maximum total size, bytes.
    max_bytes: usize,
    /// Whether to return the first batch whatever its size.
    first: bool,
}

/// Where a read stopped.
enum Stopped {
    /// At this offset.
    Offset(u64),
    /// At a limit.
    Limit,
    /// At the end of the bytes, inside a batch.
    Short,
    /// At damaged bytes.
    Damage,
}

/// Bytes read from a file at a time. Validating in such steps finds the bytes in the CPU cache.
const STEP_BYTES: usize = 128 * 1024;

/// What a scan verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Headers,
    Checksums,
}

/// The parts of a log that reading needs.
pub(crate) struct SegmentReader<'a> {
    pub(crate) dir: &'a LogDir,
    pub(crate) segments: &'a mut Segments,
    pub(crate) positions: &'a Positions,
    pub(crate) tail: &'a Tail,
    pub(crate) cleaning: &'a Cleaning,
    /// Offset of the first record.
    pub(crate) start: u64,
}

impl SegmentReader<'_> {
    /// Implements [`mainstem_log::LogReader::read`].
    pub(crate) fn read(
        &mut self,
        disk: &mut Disk,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if !(self.start..=self.positions.head().offset).contains(&offsets.start) {
            return Err(Error::OutOfRange);
        }
        let before = into.len();
        let mut next = offsets.start;
        while next < self.positions.head().offset {
            let first = into.len() == before;
            let left = max_bytes.saturating_sub(into.len() - before);
            if left == 0 && !first {
                break;
            }
            let advanced = if self.tail.has(next) {
                take(&self.tail.from(next), &(next..offsets.end), left, first, into)
            } else {
                match self.read_file(disk, &(next..offsets.end), left, first, into) {
                    // Return the valid batches before the damage.
                    Err(Error::Corrupt { .. }) if !first => break,
                    outcome => outcome?,
                }
            };
            match advanced {
                Some(end) => next = end,
                None => break,
            }
        }
        Ok(())
    }

    /// Reads batches of one segment. Returns the next offset, or `None` at a limit.
    fn read_file(
        &mut self,
        disk: &mut Disk,
        offsets: &Range<u64>,
        max_bytes: usize,
        first: bool,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        let corrupt = |_: io::Error| Error::Corrupt { offset: offsets.start };
        let at = self.segments.containing(offsets.start);
        let limits = ReadLimits { end: offsets.end, max_bytes, first };
        // A sequential reader needs no search. If the cursor fails, the search determines why.
        if let Some(place) = self.segments.cursor(at, offsets.start) {
            let before = into.len();
            match self.take_batches(disk, at, place, max_bytes, &limits, into)? {
                Stopped::Offset(next) => return Ok(Some(next)),
                Stopped::Limit if into.len() > before => return Ok(None),
                _ => {}
            }
        }
        let located = self.locate(disk, at, offsets.start).map_err(corrupt)?;
        match self.take_located(disk, at, located, &limits, into)? {
            Stopped::Damage => {
                // A damaged length or offset may have misled the scan of headers.
                let from = self.index(disk, at).map_err(corrupt)?.before_offset(offsets.start);
                let located =
                    self.walk(disk, at, from, offsets.start, Compare::Checksums).map_err(corrupt)?;
                match self.take_located(disk, at, located, &limits, into)? {
                    Stopped::Damage => Err(Error::Corrupt { offset: offsets.start }),
                    Stopped::Offset(next) => Ok(Some(next)),
                    Stopped::Limit | Stopped::Short => Ok(None),
                }
            }
            Stopped::Offset(next) => Ok(Some(next)),
            Stopped::Limit | Stopped::Short => Ok(None),
        }
    }

    /// Reads from a located batch on, within the limits.
    fn take_located(
        &mut self,
        disk: &mut Disk,
        at: usize,
        located: Located,
        limits: &ReadLimits,
        into: &mut Vec<u8>,
    ) -> Result<Stopped, Error> {
        match located {
            Located::Batch(_, header) if header.base_offset >= limits.end => Ok(Stopped::Limit),
            Located::Batch(_, header) if header.total_bytes > limits.max_bytes && !limits.first => {
                Ok(Stopped::Limit)
            }
            Located::Batch(place, header) => {
                let len = header.total_bytes.max(limits.max_bytes);
                self.take_batches(disk, at, place, len, limits, into)
            }
            Located::End => Ok(Stopped::Offset(self.end_of_segment(at).offset)),
            Located::Damaged => Ok(Stopped::Damage),
        }
    }

    /// Reads up to `len` bytes from `place` on and appends the valid batches within the limits.
    fn take_batches(
        &mut self,
        disk: &mut Disk,
        at: usize,
        place: Place,
        len: usize,
        limits: &ReadLimits,
        into: &mut Vec<u8>,
    ) -> Result<Stopped, Error> {
        let corrupt = |_: io::Error| Error::Corrupt { offset: place.offset };
        let behind = self.end_of_segment(at);
        let file = self.dir.file(&mut disk.files, place.base).map_err(corrupt)?;
        let len = len.min((behind.position - place.position) as usize);
        let checked = self.segments[at].checked;
        let unchecked_from = checked.saturating_sub(place.position) as usize;
        let gaps = self.cleaning.gaps(place.base);
        let from = into.len();
        into.reserve_exact(len);
        let (mut accepted, mut end, mut taken) = (0, place.offset, Stopped::Short);
        let mut known = self.known_ahead(at, place, len, limits);
        while matches!(taken, Stopped::Short) && into.len() - from < len {
            let read = into.len() - from;
            let ahead = known.map_or(0, |known| (known.position - place.position) as usize);
            let step = (ahead + STEP_BYTES).min(len - read);
            file.read_into(into, step, place.position + read as u64).map_err(corrupt)?;
            if into.len() - from == read {
                break;
            }
            if let Some(known) = known.take()
                && starts_at_offset(into.get(from + ahead..), known.offset)
            {
                (accepted, end) = (ahead, known.offset);
            }
            (accepted, end, taken) = limits.validate(&into[from..], accepted, end, gaps, unchecked_from);
        }
        let left = into.len() - from - accepted;
        into.truncate(from + accepted);
        if accepted == 0 {
            return Ok(taken);
        }
        let next = Place { base: place.base, position: place.position + accepted as u64, offset: end };
        if place.position <= checked {
            self.segments[at].checked = checked.max(next.position);
        }
        self.segments.remember_cursor(next);
        Ok(match taken {
            _ if next.position == behind.position && (gaps == Gaps::Allowed || end == behind.offset) => {
                Stopped::Offset(behind.offset)
            }
            // The batch that did not fit needs no further check.
            Stopped::Limit => Stopped::Limit,
            Stopped::Short if left >= HEADER_BYTES || is_batch_at(&*file, next) => Stopped::Limit,
            // The remainder may be a torn write at the end of a segment.
            Stopped::Offset(_) | Stopped::Short | Stopped::Damage => Stopped::Offset(end),
        })
    }

    /// A batch boundary after `place` from the index, such that everything before it is verified and within the limits.
    fn known_ahead(&self, at: usize, place: Place, len: usize, limits: &ReadLimits) -> Option<Place> {
        let segment = &self.segments[at];
        let index = segment.index.as_ref()?;
        let most = len.min(limits.max_bytes).saturating_sub(HEADER_BYTES) as u64;
        let known = index.before_position(segment.checked.min(place.position + most));
        let known = if known.offset > limits.end { index.before_offset(limits.end) } else { known };
        (known.position > place.position).then_some(known)
    }

    /// End of the written part of a segment.
    fn end_of_segment(&self, at: usize) -> Place {
        let Some(next) = self.segments.get(at + 1) else { return self.positions.written() };
        let segment = &self.segments[at];
        Place { base: segment.base, position: segment.bytes, offset: next.base }
    }

    /// Locates the batch of segment `at` that contains or follows `offset`.
    fn locate(&mut self, disk: &mut Disk, at: usize, offset: u64) -> io::Result<Located> {
        let base = self.segments[at].base;
        let from = self.index(disk, at)?.before_offset(offset);
        if from.position == 0 || self.is_boundary(disk, at, from)? {
            return self.walk(disk, at, from, offset, Compare::Headers);
        }
        // The index may be wrong. Rebuild it once from the segment.
        self.segments[at].index = None;
        let path = self.dir.index(base);
        if let Err(error) = Index::remove(&*disk.fs, &path) {
            log::debug!("log {}: {}: {error}", self.dir.name(), path.display());
        }
        let from = self.index(disk, at)?.before_offset(offset);
        self.walk(disk, at, from, offset, Compare::Headers)
    }

    /// Whether a batch with the expected base offset starts at `place`.
    fn is_boundary(&self, disk: &mut Disk, at: usize, place: Place) -> io::Result<bool> {
        let end = self.end_of_segment(at);
        let file = self.dir.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, self.cleaning.gaps(end.base));
        let step = scan.step(place)?;
        Ok(matches!(step, Step::Batch(header) if header.base_offset == place.offset))
    }

    /// Scans forward from `from` to the batch that contains or follows `offset`.
    fn walk(
        &self,
        disk: &mut Disk,
        at: usize,
        from: Place,
        offset: u64,
        compare: Compare,
    ) -> io::Result<Located> {
        let end = self.end_of_segment(at);
        let gaps = self.cleaning.gaps(end.base);
        let file = self.dir.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, gaps);
        let is_missing = |located: &Located| match located {
            Located::Damaged => true,
            // Every offset between the start and the end of the log has a record, unless compaction removed it.
            Located::End => gaps == Gaps::None,
            Located::Batch(_, header) => gaps == Gaps::None && header.base_offset > offset,
        };
        if compare == Compare::Headers {
            let located = scan_forward(from, offset, &mut scan, Scan::step)?;
            if !is_missing(&located) {
                return Ok(located);
            }
        }
        // A damaged length hides the batches after it. Scan again with checksums.
        let located = scan_forward(from, offset, &mut scan, Scan::step_verified)?;
        Ok(if is_missing(&located) { Located::Damaged } else { located })
    }

    /// Position of the batch with base offset `offset`; `None` if there is none.
    pub(crate) fn boundary(&mut self, disk: &mut Disk, offset: u64) -> io::Result<Option<Place>> {
        if offset == self.positions.head().offset {
            return Ok(Some(self.positions.head()));
        }
        let at = self.segments.containing(offset);
        match self.locate(disk, at, offset)? {
            Located::Batch(place, header) if header.base_offset == offset => Ok(Some(place)),
            _ => Ok(None),
        }
    }

    /// Like [`SegmentReader::read`], but returns file ranges, for a log without unwritten appends, and does not verify
    /// checksums.
    pub(crate) fn ranges(
        &mut self,
        disk: &mut Disk,
        offsets: &Range<u64>,
        max_bytes: u64,
    ) -> Result<Vec<FileRange>, Error> {
        if !(self.start..=self.positions.head().offset).contains(&offsets.start) {
            return Err(Error::OutOfRange);
        }
        let mut ranges = Vec::new();
        let mut next = offsets.start;
        let mut left = max_bytes;
        let last = offsets.end;
        while next < self.positions.head().offset && (left > 0 || ranges.is_empty()) {
            let corrupt = |_: io::Error| Error::Corrupt { offset: next };
            let at = self.segments.containing(next);
            let behind = self.end_of_segment(at);
            let (place, header) = match self.locate(disk, at, next).map_err(corrupt)? {
                Located::Batch(place, header) => (place, header),
                Located::End => {
                    next = behind.offset;
                    continue;
                }
                Located::Damaged if ranges.is_empty() => return Err(Error::Corrupt { offset: next }),
                Located::Damaged => break,
            };
            let is_first = ranges.is_empty();
            if header.base_offset >= last || !is_first && header.total_bytes as u64 > left {
                break;
            }
            let end = self.last_fitting(disk, at, place.after(&header), last, place.position + left);
            let end = end.map_err(corrupt)?;
            let file = self.dir.file(&mut disk.files, place.base).map_err(corrupt)?;
            let len = end.position - place.position;
            ranges.push(FileRange { file, position: place.position, len, end: end.offset });
            left = left.saturating_sub(len);
            if end.position < behind.position {
                break;
            }
            next = behind.offset;
        }
        Ok(ranges)
    }

    /// End of the last batch of segment `at`, from `place` on, that begins below offset `last` and ends at or before
    /// byte `position`.
    fn last_fitting(
        &mut self,
        disk: &mut Disk,
        at: usize,
        place: Place,
        last: u64,
        position: u64,
    ) -> io::Result<Place> {
        let end = self.end_of_segment(at);
        if end.position <= position && end.offset <= last && self.is_whole(disk, at)? {
            return Ok(end);
        }
        let index = self.index(disk, at)?;
        let near = index.before_offset(last).min(index.before_position(position));
        let mut place = if near.position > place.position { near } else { place };
        let file = self.dir.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, self.cleaning.gaps(end.base));
        while let Step::Batch(header) = scan.step(place)? {
            let behind = place.after(&header);
            if header.base_offset >= last || behind.position > position {
                break;
            }
            place = behind;
        }
        Ok(place)
    }

    /// Whether the last batch of segment `at` ends where the next segment begins.
    fn is_whole(&mut self, disk: &mut Disk, at: usize) -> io::Result<bool> {
        let end = self.end_of_segment(at);
        let gaps = self.cleaning.gaps(end.base);
        if at + 1 == self.segments.len() || gaps == Gaps::Allowed || self.segments[at].is_whole {
            return Ok(true);
        }
        let mut place = self.index(disk, at)?.before_position(end.position);
        let file = self.dir.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, gaps);
        while let Step::Batch(header) = scan.step(place)? {
            place = place.after(&header);
        }
        self.segments[at].is_whole = place == end;
        Ok(place == end)
    }
}

fn scan_forward<'a>(
    from: Place,
    offset: u64,
    scan: &mut Scan<'a>,
    step: impl Fn(&mut Scan<'a>, Place) -> io::Result<Step>,
) -> io::Result<Located> {
    let mut place = from;
    loop {
        match step(scan, place)? {
            Step::Batch(header) if header.end_offset() > offset => {
                return Ok(Located::Batch(Place { offset: header.base_offset, ..place }, header));
            }
            Step::Batch(header) => place = place.after(&header),
            Step::End if scan.is_at_end(place) => return Ok(Located::End),
            // Zeros in place of a batch are damage too.
            Step::End | Step::Damaged => match scan.resume(place)? {
                Some(next) if next.offset <= offset => place = next,
                _ => return Ok(Located::Damaged),
            },
        }
    }
}

/// Whether `bytes` start with a batch header with base offset `offset`.
fn starts_at_offset(bytes: Option<&[u8]>, offset: u64) -> bool {
    let header = bytes.map(BatchHeader::parse);
    header.is_some_and(|header| header.is_ok_and(|header| header.base_offset == offset))
}

/// Whether a batch header with the expected base offset is at `place`.
fn is_batch_at(file: &dyn File, place: Place) -> bool {
    let mut header = [0; HEADER_BYTES];
    let read = file.read_at(&mut header, place.position);
    read.is_ok_and(|read| starts_at_offset(header.get(..read), place.offset))
}

fn corrupt_at(place: Place) -> Error {
    Error::Corrupt { offset: place.offset }
}

/// Copies whole batches and returns the offset after them, or `None` if none fits.
fn take(
    parts: &[&[u8]; 2],
    offsets: &Range<u64>,
    max_bytes: usize,
    first: bool,
    into: &mut Vec<u8>,
) -> Option<u64> {
    let mut next = None;
    let mut taken = 0;
    for part in parts {
        let mut len = 0;
        let mut is_full = false;
        for batch in batches(part) {
            let size = batch.header.total_bytes;
            let is_first = first && taken + len == 0;
            if batch.header.base_offset >= offsets.end || !is_first && taken + len + size > max_bytes {
                is_full = true;
                break;
            }
            len += size;
            next = Some(batch.header.end_offset());
        }
        into.extend_from_slice(&part[..len]);
        taken += len;
        if is_full {
            break;
        }
    }
    next
}

impl ReadLimits {
    /// Validates batches in `bytes`. The first `len` bytes are already validated and end at offset `next`. Checksums
    /// are verified from byte `unchecked_from` on. Returns the length of the accepted batches, the offset after them
    /// and why it stopped.
    fn validate(
        &self,
        bytes: &[u8],
        mut len: usize,
        mut next: u64,
        gaps: Gaps,
        unchecked_from: usize,
    ) -> (usize, u64, Stopped) {
        loop {
            let rest = &bytes[len..];
            if rest.len() < HEADER_BYTES {
                return (len, next, Stopped::Short);
            }
            let Ok(header) = BatchHeader::parse(rest) else { return (len, next, Stopped::Damage) };
            let size = header.total_bytes;
            let is_first = self.first && len == 0;
            if header.base_offset >= self.end || !is_first && len + size > self.max_bytes {
                return (len, next, Stopped::Limit);
            }
            if size > rest.len() {
                return (len, next, Stopped::Short);
            }
            let is_expected =
                header.base_offset == next || gaps == Gaps::Allowed && header.base_offset > next;
            if !is_expected || len >= unchecked_from && Batch::parse(rest).is_err() {
                return (len, next, Stopped::Damage);
            }
            len += size;
            next = header.end_offset();
        }
    }
}
