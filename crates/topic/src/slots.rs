//! Values under filter ids: slots, and the generations that tell their tenants apart.

use crate::arena::FIRST_RESERVED;
use crate::trie::Place;

/// Names one filter of an [`Index`](crate::Index), from its insertion to its removal.
///
/// The slot is a small dense number that is used again; the generation is what makes an id that outlived its filter
/// match nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId {
    slot: u32,
    generation: u32,
}

impl FilterId {
    /// The place of the filter: below the largest number of filters the index has held at once.
    #[inline]
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Which of the tenants of its slot the filter is.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// Where the text of a filter is kept.
pub(crate) enum Key {
    /// A filter without wildcards: here.
    Exact(Box<str>),
    /// A filter with wildcards: spelled by the trie, from the root to this place.
    Wild(Place),
}

/// Keys and values under [`FilterId`]s.
pub(crate) struct Slots<V> {
    all: Vec<Slot<V>>,
    free: Vec<u32>,
    len: usize,
}

struct Slot<V> {
    generation: u32,
    tenant: Option<Tenant<V>>,
}

/// What a slot in use holds.
pub(crate) struct Tenant<V> {
    pub(crate) key: Key,
    pub(crate) value: V,
}

impl<V> Slots<V> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new(), len: 0 }
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Stores a filter in a free slot; `make_key` is told which.
    ///
    /// # Panics
    /// With four thousand million filters.
    pub(crate) fn insert(&mut self, make_key: impl FnOnce(u32) -> Key, value: V) -> FilterId {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.all.len()).ok().filter(|&slot| slot < FIRST_RESERVED);
            self.all.push(Slot { generation: 0, tenant: None });
            slot.expect("an index holds fewer than 2^32 filters")
        });
        let place = &mut self.all[slot as usize];
        place.tenant = Some(Tenant { key: make_key(slot), value });
        self.len += 1;
        FilterId { slot, generation: place.generation }
    }

    /// Takes a filter out; from now on `id` names nothing.
    ///
    /// A slot whose generations are used up is not used again: one slot is lost in four thousand million removals.
    pub(crate) fn remove(&mut self, id: FilterId) -> Option<Tenant<V>> {
        let slot = self.all.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let tenant = slot.tenant.take()?;
        self.len -= 1;
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(id.slot);
        }
        Some(tenant)
    }

    #[inline]
    pub(crate) fn get(&self, id: FilterId) -> Option<&Tenant<V>> {
        let slot = self.all.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.tenant.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: FilterId) -> Option<&mut Tenant<V>> {
        let slot = self.all.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.tenant.as_mut()
    }

    /// The filter in a slot that is in use, as the tables and the trie know it.
    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<(FilterId, &Tenant<V>)> {
        let Slot { generation, tenant } = self.all.get(slot as usize)?;
        Some((FilterId { slot, generation: *generation }, tenant.as_ref()?))
    }

    /// The text of the filter in `slot`, where it is an exact one.
    #[inline]
    pub(crate) fn exact_text(&self, slot: u32) -> Option<&str> {
        match &self.all.get(slot as usize)?.tenant {
            Some(Tenant { key: Key::Exact(text), .. }) => Some(text),
            _ => None,
        }
    }

    /// All filters, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FilterId, &Tenant<V>)> {
        (0..).zip(&self.all).filter_map(|(slot, Slot { generation, tenant })| {
            Some((FilterId { slot, generation: *generation }, tenant.as_ref()?))
        })
    }

    /// How many slots have ever been in use at once.
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
        slots.get(id).map(|tenant| tenant.value)
    }

    #[test]
    fn an_id_outlived_by_its_slot_names_nothing() {
        let mut slots = Slots::new();
        let first = insert(&mut slots, 1);
        assert_eq!(slots.remove(first).map(|tenant| tenant.value), Some(1));
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
    fn a_slot_with_no_generation_left_is_retired() {
        let mut slots = Slots::new();
        let id = insert(&mut slots, 1);
        slots.all[id.slot() as usize].generation = u32::MAX;
        let last = FilterId { generation: u32::MAX, ..id };
        assert_eq!(slots.remove(last).map(|tenant| tenant.value), Some(1));
        assert_eq!((value(&slots, last), slots.len()), (None, 0));
        let next = insert(&mut slots, 2);
        assert_ne!(next.slot(), id.slot());
        assert_eq!(slots.iter().map(|(id, _)| id).collect::<Vec<_>>(), [next]);
    }

    #[test]
    fn a_slot_is_small() {
        assert!(size_of::<Slot<u32>>() <= 40, "{}", size_of::<Slot<u32>>());
        assert!(size_of::<Slot<Vec<u8>>>() <= 48, "{}", size_of::<Slot<Vec<u8>>>());
    }
}
