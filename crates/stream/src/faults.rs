//! How often faults of clients are logged: one client that is broken, or means ill, must not fill the disk with lines.

/// Lines that are written in each spell of [`SPELL_MS`]; the others are counted.
const LINES_MAX: u32 = 20;
const SPELL_MS: u64 = 10_000;

/// What a shard has logged of its clients' faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// When the spell began.
    since_ms: u64,
    lines: u32,
    unsaid: u64,
}

impl Faults {
    /// Whether another line may be written.
    pub(crate) fn may_say(&mut self, now_ms: u64) -> bool {
        self.tell(now_ms);
        if self.lines < LINES_MAX {
            self.lines += 1;
            return true;
        }
        self.unsaid += 1;
        false
    }

    /// At the end of a spell, tells how many lines were left out. To be called now and then.
    pub(crate) fn tell(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.since_ms) < SPELL_MS {
            return;
        }
        if self.unsaid > 0 {
            log::info!("faults of {} more kafka clients were not logged one by one", self.unsaid);
        }
        *self = Self { since_ms: now_ms, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_has_its_lines_and_the_next_one_too() {
        let mut faults = Faults::default();
        for begin_ms in [SPELL_MS, 2 * SPELL_MS, 9 * SPELL_MS] {
            let said = (0..1_000).filter(|at| faults.may_say(begin_ms + at)).count();
            assert_eq!(said as u32, LINES_MAX);
            assert_eq!(faults.unsaid, 1_000 - u64::from(LINES_MAX));
        }
        faults.tell(20 * SPELL_MS);
        assert_eq!(faults.unsaid, 0);
    }
}
