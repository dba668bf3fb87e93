//! Users and rules on a shard: log-ins of CONNECT, and changes of users and rules while clients are connected.
//!
//! Verifying a password takes tens of milliseconds, so the host of users does it on another thread. The CONNECT is held
//! meanwhile, and the next turn takes the results.
//!
//! A change of users, rules or bans calls for action by itself: clients that may not be connected any more are
//! disconnected, and memberships in groups and queue subscriptions that are no longer allowed end.
//! [`Shard::poll_security`] walks through all sessions for that, a part per turn. Ordinary subscriptions stay: what
//! they may not get is left out at delivery.

use std::net::IpAddr;
use std::sync::Arc;

use mainstem_mqtt::{Connect, ReasonCode};
use mainstem_runtime::{ConnId, Io};
use mainstem_security::{
    CertificateOutcome, Identity, LogInResult, PeerCertificate, SecurityState, SubscribeDecision,
};
use mainstem_topic::parse_subscription;

use super::Shard;
use crate::access::Access;
use crate::broker_state::Mail;
use crate::connections::{ConnState, LogInState};
use crate::handled::{Handled, ProtocolError};
use crate::journal::entry::Entry;
use crate::queue_consumers::SessionConsumers;
use crate::session::SessionExt;
use crate::timers::Timer;

/// Longest time after which the end of a proof is looked at again, ms: the clock may have been set meanwhile.
const PROOF_CHECK_MS_MAX: u64 = 60_000;
/// Cost of renewing the rights of a session, and of each of its subscriptions, units.
const RENEWAL_UNITS: u32 = 10;
const SUBSCRIPTION_UNITS: u32 = 2;

/// Whether a CONNECT has something to be verified. Without users, user name and password are ignored. MQTT 5 has
/// passwords without a user name, which a token may be.
fn presents_log_in(connect: &Connect<'_>, state: &SecurityState) -> bool {
    state.has_log_ins() && (connect.username.is_some() || connect.password.is_some())
}

/// What a CONNECT comes to before its session is looked for.
pub(super) enum LoggedIn {
    /// The client is who it says.
    As(Identity),
    /// The password or token is being verified.
    NotYet,
}

impl Shard {
    /// Finds out who sends a CONNECT. The connection waits, unread, while its password is verified.
    pub(super) fn log_in(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
    ) -> Result<LoggedIn, ReasonCode> {
        match self.connections.log_in(conn) {
            LogInState::Waiting => return Ok(LoggedIn::NotYet),
            LogInState::Over(LogInResult::Accepted(identity)) => return Ok(LoggedIn::As(identity)),
            LogInState::Over(LogInResult::Rejected) => return Err(ReasonCode::BadUserNameOrPassword),
            LogInState::Over(LogInResult::Busy) => return Err(ReasonCode::ServerBusy),
            LogInState::Over(LogInResult::Unavailable) => return Err(ReasonCode::ServerUnavailable),
            LogInState::None => {}
        }
        let Some(state) = self.shared.security.state() else {
            return Ok(LoggedIn::As(Identity::default()));
        };
        let address = io.peer_address(conn);
        let proxied = || io.proxied_client(conn)?.common_name.as_deref();
        let certificate = io.peer_certificate(conn).map(PeerCertificate::Der);
        let certificate = certificate.or_else(|| proxied().map(PeerCertificate::CommonName));
        let (listener, has_password) = (self.connections.listener(conn), connect.password.is_some());
        let certified =
            match self.shared.security.check_certificate(listener, certificate, has_password, address) {
                CertificateOutcome::Accepted(identity) => return Ok(LoggedIn::As(identity)),
                CertificateOutcome::Refused => return Err(ReasonCode::NotAuthorized),
                CertificateOutcome::Ignored(certified) => certified,
            };
        if !presents_log_in(connect, &state) {
            let anonymous = certified.confirm(Identity::default()).filter(|_| state.allows_anonymous());
            return anonymous.map(LoggedIn::As).ok_or(ReasonCode::NotAuthorized);
        }
        self.connections.set_log_in(conn, LogInState::Waiting);
        let (user, password) = (connect.username.unwrap_or_default(), connect.password.unwrap_or_default());
        let credentials = (connect.client_id, user, password);
        self.shared.security.log_in(self.me, conn, credentials, certified, address);
        Ok(LoggedIn::NotYet)
    }

    /// When what proves who the client of a session is ends, Unix time in ms.
    fn proof_ends_ms(&mut self, slot: u32) -> Option<u64> {
        self.host.session(slot).access().and_then(|access| access.identity().expires_ms())
    }

    /// Arms the timer that ends a connection with what proves who its client is.
    pub(super) fn arm_proof(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, slot: u32) {
        if let Some(ends_ms) = self.proof_ends_ms(slot) {
            let left_ms = ends_ms.saturating_sub(io.clock.unix_ms).min(PROOF_CHECK_MS_MAX);
            io.set_timer(io.clock.now_ms + left_ms, Timer::Proof(conn).token());
        }
    }

    /// Ends a connection whose token has expired.
    pub(super) fn check_proof(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        let Some(ConnState::Serving(slot)) = self.connections.find(conn) else { return };
        let Some(ends_ms) = self.proof_ends_ms(slot) else { return };
        if io.clock.unix_ms < ends_ms {
            return self.arm_proof(io, conn, slot);
        }
        let client_id = self.host.session(slot).client_id();
        log::info!("client {client_id:?} is disconnected: its token has expired");
        self.disconnect(io, slot, ReasonCode::MaximumConnectTime, Some("the token has expired"));
    }

    /// Whether a CONNECT waits for its password to be verified.
    pub(super) fn is_logging_in(&self, conn: ConnId) -> bool {
        matches!(self.connections.log_in(conn), LogInState::Waiting)
    }

    /// Takes the results of log-ins, and begins to renew the rights of all sessions if users or rules have changed.
    pub(super) fn poll_security(&mut self, io: &mut Io<'_, Mail>) {
        for (conn, result) in self.shared.security.take_results(self.me) {
            self.connections.end_log_in(conn, result);
        }
        let epoch = self.shared.security.epoch();
        if let Some(from) = self.host.begin_renewal(epoch) {
            self.renew_sessions(io, from);
        }
    }

    /// Renews the rights of sessions from a slot on, as far as the turn allows.
    fn renew_sessions(&mut self, io: &mut Io<'_, Mail>, from: u32) {
        for slot in self.host.slots_from(from) {
            if io.is_exhausted() {
                self.host.continue_renewal_at(slot);
                io.request_turn();
                return;
            }
            io.charge(RENEWAL_UNITS);
            self.renew_session(io, slot);
        }
    }

    /// Where a client is: the name of its listener, and its address.
    fn place(&self, io: &Io<'_, Mail>, conn: ConnId) -> (Option<Arc<str>>, Option<IpAddr>) {
        let listener = self.shared.security.listener(self.connections.listener(conn));
        (listener.cloned(), io.peer_address(conn))
    }

    fn renew_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let shared = Arc::clone(&self.shared);
        let Some(state) = shared.security.state() else { return };
        let session = self.host.session(slot);
        let (conn, is_connected) = (session.conn(), session.is_connected());
        let client_id = Arc::clone(session.client_id());
        let renewed = if let Some(access) = session.access() {
            access.renewed(&shared.security, &client_id)
        } else {
            let place = if is_connected { self.place(io, conn) } else { (None, None) };
            Access::new(&shared.security, Identity::default(), &client_id, place)
        };
        let Some(access) = renewed else { return };
        let identity = access.identity();
        let is_known = state.admits(&identity.principal, identity.proof.as_deref());
        let may_connect = access.may_connect();
        let user = access.principal().user().map(ToString::to_string);
        self.host.session(slot).set_access(Some(access));
        if !is_connected {
            if is_known {
                self.narrow(io, slot);
            } else {
                // Its user may be enabled again, or its client return with another API key: it keeps what it has
                // subscribed to, and gets nothing that it may not have.
                self.host.session(slot).set_narrowed(true);
            }
            return;
        }
        let subject = (user.as_deref(), Some(&*client_id), io.peer_address(conn));
        if let Some(ban) = shared.security.ban(subject, io.clock.unix_ms) {
            log::info!("client {client_id:?} is disconnected: a ban of {ban}");
            shared.security.note_banned(subject);
            return self.disconnect(io, slot, ReasonCode::AdministrativeAction, Some("the client is banned"));
        }
        self.refresh_quotas(io, conn, slot);
        if !(is_known && may_connect) {
            log::info!("client {client_id:?} is disconnected: its user may not be connected any more");
            let what = Some("the user may not be connected any more");
            self.disconnect(io, slot, ReasonCode::NotAuthorized, what);
            return;
        }
        self.narrow(io, slot);
    }

    /// Finds out whether messages of a session have to be checked at delivery. Ends its queue subscriptions that are
    /// not allowed, and its memberships in groups that it may not read as a whole: a group must not give a message to
    /// a member that does not get it.
    pub(super) fn narrow(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.host.session(slot);
        io.charge(session.subscription_count() as u32 * SUBSCRIPTION_UNITS);
        let Some(access) = session.access() else { return };
        let allows = |filter: &str| access.subscribe(filter) == SubscribeDecision::Allowed;
        let mut filters = session.subscriptions().iter();
        let is_narrowed =
            !filters.all(|known| self.shared.routes.name(known.filter).is_some_and(|name| allows(&name)));
        let left: Vec<(String, String)> = session
            .groups()
            .iter()
            .filter(|group| !allows(&group.filter))
            .map(|group| (group.name.to_string(), group.filter.to_string()))
            .collect();
        let consumers = session.ext_ref().and_then(SessionExt::consumers);
        let queues: Vec<String> = consumers
            .into_iter()
            .flat_map(SessionConsumers::subscriptions)
            .map(|known| known.filter().to_owned())
            .filter(|filter| !parse_subscription(filter).is_ok_and(|parsed| allows(parsed.filter)))
            .collect();
        session.set_narrowed(is_narrowed);
        for filter in queues {
            self.unsubscribe_from_queue(io, slot, &filter);
            if let Some((mut journal, session)) = self.host.journal(slot) {
                journal.push(&Entry::Unsubscribe { session, filter: &filter });
            }
        }
        for (name, filter) in left {
            self.host.leave_group(slot, &filter, &name);
            if let Some((mut journal, session)) = self.host.journal(slot) {
                let filter = format!("$share/{name}/{filter}");
                journal.push(&Entry::Unsubscribe { session, filter: &filter });
            }
        }
    }

    /// Checks what a CONNECT asks for against the rules: the connection, its will, and whose session it resumes.
    pub(super) fn check_rights(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        client_id: &str,
        identity: &Identity,
    ) -> Result<Option<Access>, ReasonCode> {
        let shared = Arc::clone(&self.shared);
        let state = shared.security.state();
        if !state.as_ref().is_some_and(|state| state.has_log_ins() || state.has_rules()) {
            return Ok(None);
        }
        // The user may have been disabled while its password was being checked.
        let proof = identity.proof.as_deref();
        if !state.is_some_and(|state| state.admits(&identity.principal, proof)) {
            return Err(ReasonCode::NotAuthorized);
        }
        let access = Access::new(&shared.security, identity.clone(), client_id, self.place(io, conn));
        let Some(access) = access else { return Ok(None) };
        if !access.may_connect() {
            access.connect_denied(&shared.security, client_id);
            return Err(ReasonCode::NotAuthorized);
        }
        if let Some(will) = connect.will.as_ref().filter(|will| !access.may_publish(will.topic)) {
            access.publish_denied(&shared.security, client_id, will.topic);
            return Err(ReasonCode::NotAuthorized);
        }
        let known = shared.registry.find(client_id).filter(|known| known.shard == self.me);
        if let Some(known) = known
            && !self.host.may_take_over(known, identity)
        {
            log::info!("client {client_id:?} is refused: its session belongs to another user");
            access.connect_denied(&shared.security, client_id);
            return Err(ReasonCode::NotAuthorized);
        }
        Ok(Some(access))
    }

    /// Answers a CONNECT with an error. The caller closes the connection.
    pub(super) fn refuse_connect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        reason: ReasonCode,
    ) -> Handled {
        self.reject_connect(io, conn, connect.version, connect.maximum_packet_size, reason);
        Err(ProtocolError::new(reason, "CONNECT is refused"))
    }
}
