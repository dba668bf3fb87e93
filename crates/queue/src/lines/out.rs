//! Who of each key is out: a hash table in pieces, since one of a million keys takes long to grow.

use foldhash::quality::FixedState;
use hashbrown::HashMap;

/// Keys in the only piece, beyond which there are many.
const SMALL: usize = 4_096;
/// How many those are.
const PIECES: usize = 256;

type Piece = HashMap<u64, u64, FixedState>;

/// An offset by key.
#[derive(Debug)]
pub(super) struct Out {
    /// One, or [`PIECES`].
    pieces: Vec<Piece>,
}

fn piece() -> Piece {
    HashMap::with_hasher(FixedState::with_seed(0))
}

impl Default for Out {
    fn default() -> Self {
        Self { pieces: vec![piece()] }
    }
}

impl Out {
    /// The piece that a key is in.
    fn place(&self, key: u64) -> usize {
        // Keys are hashes.
        (key >> 32) as usize % self.pieces.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(Piece::is_empty)
    }

    pub(super) fn get(&self, key: u64) -> Option<u64> {
        self.pieces[self.place(key)].get(&key).copied()
    }

    pub(super) fn insert(&mut self, key: u64, offset: u64) -> Option<u64> {
        if let [only] = &mut *self.pieces
            && only.len() >= SMALL
        {
            let all = std::mem::replace(only, piece());
            self.pieces.resize_with(PIECES, piece);
            for (key, offset) in all {
                let place = self.place(key);
                self.pieces[place].insert(key, offset);
            }
        }
        let place = self.place(key);
        self.pieces[place].insert(key, offset)
    }

    /// Whoever is out, which is `offset` if nobody was.
    pub(super) fn get_or_insert(&mut self, key: u64, offset: u64) -> u64 {
        let out = self.get(key);
        if out.is_none() {
            self.insert(key, offset);
        }
        out.unwrap_or(offset)
    }

    pub(super) fn remove(&mut self, key: u64) {
        let place = self.place(key);
        self.pieces[place].remove(&key);
    }

    /// Forgets what it knows, as long as `most` is not 0; it is of no use any more.
    pub(super) fn thin(&mut self, most: &mut usize) {
        while *most > 0
            && self.pieces.len() > 1
            && let Some(piece) = self.pieces.pop()
        {
            *most = most.saturating_sub(piece.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map_however_large() {
        let mut out = Out::default();
        let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 0..3 * SMALL as u64 {
            assert_eq!(out.get(key(number)), None);
            assert_eq!(out.get_or_insert(key(number), number), number);
            assert_eq!(out.get_or_insert(key(number), 7_000_000), number);
            assert_eq!(out.insert(key(number), number + 1), Some(number));
        }
        assert_eq!(out.pieces.len(), PIECES);
        for number in 0..3 * SMALL as u64 {
            assert_eq!(out.get(key(number)), Some(number + 1));
            out.remove(key(number));
            assert_eq!(out.get(key(number)), None);
        }
        out.thin(&mut 300_000);
        assert_eq!(out.pieces.len(), 1);
    }
}
