//! Reading: from memory what is new, from the files what is not.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use mainstem_log::{Batch, BatchHeader, Compression, Error, Found, HEADER_BYTES, Records, batches};

use crate::fs::File;
use crate::index::Index;
use crate::scan::{Gaps, Place, Scan, Step};
use crate::single::{Disk, Log};

/// Batches as they lie in a file.
#[derive(Clone)]
pub struct FileRange {
    /// The file. It stays readable whatever becomes of the log.
    pub file: Arc<dyn File>,
    /// Byte offset of the first batch.
    pub position: u64,
    /// Of all of them, bytes.
    pub len: u64,
    /// Offset behind the last.
    pub end: u64,
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.len, self.position)
    }
}

/// What stands where a reader wants to go on.
#[derive(Clone, Copy, Debug)]
enum Spot {
    /// A batch, at this place.
    Batch(Place, BatchHeader),
    /// Nothing in this segment.
    End,
    /// Bytes that are no batch.
    Damaged,
}

/// How much a reader wants.
struct Wanted {
    /// No batch that begins at or behind this offset.
    end: u64,
    /// Of all batches together.
    max_bytes: usize,
    /// Whether the first batch is to come whatever its size.
    first: bool,
}

/// How far it got.
enum Reached {
    /// Up to this offset.
    Offset(u64),
    /// No more is wanted.
    Enough,
    /// The bytes end before the batch does.
    Short,
    /// What stands there is damaged.
    Damage,
}

/// Bytes that are read from a file at once. They are looked at while they are in the processor's cache.
const STEP_BYTES: usize = 128 * 1024;

/// What a search for a batch looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Headers,
    Checksums,
}

/// Timestamps of a batch's records are the one in its header, set when it was appended (Kafka's
/// `LogAppendTime`).
const APPEND_TIME: i16 = 8;

impl Log {
    /// What [`mainstem_log::Store::read`] does.
    pub(crate) fn read(
        &mut self,
        disk: &mut Disk,
        offsets: Range<u64>,
        max_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if !(self.start..=self.head.offset).contains(&offsets.start) {
            return Err(Error::OutOfRange);
        }
        let before = into.len();
        let mut next = offsets.start;
        while next < self.head.offset {
            let first = into.len() == before;
            let left = max_bytes.saturating_sub(into.len() - before);
            if left == 0 && !first {
                break;
            }
            let went_on = if self.tail.has(next) {
                take(&self.tail.from(next), &(next..offsets.end), left, first, into)
            } else {
                match self.read_file(disk, &(next..offsets.end), left, first, into) {
                    // What came before the damage is sound.
                    Err(Error::Corrupt { .. }) if !first => break,
                    outcome => outcome?,
                }
            };
            match went_on {
                Some(end) => next = end,
                None => break,
            }
        }
        Ok(())
    }

    /// Reads batches of one segment. Returns where to go on; nothing if no more fit.
    fn read_file(
        &mut self,
        disk: &mut Disk,
        offsets: &Range<u64>,
        max_bytes: usize,
        first: bool,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        let corrupt = |_: io::Error| Error::Corrupt { offset: offsets.start };
        let at = self.segment_of(offsets.start);
        let wanted = Wanted { end: offsets.end, max_bytes, first };
        // Whoever reads on needs no search; if that does not do, a search tells why.
        if let Some(place) = self.cursor(at, offsets.start) {
            let before = into.len();
            match self.take_batches(disk, at, place, max_bytes, &wanted, into)? {
                Reached::Offset(next) => return Ok(Some(next)),
                Reached::Enough if into.len() > before => return Ok(None),
                _ => {}
            }
        }
        let spot = self.locate(disk, at, offsets.start).map_err(corrupt)?;
        match self.take_spot(disk, at, spot, &wanted, into)? {
            Reached::Damage => {
                // Where a length is damaged, or an offset, the search was led astray.
                let from = self.index(disk, at).map_err(corrupt)?.before_offset(offsets.start);
                let spot = self.walk(disk, at, from, offsets.start, Compare::Checksums).map_err(corrupt)?;
                match self.take_spot(disk, at, spot, &wanted, into)? {
                    Reached::Damage => Err(Error::Corrupt { offset: offsets.start }),
                    Reached::Offset(next) => Ok(Some(next)),
                    Reached::Enough | Reached::Short => Ok(None),
                }
            }
            Reached::Offset(next) => Ok(Some(next)),
            Reached::Enough | Reached::Short => Ok(None),
        }
    }

    /// Gives out what is wanted from a spot on.
    fn take_spot(
        &mut self,
        disk: &mut Disk,
        at: usize,
        spot: Spot,
        wanted: &Wanted,
        into: &mut Vec<u8>,
    ) -> Result<Reached, Error> {
        match spot {
            Spot::Batch(_, header) if header.base_offset >= wanted.end => Ok(Reached::Enough),
            Spot::Batch(_, header) if header.total_bytes > wanted.max_bytes && !wanted.first => {
                Ok(Reached::Enough)
            }
            Spot::Batch(place, header) => {
                let len = header.total_bytes.max(wanted.max_bytes);
                self.take_batches(disk, at, place, len, wanted, into)
            }
            Spot::End => Ok(Reached::Offset(self.end_of_segment(at).offset)),
            Spot::Damaged => Ok(Reached::Damage),
        }
    }

    /// Where a reader of segment number `at` who wants to go on with `offset` has stopped.
    fn cursor(&self, at: usize, offset: u64) -> Option<Place> {
        let base = self.segments[at].base;
        let is_there = |place: &&Place| place.base == base && place.offset == offset && place.position > 0;
        self.cursors.iter().find(is_there).copied()
    }

    /// Reads `len` bytes from `place` on, and gives out what is wanted of them.
    fn take_batches(
        &mut self,
        disk: &mut Disk,
        at: usize,
        place: Place,
        len: usize,
        wanted: &Wanted,
        into: &mut Vec<u8>,
    ) -> Result<Reached, Error> {
        let corrupt = |_: io::Error| Error::Corrupt { offset: place.offset };
        let behind = self.end_of_segment(at);
        let file = self.file(&mut disk.files, place.base).map_err(corrupt)?;
        let len = len.min((behind.position - place.position) as usize);
        let checked = self.segments[at].checked;
        let unchecked_from = checked.saturating_sub(place.position) as usize;
        let gaps = self.gaps(place.base);
        let from = into.len();
        into.reserve_exact(len);
        let (mut kept, mut end, mut taken) = (0, place.offset, Reached::Short);
        let mut known = self.known_ahead(at, place, len, wanted);
        while matches!(taken, Reached::Short) && into.len() - from < len {
            let read = into.len() - from;
            let ahead = known.map_or(0, |known| (known.position - place.position) as usize);
            let step = (ahead + STEP_BYTES).min(len - read);
            file.read_into(into, step, place.position + read as u64).map_err(corrupt)?;
            if into.len() - from == read {
                break;
            }
            if let Some(known) = known.take()
                && begins(into.get(from + ahead..), known.offset)
            {
                (kept, end) = (ahead, known.offset);
            }
            (kept, end, taken) = wanted.of(&into[from..], kept, end, gaps, unchecked_from);
        }
        let left = into.len() - from - kept;
        into.truncate(from + kept);
        if kept == 0 {
            return Ok(taken);
        }
        let next = Place { base: place.base, position: place.position + kept as u64, offset: end };
        if place.position <= checked {
            self.segments[at].checked = checked.max(next.position);
        }
        self.cursors[self.next_cursor] = next;
        self.next_cursor = (self.next_cursor + 1) % self.cursors.len();
        Ok(match taken {
            _ if next.position == behind.position => Reached::Offset(behind.offset),
            // Nobody need look again at the batch that did not fit.
            Reached::Enough => Reached::Enough,
            Reached::Short if left >= HEADER_BYTES || is_batch_at(&*file, next) => Reached::Enough,
            // What is left may be what a loss of power left at the end of a segment.
            Reached::Offset(_) | Reached::Short | Reached::Damage => Reached::Offset(end),
        })
    }

    /// A batch behind `place` up to which all is wanted, and was looked at before: as the index says.
    fn known_ahead(&self, at: usize, place: Place, len: usize, wanted: &Wanted) -> Option<Place> {
        let segment = &self.segments[at];
        let index = segment.index.as_ref()?;
        let most = len.min(wanted.max_bytes).saturating_sub(HEADER_BYTES) as u64;
        let known = index.before_position(segment.checked.min(place.position + most));
        let known = if known.offset > wanted.end { index.before_offset(wanted.end) } else { known };
        (known.position > place.position).then_some(known)
    }

    /// The number of the segment that holds or follows `offset`.
    pub(crate) fn segment_of(&self, offset: u64) -> usize {
        self.segments.partition_point(|segment| segment.base <= offset).saturating_sub(1)
    }

    /// Where a segment ends, as far as it is in its file.
    fn end_of_segment(&self, at: usize) -> Place {
        let Some(next) = self.segments.get(at + 1) else { return self.written };
        let segment = &self.segments[at];
        Place { base: segment.base, position: segment.bytes, offset: next.base }
    }

    /// The batch of segment number `at` that holds or follows `offset`.
    fn locate(&mut self, disk: &mut Disk, at: usize, offset: u64) -> io::Result<Spot> {
        let base = self.segments[at].base;
        let from = self.index(disk, at)?.before_offset(offset);
        if from.position == 0 || self.is_boundary(disk, at, from)? {
            return self.walk(disk, at, from, offset, Compare::Headers);
        }
        // The index may be at fault. It is made anew once, from the segment itself.
        self.segments[at].index = None;
        let path = self.dir.join(crate::name::index(base));
        if let Err(error) = Index::remove(&*disk.fs, &path) {
            log::debug!("log {}: {}: {error}", self.name, path.display());
        }
        let from = self.index(disk, at)?.before_offset(offset);
        self.walk(disk, at, from, offset, Compare::Headers)
    }

    /// Whether a batch begins at a place, with the offset that it names.
    fn is_boundary(&self, disk: &mut Disk, at: usize, place: Place) -> io::Result<bool> {
        let end = self.end_of_segment(at);
        let file = self.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, self.gaps(end.base));
        let step = scan.step(place)?;
        Ok(matches!(step, Step::Batch(header) if header.base_offset == place.offset))
    }

    /// Goes forward from `from` to the batch that holds or follows `offset`.
    fn walk(
        &self,
        disk: &mut Disk,
        at: usize,
        from: Place,
        offset: u64,
        compare: Compare,
    ) -> io::Result<Spot> {
        let end = self.end_of_segment(at);
        let gaps = self.gaps(end.base);
        let file = self.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, gaps);
        if compare == Compare::Checksums {
            return go_forward(from, offset, &mut scan, Scan::step_sound);
        }
        let spot = go_forward(from, offset, &mut scan, Scan::step)?;
        // A batch whose length has changed at rest hides those behind it, until its checksum is compared.
        match spot {
            Spot::Damaged => go_forward(from, offset, &mut scan, Scan::step_sound),
            Spot::End if gaps == Gaps::None => go_forward(from, offset, &mut scan, Scan::step_sound),
            _ => Ok(spot),
        }
    }

    /// The place of the batch that begins with `offset`; nothing if none does.
    pub(crate) fn boundary(&mut self, disk: &mut Disk, offset: u64) -> io::Result<Option<Place>> {
        if offset == self.head.offset {
            return Ok(Some(self.head));
        }
        let at = self.segment_of(offset);
        match self.locate(disk, at, offset)? {
            Spot::Batch(place, header) if header.base_offset == offset => Ok(Some(place)),
            _ => Ok(None),
        }
    }

    /// The bytes that [`Log::read`] would give, as they lie in files. Their checksums are not compared.
    pub(crate) fn ranges(
        &mut self,
        disk: &mut Disk,
        offsets: &Range<u64>,
        max_bytes: u64,
    ) -> Result<Vec<FileRange>, Error> {
        if !(self.start..=self.head.offset).contains(&offsets.start) {
            return Err(Error::OutOfRange);
        }
        self.flush(disk)?;
        let mut ranges = Vec::new();
        let mut next = offsets.start;
        let mut left = max_bytes;
        let last = offsets.end;
        while next < self.head.offset && (left > 0 || ranges.is_empty()) {
            let corrupt = |_: io::Error| Error::Corrupt { offset: next };
            let at = self.segment_of(next);
            let behind = self.end_of_segment(at);
            let (place, header) = match self.locate(disk, at, next).map_err(corrupt)? {
                Spot::Batch(place, header) => (place, header),
                Spot::End => {
                    next = behind.offset;
                    continue;
                }
                Spot::Damaged if ranges.is_empty() => return Err(Error::Corrupt { offset: next }),
                Spot::Damaged => break,
            };
            let is_first = ranges.is_empty();
            if header.base_offset >= last || !is_first && header.total_bytes as u64 > left {
                break;
            }
            let end = self.last_fitting(disk, at, place.behind(&header), last, place.position + left);
            let end = end.map_err(corrupt)?;
            let file = self.file(&mut disk.files, place.base).map_err(corrupt)?;
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

    /// Behind the last batch of segment number `at`, from `place` on, that begins below offset `last` and ends at
    /// or before byte `position`.
    fn last_fitting(
        &mut self,
        disk: &mut Disk,
        at: usize,
        place: Place,
        last: u64,
        position: u64,
    ) -> io::Result<Place> {
        let end = self.end_of_segment(at);
        if end.position <= position && end.offset <= last {
            return Ok(end);
        }
        let index = self.index(disk, at)?;
        let near = index.before_offset(last).min(index.before_position(position));
        let mut place = if near.position > place.position { near } else { place };
        let file = self.file(&mut disk.files, end.base)?;
        let mut scan = Scan::new(&*file, end.position, end.offset, self.gaps(end.base));
        while let Step::Batch(header) = scan.step(place)? {
            let behind = place.behind(&header);
            if header.base_offset >= last || behind.position > position {
                break;
            }
            place = behind;
        }
        Ok(place)
    }

    /// What [`mainstem_log::Store::find_time`] does.
    pub(crate) fn find_time(&mut self, disk: &mut Disk, timestamp_ms: i64) -> Result<Option<Found>, Error> {
        let start = self.start;
        let mut at = self.segment_of(start);
        while at < self.segments.len() {
            let base = self.segments[at].base;
            let corrupt = |_: io::Error| Error::Corrupt { offset: base };
            let index = self.index(disk, at).map_err(corrupt)?;
            if index.max_timestamp_ms().is_some_and(|max| max >= timestamp_ms) {
                let by_time = index.before_time(timestamp_ms);
                let from = if base < start { by_time.max(index.before_offset(start)) } else { by_time };
                if let Some(found) = self.find_time_from(disk, at, from, timestamp_ms)? {
                    return Ok(Some(found));
                }
            }
            at += 1;
        }
        Ok(None)
    }

    fn find_time_from(
        &mut self,
        disk: &mut Disk,
        at: usize,
        from: Place,
        timestamp_ms: i64,
    ) -> Result<Option<Found>, Error> {
        let end = self.end_of_segment(at);
        let mut place = from;
        let file = self.file(&mut disk.files, end.base).map_err(|_| corrupt_at(place))?;
        let mut scan = Scan::new(&*file, end.position, end.offset, self.gaps(end.base));
        loop {
            let header = match scan.step(place).map_err(|_| corrupt_at(place))? {
                Step::Batch(header) => header,
                Step::End if scan.is_over(place) => break,
                Step::End | Step::Damaged => return Err(corrupt_at(place)),
            };
            if header.max_timestamp_ms >= timestamp_ms && header.end_offset() > self.start {
                let bytes = scan.batch(place, &header).map_err(|_| corrupt_at(place))?;
                let batch = Batch::parse(bytes).map_err(|_| corrupt_at(place))?;
                if let Some(found) = find_in(disk, &batch, self.start, timestamp_ms) {
                    return Ok(Some(found));
                }
            }
            place = place.behind(&header);
        }
        if at + 1 < self.segments.len() {
            return Ok(None);
        }
        let unwritten = batches(self.tail.unwritten());
        Ok(unwritten.into_iter().find_map(|batch| find_in(disk, &batch, self.start, timestamp_ms)))
    }
}

fn go_forward<'a>(
    from: Place,
    offset: u64,
    scan: &mut Scan<'a>,
    step: impl Fn(&mut Scan<'a>, Place) -> io::Result<Step>,
) -> io::Result<Spot> {
    let mut place = from;
    loop {
        match step(scan, place)? {
            Step::Batch(header) if header.end_offset() > offset => {
                return Ok(Spot::Batch(Place { offset: header.base_offset, ..place }, header));
            }
            Step::Batch(header) => place = place.behind(&header),
            Step::End if scan.is_over(place) => return Ok(Spot::End),
            // Zeros where there should be a batch are damage too.
            Step::End | Step::Damaged => match scan.resume(place)? {
                Some(next) if next.offset <= offset => place = next,
                _ => return Ok(Spot::Damaged),
            },
        }
    }
}

/// Whether `bytes` begin with a batch that says it stands at `offset`.
fn begins(bytes: Option<&[u8]>, offset: u64) -> bool {
    let header = bytes.map(BatchHeader::parse);
    header.is_some_and(|header| header.is_ok_and(|header| header.base_offset == offset))
}

/// Whether a batch begins at `place` that says it stands there.
fn is_batch_at(file: &dyn File, place: Place) -> bool {
    let mut header = [0; HEADER_BYTES];
    let read = file.read_at(&mut header, place.position);
    read.is_ok_and(|read| begins(header.get(..read), place.offset))
}

fn corrupt_at(place: Place) -> Error {
    Error::Corrupt { offset: place.offset }
}

/// The first record of a batch at or behind a time.
fn find_in(disk: &Disk, batch: &Batch<'_>, start: u64, timestamp_ms: i64) -> Option<Found> {
    let header = &batch.header;
    if header.max_timestamp_ms < timestamp_ms || header.end_offset() <= start {
        return None;
    }
    let whole = Found { offset: header.base_offset.max(start), timestamp_ms: header.max_timestamp_ms };
    if header.attributes & APPEND_TIME != 0 {
        return Some(whole);
    }
    let first = |records: Records<'_>| {
        let fits = |offset, timestamp| offset >= start && timestamp >= timestamp_ms;
        let mut sound = records.map_while(Result::ok);
        let record = sound.find(|record| fits(record.offset, record.timestamp_ms))?;
        Some(Found { offset: record.offset, timestamp_ms: record.timestamp_ms })
    };
    if header.compression() == Compression::None {
        return first(batch.records());
    }
    let compressed = &batch.bytes()[HEADER_BYTES..];
    let plain = disk.settings.decompress.as_ref().and_then(|plain| plain(header.compression(), compressed));
    match plain {
        Some(plain) => first(Records::of(*header, &plain)),
        None => Some(whole),
    }
}

/// Copies whole batches, and returns the offset behind them; nothing if none fits.
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

impl Wanted {
    /// How many bytes of `bytes` are whole, sound batches that are wanted, the offset behind them, and what follows
    /// them. The first `len` bytes are known to be that; what comes behind them is due at offset `next`. Checksums are compared
    /// from byte `unchecked_from` on.
    fn of(
        &self,
        bytes: &[u8],
        mut len: usize,
        mut next: u64,
        gaps: Gaps,
        unchecked_from: usize,
    ) -> (usize, u64, Reached) {
        loop {
            let rest = &bytes[len..];
            if rest.len() < HEADER_BYTES {
                return (len, next, Reached::Short);
            }
            let Ok(header) = BatchHeader::parse(rest) else { return (len, next, Reached::Damage) };
            let size = header.total_bytes;
            let is_first = self.first && len == 0;
            if header.base_offset >= self.end || !is_first && len + size > self.max_bytes {
                return (len, next, Reached::Enough);
            }
            if size > rest.len() {
                return (len, next, Reached::Short);
            }
            let is_due = header.base_offset == next || gaps == Gaps::Allowed && header.base_offset > next;
            if !is_due || len >= unchecked_from && Batch::parse(rest).is_err() {
                return (len, next, Reached::Damage);
            }
            len += size;
            next = header.end_offset();
        }
    }
}
