//! Contents of a simulated file: the cached version, the version on disk, and the changes in between.
//!
//! A power failure may keep any part of what was written since the last sync: up to some point in time, or each sector
//! from a point of its own. The file therefore exists twice, cached and on disk, with the list of changes between them:
//! a sync applies the list, a power failure a part of it that the seed picks. Programs read the cached version, so a
//! missing sync shows only after a failure.

use std::collections::{BTreeMap, BTreeSet};

use super::Rng;

/// Unit that a disk writes atomically, bytes.
const SECTOR_BYTES: u64 = 512;

type Sector = [u8; SECTOR_BYTES as usize];

/// Sparse bytes of a file. Missing sectors are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bytes {
    len: u64,
    sectors: BTreeMap<u64, Box<Sector>>,
}

/// Splits `at..at + len` into sectors: sector number, first byte in it, number of bytes.
fn parts(at: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = at + len;
    (at / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)).map(move |sector| {
        let from = at.max(sector * SECTOR_BYTES);
        let to = end.min((sector + 1) * SECTOR_BYTES);
        (sector, (from % SECTOR_BYTES) as usize, (to - from) as usize)
    })
}

impl Bytes {
    fn read(&self, into: &mut [u8], at: u64) -> usize {
        let len = self.len.saturating_sub(at).min(into.len() as u64);
        let mut rest = &mut into[..len as usize];
        for (sector, from, count) in parts(at, len) {
            let (part, after) = rest.split_at_mut(count);
            match self.sectors.get(&sector) {
                Some(bytes) => part.copy_from_slice(&bytes[from..from + count]),
                None => part.fill(0),
            }
            rest = after;
        }
        len as usize
    }

    fn write(&mut self, bytes: &[u8], at: u64) {
        let mut rest = bytes;
        for (sector, from, count) in parts(at, bytes.len() as u64) {
            let (part, after) = rest.split_at(count);
            self.sector_mut(sector)[from..from + count].copy_from_slice(part);
            rest = after;
        }
        self.len = self.len.max(at + bytes.len() as u64);
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.sectors.split_off(&len.div_ceil(SECTOR_BYTES));
            if let Some(last) = self.sectors.get_mut(&(len / SECTOR_BYTES)) {
                last[(len % SECTOR_BYTES) as usize..].fill(0);
            }
        }
        self.len = len;
    }

    fn sector_mut(&mut self, sector: u64) -> &mut Sector {
        self.sectors.entry(sector).or_insert_with(|| Box::new([0; SECTOR_BYTES as usize]))
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { at, bytes } => self.write(bytes, *at),
            Change::Len(len) => self.set_len(*len),
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, bytes: Vec<u8> },
    Len(u64),
}

impl Change {
    fn touches(&self, sector: u64) -> bool {
        match self {
            Self::Write { at, bytes } => {
                let end = at + bytes.len() as u64;
                at / SECTOR_BYTES <= sector && sector < end.div_ceil(SECTOR_BYTES)
            }
            Self::Len(_) => true,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Page cache version.
    cached: Bytes,
    /// Version on disk.
    synced: Bytes,
    /// Changes since the last sync, in order.
    changes: Vec<Change>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.cached.len
    }

    pub(super) fn read(&self, into: &mut [u8], at: u64) -> usize {
        self.cached.read(into, at)
    }

    pub(super) fn write(&mut self, bytes: &[u8], at: u64) {
        if !bytes.is_empty() {
            self.change(Change::Write { at, bytes: bytes.to_vec() });
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.change(Change::Len(len));
    }

    fn change(&mut self, change: Change) {
        self.cached.apply(&change);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            self.synced.apply(&change);
        }
    }

    /// Simulates a failed sync: the changes reach the disk in part and are no longer dirty, except for the length. The
    /// page cache may drop them too and then shows the version on disk.
    pub(super) fn fail_to_sync(&mut self, rng: &mut Rng) {
        let len = self.cached.len;
        self.synced = self.after_power_loss(rng);
        self.changes.clear();
        if rng.chance(50) {
            self.cached = self.synced.clone();
        }
        self.set_len(len);
    }

    pub(super) fn survivor(&self, rng: &mut Rng) -> Self {
        let left = self.after_power_loss(rng);
        Self { cached: left.clone(), synced: left, changes: Vec::new() }
    }

    pub(super) fn flip(&mut self, at: u64, bit: u8) {
        for bytes in [&mut self.cached, &mut self.synced] {
            bytes.sector_mut(at / SECTOR_BYTES)[(at % SECTOR_BYTES) as usize] ^= 1 << bit;
        }
    }

    /// A possible state on disk after a power failure.
    fn after_power_loss(&self, rng: &mut Rng) -> Bytes {
        let mut left = self.synced.clone();
        let count = self.changes.len();
        let happened = match rng.below(5) {
            0 => 0,
            1 => count,
            2 | 3 => rng.below(count as u64 + 1) as usize,
            _ => return self.scattered(rng),
        };
        let (before, rest) = self.changes.split_at(happened);
        for change in before {
            left.apply(change);
        }
        if let Some(Change::Write { at, bytes }) = rest.first()
            && rng.chance(50)
        {
            // The next write is torn.
            for (sector, from, part) in parts(*at, bytes.len() as u64) {
                if rng.chance(50) {
                    let skipped = (sector * SECTOR_BYTES + from as u64 - at) as usize;
                    left.write(&bytes[skipped..skipped + part], sector * SECTOR_BYTES + from as u64);
                }
            }
        }
        left
    }

    /// Each sector, and the length, from an independent point in time since the last sync.
    fn scattered(&self, rng: &mut Rng) -> Bytes {
        let mut left = self.synced.clone();
        let mut touched = BTreeSet::new();
        let mut lens = vec![self.synced.len];
        let mut seen = self.synced.len;
        for change in &self.changes {
            seen = match change {
                Change::Write { at, bytes } => {
                    touched.extend(parts(*at, bytes.len() as u64).map(|(sector, ..)| sector));
                    seen.max(at + bytes.len() as u64)
                }
                Change::Len(len) => {
                    touched
                        .extend(self.synced.sectors.range(len / SECTOR_BYTES..).map(|(sector, _)| *sector));
                    *len
                }
            };
            lens.push(seen);
        }
        let percent = rng.below(101);
        for sector in touched {
            let here: Vec<&Change> = self.changes.iter().filter(|change| change.touches(sector)).collect();
            let happened =
                if rng.chance(percent) { here.len() } else { rng.below(here.len() as u64 + 1) as usize };
            let mut version = Bytes { len: self.synced.len, sectors: BTreeMap::new() };
            if let Some(synced) = self.synced.sectors.get(&sector) {
                version.sectors.insert(sector, synced.clone());
            }
            for change in &here[..happened] {
                version.apply(change);
            }
            match version.sectors.remove(&sector) {
                Some(bytes) => left.sectors.insert(sector, bytes),
                None => left.sectors.remove(&sector),
            };
        }
        // Set the length last, so that no bytes remain after the end.
        left.len = u64::MAX;
        left.set_len(lens[rng.below(lens.len() as u64) as usize]);
        left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::Rng;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Len(u64),
        Sync,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u64..3000, prop::collection::vec(1_u8.., 1..1500)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
            1 => (0_u64..4000).prop_map(Step::Len),
            1 => Just(Step::Sync),
        ]
    }

    fn all(bytes: &Bytes) -> Vec<u8> {
        let mut into = vec![0; bytes.len as usize];
        assert_eq!(bytes.read(&mut into, 0), into.len());
        into
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn survivors_consist_of_earlier_versions(steps in prop::collection::vec(step(), 0..25), seed: u64) {
            let mut content = Content::default();
            let mut plain: Vec<u8> = Vec::new();
            // All versions since the last sync.
            let mut versions = vec![plain.clone()];
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let (at, end) = (at as usize, at as usize + bytes.len());
                        plain.resize(plain.len().max(end), 0);
                        plain[at..end].copy_from_slice(&bytes);
                        content.write(&bytes, at as u64);
                    }
                    Step::Len(len) => {
                        plain.resize(len as usize, 0);
                        content.set_len(len);
                    }
                    Step::Sync => {
                        content.sync();
                        versions.clear();
                    }
                }
                versions.push(plain.clone());
                prop_assert!(all(&content.cached) == plain);
            }
            let mut rng = Rng::new(seed);
            for _ in 0..8 {
                let left = all(&content.survivor(&mut rng).cached);
                let lens: Vec<usize> = versions.iter().map(Vec::len).collect();
                // A torn write may end at any sector boundary between two versions.
                let is_len = lens.contains(&left.len()) || left.len().is_multiple_of(512);
                prop_assert!(is_len, "{} of {lens:?}", left.len());
                for (sector, bytes) in left.chunks(512).enumerate() {
                    let was = |version: &Vec<u8>| {
                        let there = version.get(sector * 512..).unwrap_or_default();
                        let at = |index: usize| there.get(index).copied().unwrap_or(0);
                        bytes.iter().enumerate().all(|(index, byte)| *byte == at(index))
                    };
                    prop_assert!(versions.iter().any(was) || bytes.iter().all(|byte| *byte == 0));
                }
            }
            content.sync();
            prop_assert!(all(&content.survivor(&mut rng).cached) == plain);
        }
    }
}
