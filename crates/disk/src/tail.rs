//! The tail cache: the newest entries of a log in memory, so that reading them costs no system call.
//!
//! It holds the unwritten appends and as many written entries as the bound allows. Two buffers alternate so that
//! nothing is ever moved: when the newer one exceeds half of the bound, the older one is dropped.

use mainstem_log::{Batch, batches};

/// Distance between two index marks, bytes.
const MARK_EVERY: usize = 4096;

/// The newest batches of a log, byte for byte as in the file.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    older: Run,
    newer: Run,
    /// Length of the written prefix of the newer run.
    written: usize,
    /// Age and bytes that the store accounts for it.
    accounted: Option<(u64, usize)>,
}

#[derive(Debug, Default)]
struct Run {
    bytes: Vec<u8>,
    /// Offset of the first record.
    first: u64,
    /// Base offset and position in `bytes` of some batches.
    marks: Vec<(u64, usize)>,
}

impl Run {
    fn push(&mut self, batch: &[u8], base_offset: u64, bound: usize) {
        self.reserve(batch.len(), bound);
        let at = self.bytes.len();
        if at == 0 {
            self.first = base_offset;
            self.marks.clear();
        }
        if self.marks.last().is_none_or(|(_, mark)| at - mark >= MARK_EVERY) {
            self.marks.push((base_offset, at));
        }
        self.bytes.extend_from_slice(batch);
        Batch::place(&mut self.bytes[at..], base_offset, 0);
    }

    /// Makes room for `len` more bytes. The capacity doubles, but to no more than `bound` if that suffices, so that
    /// [`Tail::mark_written`] keeps the buffer.
    fn reserve(&mut self, len: usize, bound: usize) {
        let needed = self.bytes.len() + len;
        let doubled = 2 * self.bytes.capacity();
        if needed > self.bytes.capacity() {
            let capacity = if needed <= bound { doubled.min(bound) } else { doubled };
            self.bytes.reserve_exact(capacity.max(needed) - self.bytes.len());
        }
    }

    fn begins_at_or_before(&self, offset: u64) -> bool {
        !self.bytes.is_empty() && self.first <= offset
    }

    /// Bytes from the batch that contains or follows `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let mark = self.marks.partition_point(|(first, _)| *first <= offset).saturating_sub(1);
        let from = self.marks.get(mark).map_or(0, |(_, at)| *at);
        let rest = &self.bytes[from..];
        let before = batches(rest).take_while(|batch| batch.header.end_offset() <= offset);
        let skipped: usize = before.map(|batch| batch.header.total_bytes).sum();
        &rest[skipped..]
    }

    fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
        while self.marks.last().is_some_and(|(_, at)| *at >= len) {
            self.marks.pop();
        }
    }
}

impl Tail {
    /// Appends a batch and sets its base offset. `bound` is that of [`Tail::mark_written`].
    pub(crate) fn push(&mut self, batch: &[u8], base_offset: u64, bound: usize) {
        self.newer.push(batch, base_offset, bound);
    }

    /// Bytes not yet written to the file.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.newer.bytes[self.written..]
    }

    /// Marks everything as written and drops entries beyond `bound` bytes.
    pub(crate) fn mark_written(&mut self, bound: usize) {
        self.written = self.newer.bytes.len();
        if self.written > bound / 2 {
            std::mem::swap(&mut self.older, &mut self.newer);
            self.newer.cut(0);
            // Do not retain the memory of one huge batch.
            if self.newer.bytes.capacity() > bound {
                self.newer = Run::default();
            }
            if self.older.bytes.len() > bound {
                self.older = Run::default();
            }
            self.written = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { accounted: self.accounted, ..Self::default() };
    }

    /// Age and bytes that the store accounts for it.
    #[inline]
    pub(crate) fn accounted(&self) -> Option<(u64, usize)> {
        self.accounted
    }

    /// Replaces what the store accounts for it. Returns what it was.
    pub(crate) fn account(&mut self, accounted: Option<(u64, usize)>) -> Option<(u64, usize)> {
        std::mem::replace(&mut self.accounted, accounted)
    }

    /// Forgets what the file has; the rest stays.
    pub(crate) fn drop_written(&mut self) {
        if self.unwritten().is_empty() {
            self.clear();
        } else {
            self.older = Run::default();
        }
    }

    /// Forgets all that the file has, because compaction has removed entries from the file.
    pub(crate) fn forget_written(&mut self, bound: usize) {
        let unwritten = self.unwritten().to_vec();
        self.clear();
        for batch in batches(&unwritten) {
            self.newer.push(batch.bytes(), batch.header.base_offset, bound);
        }
    }

    /// Allocated memory, bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.older.bytes.capacity() + self.newer.bytes.capacity()
    }

    /// Whether the batch that contains `offset` is in memory, for an offset below the log end.
    pub(crate) fn has(&self, offset: u64) -> bool {
        self.older.begins_at_or_before(offset) || self.newer.begins_at_or_before(offset)
    }

    /// Bytes from the batch that contains `offset` on, in up to two parts. Requires [`Tail::has`].
    pub(crate) fn from(&self, offset: u64) -> [&[u8]; 2] {
        if self.newer.begins_at_or_before(offset) {
            return [self.newer.from(offset), &[]];
        }
        [self.older.from(offset), &self.newer.bytes]
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::BatchBuilder;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn holds_the_newest_batches(
            sizes in prop::collection::vec((1_usize..3000, 0_u8..6), 1..60),
            bound in 2000_usize..40_000,
        ) {
            let mut tail = Tail::default();
            let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut written = 0;
            let mut next = 100;
            for (size, action) in sizes {
                let mut builder = BatchBuilder::default();
                builder.push(5, None, Some(&vec![7; size]));
                builder.push(6, None, None);
                let mut bytes = builder.finish().to_vec();
                tail.push(&bytes, next, bound);
                Batch::place(&mut bytes, next, 0);
                all.push((next, bytes));
                next += 2;
                let unwritten: Vec<u8> = all[written..].iter().flat_map(|(_, bytes)| bytes.clone()).collect();
                prop_assert_eq!(tail.unwritten(), &unwritten[..]);
                match action {
                    1 | 2 => {
                        written = all.len();
                        tail.mark_written(bound);
                        prop_assert!(tail.older.bytes.len() + tail.newer.bytes.len() <= bound + bound / 2);
                    }
                    3 => tail.drop_written(),
                    4 => {
                        tail.forget_written(bound);
                        prop_assert!(written == 0 || !tail.has(all[written - 1].0));
                    }
                    _ => {}
                }
                for offset in 100..next {
                    if tail.has(offset) {
                        let expected: Vec<u8> = all
                            .iter()
                            .filter(|(base, _)| base + 1 >= offset)
                            .flat_map(|(_, bytes)| bytes.clone())
                            .collect();
                        prop_assert_eq!(tail.from(offset).concat(), expected);
                    } else {
                        prop_assert!(!all.iter().skip(written).any(|(base, _)| *base <= offset));
                    }
                }
            }
        }
    }

    #[test]
    fn buffers_are_kept_whatever_the_size_of_batches() {
        const BOUND: usize = 1 << 20;
        for size in [100, 16_391, 65_900, 100_000] {
            let mut builder = BatchBuilder::default();
            builder.push(5, None, Some(&vec![7; size]));
            let batch = builder.finish();
            let mut tail = Tail::default();
            let mut capacity = None;
            for pushed in 0..16 * BOUND / size {
                tail.push(batch, pushed as u64, BOUND);
                if pushed % 5 == 4 {
                    tail.mark_written(BOUND);
                }
                if pushed >= 8 * BOUND / size {
                    let known = *capacity.get_or_insert(tail.capacity());
                    assert_eq!(
                        tail.capacity(),
                        known,
                        "batches of {size} bytes: a buffer was dropped, or grew"
                    );
                    assert!(known <= 2 * BOUND);
                }
            }
        }
    }
}
