//! Log-ins of connections: looks users up, has passwords checked, answers tokens, and delays the answers to failures.
//!
//! The exchange of SASL tokens is a machine of `mainstem-sasl`; this file gives it what it needs. Passwords and tokens
//! are verified by the host on another thread, and the request waits for the result. SCRAM needs a few hashes only, and
//! is answered in the same turn. A token leads to at most one answer, which is returned or comes later: when the host
//! has checked a password, or when a failed log-in is due.
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

use super::Connections;
use super::failed_log_ins::FailedLogIn;
use crate::environment::Environment;
use crate::grants::ConnGrants;
use crate::log_in::{Exchanging, LogIn, PROTOCOL, Session, TokenReply};
use crate::security::SecurityReply;
use crate::shard_message::Caller;
use crate::timer::Timer;

/// The message of a log-in that is not verified, because of others.
const BUSY: &str = "Authentication failed: too many log-ins are in progress or have failed, try again later";
const UNAVAILABLE: &str =
    "Authentication failed: the service that decides log-ins does not answer, try again later";
/// Cost of a token of SCRAM in units of the turn's budget: a few computations of HMAC.
const TOKEN_UNITS: u32 = 100;

/// The encoded answer to a token.
#[derive(Debug)]
pub(crate) struct TokenAnswer {
    pub(crate) caller: Caller,
    pub(crate) response: Vec<u8>,
}

impl Connections {
    /// Opens a connection that a listener has accepted, or another shard has handed over with its log-in.
    pub(crate) fn accept<M>(&mut self, env: &Environment, io: &mut Io<'_, M>, id: ConnId, listener: u16) {
        self.open(id, io.peer(), listener, io.clock.now_ms);
        let session = io.take_baggage().and_then(|baggage| baggage.downcast::<Arc<Session>>().ok());
        let Some(conn) = self.get_mut(id) else { return };
        conn.log_in = match session {
            Some(session) => LogIn::LoggedIn(*session),
            None => LogIn::of_listener(env.shared().mechanisms(listener), io.clock.now_ms),
        };
    }

    /// Handles a frame that is a token, after version 0 of the handshake.
    pub(crate) fn on_bare_token<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        id: ConnId,
        token: &[u8],
    ) -> Option<TokenAnswer> {
        let request = self.get_mut(id)?.begin(false);
        let caller = Caller { shard: env.me(), conn: id, request };
        self.on_token(env, io, TokenReply::Frame(caller), token)
    }

    /// Handles a token of a connection whose log-in expects one.
    pub(crate) fn on_token<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        reply: TokenReply,
        token: &[u8],
    ) -> Option<TokenAnswer> {
        io.charge(TOKEN_UNITS);
        let exchanging = self.exchanging(reply.caller())?;
        // Others may have failed since the first token: a limit that is checked once does not hold for many at once.
        if let Some(user) = exchanging.user.clone()
            && !self.may_attempt(env, reply.caller(), &user)
        {
            return self.fail_log_in(env, io, &reply, BUSY);
        }
        let exchanging = self.exchanging(reply.caller())?;
        let step = exchanging.exchange.receive(token);
        self.on_step(env, io, reply, step)
    }

    fn exchanging(&mut self, caller: Caller) -> Option<&mut Exchanging> {
        match &mut self.get_mut(caller.conn)?.log_in {
            LogIn::Exchanging(exchanging) => Some(exchanging),
            _ => None,
        }
    }

    fn on_step<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        reply: TokenReply,
        step: Step,
    ) -> Option<TokenAnswer> {
        match step {
            // No user has such a name, which would be held until the log-in ends.
            Step::FindKeys { user, .. } if user.len() > MAX_NAME_BYTES => {
                self.on_failure(env, io, &reply, Failure::Credentials)
            }
            Step::FindKeys { user, algorithm } => {
                if !self.may_attempt(env, reply.caller(), &user) {
                    return self.fail_log_in(env, io, &reply, BUSY);
                }
                let security = env.shared().security();
                let state = security.map(|security| security.host.published().state()).unwrap_or_default();
                let secret = security.map_or([0; 32], |security| security.unknown_user_secret);
                let (keys, shown) = state.scram_keys(&user, algorithm, &secret);
                let exchanging = self.exchanging(reply.caller())?;
                exchanging.user = Some(user.into());
                let step = exchanging.exchange.keys_found(keys, shown);
                self.on_step(env, io, reply, step)
            }
            Step::CheckPassword { user, password } => {
                self.check_password(env, io, reply, (&user, password.expose()))
            }
            Step::CheckToken { token } => self.check_password(env, io, reply, ("", token.expose())),
            Step::Challenge(token) => Some(token_answer(&reply, &token, 0)),
            Step::Success { user, message } => self.on_log_in(env, io, &reply, (&user, &message)),
            Step::Failure(failure) => self.on_failure(env, io, &reply, failure),
        }
    }

    /// Whether the keys of a user may be tried. Passwords are counted by the host, which checks them.
    fn may_attempt(&mut self, env: &Environment, caller: Caller, user: &str) -> bool {
        let address = self.get_mut(caller.conn).and_then(|conn| conn.peer);
        let attempt = Attempt { user, address, protocol: PROTOCOL };
        env.shared().security().is_none_or(|security| security.host.may_attempt(&attempt))
    }

    /// Tells the host how a log-in with the keys of a user has ended.
    fn attempted(&mut self, env: &Environment, caller: Caller, is_accepted: bool) {
        let Some(conn) = self.get_mut(caller.conn) else { return };
        let LogIn::Exchanging(exchanging) = &conn.log_in else { return };
        let Some(user) = &exchanging.user else { return };
        let attempt = Attempt { user, address: conn.peer, protocol: PROTOCOL };
        if let Some(security) = env.shared().security() {
            security.host.attempted(&attempt, is_accepted);
        }
    }

    /// What is known of the certificate of a connection that logs in by SASL, which decides who it is, as in Kafka.
    /// `None` if the certificate does not permit that.
    fn certified<M>(&mut self, env: &Environment, io: &Io<'_, M>, id: ConnId) -> Option<Certified> {
        match self.check_certificate(env, io, id, true) {
            CertificateOutcome::Ignored(certified) => Some(certified),
            CertificateOutcome::Accepted(_) | CertificateOutcome::Refused => None,
        }
    }

    /// Has a password or a token checked on another thread.
    fn check_password<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        reply: TokenReply,
        (user, password): (&str, &str),
    ) -> Option<TokenAnswer> {
        let caller = reply.caller();
        let Some(host) = env.shared().security().map(|security| Arc::clone(&security.host)) else {
            return self.fail_log_in(env, io, &reply, "Authentication failed: the broker has no users");
        };
        let Some(certified) = self.certified(env, io, caller.conn) else {
            return self.on_failure(env, io, &reply, Failure::Credentials);
        };
        let conn = self.get_mut(caller.conn)?;
        let (address, client_id) = (conn.peer, conn.client_id.clone());
        let LogIn::Exchanging(exchanging) = &mut conn.log_in else { return None };
        exchanging.waiting = Some(reply);
        let password = password.as_bytes().to_vec();
        let user = user.into();
        let log_in = PasswordLogIn { user, password, certified, address, protocol: PROTOCOL, client_id };
        let (me, shared) = (env.me(), Arc::clone(env.shared()));
        let on_result =
            move |result| shared.security_replies.push(me, SecurityReply::LogIn { caller, result });
        host.log_in(log_in, Box::new(on_result));
        None
    }

    /// A password has been checked.
    pub(crate) fn on_password_checked<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        caller: Caller,
        result: LogInResult,
    ) -> Option<TokenAnswer> {
        let exchanging = self.exchanging(caller)?;
        let reply = exchanging.waiting.take()?;
        let step = match result {
            LogInResult::Busy => return self.fail_log_in(env, io, &reply, BUSY),
            LogInResult::Unavailable => return self.fail_log_in(env, io, &reply, UNAVAILABLE),
            result => {
                exchanging.identity = match result {
                    LogInResult::Accepted(identity) => Some(identity),
                    LogInResult::Rejected | LogInResult::Busy | LogInResult::Unavailable => None,
                };
                let user = exchanging.identity.as_ref().and_then(Identity::user);
                if exchanging.mechanism == Mechanism::OauthBearer {
                    exchanging.exchange.token_checked(user.map(|user| &**user))
                } else {
                    exchanging.exchange.password_checked(user.is_some())
                }
            }
        };
        self.on_step(env, io, reply, step)
    }

    /// The client has proven to be this user.
    fn on_log_in<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        reply: &TokenReply,
        (user, token): (&str, &[u8]),
    ) -> Option<TokenAnswer> {
        let now_ms = io.clock.now_ms;
        let checked = self.exchanging(reply.caller()).and_then(|exchanging| exchanging.identity.take());
        let identity = checked.or_else(|| {
            let certified = self.certified(env, io, reply.caller().conn)?;
            certified.confirm(Identity::of_user(&user.into()))
        });
        // A password may have been a token, of another user.
        let is_same = |identity: &Identity| identity.user().is_some_and(|known| **known == *user);
        let Some(identity) = identity.filter(is_same) else {
            return self.on_failure(env, io, reply, Failure::Credentials);
        };
        let lifetime_ms = lifetime_ms(env, io, &identity);
        let exchanging = self.exchanging(reply.caller())?;
        if !exchanging.continues(user) {
            let message = "Authentication failed: neither the user nor the mechanism of a session may change";
            return self.fail_log_in(env, io, reply, message);
        }
        let mechanism = exchanging.mechanism;
        self.attempted(env, reply.caller(), true);
        let session = Session {
            identity,
            mechanism: Some(mechanism),
            since_ms: now_ms,
            until_ms: (lifetime_ms > 0).then(|| now_ms.saturating_add(lifetime_ms)),
        };
        if let Some(conn) = self.get_mut(reply.caller().conn) {
            conn.log_in = LogIn::LoggedIn(Arc::new(session));
            conn.grants = ConnGrants::default();
        }
        Some(token_answer(reply, token, lifetime_ms))
    }

    fn on_failure<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        reply: &TokenReply,
        failure: Failure,
    ) -> Option<TokenAnswer> {
        if failure == Failure::Credentials {
            self.attempted(env, reply.caller(), false);
        }
        let exchanging = self.exchanging(reply.caller())?;
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
        self.fail_log_in(env, io, reply, &message)
    }

    fn fail_log_in<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        reply: &TokenReply,
        message: &str,
    ) -> Option<TokenAnswer> {
        let response = match reply {
            // Version 0 of the handshake has no message for a failure but the end of the connection.
            TokenReply::Frame(_) => Vec::new(),
            TokenReply::Response(call) => {
                let response = SaslAuthenticateResponse {
                    error_code: ErrorCode::SaslAuthenticationFailed as i16,
                    error_message: Some(message.to_owned()),
                    ..SaslAuthenticateResponse::default()
                };
                call.encode_frame::<SaslAuthenticateRequest>(&response)
            }
        };
        self.close_after_failure(env, io, (reply.caller(), response), message);
        None
    }

    /// A log-in has failed: its connection is answered after a delay, and closes. Until then, its input is discarded.
    pub(crate) fn close_after_failure<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        (caller, response): (Caller, Vec<u8>),
        what: &str,
    ) {
        let now_ms = io.clock.now_ms;
        let Some(conn) = self.get_mut(caller.conn) else { return };
        conn.log_in = LogIn::Failed;
        let client_id = conn.client_id.clone().unwrap_or_default();
        let peer = conn.peer.map(|peer| peer.to_string()).unwrap_or_default();
        if env.should_log(now_ms) {
            log::info!("kafka client {client_id:?} {peer}: the log-in has failed: {what}");
        }
        let due_ms = now_ms + u64::from(env.shared().config.failed_authentication_delay_ms);
        if let Some(at_ms) = self.failed_log_ins.add(due_ms, caller, response) {
            io.set_timer(at_ms, Timer::FailedLogIns.token());
        }
    }

    /// Takes the answer to a failed log-in that is due; its connection then closes. After the last one, sets the timer
    /// of the next.
    pub(crate) fn next_failed_log_in<M>(&mut self, io: &mut Io<'_, M>) -> Option<TokenAnswer> {
        while let Some(FailedLogIn { caller, response, .. }) = self.failed_log_ins.take_due(io.clock.now_ms) {
            if self.get_mut(caller.conn).is_some() {
                return Some(TokenAnswer { caller, response });
            }
        }
        if let Some(at_ms) = self.failed_log_ins.next_due_ms() {
            io.set_timer(at_ms, Timer::FailedLogIns.token());
        }
        None
    }
}

/// How long a session lasts, ms; 0 for no limit. It ends no later than what proves who it is.
fn lifetime_ms<M>(env: &Environment, io: &Io<'_, M>, identity: &Identity) -> u64 {
    let limit_ms = env.shared().config.connections_max_reauth_ms;
    let left_ms = identity.expires_ms().map(|at_ms| at_ms.saturating_sub(io.clock.unix_ms).max(1));
    left_ms.into_iter().chain((limit_ms > 0).then_some(limit_ms)).min().unwrap_or(0)
}

fn token_answer(reply: &TokenReply, token: &[u8], lifetime_ms: u64) -> TokenAnswer {
    let response = match reply {
        TokenReply::Frame(_) => {
            let mut answer = Vec::new();
            let begun = frame::begin_frame(&mut answer);
            answer.extend_from_slice(token);
            frame::end_frame(&mut answer, begun, 0);
            answer
        }
        TokenReply::Response(call) => {
            let response = SaslAuthenticateResponse {
                auth_bytes: token.to_vec(),
                session_lifetime_ms: i64::try_from(lifetime_ms).unwrap_or(i64::MAX),
                ..SaslAuthenticateResponse::default()
            };
            call.encode_frame::<SaslAuthenticateRequest>(&response)
        }
    };
    TokenAnswer { caller: reply.caller(), response }
}

/// An unpredictable nonce; `None` if the operating system has no random numbers.
pub(crate) fn nonce() -> Option<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).ok()?;
    Some(nonce)
}
