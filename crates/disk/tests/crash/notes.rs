//! What was noted beside a log, and what of it may be found.

use std::collections::BTreeMap;

/// Notes one behind the other. Each is noted once.
#[derive(Clone, Debug, Default)]
struct List {
    kept: Vec<Vec<u8>>,
    /// One behind them of which the store has not said that it has it.
    maybe: Option<Vec<u8>>,
}

impl List {
    fn may_be(&self, found: &[u8]) -> bool {
        let all: Vec<&Vec<u8>> = self.kept.iter().chain(&self.maybe).collect();
        (0..=all.len())
            .any(|count| found == all[..count].iter().copied().flatten().copied().collect::<Vec<u8>>())
    }
}

/// What was noted beside one log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    /// All lists that have stood behind an offset, the last one last.
    lists: BTreeMap<u64, Vec<List>>,
    /// The offset that the last one stands behind; nothing if none was kept since the store began.
    last: Option<u64>,
    /// The disk has failed: anything may be found.
    is_unsure: bool,
}

impl Noted {
    /// Something was noted while the log ended there, and kept or not.
    pub(crate) fn note(&mut self, end: u64, note: Vec<u8>, is_kept: bool) {
        let lists = self.lists.entry(end).or_default();
        if self.last != Some(end) || lists.is_empty() {
            lists.push(List::default());
        }
        let Some(list) = lists.last_mut() else { return };
        if is_kept {
            list.kept.push(note);
            list.maybe = None;
            self.last = Some(end);
        } else {
            list.maybe = Some(note);
        }
    }

    /// The log was cut off there. What stood there before may be found, but need not.
    pub(crate) fn end_at(&mut self, end: u64) {
        self.lists.split_off(&(end + 1));
        self.last = None;
    }

    /// The log was removed: should it be there all the same, so may be what stood beside it.
    pub(crate) fn remove(&mut self) {
        self.last = None;
    }

    pub(crate) fn give_up(&mut self) {
        self.is_unsure = true;
    }

    /// That was found beside a log that ends there; after a kill, all that was kept.
    pub(crate) fn found(&mut self, found: &[u8], end: u64, was_killed: bool) {
        let lists = self.lists.get(&end).map_or(&[][..], Vec::as_slice);
        let is_known = found.is_empty() || lists.iter().any(|list| list.may_be(found));
        assert!(self.is_unsure || is_known, "{found:?} was never noted behind {end}: {self:?}");
        if self.last.take() == Some(end)
            && was_killed
            && !self.is_unsure
            && let Some(list) = lists.last()
        {
            let is_whole = found.starts_with(&list.kept.concat());
            assert!(is_whole, "{found:?} is not all that was noted behind {end}: {self:?}");
        }
        // What stood behind an end that is gone stands behind nothing.
        self.lists.split_off(&(end + 1));
    }
}
