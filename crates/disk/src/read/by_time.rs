//! Finding a record by its timestamp.
//!
//! Timestamps come from clients and need not ascend. Of each segment its index has the largest timestamp, and a place
//! before which all are smaller; so segments are skipped whole, and the search in one begins close to its result. Only
//! a batch whose header says that it may have the record is decompressed.

use std::io;

use mainstem_log::{Batch, Compression, Error, HEADER_BYTES, Records, TimestampOffset, batches};

use super::{SegmentReader, corrupt_at};
use crate::disk::Disk;
use crate::scan::{Place, Scan, Step};

/// Attribute bit: every record has the max timestamp of the header, set on append (Kafka's `LogAppendTime`).
const APPEND_TIME: i16 = 8;

impl SegmentReader<'_> {
    /// Implements [`mainstem_log::LogReader::find_time`].
    pub(crate) fn find_time(
        &mut self,
        disk: &mut Disk,
        timestamp_ms: i64,
    ) -> Result<Option<TimestampOffset>, Error> {
        let start = self.start;
        let mut at = self.segments.containing(start);
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
    ) -> Result<Option<TimestampOffset>, Error> {
        if let Some(found) = self.find_time_in_file(disk, at, from, timestamp_ms)? {
            return Ok(Some(found));
        }
        if at + 1 < self.segments.len() {
            return Ok(None);
        }
        let unwritten = batches(self.tail.unwritten());
        Ok(unwritten.into_iter().find_map(|batch| find_in(disk, &batch, self.start, timestamp_ms)))
    }

    fn find_time_in_file(
        &mut self,
        disk: &mut Disk,
        at: usize,
        from: Place,
        timestamp_ms: i64,
    ) -> Result<Option<TimestampOffset>, Error> {
        let end = self.end_of_segment(at);
        if end.position == 0 {
            // The file may not exist yet.
            return Ok(None);
        }
        let mut place = from;
        let file = self.dir.file(&mut disk.files, end.base).map_err(|_| corrupt_at(place))?;
        let mut scan = Scan::new(&*file, end.position, end.offset, self.cleaning.gaps(end.base));
        loop {
            let header = match scan.step(place).map_err(|_| corrupt_at(place))? {
                Step::Batch(header) => header,
                Step::End if scan.is_at_end(place) => return Ok(None),
                Step::End | Step::Damaged => return Err(corrupt_at(place)),
            };
            if header.max_timestamp_ms >= timestamp_ms && header.end_offset() > self.start {
                let bytes = scan.batch(place, &header).map_err(|_| corrupt_at(place))?;
                let batch = Batch::parse(bytes).map_err(|_| corrupt_at(place))?;
                if let Some(found) = find_in(disk, &batch, self.start, timestamp_ms) {
                    return Ok(Some(found));
                }
            }
            place = place.after(&header);
        }
    }
}

/// The first record of a batch whose timestamp is at least `timestamp_ms`.
fn find_in(disk: &Disk, batch: &Batch<'_>, start: u64, timestamp_ms: i64) -> Option<TimestampOffset> {
    let header = &batch.header;
    if header.max_timestamp_ms < timestamp_ms || header.end_offset() <= start {
        return None;
    }
    let whole =
        TimestampOffset { offset: header.base_offset.max(start), timestamp_ms: header.max_timestamp_ms };
    if header.attributes & APPEND_TIME != 0 {
        return Some(whole);
    }
    let first = |records: Records<'_>| {
        let fits = |offset, timestamp| offset >= start && timestamp >= timestamp_ms;
        let mut valid = records.map_while(Result::ok);
        let record = valid.find(|record| fits(record.offset, record.timestamp_ms))?;
        Some(TimestampOffset { offset: record.offset, timestamp_ms: record.timestamp_ms })
    };
    if header.compression() == Compression::None {
        return first(batch.records());
    }
    let compressed = &batch.bytes()[HEADER_BYTES..];
    let decompressed =
        disk.settings.decompress.as_ref().and_then(|decompress| decompress(header.compression(), compressed));
    match decompressed {
        Some(decompressed) => first(Records::of(*header, &decompressed)),
        None => Some(whole),
    }
}
