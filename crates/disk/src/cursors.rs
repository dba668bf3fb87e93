//! Where recent reads of a log ended, so that sequential readers continue there without a search.

use crate::scan::Place;

/// End positions of the last four reads.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    places: [Place; 4],
    next: usize,
}

impl Cursors {
    /// The end of a read that stopped before `offset`, in the segment with this base.
    pub(crate) fn find(&self, base: u64, offset: u64) -> Option<Place> {
        let is_there = |place: &&Place| place.base == base && place.offset == offset && place.position > 0;
        self.places.iter().find(is_there).copied()
    }

    pub(crate) fn remember(&mut self, place: Place) {
        self.places[self.next] = place;
        self.next = (self.next + 1) % self.places.len();
    }

    /// Forgets all positions, because segments have changed.
    pub(crate) fn clear(&mut self) {
        self.places = Default::default();
    }
}
