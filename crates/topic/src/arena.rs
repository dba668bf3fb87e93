//! Numbered storage: a vector with a free list.
//!
//! Items refer to each other by 32-bit numbers instead of pointers, which halves their size and needs no `unsafe`.
//! Freed numbers are reused, and memory is given back when most of them are free.

use std::ops::{Index, IndexMut};

use crate::free_list::{FreeList, truncate};

/// Stands for the absence of an [`Arena`] or slot number.
pub(crate) const NONE: u32 = u32::MAX;

/// Numbers from here on are never assigned; they have special meanings, such as [`NONE`].
pub(crate) const FIRST_RESERVED: u32 = u32::MAX - 15;

/// Items with numbers below [`FIRST_RESERVED`]. A freed entry holds `T::default()` until its number is reused.
pub(crate) struct Arena<T> {
    items: Vec<T>,
    free: FreeList,
}

impl<T: Default> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self { items: Vec::new(), free: FreeList::new() }
    }

    /// Stores `item` and returns its number.
    ///
    /// # Panics
    /// If there are already [`FIRST_RESERVED`] items.
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.items[number as usize] = item;
            return number;
        }
        let number = u32::try_from(self.items.len()).ok().filter(|&number| number < FIRST_RESERVED);
        let number = number.expect("an arena holds fewer than 2^32 items");
        self.items.push(item);
        number
    }

    /// Removes and returns the item with this number, which may then be reused.
    pub(crate) fn remove(&mut self, number: u32) -> T {
        let item = std::mem::take(&mut self.items[number as usize]);
        if let Some(kept) = self.free.push(number, self.items.len()) {
            truncate(&mut self.items, kept);
        }
        item
    }

    /// Returns the number of items.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Returns the largest number of items that were in use at once.
    #[cfg(test)]
    pub(crate) fn high_water(&self) -> usize {
        self.items.len()
    }
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.items[number as usize]
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.items[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_freed_numbers() {
        let mut arena = Arena::new();
        let (a, b) = (arena.insert("a"), arena.insert("b"));
        assert_eq!((arena[a], arena[b]), ("a", "b"));
        assert_eq!(arena.remove(a), "a");
        assert_eq!(arena.len(), 1);
        assert_eq!(arena.insert("c"), a);
        assert_eq!((arena[a], arena[b]), ("c", "b"));
        assert_eq!((arena.len(), arena.high_water()), (2, 2));
    }
}
