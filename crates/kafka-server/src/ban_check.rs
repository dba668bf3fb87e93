//! Which connections have been checked for bans, since users and rules have changed.

/// Connections that are checked per turn.
const CHECKED_PER_TURN: usize = 512;

/// The slots that are left to check.
#[derive(Debug, Default)]
pub(crate) struct BanCheck {
    epoch: u64,
    /// Slot from which on they have not been checked.
    next: Option<usize>,
}

impl BanCheck {
    /// The slots to check in this turn, of so many, with this state of users and rules.
    pub(crate) fn next_slots(&mut self, epoch: u64, slots: usize) -> std::ops::Range<usize> {
        if epoch != self.epoch {
            *self = Self { epoch, next: Some(0) };
        }
        let Some(first) = self.next.take() else { return 0..0 };
        let end = (first + CHECKED_PER_TURN).min(slots);
        self.next = (end < slots).then_some(end);
        first..end
    }

    /// Whether slots are left.
    pub(crate) fn has_more(&self) -> bool {
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_slots_are_checked_once_per_change() {
        let mut check = BanCheck::default();
        assert_eq!(check.next_slots(0, 9), 0..0);
        assert_eq!(check.next_slots(1, 600), 0..512);
        assert!(check.has_more());
        assert_eq!(check.next_slots(1, 600), 512..600);
        assert!(!check.has_more());
        assert_eq!(check.next_slots(1, 600), 0..0);
        assert_eq!(check.next_slots(2, 5), 0..5);
    }
}
