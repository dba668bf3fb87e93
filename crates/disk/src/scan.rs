//! Forward scan of a segment that may be damaged or end in a torn write.
//!
//! Recovery must distinguish a torn write, which ends the log, from damage at rest, after which valid batches are
//! retained. Segments are written once, from front to back, into zeros: a sector lost in a power failure is therefore
//! zero, while a damaged one usually is not.

use std::io;

use mainstem_log::{Batch, BatchHeader, HEADER_BYTES};

use crate::fs::File;

/// Minimum bytes read at a time; doubles up to [`WINDOW_BYTES`] while the scan is sequential.
const WINDOW_BYTES_MIN: usize = 4096;
const WINDOW_BYTES: usize = 128 * 1024;
/// Unit that a disk writes atomically, bytes.
const SECTOR_BYTES: u64 = 512;

/// A boundary between two batches of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Base offset of the segment.
    pub(crate) base: u64,
    /// Bytes of the segment before it.
    pub(crate) position: u64,
    /// Offset of the next record.
    pub(crate) offset: u64,
}

impl Place {
    /// Start of a segment.
    pub(crate) fn beginning(base: u64) -> Self {
        Self { base, position: 0, offset: base }
    }

    /// Boundary after a batch that starts here.
    pub(crate) fn after(self, header: &BatchHeader) -> Self {
        let position = self.position + header.total_bytes as u64;
        Self { base: self.base, position, offset: header.end_offset() }
    }
}

/// What a scan found at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch.
    Batch(BatchHeader),
    /// The end of the bytes, or zeros.
    End,
    /// Anything else.
    Damaged,
}

/// Whether a batch may start beyond the expected offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// No. This detects a damaged base offset, which no checksum covers.
    None,
    /// Yes: the segment may be compacted.
    Allowed,
}

/// Forward reader of a segment with its own buffer.
pub(crate) struct Scan<'a> {
    file: &'a dyn File,
    /// Length of the scanned part.
    bytes: u64,
    /// All records have offsets below this.
    limit: u64,
    gaps: Gaps,
    window: Vec<u8>,
    window_at: u64,
    /// Size of the last read.
    window_bytes: usize,
}

impl<'a> Scan<'a> {
    /// Scans the first `bytes` of a segment whose records are all below offset `limit`.
    pub(crate) fn new(file: &'a dyn File, bytes: u64, limit: u64, gaps: Gaps) -> Self {
        Self { file, bytes, limit, gaps, window: Vec::new(), window_at: 0, window_bytes: WINDOW_BYTES_MIN }
    }

    /// Up to `len` bytes from `position` on: fewer at the end only.
    fn peek(&mut self, position: u64, len: usize) -> io::Result<&[u8]> {
        let len = len.min(self.bytes.saturating_sub(position) as usize);
        let buffered = self.window_at..=self.window_at + self.window.len() as u64;
        if !(buffered.contains(&position) && buffered.contains(&(position + len as u64))) {
            // Sequential reads double the buffer. A scan that skips over batch contents reads little.
            let is_sequential = buffered.contains(&position);
            let window_bytes = if is_sequential { 2 * self.window_bytes } else { WINDOW_BYTES_MIN };
            self.window_bytes = window_bytes.min(WINDOW_BYTES);
            let left = self.bytes.saturating_sub(position) as usize;
            self.window.clear();
            self.window_at = position;
            self.file.read_into(&mut self.window, len.max(self.window_bytes.min(left)), position)?;
        }
        let from = (position - self.window_at) as usize;
        let to = (from + len).min(self.window.len());
        Ok(&self.window[from.min(to)..to])
    }

    /// Whether `place` is at the end of the bytes.
    pub(crate) fn is_at_end(&self, place: Place) -> bool {
        place.position >= self.bytes
    }

    /// Whether the segment ends properly at `place`: only zeros follow, and no record is missing. Compaction retains
    /// the last batch, so this holds with gaps too.
    pub(crate) fn is_complete(&mut self, place: Place) -> io::Result<bool> {
        Ok(place.offset == self.limit && !self.has_rest(place.position)?)
    }

    /// Parses the header at `place` without verifying the checksum.
    pub(crate) fn step(&mut self, place: Place) -> io::Result<Step> {
        self.step_with(place, self.gaps)
    }

    fn step_with(&mut self, place: Place, gaps: Gaps) -> io::Result<Step> {
        let left = self.bytes.saturating_sub(place.position);
        let limit = self.limit;
        let bytes = self.peek(place.position, HEADER_BYTES)?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Step::End);
        }
        let Ok(header) = BatchHeader::parse(bytes) else { return Ok(Step::Damaged) };
        let follows = match gaps {
            Gaps::None => header.base_offset == place.offset,
            Gaps::Allowed => header.base_offset >= place.offset,
        };
        if !follows || header.end_offset() > limit || header.total_bytes as u64 > left {
            return Ok(Step::Damaged);
        }
        Ok(Step::Batch(header))
    }

    /// Like [`Scan::step`], but verifies the checksum.
    pub(crate) fn step_verified(&mut self, place: Place) -> io::Result<Step> {
        self.step_checked(place, self.gaps)
    }

    fn step_checked(&mut self, place: Place, gaps: Gaps) -> io::Result<Step> {
        let step = self.step_with(place, gaps)?;
        if let Step::Batch(header) = step {
            let bytes = self.peek(place.position, header.total_bytes)?;
            if Batch::parse(bytes).is_err() {
                return Ok(Step::Damaged);
            }
        }
        Ok(step)
    }

    /// Returns the whole batch at `place`, where [`Scan::step`] found one.
    pub(crate) fn batch(&mut self, place: Place, header: &BatchHeader) -> io::Result<&[u8]> {
        self.peek(place.position, header.total_bytes)
    }

    /// Finds the next valid batch after the damage at `place` and returns its position.
    pub(crate) fn resume(&mut self, place: Place) -> io::Result<Option<Place>> {
        let mut next = place;
        loop {
            next.position += 1;
            // Check cheap conditions first: the version byte, and a zero as the first byte of the offset.
            let Some(skip) = self.candidate(next.position)? else { return Ok(None) };
            next.position += skip;
            if let Step::Batch(header) = self.step_checked(next, Gaps::Allowed)? {
                return Ok(Some(Place { offset: header.base_offset, ..next }));
            }
        }
    }

    /// Distance from `position` to the first bytes that could start a batch.
    fn candidate(&mut self, position: u64) -> io::Result<Option<u64>> {
        let mut skipped = 0;
        loop {
            let bytes = self.peek(position + skipped, WINDOW_BYTES)?;
            if bytes.len() < HEADER_BYTES {
                return Ok(None);
            }
            let starts = bytes.len() - HEADER_BYTES + 1;
            let found = (0..starts).find(|at| bytes[at + 16] == 2 && bytes[*at] == 0);
            if let Some(at) = found {
                return Ok(Some(skipped + at as u64));
            }
            skipped += starts as u64;
        }
    }

    /// Whether a sector between `from` and the next valid batch or the end was never written, as after a power failure.
    ///
    /// Segments are written once, from front to back, into zeros. In a lost sector, everything from the start of the
    /// damage on is zero. Bytes damaged at rest are not zero unless the data was.
    fn lost_sector(&mut self, from: Place, next: Option<Place>) -> io::Result<bool> {
        let to = next.map_or(self.bytes, |next| next.position);
        let mut at = from.position;
        while at < to {
            // Include the whole sector in which the next batch starts: the batch may have lost only zeros of it.
            let end = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(self.bytes);
            let len = (end - at) as usize;
            let is_conclusive = if at == from.position {
                // A batch starts with the leading zeros of its offset; the length after it is never zero.
                let offset = from.offset.to_be_bytes();
                len >= 12 || offset[..len.min(8)].iter().any(|byte| *byte != 0)
            } else {
                // A batch whose last record has no headers ends with one zero.
                len > 1
            };
            let bytes = self.peek(at, len)?;
            if is_conclusive && bytes.iter().all(|byte| *byte == 0) {
                return Ok(true);
            }
            at = end;
        }
        Ok(false)
    }

    /// Whether the batch at `position` really extends beyond the file, rather than having a damaged length: with its
    /// length set to the bytes available, its checksum is wrong too.
    fn reaches_beyond(&mut self, position: u64) -> io::Result<bool> {
        let left = self.bytes.saturating_sub(position) as usize;
        let bytes = self.peek(position, left)?;
        let Some((head, records)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(true) };
        if !BatchHeader::parse(head).is_ok_and(|header| header.total_bytes > left) {
            return Ok(false);
        }
        let mut whole = head.to_vec();
        whole[8..12].copy_from_slice(&(left as u32 - 12).to_be_bytes());
        whole.extend_from_slice(records);
        Ok(Batch::parse(&whole).is_err())
    }

    /// Whether any byte after `position` is not zero.
    pub(crate) fn has_rest(&mut self, position: u64) -> io::Result<bool> {
        let mut at = position;
        while at < self.bytes {
            let bytes = self.peek(at, WINDOW_BYTES)?;
            if bytes.is_empty() {
                break;
            }
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
            at += bytes.len() as u64;
        }
        Ok(false)
    }

    /// Finds the end of the log in this segment from `place` on, verifying all checksums.
    ///
    /// An invalid batch that looks like a torn write ends the log. One that looks damaged at rest stays if valid
    /// batches follow it.
    pub(crate) fn valid_end(&mut self, mut place: Place) -> io::Result<ValidEnd> {
        let mut damaged = None;
        loop {
            match self.step_verified(place)? {
                Step::Batch(header) => place = place.after(&header),
                Step::End => return Ok(ValidEnd { place, damaged, is_torn: true }),
                Step::Damaged => {
                    let next = self.resume(place)?;
                    let is_torn = self.lost_sector(place, next)?
                        || next.is_none() && self.reaches_beyond(place.position)?;
                    match next {
                        Some(next) if !is_torn => {
                            damaged.get_or_insert(place.offset);
                            place = next;
                        }
                        _ => return Ok(ValidEnd { place, damaged, is_torn }),
                    }
                }
            }
        }
    }
}

/// End of the valid part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidEnd {
    /// Boundary after the last batch.
    pub(crate) place: Place,
    /// Offset of the first batch damaged at rest.
    pub(crate) damaged: Option<u64>,
    /// Whether zeros or a torn write follow.
    pub(crate) is_torn: bool,
}
