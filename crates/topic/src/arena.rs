//! Numbered storage: a vector whose freed places are used again.

use std::ops::{Index, IndexMut};

/// No number: what stands where a number of an [`Arena`] or a slot could stand and does not.
pub(crate) const NONE: u32 = u32::MAX;

/// The first number that an arena never gives out: those from here on have meanings of their own (as [`NONE`]).
pub(crate) const FIRST_RESERVED: u32 = u32::MAX - 15;

/// Items under numbers below [`FIRST_RESERVED`]; a freed place holds `T::default()` until its number is given out again.
pub(crate) struct Arena<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    /// Stores `item` under a free number.
    ///
    /// # Panics
    /// With four thousand million items.
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

    /// Takes out what is stored under `number`, which may be given out again from now on.
    pub(crate) fn remove(&mut self, number: u32) -> T {
        self.free.push(number);
        std::mem::take(&mut self.items[number as usize])
    }

    /// How many numbers are in use.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// How many numbers have ever been in use at once.
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
    fn freed_numbers_are_given_out_again() {
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
