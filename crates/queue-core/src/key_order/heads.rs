//! The head of each key: hash tables, several if there are many keys. Growing one table of a million keys would stall
//! the shard's thread.

use foldhash::quality::FixedState;
use hashbrown::HashMap;

/// Number of keys up to which one table is enough.
const ONE_TABLE_MAX: usize = 4_096;
/// Number of tables beyond that.
const TABLES: usize = 256;

type Table = HashMap<u64, u64, FixedState>;

/// Offset by key.
#[derive(Debug)]
pub(super) struct Heads {
    /// Either one, or [`TABLES`].
    tables: Vec<Table>,
}

fn table() -> Table {
    HashMap::with_hasher(FixedState::with_seed(0))
}

impl Default for Heads {
    fn default() -> Self {
        Self { tables: vec![table()] }
    }
}

impl Heads {
    /// Index of the table of a key.
    fn place(&self, key: u64) -> usize {
        // Keys are hashes.
        (key >> 32) as usize % self.tables.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.iter().all(Table::is_empty)
    }

    pub(super) fn get(&self, key: u64) -> Option<u64> {
        self.tables[self.place(key)].get(&key).copied()
    }

    pub(super) fn insert(&mut self, key: u64, offset: u64) -> Option<u64> {
        if let [only] = &mut *self.tables
            && only.len() >= ONE_TABLE_MAX
        {
            let all = std::mem::replace(only, table());
            self.tables.resize_with(TABLES, table);
            for (key, offset) in all {
                let place = self.place(key);
                self.tables[place].insert(key, offset);
            }
        }
        let place = self.place(key);
        self.tables[place].insert(key, offset)
    }

    /// The head of the key, which becomes `offset` if there was none.
    pub(super) fn get_or_insert(&mut self, key: u64, offset: u64) -> u64 {
        let head = self.get(key);
        if head.is_none() {
            self.insert(key, offset);
        }
        head.unwrap_or(offset)
    }

    pub(super) fn remove(&mut self, key: u64) {
        let place = self.place(key);
        self.tables[place].remove(&key);
    }

    /// Drops tables while `budget` lasts. It must not be used afterwards.
    pub(super) fn drop_some(&mut self, budget: &mut usize) {
        while *budget > 0
            && self.tables.len() > 1
            && let Some(table) = self.tables.pop()
        {
            *budget = budget.saturating_sub(table.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_work_with_one_and_many_tables() {
        let mut heads = Heads::default();
        let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 0..3 * ONE_TABLE_MAX as u64 {
            assert_eq!(heads.get(key(number)), None);
            assert_eq!(heads.get_or_insert(key(number), number), number);
            assert_eq!(heads.get_or_insert(key(number), 7_000_000), number);
            assert_eq!(heads.insert(key(number), number + 1), Some(number));
        }
        assert_eq!(heads.tables.len(), TABLES);
        for number in 0..3 * ONE_TABLE_MAX as u64 {
            assert_eq!(heads.get(key(number)), Some(number + 1));
            heads.remove(key(number));
            assert_eq!(heads.get(key(number)), None);
        }
        heads.drop_some(&mut 300_000);
        assert_eq!(heads.tables.len(), 1);
    }
}
