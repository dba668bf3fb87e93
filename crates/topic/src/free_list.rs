//! Numbers of a vector's free entries, and when to give back its memory.
//!
//! A vector whose entries have numbers can only shrink at its end. So free numbers are reused from the lowest, as far
//! as they are sorted, and once seven of eight entries are free, the free ones at the end are cut off. An attempt takes
//! time in proportion to the vector. It happens after a number of removals in the same proportion, and each time that
//! half of the entries have gone since the last one.

use hashbrown::HashTable;

/// Vectors and tables with fewer entries are left alone.
const SPARSE_MIN: usize = 1024;
/// A vector or table is sparse if it has room for more than this many times its entries.
const SPARSE: usize = 8;

/// The free numbers of a vector.
#[derive(Debug)]
pub(crate) struct FreeList {
    numbers: Vec<u32>,
    /// Removals since the last attempt to shrink.
    removals: usize,
    /// Entries in use at the last attempt since the vector grew.
    attempted_at: usize,
}

impl FreeList {
    pub(crate) const fn new() -> Self {
        Self { numbers: Vec::new(), removals: 0, attempted_at: usize::MAX }
    }

    /// Number of free entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Takes a free number. If there is none, the vector grows.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let number = self.numbers.pop();
        if number.is_none() {
            self.attempted_at = usize::MAX;
        }
        number
    }

    /// Adds a number of a vector of `len` entries. Returns the length to which to truncate it, if it is sparse.
    pub(crate) fn push(&mut self, number: u32, len: usize) -> Option<usize> {
        self.numbers.push(number);
        self.removals += 1;
        let used = len - self.numbers.len();
        let is_sparse = len >= SPARSE_MIN && used * SPARSE < len;
        let is_due = used < self.attempted_at.div_ceil(2) || self.removals * SPARSE >= len;
        (is_sparse && is_due).then(|| {
            self.attempted_at = used;
            self.cut_off(len)
        })
    }

    /// Forgets the free numbers at the end of a vector of `len` entries and sorts the others. Returns the new length.
    fn cut_off(&mut self, len: usize) -> usize {
        self.removals = 0;
        let mut is_free = vec![false; len];
        for number in &self.numbers {
            is_free[*number as usize] = true;
        }
        let kept = is_free.iter().rposition(|free| !free).map_or(0, |last| last + 1);
        // Taken from the end.
        self.numbers = (0..kept as u32).rev().filter(|number| is_free[*number as usize]).collect();
        kept
    }
}

/// Truncates a vector and gives back its memory, but for some.
pub(crate) fn truncate<T>(items: &mut Vec<T>, kept: usize) {
    items.truncate(kept);
    items.shrink_to(2 * kept);
}

/// Gives back memory of a table from which an entry was removed, if it is sparse.
pub(crate) fn shrink_if_sparse<T>(table: &mut HashTable<T>, hash_of: impl Fn(&T) -> u64) {
    // The capacity is no measure: it leaves out the places of removed entries.
    let room = table.allocation_size() / (size_of::<T>() + 1);
    if room >= SPARSE_MIN && table.len() * SPARSE < room {
        table.shrink_to(2 * table.len(), hash_of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_vector_with_a_used_end_keeps_its_length() {
        let mut free = FreeList::new();
        let cut: Vec<usize> = (0..9_999).filter_map(|number| free.push(number, 10_000)).collect();
        assert!(cut.iter().all(|len| *len == 10_000), "{cut:?}");
        assert!(cut.len() < 20, "{} attempts", cut.len());
        assert_eq!((free.pop(), free.push(0, 10_000)), (Some(0), None), "each removal makes an attempt");
    }

    #[test]
    fn numbers_are_taken_from_the_lowest_after_an_attempt() {
        let mut free = FreeList::new();
        let cut = (0..9_000).chain(9_001..10_000).filter_map(|number| free.push(number, 10_000)).last();
        assert_eq!(cut, Some(9_001));
        assert_eq!((free.pop(), free.pop()), (Some(0), Some(1)));
    }

    #[test]
    fn nothing_is_kept_of_an_empty_vector() {
        let orders: [Vec<u32>; 2] = [(0..10_000).collect(), (0..10_000).rev().collect()];
        for order in orders {
            let (mut free, mut len) = (FreeList::new(), 10_000);
            for number in order {
                len = free.push(number, len).unwrap_or(len);
            }
            assert!(len < SPARSE_MIN, "{len}");
        }
    }

    proptest! {
        #[test]
        fn a_used_number_is_never_cut_off(rounds in prop::collection::vec((1..6_000_u32, 0..100_u32), 1..6)) {
            let (mut free, mut items) = (FreeList::new(), Vec::<bool>::new());
            for (inserted, percent_kept) in rounds {
                for _ in 0..inserted {
                    if let Some(number) = free.pop() {
                        prop_assert!(!std::mem::replace(&mut items[number as usize], true));
                    } else {
                        items.push(true);
                    }
                }
                let gone: Vec<u32> = (0..items.len() as u32)
                    .filter(|number| items[*number as usize] && number.wrapping_mul(0x9E37_79B9) % 100 >= percent_kept)
                    .collect();
                let used = items.iter().filter(|used| **used).count() - gone.len();
                for number in gone {
                    items[number as usize] = false;
                    if let Some(kept) = free.push(number, items.len()) {
                        truncate(&mut items, kept);
                    }
                }
                prop_assert_eq!(items.iter().filter(|used| **used).count(), used);
                prop_assert_eq!(items.len() - free.len(), used);
            }
        }
    }
}
