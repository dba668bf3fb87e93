//! Finds the connections of clients that are banned while they are connected: all are checked once, some in each turn,
//! after users and rules have changed.

use mainstem_runtime::{ConnId, Io};

use super::Connections;
use crate::environment::Environment;

/// Connections that are checked per turn.
const CHECKED_PER_TURN: usize = 512;
/// Cost of checking a connection, units.
const CHECK_UNITS: u32 = 5;

/// The slots that are left to check.
#[derive(Debug, Default)]
pub(super) struct BanCheck {
    epoch: u64,
    /// Slot from which on they have not been checked.
    next: Option<usize>,
}

impl BanCheck {
    /// The slots to check in this turn, of so many, with this state of users and rules.
    fn next_slots(&mut self, epoch: u64, slots: usize) -> std::ops::Range<usize> {
        if epoch != self.epoch {
            *self = Self { epoch, next: Some(0) };
        }
        let Some(first) = self.next.take() else { return 0..0 };
        let end = (first + CHECKED_PER_TURN).min(slots);
        self.next = (end < slots).then_some(end);
        first..end
    }

    /// Whether slots are left.
    fn has_more(&self) -> bool {
        self.next.is_some()
    }
}

impl Connections {
    /// The banned ones among the connections that are checked in this turn.
    pub(crate) fn next_banned<M>(&mut self, env: &Environment, io: &mut Io<'_, M>) -> Vec<ConnId> {
        let mut banned = Vec::new();
        let slots = self.ban_check.next_slots(env.shared().security_epoch(), self.slots.len());
        if slots.is_empty() {
            return banned;
        }
        let Some(security) = env.shared().security() else { return banned };
        let state = security.host.published().state();
        if state.bans().is_empty() {
            return banned;
        }
        for slot in slots {
            let Some(id) = self.open_in(slot) else { continue };
            let conn = &self.slots[slot];
            io.charge(CHECK_UNITS);
            let user = conn.log_in.session().and_then(|session| session.identity.principal.user());
            let user = user.map(|user| &**user);
            let ban = state.bans().find(user, conn.client_id.as_deref(), conn.peer, io.clock.unix_ms);
            if ban.is_some() {
                banned.push(id);
            }
        }
        if self.ban_check.has_more() {
            io.request_turn();
        }
        banned
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
