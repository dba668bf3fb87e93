//! Whether receivers keep up, noted on the shards of the receivers and read on those of the publishers.
//!
//! A publisher that keeps filling the queues of clients that read, only not as fast, would make the broker drop
//! messages without need. So a fan-out notes when most of its receivers are behind, and the publisher's connection is
//! not read for a while. Receivers that have stalled do not count: a client that does not read loses messages and slows
//! down nobody.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a note holds.
const NOTICED_MS: u64 = 100;
/// Low bits of a note: the shard that wrote it.
const SHARD_BITS: u32 = 8;

/// How far the receivers of a publish are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Most keep up.
    None,
    /// Most have messages queued: publishers wait if the whole shard has a backlog.
    Behind,
    /// Most have half of what they may have queued: publishers wait in any case.
    Urgent,
}

/// Notes about the receivers of one topic or group, from any shard. Each is the time until which it holds and the shard
/// that wrote it, which clears it when its receivers have caught up.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    behind: AtomicU64,
    urgent: AtomicU64,
}

impl Pressure {
    /// Notes the result of a fan-out on `shard`.
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

    /// The level that holds now.
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

    /// The level that more than half of `receivers` have.
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
    fn majority_decides_and_notes_expire() {
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
        assert_eq!(pressure.level(2_002), Level::Urgent, "another shard does not clear it");
        pressure.note(Level::None, 2, 2_003);
        assert_eq!(pressure.level(2_004), Level::None);
    }
}
