//! Banned clients: refused at CONNECT with 0x8A, and clients that connect too often, which are banned for a while.

use std::net::IpAddr;

use mainstem_mqtt::{Connect, ReasonCode};
use mainstem_runtime::{ConnId, Io};
use mainstem_security::Principal;

use super::Shard;
use crate::broker_state::Mail;

impl Shard {
    /// Checks a CONNECT against the bans of addresses and client ids.
    pub(super) fn check_bans(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
    ) -> Result<(), ReasonCode> {
        let client_id = Some(connect.client_id).filter(|client_id| !client_id.is_empty());
        let address = io.peer_address(conn);
        let client = (None, client_id, address);
        match self.shared.security.ban(client, io.clock.unix_ms) {
            Some(ban) => self.refuse_banned(io.clock.now_ms, client, &ban),
            None => Ok(()),
        }
    }

    /// Counts a CONNECT for its client id, which is banned for a while if it connects too often.
    pub(super) fn check_flapping(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
    ) -> Result<(), ReasonCode> {
        let (client_id, now_ms) = (connect.client_id, io.clock.now_ms);
        let flapping = &self.shared.flapping;
        if client_id.is_empty() || !flapping.is_enabled() || !flapping.count(client_id, now_ms) {
            return Ok(());
        }
        self.shared.security.ban_client_id(client_id, io.clock.unix_ms, self.config().flapping_ban_s);
        let client = (None, Some(client_id), io.peer_address(conn));
        self.refuse_banned(now_ms, client, &format!("client id {client_id:?}, which connects too often"))
    }

    /// Checks the user of a CONNECT against the bans.
    pub(super) fn check_user_ban(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        principal: &Principal,
    ) -> Result<(), ReasonCode> {
        let user = principal.user().map(|user| &**user);
        match self.shared.security.ban((user, None, None), io.clock.unix_ms) {
            Some(ban) => {
                let client = (user, Some(connect.client_id), io.peer_address(conn));
                self.refuse_banned(io.clock.now_ms, client, &ban)
            }
            None => Ok(()),
        }
    }

    /// Notes a refused client, of which this is known: user, client id and address.
    fn refuse_banned(
        &mut self,
        now_ms: u64,
        client: (Option<&str>, Option<&str>, Option<IpAddr>),
        ban: &str,
    ) -> Result<(), ReasonCode> {
        if self.quota_log.is_due(now_ms) {
            log::info!("a client is refused: a ban of {ban}");
        }
        self.shared.security.note_banned(client);
        Err(ReasonCode::Banned)
    }
}
