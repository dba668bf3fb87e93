//! Whether receivers keep up, noted where they live and read where publishers are.
//!
//! A publisher that goes on filling queues whose owners are reading, only not as fast, would make the broker
//! lose messages that nobody had to lose. So a fan-out that finds most of its receivers behind says so, and
//! the publisher's connection is not read for a while. Receivers that have stalled do not count: whoever does
//! not read loses messages alone and slows down nobody.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a publisher takes notice of receivers that were found behind.
const NOTICED_MS: u64 = 100;

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

/// The last word on the receivers of one topic or group, from any shard.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    behind_until_ms: AtomicU64,
    urgent_until_ms: AtomicU64,
}

impl Pressure {
    /// Says how a fan-out found its receivers.
    pub(crate) fn note(&self, level: Level, now_ms: u64) {
        let until_ms = match level {
            Level::None => return,
            Level::Behind => &self.behind_until_ms,
            Level::Urgent => &self.urgent_until_ms,
        };
        until_ms.store(now_ms + NOTICED_MS, Ordering::Relaxed);
    }

    /// How receivers were found a moment ago.
    pub(crate) fn level(&self, now_ms: u64) -> Level {
        if now_ms < self.urgent_until_ms.load(Ordering::Relaxed) {
            Level::Urgent
        } else if now_ms < self.behind_until_ms.load(Ordering::Relaxed) {
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
        pressure.note(Level::Behind, 1_000);
        assert_eq!(pressure.level(1_099), Level::Behind);
        pressure.note(Level::Urgent, 1_050);
        assert_eq!(pressure.level(1_100), Level::Urgent);
        assert_eq!(pressure.level(1_150), Level::None);
    }
}
