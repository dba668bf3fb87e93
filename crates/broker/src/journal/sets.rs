//! Lists of receivers by number: a fan-out to the same sessions as before costs a few bytes, not a list.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::entry::Receivers;

/// Memory for the lists that can be named by number, bytes.
const KNOWN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a list costs beyond its bytes, about.
const LIST_OVERHEAD_BYTES: usize = 64;

/// The lists that have been entered and can be named.
#[derive(Debug, Default)]
pub(super) struct Sets {
    numbers: HashMap<Box<[u8]>, u64, RandomState>,
    bytes: usize,
}

impl Sets {
    /// How to enter `list`: by its number, or whole if it has none yet.
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

    /// Begins anew: no list is known.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
        self.bytes = 0;
    }
}
