//! Log-ins: what a client presents, decided by the provider whose turn it is (`providers.rs`).
//!
//! Certificates and API keys are decided at once. Passwords and tokens are verified on threads, so that no shard waits;
//! a service has threads of its own, so that a slow one delays its own users only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mainstem_security::{
    Attempt, CertificateOutcome, Certified, Identity, LogIn, LogInResult, Presented, PresentedApiKey,
    Principal, Proof, Published, User,
};
use serde_json::{Map, Value};

use crate::audit::{Audit, cut};
use crate::certificate::{Names, WithPassword};
use crate::clock::unix_ms;
use crate::failures::Failures;
use crate::jwt::{Refusal, TokenUser, Tokens, is_token};
use crate::providers::{LogInService, Providers};
use crate::reply::{SharedReply, submit};
use crate::service::Answer;
use crate::verified::Verified;
use crate::verifier::verify;

/// Event of the audit log: a log-in that was accepted.
pub(crate) const ACCEPTED: &str = "log-in";
/// Event of the audit log: a log-in that was refused.
pub(crate) const FAILED: &str = "log-in-failed";
/// Event of the audit log: a log-in that nobody could decide, because the service did not answer.
const UNAVAILABLE: &str = "log-in-unavailable";
/// Event of the audit log: a log-in that was refused unverified, after too many failures.
pub(crate) const LIMITED: &str = "log-in-limited";

/// What the threads that verify log-ins share.
pub(crate) struct LogIns {
    published: Arc<Published>,
    /// Decides what an unknown user costs.
    secret: [u8; 32],
    failures: Mutex<Failures>,
    verified: Mutex<Verified>,
    audit: Option<Arc<Audit>>,
    providers: Providers,
}

impl LogIns {
    pub(crate) fn new(
        published: Arc<Published>,
        failures: Failures,
        audit: Option<Arc<Audit>>,
        providers: Providers,
        (secret, key): ([u8; 32], [u8; 32]),
    ) -> Self {
        let (failures, verified) = (Mutex::new(failures), Mutex::new(Verified::new(key)));
        Self { published, secret, failures, verified, audit, providers }
    }

    /// The provider of tokens, if a password has the form of one.
    pub(crate) fn tokens(&self, password: &[u8]) -> Option<Arc<Tokens>> {
        self.providers.tokens.clone().filter(|_| is_token(password))
    }

    pub(crate) fn check_certificate(&self, presented: &Presented<'_>) -> CertificateOutcome {
        let Presented { listener, has_password, address, protocol, .. } = *presented;
        let users = self.providers.certificates.get(listener);
        let Some(certificate) = &presented.certificate else {
            let needs_one = users.is_some_and(|users| users.with_password == WithPassword::Both);
            return if needs_one && has_password {
                CertificateOutcome::Refused
            } else {
                CertificateOutcome::Ignored(Certified::default())
            };
        };
        let names = Names::read(certificate);
        let common_name = names.common_name.clone();
        let Some(users) = users else {
            return CertificateOutcome::Ignored(Certified { common_name, user: None });
        };
        let user = names.user(users);
        match users.with_password {
            WithPassword::Password if has_password => {
                return CertificateOutcome::Ignored(Certified { common_name, user: None });
            }
            WithPassword::Both if !has_password => return CertificateOutcome::Refused,
            WithPassword::Both if user.is_some() => {
                return CertificateOutcome::Ignored(Certified { common_name, user });
            }
            _ => {}
        }
        let state = self.published.state();
        let user = user.map(Principal::User);
        let proof = Arc::new(Proof { is_external: true, common_name, ..Proof::default() });
        let admitted = user.filter(|user| state.admits(user, Some(&proof)));
        let name = admitted.as_ref().and_then(|user| user.user()).or(proof.common_name.as_ref());
        let attempt = Attempt { user: name.map_or("", |name| name), address, protocol };
        self.audit(&attempt, if admitted.is_some() { ACCEPTED } else { FAILED });
        admitted.map_or(CertificateOutcome::Refused, |principal| {
            CertificateOutcome::Accepted(Identity { principal, proof: Some(proof) })
        })
    }

    /// The result of a log-in of this user of the user store.
    fn accepted(&self, log_in: &LogIn, user: &User) -> LogInResult {
        let identity = log_in.certified.confirm(Identity::of_user(&user.name));
        self.audit(&attempt_of(log_in), if identity.is_some() { ACCEPTED } else { FAILED });
        identity.map_or(LogInResult::Rejected, LogInResult::Accepted)
    }

    /// The result, if it needs no hash.
    pub(crate) fn decide_at_once(&self, log_in: &LogIn) -> Option<LogInResult> {
        let (state, now) = (self.published.state(), Instant::now());
        if let Some(user) = state.user(&log_in.user).filter(|user| !user.disabled) {
            let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
            if verified.contains(user, &log_in.password, now) {
                return Some(self.accepted(log_in, user));
            }
        }
        self.is_limited(log_in).then_some(LogInResult::Busy)
    }

    /// Whether too many log-ins like this one have failed.
    pub(crate) fn is_limited(&self, log_in: &LogIn) -> bool {
        let attempt = attempt_of(log_in);
        let is_limited = self.failures().is_limited(attempt.user, attempt.address, Instant::now());
        if is_limited {
            self.audit(&attempt, LIMITED);
        }
        is_limited
    }

    /// Decides a log-in with an API key. One that is right is never refused because others have failed: nobody guesses
    /// 256 bits, and whoever shares an address with a client that tries must not be locked out.
    pub(crate) fn verify_api_key(&self, log_in: &LogIn, presented: &PresentedApiKey) -> LogInResult {
        let (state, now_ms) = (self.published.state(), unix_ms());
        // The name may be left out, but must not be that of somebody else.
        let is_of = |user: &str| log_in.user.is_empty() || *log_in.user == *user;
        let key = state
            .api_keys()
            .get(presented.id)
            .filter(|key| key.verifies(presented) && !key.is_expired(now_ms) && is_of(&key.user));
        let Some(key) = key else {
            // Identifiers of keys are no secrets: whoever knows one must not be able to keep its user out.
            let nobody = Attempt { user: "", address: log_in.address, protocol: log_in.protocol };
            let attempt = Attempt { user: &log_in.user, ..nobody };
            if self.failures().is_limited(nobody.user, nobody.address, Instant::now()) {
                self.audit_api_key(&attempt, LIMITED, presented);
                return LogInResult::Busy;
            }
            self.failures().count(nobody.user, nobody.address, Instant::now());
            self.audit_api_key(&attempt, FAILED, presented);
            return LogInResult::Rejected;
        };
        let proof = Proof { api_key: Some(presented.id), expires_ms: key.expires_ms, ..Proof::default() };
        let principal = Principal::User(Arc::clone(&key.user));
        let is_admitted = state.admits(&principal, Some(&proof));
        let identity = Identity { principal, proof: Some(Arc::new(proof)) };
        let identity = log_in.certified.confirm(identity).filter(|_| is_admitted);
        let attempt = Attempt { user: &key.user, address: log_in.address, protocol: log_in.protocol };
        let Some(identity) = identity else {
            self.audit_api_key(&attempt, FAILED, presented);
            return LogInResult::Rejected;
        };
        self.published.api_key_uses().note(presented.id, now_ms);
        self.audit_api_key(&attempt, ACCEPTED, presented);
        LogInResult::Accepted(identity)
    }

    /// Verifies a token. With an unknown key, it waits until the keys have been read again.
    pub(crate) fn verify_token(
        self: &Arc<Self>,
        tokens: &Arc<Tokens>,
        log_in: LogIn,
        reply: &SharedReply<LogInResult>,
    ) {
        let verified = tokens.verify(&log_in.password);
        if verified != Err(Refusal::UnknownKey) {
            return reply.answer(self.decide_token(tokens, &log_in, verified));
        }
        let (shared, again) = (Arc::clone(self), Arc::clone(tokens));
        let work = move |reply: &SharedReply<LogInResult>| {
            let verified = again.verify(&log_in.password);
            reply.answer(shared.decide_token(&again, &log_in, verified));
        };
        submit(|job| tokens.after_refresh(job), reply, LogInResult::Busy, work);
    }

    fn decide_token(
        &self,
        tokens: &Tokens,
        log_in: &LogIn,
        verified: Result<TokenUser, Refusal>,
    ) -> LogInResult {
        let attempt = attempt_of(log_in);
        let (user, proof) = match verified {
            Ok(TokenUser { user, proof }) => (user, proof),
            Err(refusal) => {
                tokens.log_refusal(&refusal);
                self.failures().count(attempt.user, attempt.address, Instant::now());
                self.audit(&attempt, FAILED);
                return LogInResult::Rejected;
            }
        };
        let attempt = Attempt { user: &user, ..attempt };
        let identity =
            Identity { principal: Principal::User(Arc::clone(&user)), proof: Some(Arc::new(proof)) };
        let is_admitted = self.published.state().admits(&identity.principal, identity.proof.as_deref());
        let identity = log_in.certified.confirm(identity).filter(|_| is_admitted);
        self.audit(&attempt, if identity.is_some() { ACCEPTED } else { FAILED });
        identity.map_or(LogInResult::Rejected, LogInResult::Accepted)
    }

    /// The service, if it decides this log-in: the user store does not have the user.
    pub(crate) fn service(&self, log_in: &LogIn) -> Option<Arc<LogInService>> {
        self.providers.service.clone().filter(|_| self.published.state().user(&log_in.user).is_none())
    }

    /// Asks the service, and waits for its answer.
    pub(crate) fn ask_service(&self, service: &LogInService, log_in: &LogIn) -> LogInResult {
        // Others that were asked before may have failed in the meantime.
        if self.is_limited(log_in) {
            return LogInResult::Busy;
        }
        let attempt = attempt_of(log_in);
        let proof = match service.ask(log_in) {
            Answer::Allowed(proof) => proof,
            Answer::Unavailable => {
                self.audit(&attempt, UNAVAILABLE);
                return LogInResult::Unavailable;
            }
            Answer::Denied => {
                self.failures().count(attempt.user, attempt.address, Instant::now());
                self.audit(&attempt, FAILED);
                return LogInResult::Rejected;
            }
        };
        let principal = Principal::User(Arc::clone(&log_in.user));
        let is_admitted = self.published.state().admits(&principal, Some(&proof));
        let identity = Identity { principal, proof: Some(proof) };
        let identity = log_in.certified.confirm(identity).filter(|_| is_admitted);
        self.audit(&attempt, if identity.is_some() { ACCEPTED } else { FAILED });
        identity.map_or(LogInResult::Rejected, LogInResult::Accepted)
    }

    pub(crate) fn verify(&self, log_in: &LogIn) -> LogInResult {
        // Others that were started before may have failed in the meantime.
        if let Some(result) = self.decide_at_once(log_in) {
            return result;
        }
        let state = self.published.state();
        let user = verify(&state, &self.secret, &log_in.user, &log_in.password);
        let now = Instant::now();
        if let Some(user) = user {
            let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
            verified.insert(&user, &log_in.password, now);
            drop(verified);
            return self.accepted(log_in, &user);
        }
        self.failures().count(&log_in.user, log_in.address, now);
        self.audit(&attempt_of(log_in), FAILED);
        LogInResult::Rejected
    }

    pub(crate) fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn audit(&self, attempt: &Attempt<'_>, event: &str) {
        self.audit_with(attempt, event, Map::new());
    }

    /// Also names the key, by its public part.
    fn audit_api_key(&self, attempt: &Attempt<'_>, event: &str, presented: &PresentedApiKey) {
        let key = ("api_key".to_owned(), presented.id.to_string().into());
        self.audit_with(attempt, event, Map::from_iter([key]));
    }

    fn audit_with(&self, attempt: &Attempt<'_>, event: &str, more: Map<String, Value>) {
        let Some(audit) = &self.audit else { return };
        let fields = || {
            let mut fields = Map::new();
            fields.insert("user".into(), cut(attempt.user).into());
            fields.insert("address".into(), attempt.address.map(|address| address.to_string()).into());
            fields.insert("protocol".into(), attempt.protocol.into());
            fields.extend(more);
            fields
        };
        if event == ACCEPTED { audit.add(event, fields()) } else { audit.add_sampled(event, fields) }
    }
}

/// Of a token, the user is not known before it is verified.
fn attempt_of(log_in: &LogIn) -> Attempt<'_> {
    let user = if is_token(&log_in.password) { "" } else { &*log_in.user };
    Attempt { user, address: log_in.address, protocol: log_in.protocol }
}
