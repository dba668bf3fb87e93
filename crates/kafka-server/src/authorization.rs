//! Compiles the rules of a connection when it first sends a request and whenever users or rules change, and closes
//! connections that may not be there any more. Requests that wait are checked again before they are answered.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_runtime::{ConnId, Io};
use mainstem_security::{Action, CertificateOutcome, Grants, Identity, Origin, Principal};

use crate::fetch_job::{Fetch, Location};
use crate::grants::ConnGrants;
use crate::log_in::{LogIn, Session};
use crate::partition_message::Fetched;
use crate::sender::Sender;
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
        if let Err(what) = self.identify(io, id) {
            self.refuse(io, id, what);
            return false;
        }
        match self.compiled_grants(id, io.clock.unix_ms) {
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

    /// Finds out who a connection is that need not log in, by its certificate, before its first request.
    fn identify(&mut self, io: &Io<'_, Mail>, id: ConnId) -> Result<(), &'static str> {
        let is_known = |log_in: &LogIn| !matches!(log_in, LogIn::NotRequired);
        if self.conns.get_mut(id).is_none_or(|conn| conn.grants.epoch.is_some() || is_known(&conn.log_in)) {
            return Ok(());
        }
        let identity = match self.check_certificate(io, id, false) {
            CertificateOutcome::Accepted(identity) => Some(identity),
            CertificateOutcome::Ignored(certified) => certified.confirm(Identity::default()),
            CertificateOutcome::Refused => None,
        };
        let identity =
            identity.ok_or("its certificate is that of no user who may log in (user_name_from)")?;
        if identity != Identity::default()
            && let Some(conn) = self.conns.get_mut(id)
        {
            let session = Session { identity, mechanism: None, since_ms: io.clock.now_ms, until_ms: None };
            conn.log_in = LogIn::LoggedIn(Arc::new(session));
        }
        Ok(())
    }

    /// Checks a fetch again that has waited while users or rules changed: records that arrived after the change must
    /// not be read by the rights from before it. Returns false if its connection was closed.
    pub(crate) fn recheck_fetch(&mut self, io: &mut Io<'_, Mail>, fetch: &mut Fetch) -> bool {
        let known = fetch.call.sender.as_ref().map(|sender| sender.grants.epoch());
        if known.is_none_or(|epoch| epoch == self.env.shared().security_epoch()) {
            return true;
        }
        let id = fetch.call.caller.conn;
        if !self.refresh_grants(io, id) {
            return false;
        }
        fetch.call.sender = self.conns.get_mut(id).and_then(|conn| conn.grants.sender.clone());
        for part in &mut fetch.parts {
            let Ok(Location { id, .. }) = part.location else { continue };
            let topic = self.env.catalogue().topic_by_id(id.topic);
            let checked = topic.map_or(Err(ErrorCode::UnknownTopicOrPartition), |topic| {
                fetch.call.check_topic(Action::Consume, &topic.name)
            });
            if let Err(code) = checked {
                part.fetched = Some(Fetched::failed(0, code));
            }
        }
        true
    }

    fn compiled_grants(&mut self, id: ConnId, unix_ms: u64) -> Result<ConnGrants, &'static str> {
        let shared = Arc::clone(self.env.shared());
        let Some(security) = shared.security() else {
            return Ok(ConnGrants { epoch: Some(shared.security_epoch()), sender: None });
        };
        let state = security.host.published().state();
        let Some(conn) = self.conns.get_mut(id) else { return Err("it is closed") };
        let nobody = Identity::default();
        let Identity { principal, proof } =
            conn.log_in.session().map_or(&nobody, |session| &session.identity);
        if !state.admits(principal, proof.as_deref()) {
            return Err(match principal {
                Principal::User(_) => "its user was deleted or disabled",
                Principal::Anonymous => {
                    "clients without a user are not served (security.allow_anonymous, kafka.sasl)"
                }
            });
        }
        if state.bans().find(principal.user().map(|user| &**user), None, conn.peer, unix_ms).is_some() {
            return Err("its user or address is banned");
        }
        let listener = shared.listener_name(conn.listener).map(Arc::clone);
        let address = conn.peer;
        let origin = Origin {
            principal,
            proof: proof.as_deref(),
            client_id: None,
            listener: listener.as_deref(),
            address,
        };
        let grants = Grants::compile(&state, &origin);
        if grants.denies_connection() {
            return Err("a rule denies its connection");
        }
        let identity = Identity { principal: principal.clone(), proof: proof.clone() };
        let host = Arc::clone(&security.host);
        let sender = Sender { grants, identity, listener, address, host };
        Ok(ConnGrants { epoch: Some(state.epoch()), sender: Some(Arc::new(sender)) })
    }
}
