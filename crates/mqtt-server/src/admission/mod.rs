//! Which clients a shard accepts: what a CONNECT may ask for, who sends it, and how fast it may publish (3.1, 4.12).
//!
//! A client is refused for reasons that have nothing to do with each other: limits of the configuration, bans,
//! certificates, passwords, rules, quotas. [`Admission`] decides, and returns its decision as data. It changes neither
//! connections nor sessions: [`Shard`](crate::Shard) holds, answers or closes the connection, and changes the session.
//! So each decision can be tested without a connection, and every refusal has the same effects. Users, bans and counts
//! that all shards share are read and never copied, so a change counts from the next decision on. Only the time of the
//! last log line of each kind is state of its own: clients cause these lines.

mod connack;
mod exchange;
mod peer;
mod quotas;
mod rights;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use mainstem_mqtt::{Connect, Publish, ReasonCode, Version};
use mainstem_quota::{ClientQuotas, MQTT_KEYS, QuotaKey};
use mainstem_runtime::{Clock, ConnId};
use mainstem_security::{CertificateOutcome, Identity, Principal, SecurityState};
use mainstem_topic::{check_name, level_count};

pub(crate) use self::connack::{Granted, accepted, rejected};
pub(crate) use self::exchange::{Progress, authenticate};
pub(crate) use self::peer::Peer;
pub(crate) use self::quotas::QuotaOutcome;
pub(crate) use self::rights::{Narrowing, Renewal, narrowing, renew};

use self::rights::may_take_over;
use crate::access::Access;
use crate::broker_state::Shared;
use crate::config::Redirect;
use crate::log_interval::LogInterval;
use crate::queue_consumers::{is_of_queue, queue_of};
use crate::session::Session;
use crate::session::account::new_session_cost;
use crate::wills::will_content;

/// Characters of a client identifier in log lines about wills that are too large.
const LOGGED_CHARS: usize = 128;

/// Decides which clients a shard accepts.
pub(crate) struct Admission {
    me: u16,
    shared: Arc<Shared>,
    /// Log lines about wills that are too large for their sessions.
    will_log: LogInterval,
    /// Log lines about clients that wait for a quota, or are banned.
    refusal_log: LogInterval,
}

/// What a shard knows when a CONNECT arrives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectContext {
    /// The shard accepts no more clients.
    pub(crate) is_draining: bool,
    /// The CONNECT has waited for the end of a durable session.
    pub(crate) has_waited: bool,
    pub(crate) is_persistence_enabled: bool,
}

/// How far the log-in of a CONNECT is.
#[derive(Debug)]
pub(crate) enum LoggedIn {
    /// The client is who it says.
    As(Identity),
    /// The password or token is being verified.
    NotYet,
}

impl Admission {
    pub(crate) fn new(me: u16, shared: Arc<Shared>) -> Self {
        Self { me, shared, will_log: LogInterval::default(), refusal_log: LogInterval::default() }
    }

    /// Checks everything about a CONNECT that does not depend on sessions or users.
    pub(crate) fn check_connect(
        &self,
        connect: &Connect<'_>,
        context: ConnectContext,
    ) -> Result<(), ReasonCode> {
        let config = &self.shared.config;
        if context.is_draining {
            return Err(ReasonCode::ServerUnavailable);
        }
        match config.redirect {
            Redirect::None => {}
            Redirect::UseAnotherServer => return Err(ReasonCode::UseAnotherServer),
            Redirect::ServerMoved => return Err(ReasonCode::ServerMoved),
        }
        if self.shared.has_too_many_connections() {
            return Err(ReasonCode::QuotaExceeded);
        }
        let is_persistent = match connect.version {
            Version::V5 => connect.session_expiry.unwrap_or(0) > 0,
            _ => !connect.clean_start,
        };
        let needs_disk = (is_persistent || context.has_waited) && context.is_persistence_enabled;
        if needs_disk && self.shared.is_failing() {
            return Err(ReasonCode::ServerUnavailable);
        }
        let method = connect.authentication_method;
        if method.is_some_and(|name| self.shared.security.method(name).is_none()) {
            return Err(ReasonCode::BadAuthenticationMethod);
        }
        if connect.client_id.is_empty() {
            // 3.1 has no empty identifier; 3.1.1 allows it only to a clean session [MQTT-3.1.3-8].
            let allowed = match connect.version {
                Version::V3 => false,
                Version::V4 => connect.clean_start,
                Version::V5 => true,
            };
            if !allowed || !config.allow_empty_client_id {
                return Err(ReasonCode::ClientIdentifierNotValid);
            }
        }
        connect.will.as_ref().map_or(Ok(()), |will| self.check_will(will))
    }

    fn check_will(&self, will: &mainstem_mqtt::Will<'_>) -> Result<(), ReasonCode> {
        let config = &self.shared.config;
        if check_name(will.topic).is_err()
            || level_count(will.topic) > usize::from(config.max_topic_levels)
            || will.topic.starts_with("$SYS/")
            || (is_of_queue(will.topic) && queue_of(will.topic).is_none())
        {
            return Err(ReasonCode::TopicNameInvalid);
        }
        if will.properties.response_topic.is_some_and(|topic| check_name(topic).is_err()) {
            return Err(ReasonCode::ProtocolError);
        }
        if will.qos > config.qos_max() {
            return Err(ReasonCode::QoSNotSupported);
        }
        if will.retain && !config.retain_available {
            return Err(ReasonCode::RetainNotSupported);
        }
        Ok(())
    }

    /// Whether the will of a CONNECT is within the limit of its session: the one that it resumes, or a new one.
    /// Refusals are logged, at intervals.
    pub(crate) fn has_room_for_will(
        &mut self,
        connect: &Connect<'_>,
        client_id: &str,
        resumed: Option<&Session>,
        now_ms: u64,
    ) -> bool {
        let Some(will) = &connect.will else { return true };
        let bytes_max = self.shared.config.max_session_bytes;
        // The will of the session is replaced.
        let kept = resumed.map_or(new_session_cost(client_id), |session| {
            session.memory() - session.ext_ref().map_or(0, |ext| ext.will.bytes())
        });
        let has_room = kept + will_content(will, None).size() as u64 <= bytes_max;
        if !has_room && self.will_log.is_due(now_ms) {
            let client_id: String = client_id.chars().take(LOGGED_CHARS).collect();
            log::warn!(
                "client {client_id:?} is refused: with its will, its session would have more than {bytes_max} bytes (mqtt.max_session_bytes)"
            );
        }
        has_room
    }

    // Bans.

    /// Checks a CONNECT against the bans of addresses and client ids.
    pub(crate) fn check_bans(
        &mut self,
        connect: &Connect<'_>,
        address: Option<IpAddr>,
        clock: Clock,
    ) -> Result<(), ReasonCode> {
        let client_id = Some(connect.client_id).filter(|client_id| !client_id.is_empty());
        let client = (None, client_id, address);
        match self.shared.security.ban(client, clock.unix_ms) {
            Some(ban) => self.refuse_banned(client, &ban, clock),
            None => Ok(()),
        }
    }

    /// Checks the user of a CONNECT against the bans.
    pub(crate) fn check_user_ban(
        &mut self,
        connect: &Connect<'_>,
        principal: &Principal,
        address: Option<IpAddr>,
        clock: Clock,
    ) -> Result<(), ReasonCode> {
        let user = principal.user().map(|user| &**user);
        match self.shared.security.ban((user, None, None), clock.unix_ms) {
            Some(ban) => self.refuse_banned((user, Some(connect.client_id), address), &ban, clock),
            None => Ok(()),
        }
    }

    /// Counts a CONNECT for its client id, which is banned for a while if it connects too often.
    pub(crate) fn check_flapping(
        &mut self,
        connect: &Connect<'_>,
        address: Option<IpAddr>,
        clock: Clock,
    ) -> Result<(), ReasonCode> {
        let client_id = connect.client_id;
        let flapping = &self.shared.flapping;
        if client_id.is_empty() || !flapping.is_enabled() || !flapping.count(client_id, clock.now_ms) {
            return Ok(());
        }
        self.shared.security.ban_client_id(client_id, clock.unix_ms, self.shared.config.flapping_ban_s);
        let ban = format!("client id {client_id:?}, which connects too often");
        self.refuse_banned((None, Some(client_id), address), &ban, clock)
    }

    /// Notes a refused client, of which this is known: user, client id and address.
    fn refuse_banned(
        &mut self,
        client: (Option<&str>, Option<&str>, Option<IpAddr>),
        ban: &str,
        clock: Clock,
    ) -> Result<(), ReasonCode> {
        if self.refusal_log.is_due(clock.now_ms) {
            log::info!("a client is refused: a ban of {ban}");
        }
        self.shared.security.note_banned(client);
        Err(ReasonCode::Banned)
    }

    // Who the client is, and what it may do.

    /// Finds out who sends a CONNECT, or begins to verify its password: the result arrives in a later turn.
    pub(crate) fn log_in(
        &self,
        conn: ConnId,
        connect: &Connect<'_>,
        peer: Peer<'_>,
    ) -> Result<LoggedIn, ReasonCode> {
        let security = &self.shared.security;
        let Some(state) = security.state() else {
            return Ok(LoggedIn::As(Identity::default()));
        };
        let certified = match peer.check_certificate(security, connect.password.is_some()) {
            CertificateOutcome::Accepted(identity) => return Ok(LoggedIn::As(identity)),
            CertificateOutcome::Refused => return Err(ReasonCode::NotAuthorized),
            CertificateOutcome::Ignored(certified) => certified,
        };
        if !presents_log_in(connect, &state) {
            let anonymous = certified.confirm(Identity::default()).filter(|_| state.allows_anonymous());
            return anonymous.map(LoggedIn::As).ok_or(ReasonCode::NotAuthorized);
        }
        let (user, password) = (connect.username.unwrap_or_default(), connect.password.unwrap_or_default());
        let credentials = (connect.client_id, user, password);
        security.log_in(self.me, conn, credentials, certified, peer.address());
        Ok(LoggedIn::NotYet)
    }

    /// Checks what a CONNECT asks for against the rules: the connection, its will, and the session that it resumes.
    /// Returns the rights of its session.
    pub(crate) fn check_rights(
        &self,
        connect: &Connect<'_>,
        client_id: &str,
        identity: &Identity,
        peer: Peer<'_>,
        resumed: Option<&Session>,
    ) -> Result<Option<Access>, ReasonCode> {
        let security = &self.shared.security;
        let state = security.state();
        let Some(state) = state.filter(|state| state.has_log_ins() || state.has_rules()) else {
            return Ok(None);
        };
        // The user may have been disabled while its password was being checked.
        if !state.admits(&identity.principal, identity.proof.as_deref()) {
            return Err(ReasonCode::NotAuthorized);
        }
        let access = Access::new(security, identity.clone(), client_id, peer.place(security));
        let Some(access) = access else { return Ok(None) };
        if !access.may_connect() {
            access.connect_denied(security, client_id);
            return Err(ReasonCode::NotAuthorized);
        }
        if let Some(will) = connect.will.as_ref().filter(|will| !access.may_publish(will.topic)) {
            access.publish_denied(security, client_id, will.topic);
            return Err(ReasonCode::NotAuthorized);
        }
        if resumed.is_some_and(|session| !may_take_over(&state, session.access(), identity)) {
            log::info!("client {client_id:?} is refused: its session belongs to another user");
            access.connect_denied(security, client_id);
            return Err(ReasonCode::NotAuthorized);
        }
        Ok(Some(access))
    }

    // Quotas.

    /// The quotas of the client of a session, if it has any.
    pub(crate) fn find_quotas(&self, session: &Session, now_ms: u64) -> Option<Arc<ClientQuotas>> {
        let user = session.user().map(|user| &**user);
        self.shared.security.quotas((user, session.client_id()), MQTT_KEYS, now_ms)
    }

    /// Counts a PUBLISH of a client with quotas, and decides what becomes of it.
    pub(crate) fn check_quotas(
        &mut self,
        quotas: &ClientQuotas,
        session: &Session,
        publish: &Publish<'_>,
        now_ms: u64,
    ) -> QuotaOutcome {
        let policy = self.shared.config.quota_policy;
        let outcome = quotas::decide(quotas, usize::from(self.me), policy, session, publish, now_ms);
        match outcome {
            QuotaOutcome::Within | QuotaOutcome::Wait { .. } => {}
            QuotaOutcome::Disconnect { key } => self.shared.security.note_refused(key),
            QuotaOutcome::Refuse { key } => {
                self.shared.security.note_refused(key);
                self.log_quota(session, key, now_ms, format_args!("its message is refused"));
            }
        }
        outcome
    }

    /// Notes that a client begins to wait for a quota.
    pub(crate) fn note_throttled(&mut self, session: &Session, key: QuotaKey, wait_ms: u64, now_ms: u64) {
        self.shared.security.note_throttled(key, wait_ms);
        self.log_quota(session, key, now_ms, format_args!("it is not read for {wait_ms} ms"));
    }

    fn log_quota(&mut self, session: &Session, key: QuotaKey, now_ms: u64, what: std::fmt::Arguments<'_>) {
        if self.refusal_log.is_due(now_ms) {
            let client_id = session.client_id();
            log::info!("client {client_id:?}: the quota {key} is exceeded, {what}");
        }
    }
}

/// Whether a CONNECT has something to be verified. Without users, user name and password are ignored. MQTT 5 has
/// passwords without a user name, which a token may be.
fn presents_log_in(connect: &Connect<'_>, state: &SecurityState) -> bool {
    state.has_log_ins() && (connect.username.is_some() || connect.password.is_some())
}
