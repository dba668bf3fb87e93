//! What is in a directory: as programs see it, as it is on disk, and the changes between the two.

use std::collections::BTreeMap;

use super::Dice;

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
    /// Since the last sync, in order.
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

    pub(super) fn survivor(&self, dice: &mut Dice) -> Self {
        let left = self.left(dice);
        Self { cached: left.clone(), synced: left, changes: Vec::new() }
    }

    /// What may be on disk if the power goes now: the first few changes, or any of them.
    fn left(&self, dice: &mut Dice) -> BTreeMap<String, usize> {
        let mut left = self.synced.clone();
        let count = self.changes.len();
        let (first, usual) = match dice.below(4) {
            0 => (0, 0),
            1 => (count, 0),
            2 => (dice.below(count as u64 + 1) as usize, 0),
            _ => (0, dice.below(101)),
        };
        for (index, change) in self.changes.iter().enumerate() {
            if index < first || dice.chance(usual) {
                apply(&mut left, change);
            }
        }
        left
    }
}
