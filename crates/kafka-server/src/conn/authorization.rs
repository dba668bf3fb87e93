//! Who a connection is, and what it may do: compiles its rules when it first sends a request and whenever users or
//! rules change. Requests that wait are checked again before they are answered.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_runtime::{ConnId, Io};
use mainstem_security::{
    Action, CertificateOutcome, Certified, Grants, Identity, Origin, PeerCertificate, Presented, Principal,
};

use super::Connections;
use crate::environment::Environment;
use crate::fetch_job::{Fetch, Location};
use crate::grants::ConnGrants;
use crate::log_in::{LogIn, PROTOCOL, Session};
use crate::partition_message::Fetched;
use crate::sender::Sender;

impl Connections {
    /// Compiles the rules of a connection that has logged in, unless they are those of the current users and rules.
    ///
    /// # Errors
    /// Why the connection must close: it may do nothing any more.
    pub(crate) fn refresh_grants<M>(
        &mut self,
        env: &Environment,
        io: &Io<'_, M>,
        id: ConnId,
    ) -> Result<(), &'static str> {
        let epoch = env.shared().security_epoch();
        let conn = self.get_mut(id).ok_or("it is closed")?;
        if conn.grants.epoch == Some(epoch) || !conn.log_in.is_complete() {
            return Ok(());
        }
        self.identify(env, io, id)?;
        self.check_ban(env, id, io.clock.unix_ms)?;
        let grants = self.compiled_grants(env, id)?;
        if let Some(conn) = self.get_mut(id) {
            conn.grants = grants;
        }
        Ok(())
    }

    /// Finds out who a connection is that need not log in, by its certificate, before its first request.
    fn identify<M>(&mut self, env: &Environment, io: &Io<'_, M>, id: ConnId) -> Result<(), &'static str> {
        let is_known = |log_in: &LogIn| !matches!(log_in, LogIn::NotRequired);
        if self.get_mut(id).is_none_or(|conn| conn.grants.epoch.is_some() || is_known(&conn.log_in)) {
            return Ok(());
        }
        let identity = match self.check_certificate(env, io, id, false) {
            CertificateOutcome::Accepted(identity) => Some(identity),
            CertificateOutcome::Ignored(certified) => certified.confirm(Identity::default()),
            CertificateOutcome::Refused => None,
        };
        let identity =
            identity.ok_or("its certificate is that of no user who may log in (user_name_from)")?;
        if identity != Identity::default()
            && let Some(conn) = self.get_mut(id)
        {
            let session = Session { identity, mechanism: None, since_ms: io.clock.now_ms, until_ms: None };
            conn.log_in = LogIn::LoggedIn(Arc::new(session));
        }
        Ok(())
    }

    /// What the certificate of a connection decides.
    pub(crate) fn check_certificate<M>(
        &mut self,
        env: &Environment,
        io: &Io<'_, M>,
        id: ConnId,
        has_password: bool,
    ) -> CertificateOutcome {
        let shared = env.shared();
        let (Some(security), Some(conn)) = (shared.security(), self.get_mut(id)) else {
            return CertificateOutcome::Ignored(Certified::default());
        };
        let proxied = || io.proxied_client(id)?.common_name.as_deref();
        let certificate = io.peer_certificate(id).map(PeerCertificate::Der);
        security.host.check_certificate(&Presented {
            listener: shared.listener_name(conn.listener).map_or("", |name| &**name),
            certificate: certificate.or_else(|| proxied().map(PeerCertificate::CommonName)),
            has_password,
            address: conn.peer,
            protocol: PROTOCOL,
        })
    }

    /// Checks a fetch again that has waited while users, rules or bans changed, or while its session ended: records
    /// that arrived after that must not be read by the rights from before it.
    ///
    /// # Errors
    /// Why its connection must close.
    pub(crate) fn recheck_fetch<M>(
        &mut self,
        env: &Environment,
        io: &Io<'_, M>,
        fetch: &mut Fetch,
    ) -> Result<(), &'static str> {
        let id = fetch.call.caller.conn;
        if fetch.has_parked {
            let conn = self.get_mut(id).ok_or("it is closed")?;
            conn.log_in.check(fetch.call.api_key, io.clock.now_ms)?;
        }
        let known = fetch.call.sender.as_ref().map(|sender| sender.grants.epoch());
        if known.is_none_or(|epoch| epoch == env.shared().security_epoch()) {
            return Ok(());
        }
        self.refresh_grants(env, io, id)?;
        // The bans of client ids are checked with the quotas.
        self.refresh_quotas(env, io, id)?;
        fetch.call.sender = self.get_mut(id).and_then(|conn| conn.grants.sender.clone());
        for part in &mut fetch.parts {
            let Ok(Location { id, .. }) = part.location else { continue };
            let topic = env.catalogue().topic_by_id(id.topic);
            let checked = topic.map_or(Err(ErrorCode::UnknownTopicOrPartition), |topic| {
                fetch.call.check_topic(Action::Consume, &topic.name)
            });
            if let Err(code) = checked {
                part.fetched = Some(Fetched::failed(0, code));
            }
        }
        Ok(())
    }

    fn compiled_grants(&mut self, env: &Environment, id: ConnId) -> Result<ConnGrants, &'static str> {
        let shared = env.shared();
        let Some(security) = shared.security() else {
            return Ok(ConnGrants { epoch: Some(shared.security_epoch()), sender: None });
        };
        let state = security.host.published().state();
        let conn = self.get_mut(id).ok_or("it is closed")?;
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
