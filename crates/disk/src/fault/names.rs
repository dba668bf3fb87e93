//! Entries of a simulated directory: the cached version, the version on disk, and the changes in between.

use std::collections::BTreeMap;

use super::Rng;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Set { name: String, node: usize },
    Unset { name: String },
    Move { from: String, to: String, node: usize },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    cached: BTreeMap<String, usize>,
    synced: BTreeMap<String, usize>,
    /// Changes since the last sync, in order.
    changes: Vec<Change>,
}

fn apply(names: &mut BTreeMap<String, usize>, change: &Change) {
    match change {
        Change::Set { name, node } => {
            names.insert(name.clone(), *node);
        }
        Change::Unset { name } => {
            names.remove(name);
        }
        Change::Move { from, to, node } => {
            names.remove(from);
            names.insert(to.clone(), *node);
        }
    }
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<usize> {
        self.cached.get(name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.cached.iter().map(|(name, node)| (name.as_str(), *node))
    }

    pub(super) fn change(&mut self, change: Change) {
        apply(&mut self.cached, &change);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            apply(&mut self.synced, &change);
        }
    }

    pub(super) fn survivor(&self, rng: &mut Rng) -> Self {
        let entries = self.after_power_loss(rng);
        Self { cached: entries.clone(), synced: entries, changes: Vec::new() }
    }

    /// A possible state on disk after a power failure: a prefix of the changes, or any subset.
    fn after_power_loss(&self, rng: &mut Rng) -> BTreeMap<String, usize> {
        let mut entries = self.synced.clone();
        let count = self.changes.len();
        let (first, percent) = match rng.below(4) {
            0 => (0, 0),
            1 => (count, 0),
            2 => (rng.below(count as u64 + 1) as usize, 0),
            _ => (0, rng.below(101)),
        };
        for (index, change) in self.changes.iter().enumerate() {
            if index < first || rng.chance(percent) {
                apply(&mut entries, change);
            }
        }
        entries
    }
}
