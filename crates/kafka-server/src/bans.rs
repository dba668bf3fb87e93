//! Closes the connections of clients that are banned while they are connected.

use std::sync::Arc;

use mainstem_runtime::Io;

use crate::shard::Shard;
use crate::shard_message::Mail;

/// Cost of checking a connection, units.
const CHECK_UNITS: u32 = 5;

impl Shard {
    /// Closes connections of banned clients, some in each turn, after users and rules have changed.
    pub(crate) fn close_banned_connections(&mut self, io: &mut Io<'_, Mail>) {
        let slots = self.ban_check.next_slots(self.env.shared().security_epoch(), self.conns.slots());
        if slots.is_empty() {
            return;
        }
        let shared = Arc::clone(self.env.shared());
        let Some(security) = shared.security() else { return };
        let state = security.host.published().state();
        if state.bans().is_empty() {
            return;
        }
        for slot in slots {
            let Some(id) = self.conns.open_in(slot) else { continue };
            let Some(conn) = self.conns.get_mut(id) else { continue };
            io.charge(CHECK_UNITS);
            let user = conn.log_in.session().and_then(|session| session.identity.principal.user());
            let user = user.map(|user| &**user);
            let ban = state.bans().find(user, conn.client_id.as_deref(), conn.peer, io.clock.unix_ms);
            if ban.is_some() {
                self.refuse(io, id, "its user, client id or address is banned");
            }
        }
        if self.ban_check.has_more() {
            io.request_turn();
        }
    }
}
