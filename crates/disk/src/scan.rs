//! Walking through the batches of a segment, whatever state it is in.

use std::io;

use mainstem_log::{Batch, BatchHeader, HEADER_BYTES};

use crate::fs::File;

/// What is read at once, at least and at most.
const WINDOW_BYTES_MIN: usize = 4096;
const WINDOW_BYTES: usize = 128 * 1024;
/// What a disk writes whole or not at all, bytes.
const SECTOR_BYTES: u64 = 512;

/// A point between two batches of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Base offset of the segment.
    pub(crate) base: u64,
    /// Bytes of the segment before it.
    pub(crate) position: u64,
    /// Offset behind the last record before it.
    pub(crate) offset: u64,
}

impl Place {
    /// Where a segment begins.
    pub(crate) fn beginning(base: u64) -> Self {
        Self { base, position: 0, offset: base }
    }

    /// Behind a batch that begins here.
    pub(crate) fn behind(self, header: &BatchHeader) -> Self {
        let position = self.position + header.total_bytes as u64;
        Self { base: self.base, position, offset: header.end_offset() }
    }
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch.
    Batch(BatchHeader),
    /// Nothing: the end of the bytes, or zeros.
    End,
    /// Something else.
    Damaged,
}

/// Whether a batch may begin behind the offset that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// No: then an offset that has changed at rest, which no checksum covers, is found out.
    None,
    /// Yes: compaction may have been here.
    Allowed,
}

/// Reads a segment forward, through a window of its own.
pub(crate) struct Scan<'a> {
    file: &'a dyn File,
    /// Bytes that are looked at.
    bytes: u64,
    /// Offset that no record reaches.
    limit: u64,
    gaps: Gaps,
    window: Vec<u8>,
    window_at: u64,
    /// How much was read at once last.
    window_bytes: usize,
}

impl<'a> Scan<'a> {
    /// Over the first `bytes` of a segment whose records are all below offset `limit`.
    pub(crate) fn new(file: &'a dyn File, bytes: u64, limit: u64, gaps: Gaps) -> Self {
        Self { file, bytes, limit, gaps, window: Vec::new(), window_at: 0, window_bytes: WINDOW_BYTES_MIN }
    }

    /// Up to `len` bytes from `position` on: fewer at the end only.
    fn peek(&mut self, position: u64, len: usize) -> io::Result<&[u8]> {
        let len = len.min(self.bytes.saturating_sub(position) as usize);
        let held = self.window_at..=self.window_at + self.window.len() as u64;
        if !(held.contains(&position) && held.contains(&(position + len as u64))) {
            // Whoever reads on gets more and more at once; whoever leaps over what is in batches need not have it.
            let reads_on = held.contains(&position);
            let window_bytes = if reads_on { 2 * self.window_bytes } else { WINDOW_BYTES_MIN };
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

    /// Whether all bytes lie before `place`.
    pub(crate) fn is_over(&self, place: Place) -> bool {
        place.position >= self.bytes
    }

    /// What stands at `place`. Its checksum is not compared.
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

    /// The same, its checksum compared.
    pub(crate) fn step_sound(&mut self, place: Place) -> io::Result<Step> {
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

    /// The whole batch at `place`, where [`Scan::step`] has found one.
    pub(crate) fn batch(&mut self, place: Place, header: &BatchHeader) -> io::Result<&[u8]> {
        self.peek(place.position, header.total_bytes)
    }

    /// The next sound batch behind `place`, where there is none: the place before it.
    pub(crate) fn resume(&mut self, place: Place) -> io::Result<Option<Place>> {
        let mut next = place;
        loop {
            next.position += 1;
            // Cheap first: the version stands where it must, and the offset begins with a zero.
            let Some(skip) = self.candidate(next.position)? else { return Ok(None) };
            next.position += skip;
            if let Step::Batch(header) = self.step_checked(next, Gaps::Allowed)? {
                return Ok(Some(Place { offset: header.base_offset, ..next }));
            }
        }
    }

    /// How far behind `position` the first bytes stand that could begin a batch.
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

    /// Whether a sector of the bytes from one place on, up to the next sound batch or the end, has never been
    /// written, as a loss of power leaves it.
    ///
    /// Segments are written once, from front to back, into zeros. So in a lost sector everything from where the
    /// damage begins is zero. In bytes that have changed at rest it is not, unless they were zeros by themselves.
    fn lost_sector(&mut self, from: Place, next: Option<Place>) -> io::Result<bool> {
        let to = next.map_or(self.bytes, |next| next.position);
        let mut at = from.position;
        while at < to {
            // Of the sector in which the next one begins, too: it may have lost no more of it than zeros.
            let end = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(self.bytes);
            let len = (end - at) as usize;
            let is_telling = if at == from.position {
                // A batch begins with zeros, as far as its offset has them; the length behind it is none.
                let offset = from.offset.to_be_bytes();
                len >= 12 || offset[..len.min(8)].iter().any(|byte| *byte != 0)
            } else {
                // A batch without headers ends with a zero.
                len > 1
            };
            let bytes = self.peek(at, len)?;
            if is_telling && bytes.iter().all(|byte| *byte == 0) {
                return Ok(true);
            }
            at = end;
        }
        Ok(false)
    }

    /// Whether the batch that begins at `position` is longer than the file, and not only says so: with the length
    /// that it has there, its checksum is wrong too.
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

    /// Whether anything but zeros stands behind `position`.
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

    /// Finds where the log ends in this segment, from `place` on, comparing all checksums.
    ///
    /// What does not check ends it if it looks like a write that was cut short. If it looks as if it had changed
    /// at rest, and there are sound batches behind it, it stays, and so do they.
    pub(crate) fn valid_end(&mut self, mut place: Place) -> io::Result<ValidEnd> {
        let mut damaged = None;
        loop {
            match self.step_sound(place)? {
                Step::Batch(header) => place = place.behind(&header),
                Step::End => return Ok(ValidEnd { place, damaged, is_cut_short: true }),
                Step::Damaged => {
                    let next = self.resume(place)?;
                    let is_cut_short = self.lost_sector(place, next)?
                        || next.is_none() && self.reaches_beyond(place.position)?;
                    match next {
                        Some(next) if !is_cut_short => {
                            damaged.get_or_insert(place.offset);
                            place = next;
                        }
                        _ => return Ok(ValidEnd { place, damaged, is_cut_short }),
                    }
                }
            }
        }
    }
}

/// Where a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidEnd {
    /// Behind the last batch.
    pub(crate) place: Place,
    /// Offset of the first batch before it that has changed at rest.
    pub(crate) damaged: Option<u64>,
    /// Whether nothing stands there, or what a loss of power leaves of a write.
    pub(crate) is_cut_short: bool,
}
