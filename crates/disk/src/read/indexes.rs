//! The indexes of segments: kept in memory, loaded from their files, or built from the segments.

use std::io;

use mainstem_log::batches;

use super::SegmentReader;
use crate::deferred::SealedIndex;
use crate::disk::Disk;
use crate::index::Index;
use crate::scan::{Place, Scan};
use crate::segments::Segment;

impl SegmentReader<'_> {
    /// Writes the index of the newest segment to a file, if the index is in memory.
    pub(crate) fn save_index(&self, disk: &Disk) {
        let Segment { base, index: Some(index), .. } = self.segments.newest() else { return };
        if let Err(error) = index.store(&*disk.fs, &self.dir.index(*base)) {
            log::debug!("log {}: cannot save the index of segment {base}: {error}", self.dir.name());
        }
    }

    /// Returns the index of a segment, loading or building it if necessary.
    pub(crate) fn index(&mut self, disk: &mut Disk, at: usize) -> io::Result<&Index> {
        if self.segments[at].index.is_none() {
            let index = self.build_index(disk, at)?;
            self.segments[at].index = Some(Box::new(index));
        }
        self.touch_index(disk, at);
        let segment = &mut self.segments[at];
        Ok(segment.index.as_deref().expect("it has just been made"))
    }

    /// First and largest timestamp of a closed segment, ms; `i64::MIN` if it has lost its batches.
    pub(crate) fn closed_times(&mut self, disk: &mut Disk, at: usize) -> io::Result<(i64, i64)> {
        if let Some(times) = self.segments[at].times {
            return Ok(times);
        }
        let index = self.index(disk, at)?;
        let times = (index.first_timestamp_ms(), index.max_timestamp_ms());
        let times = (times.0.unwrap_or(i64::MIN), times.1.unwrap_or(i64::MIN));
        self.segments[at].times = Some(times);
        Ok(times)
    }

    /// Marks the index of a closed segment as recently used.
    pub(crate) fn touch_index(&self, disk: &mut Disk, at: usize) {
        if at + 1 < self.segments.len() {
            disk.indexes.note(self.dir.key(self.segments[at].base));
        }
    }

    fn build_index(&self, disk: &mut Disk, at: usize) -> io::Result<Index> {
        let base = self.segments[at].base;
        let is_newest = at + 1 == self.segments.len();
        let limit = self.segments.get(at + 1).map_or(self.positions.head().offset, |next| next.base);
        let position = if is_newest { self.positions.written().position } else { self.segments[at].bytes };
        let end =
            Place { base, position, offset: if is_newest { self.positions.written().offset } else { limit } };
        let path = self.dir.index(base);
        let mut index = match Index::load(&*disk.fs, &path, end) {
            Some(saved) if saved.end() == end && !is_newest => return Ok(saved),
            Some(saved) => saved,
            None => Index::new(base),
        };
        let file = self.dir.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, position, limit, self.cleaning.gaps(base));
        index.extend(&mut scan, end)?;
        if is_newest {
            for batch in batches(self.tail.unwritten()) {
                index.note(index.end(), &batch.header);
            }
        } else if self.positions.synced().base.min(self.positions.submitted().base) > base
            && !self.cleaning.is_replacing(base)
        {
            index.seal();
            let bytes = index.encode();
            disk.group.deferred.indexes.push(SealedIndex { key: self.dir.key(base), path, bytes });
        }
        Ok(index)
    }
}
