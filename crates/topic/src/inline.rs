//! A list with inline capacity.
//!
//! A match takes `&self` and so has no scratch buffers of its own. Its lists are on the stack and allocate only for
//! topics with more levels than any sensible one has.

/// A list that stores its first `N` items inline and the rest in a vector.
pub(crate) struct InlineList<T, const N: usize> {
    inline: [T; N],
    len: usize,
    spill: Vec<T>,
}

impl<T: Copy, const N: usize> InlineList<T, N> {
    /// Creates an empty list. `filler` initializes the unused inline items.
    #[inline]
    pub(crate) fn new(filler: T) -> Self {
        Self { inline: [filler; N], len: 0, spill: Vec::new() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        match self.inline.get_mut(self.len) {
            Some(unused) => *unused = item,
            None => self.spill.push(item),
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        match self.inline.get(self.len) {
            Some(&item) => Some(item),
            None => self.spill.pop(),
        }
    }

    /// Returns the item at `at`, which must be less than [`len`](Self::len).
    #[inline]
    pub(crate) fn get(&self, at: usize) -> T {
        debug_assert!(at < self.len);
        match self.inline.get(at) {
            Some(&item) => item,
            None => self.spill[at - N],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_beyond_inline_capacity() {
        let mut list = InlineList::<u32, 4>::new(0);
        assert_eq!(list.pop(), None);
        for round in 0..3 {
            for item in 0..10 {
                list.push(item + round);
                assert_eq!(list.spill.capacity() == 0, round == 0 && item < 4);
            }
            assert_eq!(list.len(), 10);
            assert!((0..10).all(|at| list.get(at) == at as u32 + round));
            for item in (0..10).rev() {
                assert_eq!(list.pop(), Some(item + round));
            }
            assert_eq!((list.pop(), list.len()), (None, 0));
        }
    }
}
