//! The model of a log's notes: which notes may or must exist after a restart.

use std::collections::BTreeMap;

/// Consecutive notes for one log end.
#[derive(Clone, Debug, Default)]
struct List {
    stored: Vec<Vec<u8>>,
    /// A note after them that the store has not confirmed.
    unconfirmed: Option<Vec<u8>>,
}

impl List {
    fn allows(&self, found: &[u8]) -> bool {
        let all: Vec<&Vec<u8>> = self.stored.iter().chain(&self.unconfirmed).collect();
        (0..=all.len())
            .any(|count| found == all[..count].iter().copied().flatten().copied().collect::<Vec<u8>>())
    }
}

/// Model of the notes of one log.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotesModel {
    /// All lists written for each log end, oldest first.
    lists: BTreeMap<u64, Vec<List>>,
    /// Log end of the last stored note; `None` if none was stored in this incarnation.
    last: Option<u64>,
    /// An injected fault happened: any notes may be found.
    is_uncertain: bool,
}

impl NotesModel {
    /// Records a note for a log end and whether the store confirmed it.
    pub(crate) fn note(&mut self, end: u64, note: Vec<u8>, is_stored: bool) {
        let lists = self.lists.entry(end).or_default();
        if self.last != Some(end) || lists.is_empty() {
            lists.push(List::default());
        }
        let Some(list) = lists.last_mut() else { return };
        if is_stored {
            list.stored.push(note);
            list.unconfirmed = None;
            self.last = Some(end);
        } else {
            list.unconfirmed = Some(note);
        }
    }

    /// Records a loss of power. No note must be there after it, also if a later incarnation fails before it reads them.
    pub(crate) fn lose_power(&mut self) {
        self.last = None;
    }

    /// Records a suffix truncation. Earlier notes for that end may or may not be found.
    pub(crate) fn end_at(&mut self, end: u64) {
        self.lists.split_off(&(end + 1));
        self.last = None;
    }

    /// Records a removal. If the log reappears, its notes may too.
    pub(crate) fn remove(&mut self) {
        self.last = None;
    }

    pub(crate) fn set_uncertain(&mut self) {
        self.is_uncertain = true;
    }

    /// Checks the notes found for a log end. After a kill, all stored notes must be found.
    pub(crate) fn found(&mut self, found: &[u8], end: u64, was_killed: bool) {
        let lists = self.lists.get(&end).map_or(&[][..], Vec::as_slice);
        let is_known = found.is_empty() || lists.iter().any(|list| list.allows(found));
        assert!(self.is_uncertain || is_known, "{found:?} was never noted at log end {end}: {self:?}");
        if self.last.take() == Some(end)
            && was_killed
            && !self.is_uncertain
            && let Some(list) = lists.last()
        {
            let is_whole = found.starts_with(&list.stored.concat());
            assert!(is_whole, "{found:?} is not all that was noted at log end {end}: {self:?}");
        }
        // Notes for a later log end are obsolete.
        self.lists.split_off(&(end + 1));
    }
}
