//! The newest entries of a log, in memory: those on their way to the file, and as many before them as there is
//! room for. Reading them costs no system call.

use mainstem_log::{Batch, batches};

/// Distance between two marks, bytes.
const MARK_EVERY: usize = 4096;

/// Batches one behind the other, as they are in the file. Two runs take turns, so that nothing is ever moved:
/// when the newer one has grown to its half of the bound, the older one is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    older: Run,
    newer: Run,
    /// Of the newer run: what the file has.
    written: usize,
}

#[derive(Debug, Default)]
struct Run {
    bytes: Vec<u8>,
    /// Offset of the first record.
    first: u64,
    /// Some batches: offset, and where they stand in `bytes`.
    marks: Vec<(u64, usize)>,
}

impl Run {
    fn push(&mut self, batch: &[u8], base_offset: u64) {
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

    fn begins_at_or_before(&self, offset: u64) -> bool {
        !self.bytes.is_empty() && self.first <= offset
    }

    /// The bytes from the batch that holds or follows `offset` on.
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
    /// Adds a batch, which gets `base_offset`.
    pub(crate) fn push(&mut self, batch: &[u8], base_offset: u64) {
        self.newer.push(batch, base_offset);
    }

    /// What the file has not got.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.newer.bytes[self.written..]
    }

    /// The file has everything. What is beyond `bound` bytes is forgotten.
    pub(crate) fn wrote(&mut self, bound: usize) {
        self.written = self.newer.bytes.len();
        if self.written > bound / 2 {
            std::mem::swap(&mut self.older, &mut self.newer);
            self.newer.cut(0);
            // One huge batch must not hold its memory for good.
            if self.newer.bytes.capacity() > bound {
                self.newer = Run::default();
            }
            if self.older.bytes.len() > bound {
                self.older = Run::default();
            }
            self.written = 0;
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what the file has; the rest stays.
    pub(crate) fn forget_written(&mut self) {
        if self.unwritten().is_empty() {
            self.clear();
        } else {
            self.older = Run::default();
        }
    }

    /// Memory taken, bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.older.bytes.capacity() + self.newer.bytes.capacity()
    }

    /// Whether the batch that holds `offset` is here, given that the log reaches that far.
    pub(crate) fn has(&self, offset: u64) -> bool {
        self.older.begins_at_or_before(offset) || self.newer.begins_at_or_before(offset)
    }

    /// The bytes from the batch that holds `offset` on, in up to two parts. Only where [`Tail::has`] it.
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
        fn what_is_held_is_what_was_pushed(
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
                tail.push(&bytes, next);
                Batch::place(&mut bytes, next, 0);
                all.push((next, bytes));
                next += 2;
                let unwritten: Vec<u8> = all[written..].iter().flat_map(|(_, bytes)| bytes.clone()).collect();
                prop_assert_eq!(tail.unwritten(), &unwritten[..]);
                match action {
                    1 | 2 => {
                        written = all.len();
                        tail.wrote(bound);
                        prop_assert!(tail.older.bytes.len() + tail.newer.bytes.len() <= bound + bound / 2);
                    }
                    3 => tail.forget_written(),
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
}
