//! Numbers for lists of receivers: a repeated fan-out to the same sessions costs a few bytes in the journal, not a
//! list.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::entry::Receivers;

/// Memory for lists with numbers, bytes.
const KNOWN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Approximate overhead of a list.
const LIST_OVERHEAD_BYTES: usize = 64;

/// The lists that have been written and have numbers.
#[derive(Debug, Default)]
pub(super) struct Sets {
    numbers: HashMap<Box<[u8]>, u64, RandomState>,
    bytes: usize,
}

impl Sets {
    /// How to write `list`: by its number, or whole if it has none yet.
    pub(super) fn name<'a>(&mut self, list: &'a [u8]) -> Receivers<'a> {
        if let Some(number) = self.numbers.get(list) {
            return Receivers::Known(*number);
        }
        self.bytes += list.len() + LIST_OVERHEAD_BYTES;
        if self.bytes > KNOWN_BYTES_MAX {
            self.forget();
            self.bytes = list.len() + LIST_OVERHEAD_BYTES;
        }
        let number = self.numbers.len() as u64;
        self.numbers.insert(list.into(), number);
        Receivers::New { reset: number == 0, list }
    }

    /// Forgets all lists: the next one resets the numbers.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
        self.bytes = 0;
    }
}
