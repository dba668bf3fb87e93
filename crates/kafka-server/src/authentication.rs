//! Carries out log-ins: looks users up, has passwords checked, answers tokens, closes after failures.
//!
//! The exchange of SASL tokens is a machine of `mainstem-sasl`; this file gives it what it needs. Passwords and tokens
//! are verified by the host on another thread, and the request waits for the result. SCRAM needs a few hashes only, and
//! is answered in the same turn.
//!
//! An unknown user must look like a wrong password, in the answer and in its time, and failures are answered after a
//! delay, in which the input of the connection is discarded. Limits of failures are checked again with each token,
//! because many connections may have begun at once.

use std::sync::Arc;

use mainstem_kafka::api::sasl_authenticate::{SaslAuthenticateRequest, SaslAuthenticateResponse};
use mainstem_kafka::{ErrorCode, frame};
use mainstem_runtime::{ConnId, Io};
use mainstem_sasl::{Failure, Mechanism, NONCE_BYTES, Step};
use mainstem_security::{
    Attempt, CertificateOutcome, Certified, Identity, LogIn as PasswordLogIn, LogInResult, MAX_NAME_BYTES,
};

use crate::grants::ConnGrants;
use crate::log_in::{Exchanging, LogIn, PROTOCOL, Session, TokenReply};
use crate::security::SecurityReply;
use crate::shard::Shard;
use crate::shard_message::{Caller, Mail, RequestContext};
use crate::timer::Timer;

/// The message of a log-in that is not verified, because of others.
const BUSY: &str = "Authentication failed: too many log-ins are in progress or have failed, try again later";
/// Cost of a token of SCRAM in units of the turn's budget: a few computations of HMAC.
const TOKEN_UNITS: u32 = 100;

impl Shard {
    /// The log-in of a connection that a listener has accepted, or another shard has handed over.
    pub(crate) fn accepted_log_in(&self, io: &mut Io<'_, Mail>, listener: u16) -> LogIn {
        let session = io.take_baggage().and_then(|baggage| baggage.downcast::<Arc<Session>>().ok());
        match session {
            Some(session) => LogIn::LoggedIn(*session),
            None => LogIn::of_listener(self.env.shared().mechanisms(listener), io.clock.now_ms),
        }
    }

    /// Begins a frame that is a token, after version 0 of the handshake.
    pub(crate) fn begin_bare_token(&mut self, io: &mut Io<'_, Mail>, id: ConnId, token: &[u8]) {
        let me = self.env.me();
        let Some(conn) = self.conns.get_mut(id) else { return };
        let caller = Caller { shard: me, conn: id, request: conn.begin(false) };
        self.on_token(io, TokenReply::Frame(caller), token);
    }

    /// Handles a token of a connection whose log-in expects one.
    pub(crate) fn on_token(&mut self, io: &mut Io<'_, Mail>, reply: TokenReply, token: &[u8]) {
        io.charge(TOKEN_UNITS);
        let Some(exchanging) = self.exchanging(reply.caller()) else { return };
        // Others may have failed since the first token: a limit that is checked once does not hold for many at once.
        if let Some(user) = exchanging.user.clone()
            && !self.may_attempt(reply.caller(), &user)
        {
            return self.fail_log_in(io, &reply, BUSY);
        }
        let Some(exchanging) = self.exchanging(reply.caller()) else { return };
        let step = exchanging.exchange.receive(token);
        self.on_step(io, reply, step);
    }

    fn exchanging(&mut self, caller: Caller) -> Option<&mut Exchanging> {
        match &mut self.conns.get_mut(caller.conn)?.log_in {
            LogIn::Exchanging(exchanging) => Some(exchanging),
            _ => None,
        }
    }

    fn on_step(&mut self, io: &mut Io<'_, Mail>, reply: TokenReply, step: Step) {
        match step {
            // No user has such a name, which would be held until the log-in ends.
            Step::FindKeys { user, .. } if user.len() > MAX_NAME_BYTES => {
                self.on_failure(io, &reply, Failure::Credentials);
            }
            Step::FindKeys { user, algorithm } => {
                if !self.may_attempt(reply.caller(), &user) {
                    return self.fail_log_in(io, &reply, BUSY);
                }
                let security = self.env.shared().security();
                let state = security.map(|security| security.host.published().state()).unwrap_or_default();
                let secret = security.map_or([0; 32], |security| security.unknown_user_secret);
                let (keys, shown) = state.scram_keys(&user, algorithm, &secret);
                let Some(exchanging) = self.exchanging(reply.caller()) else { return };
                exchanging.user = Some(user.into());
                let step = exchanging.exchange.keys_found(keys, shown);
                self.on_step(io, reply, step);
            }
            Step::CheckPassword { user, password } => {
                self.check_password(io, reply, &user, password.expose());
            }
            Step::CheckToken { token } => self.check_password(io, reply, "", token.expose()),
            Step::Challenge(token) => self.answer_token(io, &reply, &token, 0),
            Step::Success { user, message } => self.on_log_in(io, &reply, &user, &message),
            Step::Failure(failure) => self.on_failure(io, &reply, failure),
        }
    }

    /// Whether the keys of a user may be tried. Passwords are counted by the host, which checks them.
    fn may_attempt(&mut self, caller: Caller, user: &str) -> bool {
        let address = self.conns.get_mut(caller.conn).and_then(|conn| conn.peer);
        let attempt = Attempt { user, address, protocol: PROTOCOL };
        self.env.shared().security().is_none_or(|security| security.host.may_attempt(&attempt))
    }

    /// Tells the host how a log-in with the keys of a user has ended.
    fn attempted(&mut self, caller: Caller, is_accepted: bool) {
        let Some(conn) = self.conns.get_mut(caller.conn) else { return };
        let LogIn::Exchanging(exchanging) = &conn.log_in else { return };
        let Some(user) = &exchanging.user else { return };
        let attempt = Attempt { user, address: conn.peer, protocol: PROTOCOL };
        if let Some(security) = self.env.shared().security() {
            security.host.attempted(&attempt, is_accepted);
        }
    }

    /// What is known of the certificate of a connection that logs in by SASL, which decides who it is, as in Kafka.
    /// `None` if the certificate does not permit that.
    fn certified(&mut self, io: &Io<'_, Mail>, id: ConnId) -> Option<Certified> {
        match self.conns.check_certificate(&self.env, io, id, true) {
            CertificateOutcome::Ignored(certified) => Some(certified),
            CertificateOutcome::Accepted(_) | CertificateOutcome::Refused => None,
        }
    }

    /// Has a password or a token checked on another thread.
    fn check_password(&mut self, io: &mut Io<'_, Mail>, reply: TokenReply, user: &str, password: &str) {
        let caller = reply.caller();
        let Some(host) = self.env.shared().security().map(|security| Arc::clone(&security.host)) else {
            return self.fail_log_in(io, &reply, "Authentication failed: the broker has no users");
        };
        let Some(certified) = self.certified(io, caller.conn) else {
            return self.on_failure(io, &reply, Failure::Credentials);
        };
        let Some(conn) = self.conns.get_mut(caller.conn) else { return };
        let address = conn.peer;
        let LogIn::Exchanging(exchanging) = &mut conn.log_in else { return };
        exchanging.waiting = Some(reply);
        let password = password.as_bytes().to_vec();
        let log_in = PasswordLogIn { user: user.into(), password, certified, address, protocol: PROTOCOL };
        let (me, shared) = (self.env.me(), Arc::clone(self.env.shared()));
        let on_result =
            move |result| shared.security_replies.push(me, SecurityReply::LogIn { caller, result });
        host.log_in(log_in, Box::new(on_result));
    }

    /// A password has been checked.
    pub(crate) fn on_password_checked(&mut self, io: &mut Io<'_, Mail>, caller: Caller, result: LogInResult) {
        let Some(exchanging) = self.exchanging(caller) else { return };
        let Some(reply) = exchanging.waiting.take() else { return };
        let step = match result {
            LogInResult::Busy => return self.fail_log_in(io, &reply, BUSY),
            result => {
                exchanging.identity = match result {
                    LogInResult::Accepted(identity) => Some(identity),
                    LogInResult::Rejected | LogInResult::Busy => None,
                };
                let user = exchanging.identity.as_ref().and_then(Identity::user);
                if exchanging.mechanism == Mechanism::OauthBearer {
                    exchanging.exchange.token_checked(user.map(|user| &**user))
                } else {
                    exchanging.exchange.password_checked(user.is_some())
                }
            }
        };
        self.on_step(io, reply, step);
    }

    /// The client has proven to be this user.
    fn on_log_in(&mut self, io: &mut Io<'_, Mail>, reply: &TokenReply, user: &str, token: &[u8]) {
        let now_ms = io.clock.now_ms;
        let checked = self.exchanging(reply.caller()).and_then(|exchanging| exchanging.identity.take());
        let identity = checked.or_else(|| {
            let certified = self.certified(io, reply.caller().conn)?;
            certified.confirm(Identity::of_user(&user.into()))
        });
        // A password may have been a token, of another user.
        let is_same = |identity: &Identity| identity.user().is_some_and(|known| **known == *user);
        let Some(identity) = identity.filter(is_same) else {
            return self.on_failure(io, reply, Failure::Credentials);
        };
        let lifetime_ms = self.lifetime_ms(io, &identity);
        let Some(exchanging) = self.exchanging(reply.caller()) else { return };
        if !exchanging.continues(user) {
            let message = "Authentication failed: neither the user nor the mechanism of a session may change";
            return self.fail_log_in(io, reply, message);
        }
        let mechanism = exchanging.mechanism;
        self.attempted(reply.caller(), true);
        let session = Session {
            identity,
            mechanism: Some(mechanism),
            since_ms: now_ms,
            until_ms: (lifetime_ms > 0).then(|| now_ms.saturating_add(lifetime_ms)),
        };
        if let Some(conn) = self.conns.get_mut(reply.caller().conn) {
            conn.log_in = LogIn::LoggedIn(Arc::new(session));
            conn.grants = ConnGrants::default();
        }
        self.answer_token(io, reply, token, lifetime_ms);
    }

    /// How long a session lasts, ms; 0 for no limit. It ends no later than what proves who it is.
    fn lifetime_ms(&self, io: &Io<'_, Mail>, identity: &Identity) -> u64 {
        let limit_ms = self.env.shared().config.connections_max_reauth_ms;
        let left_ms = identity.expires_ms().map(|at_ms| at_ms.saturating_sub(io.clock.unix_ms).max(1));
        left_ms.into_iter().chain((limit_ms > 0).then_some(limit_ms)).min().unwrap_or(0)
    }

    fn on_failure(&mut self, io: &mut Io<'_, Mail>, reply: &TokenReply, failure: Failure) {
        if failure == Failure::Credentials {
            self.attempted(reply.caller(), false);
        }
        let Some(exchanging) = self.exchanging(reply.caller()) else { return };
        // The texts of Kafka, by which some clients tell failures apart.
        let message = match (failure, exchanging.mechanism) {
            (Failure::Credentials, Mechanism::Plain) => {
                "Authentication failed: Invalid username or password".into()
            }
            (Failure::Credentials, Mechanism::OauthBearer) => r#"{"status":"invalid_token"}"#.into(),
            (Failure::Credentials, mechanism) => format!(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism {}",
                mechanism.name()
            ),
            (failure, _) => format!("Authentication failed: {failure}"),
        };
        self.fail_log_in(io, reply, &message);
    }

    fn fail_log_in(&mut self, io: &mut Io<'_, Mail>, reply: &TokenReply, message: &str) {
        let response = match reply {
            // Version 0 of the handshake has no message for a failure but the end of the connection.
            TokenReply::Frame(_) => Vec::new(),
            TokenReply::Response(call) => {
                let response = SaslAuthenticateResponse {
                    error_code: ErrorCode::SaslAuthenticationFailed as i16,
                    error_message: Some(message.to_owned()),
                    ..SaslAuthenticateResponse::default()
                };
                Self::encode_response::<SaslAuthenticateRequest>(call, &response)
            }
        };
        self.close_after_failure(io, reply.caller(), message, response);
    }

    /// Answers a failed log-in after a delay, and closes the connection. Until then, its input is discarded.
    pub(crate) fn close_after_failure(
        &mut self,
        io: &mut Io<'_, Mail>,
        caller: Caller,
        what: &str,
        response: Vec<u8>,
    ) {
        let now_ms = io.clock.now_ms;
        let Some(conn) = self.conns.get_mut(caller.conn) else { return };
        conn.log_in = LogIn::Failed;
        let client_id = conn.client_id.clone().unwrap_or_default();
        let peer = conn.peer.map(|peer| peer.to_string()).unwrap_or_default();
        if self.env.should_log(now_ms) {
            log::info!("kafka client {client_id:?} {peer}: the log-in has failed: {what}");
        }
        let due_ms = now_ms + u64::from(self.env.shared().config.failed_authentication_delay_ms);
        if let Some(at_ms) = self.failed_log_ins.add(due_ms, caller, response) {
            io.set_timer(at_ms, Timer::FailedLogIns.token());
        }
    }

    /// Answers the failed log-ins that are due.
    pub(crate) fn answer_failed_log_ins(&mut self, io: &mut Io<'_, Mail>) {
        while let Some(failed) = self.failed_log_ins.take_due(io.clock.now_ms) {
            let id = failed.caller.conn;
            if self.conns.get_mut(id).is_some() {
                self.reply_with(io, failed.caller, failed.response);
                self.remove_connection(io, id);
                io.close(id);
            }
        }
        if let Some(at_ms) = self.failed_log_ins.next_due_ms() {
            io.set_timer(at_ms, Timer::FailedLogIns.token());
        }
    }

    fn answer_token(&mut self, io: &mut Io<'_, Mail>, reply: &TokenReply, token: &[u8], lifetime_ms: u64) {
        match reply {
            TokenReply::Frame(caller) => {
                let mut answer = Vec::new();
                let begun = frame::begin_frame(&mut answer);
                answer.extend_from_slice(token);
                frame::end_frame(&mut answer, begun, 0);
                self.reply_with(io, *caller, answer);
            }
            TokenReply::Response(call) => {
                let response = SaslAuthenticateResponse {
                    auth_bytes: token.to_vec(),
                    session_lifetime_ms: i64::try_from(lifetime_ms).unwrap_or(i64::MAX),
                    ..SaslAuthenticateResponse::default()
                };
                self.reply::<SaslAuthenticateRequest>(io, call, &response);
            }
        }
    }

    /// Takes the answers of the host.
    pub(crate) fn poll_security_replies(&mut self, io: &mut Io<'_, Mail>) {
        for reply in self.env.shared().security_replies.take(self.env.me()) {
            match reply {
                SecurityReply::LogIn { caller, result } => self.on_password_checked(io, caller, result),
                SecurityReply::Changed { after, result } => self.on_security_change(io, after, &result),
            }
        }
    }

    /// The mechanism of this name, if the listener of a request offers it.
    pub(crate) fn offered_mechanism(&self, call: &RequestContext, name: &str) -> Option<Mechanism> {
        let offered = self.env.shared().mechanisms(call.listener);
        Mechanism::from_name(name).filter(|mechanism| offered.contains(mechanism))
    }
}

/// An unpredictable nonce; `None` if the operating system has no random numbers.
pub(crate) fn nonce() -> Option<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).ok()?;
    Some(nonce)
}
