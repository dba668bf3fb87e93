//! Storage of filters and their values by [`FilterId`].
//!
//! A slot is reused after its filter is removed. Each removal increments the generation of the slot, so an id that
//! outlives its filter no longer matches, not even if the slot was cut off and added again meanwhile. A slot whose
//! generations are exhausted is retired.

use crate::arena::FIRST_RESERVED;
use crate::free_list::{FreeList, truncate};
use crate::trie::Position;

/// Identifies one filter of an [`Index`](crate::Index) from its insertion to its removal.
///
/// The slot is a small, dense number that is reused. The generation invalidates an id that outlives its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId {
    slot: u32,
    generation: u32,
}

impl FilterId {
    /// Returns the slot number. It is less than the largest number of filters that the index has held at once.
    #[inline]
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Returns the generation of the slot, which is greater than that of any filter that was removed from it before.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// Where the text of a filter is stored.
pub(crate) enum Key {
    /// A filter without wildcards, stored as text.
    Exact(Box<str>),
    /// A filter with wildcards, stored as the path from the root of the trie to this position.
    Wild(Position),
}

/// Filters by slot number.
pub(crate) struct Slots<V> {
    all: Vec<Slot<V>>,
    free: FreeList,
    len: usize,
    /// Generation of new slots: above that of any slot that was cut off.
    first_generation: u32,
}

struct Slot<V> {
    generation: u32,
    entry: Option<Entry<V>>,
}

/// A filter and its value.
pub(crate) struct Entry<V> {
    pub(crate) key: Key,
    pub(crate) value: V,
}

impl<V> Slots<V> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), free: FreeList::new(), len: 0, first_generation: 0 }
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Stores a filter in a free slot. `make_key` gets the slot number.
    ///
    /// # Panics
    /// If there are already [`FIRST_RESERVED`] slots.
    pub(crate) fn insert(&mut self, make_key: impl FnOnce(u32) -> Key, value: V) -> FilterId {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.all.len()).ok().filter(|&slot| slot < FIRST_RESERVED);
            self.all.push(Slot { generation: self.first_generation, entry: None });
            slot.expect("an index holds fewer than 2^32 filters")
        });
        let target = &mut self.all[slot as usize];
        target.entry = Some(Entry { key: make_key(slot), value });
        self.len += 1;
        FilterId { slot, generation: target.generation }
    }

    /// Removes a filter and invalidates its id.
    ///
    /// A slot with no generation left is not reused: one slot is lost per 2^32 removals from it.
    pub(crate) fn remove(&mut self, id: FilterId) -> Option<Entry<V>> {
        let slot = self.all.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let entry = slot.entry.take()?;
        self.len -= 1;
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            if let Some(kept) = self.free.push(id.slot, self.all.len()) {
                self.cut_off(kept);
            }
        }
        Some(entry)
    }

    /// Removes the slots from `kept` on, which are free.
    fn cut_off(&mut self, kept: usize) {
        let newest = self.all[kept..].iter().map(|slot| slot.generation).max();
        self.first_generation = self.first_generation.max(newest.unwrap_or(0));
        truncate(&mut self.all, kept);
    }

    #[inline]
    pub(crate) fn get(&self, id: FilterId) -> Option<&Entry<V>> {
        let slot = self.all.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: FilterId) -> Option<&mut Entry<V>> {
        let slot = self.all.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_mut()
    }

    /// Returns the filter in a slot. The tables and the trie store slot numbers without a generation.
    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<(FilterId, &Entry<V>)> {
        let Slot { generation, entry } = self.all.get(slot as usize)?;
        Some((FilterId { slot, generation: *generation }, entry.as_ref()?))
    }

    /// Returns the text of the filter in `slot` if it has no wildcards.
    #[inline]
    pub(crate) fn exact_text(&self, slot: u32) -> Option<&str> {
        match &self.all.get(slot as usize)?.entry {
            Some(Entry { key: Key::Exact(text), .. }) => Some(text),
            _ => None,
        }
    }

    /// Returns all filters, ordered by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FilterId, &Entry<V>)> {
        (0..).zip(&self.all).filter_map(|(slot, Slot { generation, entry })| {
            Some((FilterId { slot, generation: *generation }, entry.as_ref()?))
        })
    }

    /// Returns the largest number of slots that were in use at once.
    #[cfg(test)]
    pub(crate) fn high_water(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(slots: &mut Slots<u32>, value: u32) -> FilterId {
        slots.insert(|_| Key::Exact(value.to_string().into()), value)
    }

    fn value(slots: &Slots<u32>, id: FilterId) -> Option<u32> {
        slots.get(id).map(|entry| entry.value)
    }

    #[test]
    fn stale_id_does_not_match_a_reused_slot() {
        let mut slots = Slots::new();
        let first = insert(&mut slots, 1);
        assert_eq!(slots.remove(first).map(|entry| entry.value), Some(1));
        let second = insert(&mut slots, 2);
        assert_eq!(first.slot(), second.slot());
        assert_ne!(first.generation(), second.generation());
        assert_eq!((value(&slots, first), value(&slots, second)), (None, Some(2)));
        assert!(slots.get_mut(first).is_none());
        assert!(slots.remove(first).is_none());
        assert_eq!(slots.len(), 1);
        assert_eq!((slots.exact_text(second.slot()), slots.exact_text(7)), (Some("2"), None));
    }

    #[test]
    fn slot_with_no_generation_left_is_retired() {
        let mut slots = Slots::new();
        let id = insert(&mut slots, 1);
        slots.all[id.slot() as usize].generation = u32::MAX;
        let last = FilterId { generation: u32::MAX, ..id };
        assert_eq!(slots.remove(last).map(|entry| entry.value), Some(1));
        assert_eq!((value(&slots, last), slots.len()), (None, 0));
        let next = insert(&mut slots, 2);
        assert_ne!(next.slot(), id.slot());
        assert_eq!(slots.iter().map(|(id, _)| id).collect::<Vec<_>>(), [next]);
    }

    #[test]
    fn slot_size_is_bounded() {
        assert!(size_of::<Slot<u32>>() <= 40, "{}", size_of::<Slot<u32>>());
        assert!(size_of::<Slot<Vec<u8>>>() <= 48, "{}", size_of::<Slot<Vec<u8>>>());
    }
}
