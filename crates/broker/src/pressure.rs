//! Whether receivers keep up, noted where they live and read where publishers are.
//!
//! A publisher that goes on filling queues whose owners are reading, only not as fast, would make the broker
//! lose messages that nobody had to lose. So a fan-out that finds most of its receivers behind says so, and
//! the publisher's connection is not read for a while. Receivers that have stalled do not count: whoever does
//! not read loses messages alone and slows down nobody.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a publisher takes notice of receivers that were found behind and not looked at since.
const NOTICED_MS: u64 = 100;
/// Low bits of a note, which hold the shard that wrote it.
const SHARD_BITS: u32 = 8;

/// How far the receivers of a publish are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Most keep up.
    None,
    /// Most have messages waiting: time to wait if the whole shard has a backlog.
    Behind,
    /// Most have half of what they may have waiting: time to wait in any case.
    Urgent,
}

/// The last word on the receivers of one topic or group, from any shard. Each note is the time it holds until
/// and the shard it is from, which takes it back when it finds its receivers better.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    behind: AtomicU64,
    urgent: AtomicU64,
}

impl Pressure {
    /// Says how a fan-out on `shard` found its receivers.
    pub(crate) fn note(&self, level: Level, shard: u16, now_ms: u64) {
        let note = (now_ms + NOTICED_MS) << SHARD_BITS | u64::from(shard);
        for (cell, holds) in [(&self.behind, level >= Level::Behind), (&self.urgent, level == Level::Urgent)]
        {
            if holds {
                cell.store(note, Ordering::Relaxed);
            } else {
                let known = cell.load(Ordering::Relaxed);
                if known != 0 && known & ((1 << SHARD_BITS) - 1) == u64::from(shard) {
                    cell.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// How receivers were found a moment ago.
    pub(crate) fn level(&self, now_ms: u64) -> Level {
        let holds = |cell: &AtomicU64| now_ms < cell.load(Ordering::Relaxed) >> SHARD_BITS;
        if holds(&self.urgent) {
            Level::Urgent
        } else if holds(&self.behind) {
            Level::Behind
        } else {
            Level::None
        }
    }
}

/// Counts the receivers of one fan-out on one shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    behind: u32,
    urgent: u32,
}

impl Tally {
    pub(crate) fn count(&mut self, level: Level) {
        self.behind += u32::from(level >= Level::Behind);
        self.urgent += u32::from(level == Level::Urgent);
    }

    /// What holds for most of `receivers`.
    pub(crate) fn majority(self, receivers: u32) -> Level {
        if self.urgent * 2 > receivers {
            Level::Urgent
        } else if self.behind * 2 > receivers {
            Level::Behind
        } else {
            Level::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides_and_is_forgotten_after_a_while() {
        let mut tally = Tally::default();
        tally.count(Level::Urgent);
        tally.count(Level::None);
        assert_eq!(tally.majority(2), Level::None);
        tally.count(Level::Behind);
        assert_eq!(tally.majority(3), Level::Behind);
        tally.count(Level::Urgent);
        tally.count(Level::Urgent);
        assert_eq!(tally.majority(5), Level::Urgent);

        let pressure = Pressure::default();
        assert_eq!(pressure.level(0), Level::None);
        pressure.note(Level::Behind, 1, 1_000);
        assert_eq!(pressure.level(1_099), Level::Behind);
        pressure.note(Level::Urgent, 2, 1_050);
        assert_eq!(pressure.level(1_100), Level::Urgent);
        assert_eq!(pressure.level(1_150), Level::None);
        pressure.note(Level::Urgent, 2, 2_000);
        pressure.note(Level::None, 1, 2_001);
        assert_eq!(pressure.level(2_002), Level::Urgent, "another shard's word does not undo it");
        pressure.note(Level::None, 2, 2_003);
        assert_eq!(pressure.level(2_004), Level::None);
    }
}
