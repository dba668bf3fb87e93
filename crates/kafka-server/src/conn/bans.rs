//! Bans, of clients that connect and of those that are connected: all connections are checked once, some in each turn,
//! after users, rules, quotas and bans have changed.

use mainstem_runtime::{ConnId, Io};
use mainstem_security::BannedClient;

use super::{Conn, Connections};
use crate::environment::Environment;
use crate::log_in::PROTOCOL;
use crate::security::Security;

/// Connections that are checked per turn.
const CHECKED_PER_TURN: usize = 512;
/// Cost of checking a connection, units.
const CHECK_UNITS: u32 = 5;
/// Cost of compiling its rules, units.
const RENEWAL_UNITS: u32 = 50;

/// The slots that are left to check.
#[derive(Debug, Default)]
pub(super) struct ConnectionCheck {
    epoch: u64,
    /// Slot from which on they have not been checked.
    next: Option<usize>,
}

impl ConnectionCheck {
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
    /// The connections that must close, and why, among those that are checked in this turn.
    pub(crate) fn next_refused<M>(
        &mut self,
        env: &Environment,
        io: &mut Io<'_, M>,
    ) -> Vec<(ConnId, &'static str)> {
        let slots = self.check.next_slots(env.shared().security_epoch(), self.slots.len());
        if slots.is_empty() || env.shared().security().is_none() {
            return Vec::new();
        }
        let open: Vec<ConnId> = slots.filter_map(|slot| self.open_in(slot)).collect();
        if self.check.has_more() {
            io.request_turn();
        }
        open.into_iter().filter_map(|id| Some((id, self.check_again(env, io, id).err()?))).collect()
    }

    /// Checks a connection after users and rules have changed. What they allow is found out with its next request, but
    /// one that waits for a response or for a quota is not to wait on by those from before.
    fn check_again<M>(
        &mut self,
        env: &Environment,
        io: &mut Io<'_, M>,
        id: ConnId,
    ) -> Result<(), &'static str> {
        io.charge(CHECK_UNITS);
        self.check_ban(env, id, io.clock.unix_ms)?;
        let Some(conn) = self.get_mut(id) else { return Ok(()) };
        let (waits, is_muted) = (conn.waits(), conn.quotas.is_muted(io.clock.now_ms));
        if waits || is_muted {
            io.charge(RENEWAL_UNITS);
            self.refresh_grants(env, io, id)?;
        }
        if is_muted { self.renew_muting(env, io, id) } else { Ok(()) }
    }

    /// Checks the user, client id and address of a connection.
    ///
    /// # Errors
    /// Why it must close: it is banned, which is noted.
    pub(super) fn check_ban(
        &mut self,
        env: &Environment,
        id: ConnId,
        unix_ms: u64,
    ) -> Result<(), &'static str> {
        let (Some(security), Some(conn)) = (env.shared().security(), self.get_mut(id)) else { return Ok(()) };
        let state = security.host.published().state();
        if state.bans().is_empty() {
            return Ok(());
        }
        let user = conn.log_in.session().and_then(|session| session.identity.principal.user());
        let (user, client_id) = (user.map(|user| &**user), conn.client_id.as_deref());
        if state.bans().find(user, client_id, conn.peer, unix_ms).is_none() {
            return Ok(());
        }
        conn.note_banned(security);
        Err("its user, client id or address is banned")
    }
}

impl Conn {
    /// Notes that the connection is refused because of a ban.
    pub(super) fn note_banned(&self, security: &Security) {
        let user = self.log_in.session().and_then(|session| session.identity.principal.user());
        security.host.banned(&BannedClient {
            user: user.map(|user| &**user),
            client_id: self.client_id.as_deref(),
            address: self.peer,
            protocol: Some(PROTOCOL),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_slots_are_checked_once_per_change() {
        let mut check = ConnectionCheck::default();
        assert_eq!(check.next_slots(0, 9), 0..0);
        assert_eq!(check.next_slots(1, 600), 0..512);
        assert!(check.has_more());
        assert_eq!(check.next_slots(1, 600), 512..600);
        assert!(!check.has_more());
        assert_eq!(check.next_slots(1, 600), 0..0);
        assert_eq!(check.next_slots(2, 5), 0..5);
    }
}
