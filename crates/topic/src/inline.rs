//! A short list that lives on the stack.

/// A list whose first `N` items need no allocation; the rest spill into a vector.
///
/// A match runs on `&self` and so has no scratch space of its own: the few dozen levels of any sane topic fit here.
pub(crate) struct InlineList<T, const N: usize> {
    inline: [T; N],
    len: usize,
    spill: Vec<T>,
}

impl<T: Copy, const N: usize> InlineList<T, N> {
    /// An empty list; `filler` is what unused places hold.
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
            Some(place) => *place = item,
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

    /// The item at `at`, which must be below [`len`](Self::len).
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
    fn items_beyond_the_inline_ones_spill_and_come_back() {
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
