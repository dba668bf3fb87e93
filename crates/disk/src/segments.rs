//! The segments of one log, oldest first, their sizes and indexes, and where readers continue in them.
//!
//! A log is cut into files so that old records can be deleted by removing a file. Only the newest segment is written,
//! which makes everything about the others constant: their sizes are summed once, and their indexes can be sealed into
//! files. Bases ascend, so the segment of an offset is found by binary search; a sequential reader needs no search at
//! all, because the place where it stopped is remembered.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut, Range};

use crate::cursors::Cursors;
use crate::index::Index as SegmentIndex;
use crate::scan::Place;

/// One segment file of a log.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Base offset: that of its first record.
    pub(crate) base: u64,
    /// Size of its batches. The file may be longer, padded with zeros.
    pub(crate) bytes: u64,
    /// Built on first use.
    pub(crate) index: Option<Box<SegmentIndex>>,
    /// Bytes whose checksums were verified since the store was opened.
    pub(crate) checked: u64,
    /// Timestamps of a closed segment, once they were needed: of its first batch, and the largest one, ms.
    pub(crate) times: Option<(i64, i64)>,
    /// Whether its last batch was seen to end where the next segment begins.
    pub(crate) is_whole: bool,
}

impl Segment {
    pub(crate) fn new(base: u64, bytes: u64, index: Option<Box<SegmentIndex>>) -> Self {
        Self { base, bytes, index, checked: 0, times: None, is_whole: false }
    }
}

/// All segments of a log; never empty. Appends go to the newest.
///
/// Only the newest segment changes its size, so the size of the others is cached.
#[derive(Debug)]
pub(crate) struct Segments {
    list: VecDeque<Segment>,
    closed_bytes: u64,
    /// Closed segments whose index is not sealed yet, and its bytes.
    unsealed: Vec<(u64, Vec<u8>)>,
    cursors: Cursors,
}

impl Segments {
    /// # Panics
    /// If there is no segment.
    pub(crate) fn new(segments: VecDeque<Segment>) -> Self {
        assert!(!segments.is_empty(), "a log has at least one segment");
        let mut new =
            Self { list: segments, closed_bytes: 0, unsealed: Vec::new(), cursors: Cursors::default() };
        new.update();
        new
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Segment> {
        self.list.get(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter()
    }

    pub(crate) fn newest(&self) -> &Segment {
        self.list.back().expect("there is always a segment")
    }

    #[inline]
    pub(crate) fn newest_mut(&mut self) -> &mut Segment {
        self.list.back_mut().expect("there is always a segment")
    }

    /// Index of the segment that contains `offset`.
    pub(crate) fn containing(&self, offset: u64) -> usize {
        self.list.partition_point(|segment| segment.base <= offset).saturating_sub(1)
    }

    /// Index of the segment with base offset `base`.
    pub(crate) fn position(&self, base: u64) -> Option<usize> {
        self.list.binary_search_by_key(&base, |segment| segment.base).ok()
    }

    /// Size of all segments, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        debug_assert_eq!(self.closed_bytes, closed_bytes(&self.list), "the cached size is stale");
        self.closed_bytes + self.newest().bytes
    }

    /// Starts a segment behind all others.
    pub(crate) fn push(&mut self, segment: Segment) {
        assert!(segment.base > self.newest().base, "segments are in the order of their offsets");
        self.list.push_back(segment);
        self.update();
    }

    /// Removes the newest segment, unless it is the only one.
    pub(crate) fn pop_newest(&mut self) {
        if self.list.len() > 1 {
            self.list.pop_back();
            self.update();
        }
    }

    /// Removes the oldest segment, unless it is the only one.
    pub(crate) fn pop_oldest(&mut self) {
        if self.list.len() > 1 {
            self.list.pop_front();
            self.update();
        }
    }

    /// Replaces some closed segments by one with the base offset of the first.
    pub(crate) fn replace(&mut self, range: Range<usize>, segment: Segment) {
        assert!(range.end < self.list.len(), "the newest segment is not closed");
        assert_eq!(self.list[range.start].base, segment.base, "a segment replaces others at their offset");
        let at = range.start;
        self.list.drain(range);
        self.list.insert(at, segment);
        self.cursors.clear();
        self.update();
    }

    /// Nothing more is appended to the newest segment: its index becomes that of a closed segment.
    pub(crate) fn close_newest(&mut self) {
        let newest = self.newest_mut();
        if let Some(index) = &mut newest.index {
            index.seal();
            let sealed = (newest.base, index.encode());
            self.unsealed.push(sealed);
        }
    }

    /// Takes the indexes of closed segments before the one with base offset `base`, to be written as sealed.
    pub(crate) fn take_unsealed(&mut self, base: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.unsealed.extract_if(.., move |(closed, _)| *closed < base)
    }

    /// The index of these segments must not be written any more.
    pub(crate) fn forget_unsealed(&mut self, is_affected: impl Fn(u64) -> bool) {
        self.unsealed.retain(|(base, _)| !is_affected(*base));
    }

    /// Ends the log at `place`, which must not be before the oldest segment.
    pub(crate) fn end_at(&mut self, place: Place) {
        while self.list.len() > 1 && self.newest().base > place.base {
            self.pop_newest();
        }
        let newest = self.newest_mut();
        newest.bytes = place.position;
        newest.checked = newest.checked.min(place.position);
        newest.times = None;
        if let Some(index) = &mut newest.index {
            index.truncate(place);
        }
        self.unsealed.retain(|(base, _)| *base < place.base);
        self.cursors.clear();
    }

    /// Where a reader continues that stopped before `offset` in segment `at`.
    pub(crate) fn cursor(&self, at: usize, offset: u64) -> Option<Place> {
        self.cursors.find(self.list[at].base, offset)
    }

    /// A reader stopped at `place`.
    pub(crate) fn remember_cursor(&mut self, place: Place) {
        self.cursors.remember(place);
    }

    fn update(&mut self) {
        self.closed_bytes = closed_bytes(&self.list);
    }
}

impl Index<usize> for Segments {
    type Output = Segment;

    fn index(&self, at: usize) -> &Segment {
        &self.list[at]
    }
}

impl IndexMut<usize> for Segments {
    fn index_mut(&mut self, at: usize) -> &mut Segment {
        &mut self.list[at]
    }
}

/// A duration after a timestamp, which may be negative, as a Unix time in ms.
pub(crate) fn time(timestamp_ms: i64, later_ms: u64) -> u64 {
    u64::try_from(timestamp_ms).unwrap_or(0).saturating_add(later_ms)
}

/// Size of all segments except the newest.
fn closed_bytes(segments: &VecDeque<Segment>) -> u64 {
    segments.iter().rev().skip(1).map(|segment| segment.bytes).sum()
}
