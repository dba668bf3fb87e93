//! Compiles the rules of a connection when it first sends a request and whenever users or rules change, and closes
//! connections that may not be there any more.

use std::sync::Arc;

use mainstem_runtime::{ConnId, Io};
use mainstem_security::{Grants, Origin, Principal};

use crate::grants::ConnGrants;
use crate::shard::Shard;
use crate::shard_message::Mail;

impl Shard {
    /// The rules of a connection that has logged in; false if it was closed, because it may do nothing any more.
    pub(crate) fn refresh_grants(&mut self, io: &mut Io<'_, Mail>, id: ConnId) -> bool {
        let epoch = self.env.shared().security_epoch();
        let Some(conn) = self.conns.get_mut(id) else { return false };
        if conn.grants.epoch == Some(epoch) || !conn.log_in.is_complete() {
            return true;
        }
        match self.compiled_grants(id) {
            Ok(grants) => {
                if let Some(conn) = self.conns.get_mut(id) {
                    conn.grants = grants;
                }
                true
            }
            Err(what) => {
                self.refuse(io, id, what);
                false
            }
        }
    }

    fn compiled_grants(&mut self, id: ConnId) -> Result<ConnGrants, &'static str> {
        let shared = Arc::clone(self.env.shared());
        let Some(security) = shared.security() else {
            return Ok(ConnGrants { epoch: Some(shared.security_epoch()), grants: None });
        };
        let state = security.host.published().state();
        let Some(conn) = self.conns.get_mut(id) else { return Err("it is closed") };
        let principal = conn.log_in.session().map_or(&Principal::Anonymous, |session| &session.principal);
        match principal.user() {
            Some(user) if state.user(user).is_none_or(|user| user.disabled) => {
                return Err("its user was deleted or disabled");
            }
            None if !state.allows_anonymous() => {
                return Err("clients without a user are not served (security.allow_anonymous, kafka.sasl)");
            }
            _ => {}
        }
        let listener = shared.listener_name(conn.listener);
        let origin = Origin { principal, client_id: None, listener, address: conn.peer };
        let grants = Grants::compile(&state, &origin);
        if grants.denies_connection() {
            return Err("a rule denies its connection");
        }
        let grants = (!grants.is_unrestricted()).then(|| Arc::new(grants));
        Ok(ConnGrants { epoch: Some(state.epoch()), grants })
    }
}
