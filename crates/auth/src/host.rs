//! The host of users and rules: the log of changes, and the interface for protocols.
//!
//! The thread "security" owns the log. It takes one edit after the other, so that each is computed from the state that
//! it changes, and publishes a state when its records are on disk. The log has a store of its own: it is small, rarely
//! written, and needed before the shards start.

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mainstem_log::{Durability, Store};
use mainstem_partition::{CompactedLog, KeyValue};
use mainstem_security::{
    Actor, AdminChange, Attempt, Authenticator, BannedClient, CertificateOutcome, Certified, Change,
    ChangeError, ChangedSettings, Denial, Edit, Identity, LogIn, LogInResult, MAX_NAME_BYTES, Presented,
    Principal, Proof, Published, Reply, SALT_BYTES, Salts, SecurityAdmin, SecurityError, SecurityHost,
    SecurityState, Settings, User, apply_record, encode, encode_last_rule,
};
use serde_json::Map;

use crate::audit::{Audit, cut};
use crate::certificate::{Names, WithPassword};
use crate::changes::{changed, security_changed};
use crate::failures::Failures;
use crate::jwt::{Refusal, TokenUser, Tokens, is_token};
use crate::providers::Providers;
use crate::reply::{SharedReply, submit};
use crate::verified::Verified;
use crate::verifier::{Pool, verify};

/// Name of the log.
const LOG: &str = "security";
/// Event of the audit log: a log-in that was accepted.
const ACCEPTED: &str = "log-in";
/// Event of the audit log: a log-in that was refused.
const FAILED: &str = "log-in-failed";
/// Edits that wait for the thread.
const EDITS_MAX: usize = 64;

/// Limits of the host.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Passwords that are hashed at the same time.
    pub threads: usize,
    /// Log-ins that wait for that.
    pub waiting_max: usize,
    /// Failed log-ins of one address in a minute, after which its log-ins are refused; 0 for no limit.
    pub failures_per_address_max: u32,
    /// The same of one user.
    pub failures_per_user_max: u32,
    /// The file of the audit log; `None` for none.
    pub audit_log: Option<PathBuf>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: 2,
            waiting_max: 1000,
            failures_per_address_max: 20,
            failures_per_user_max: 20,
            audit_log: None,
        }
    }
}

/// Why a host does not open.
#[derive(Debug)]
pub enum OpenError {
    /// The log.
    Log(mainstem_log::Error),
    /// A record.
    Record(SecurityError),
    /// The audit log.
    Audit(std::io::Error),
    /// Threads, or the system's random numbers.
    System(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => write!(f, "{error}"),
            Self::Record(error) => write!(f, "{error}"),
            Self::Audit(error) => write!(f, "security.audit_log: {error}"),
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for OpenError {}

struct Command {
    edit: Edit,
    by: Actor,
    reply: Reply<Result<Vec<Change>, ChangeError>>,
}

/// The host. Its threads end when it is dropped.
pub struct Host {
    published: Arc<Published>,
    edits: SyncSender<Command>,
    pool: Pool,
    shared: Arc<LogIns>,
    audit: Option<Arc<Audit>>,
}

/// What the threads that verify log-ins share.
struct LogIns {
    published: Arc<Published>,
    /// Decides what an unknown user costs.
    secret: [u8; 32],
    failures: Mutex<Failures>,
    verified: Mutex<Verified>,
    audit: Option<Arc<Audit>>,
    providers: Providers,
}

impl Host {
    /// Opens the log in `store`, whose committer must be inline, and starts the threads.
    ///
    /// # Errors
    /// The log cannot be read, a record is invalid, or a file or thread is missing.
    pub fn open(
        mut store: Box<dyn Store>,
        settings: Settings,
        limits: &Limits,
        providers: Providers,
    ) -> Result<Self, OpenError> {
        let settings =
            Settings { has_other_users: settings.has_other_users || providers.have_users(), ..settings };
        let mut state = SecurityState::new(settings);
        let mut invalid = None;
        let log = CompactedLog::open(&mut *store, LOG, Durability::Fsync, |key, value| {
            if let Err(error) = apply_record(&mut state, key, value) {
                invalid.get_or_insert(error);
            }
        })
        .map_err(OpenError::Log)?;
        // Opening may create the log.
        store.commit();
        if let Some(error) = invalid {
            return Err(OpenError::Record(error));
        }
        let audit = limits.audit_log.as_deref().map(Audit::open).transpose().map_err(OpenError::Audit)?;
        let audit = audit.map(Arc::new);
        let system = |error: &dyn fmt::Display| OpenError::System(format!("users and rules: {error}"));
        let (mut secret, mut key) = ([0; 32], [0; 32]);
        getrandom::fill(&mut secret)
            .and_then(|()| getrandom::fill(&mut key))
            .map_err(|error| system(&error))?;
        let published = Arc::new(Published::new(state));
        let pool = Pool::start(limits.threads, limits.waiting_max).map_err(|error| system(&error))?;
        let (edits, commands) = sync_channel(EDITS_MAX);
        let mut writer = Writer { store, log, published: Arc::clone(&published), audit: audit.clone() };
        std::thread::Builder::new()
            .name("security".into())
            .spawn(move || writer.run(&commands))
            .map_err(|error| system(&error))?;
        let failures = Failures::new(limits.failures_per_address_max, limits.failures_per_user_max);
        let shared = Arc::new(LogIns {
            published: Arc::clone(&published),
            secret,
            failures: Mutex::new(failures),
            verified: Mutex::new(Verified::new(key)),
            audit: audit.clone(),
            providers,
        });
        Ok(Self { published, edits, pool, shared, audit })
    }
}

impl SecurityHost for Host {
    fn published(&self) -> &Arc<Published> {
        &self.published
    }
}

impl Authenticator for Host {
    fn check_certificate(&self, presented: &Presented<'_>) -> CertificateOutcome {
        self.shared.check_certificate(presented)
    }

    fn log_in(&self, mut log_in: LogIn, reply: Reply<LogInResult>) {
        if log_in.user.len() > MAX_NAME_BYTES {
            // No user has such a name. It costs what an unknown one costs, but waits with few bytes.
            log_in.user = format!("{}\0", cut(&log_in.user)).into();
        }
        let (shared, reply) = (Arc::clone(&self.shared), SharedReply::new(reply));
        if let Some(tokens) = self.shared.providers.tokens.clone().filter(|_| is_token(&log_in.password)) {
            if shared.is_limited(&log_in) {
                return reply.answer(LogInResult::Busy);
            }
            let work = move |reply: &SharedReply<LogInResult>| shared.verify_token(&tokens, log_in, reply);
            return submit(|job| self.pool.submit(job), &reply, LogInResult::Busy, work);
        }
        if let Some(result) = self.shared.decide_at_once(&log_in) {
            return reply.answer(result);
        }
        let work = move |reply: &SharedReply<LogInResult>| reply.answer(shared.verify(&log_in));
        submit(|job| self.pool.submit(job), &reply, LogInResult::Busy, work);
    }

    fn may_attempt(&self, attempt: &Attempt<'_>) -> bool {
        let Attempt { user, address, .. } = *attempt;
        let now = Instant::now();
        let failures = self.shared.failures();
        let is_refused = failures.is_limited(user, address, now) && !failures.is_exempt(user, address, now);
        drop(failures);
        if is_refused {
            self.shared.audit(attempt, "log-in-limited");
        }
        !is_refused
    }

    fn attempted(&self, attempt: &Attempt<'_>, is_accepted: bool) {
        let Attempt { user, address, .. } = *attempt;
        let now = Instant::now();
        if is_accepted {
            self.shared.failures().exempt(user, address, now);
            self.shared.audit(attempt, ACCEPTED);
        } else {
            self.shared.failures().count(user, address, now);
            self.shared.audit(attempt, FAILED);
        }
    }

    fn denied(&self, denial: &Denial<'_>) {
        let Some(audit) = &self.audit else { return };
        audit.add_sampled("denied", || {
            let mut fields = Map::new();
            fields.insert("user".into(), denial.origin.principal.user().map(|name| &**name).into());
            fields.insert("client_id".into(), denial.origin.client_id.map(cut).into());
            fields.insert("address".into(), denial.origin.address.map(|address| address.to_string()).into());
            fields.insert("protocol".into(), denial.protocol.into());
            fields.insert("action".into(), denial.action.name().into());
            fields.insert("resource".into(), format!("{}:{}", denial.kind, cut(denial.name)).into());
            fields
        });
    }

    fn banned(&self, client: &BannedClient<'_>) {
        self.published.note_ban_refused();
        let Some(audit) = &self.audit else { return };
        audit.add_sampled("banned", || {
            let mut fields = Map::new();
            fields.insert("user".into(), client.user.map(cut).into());
            fields.insert("client_id".into(), client.client_id.map(cut).into());
            fields.insert("address".into(), client.address.map(|address| address.to_string()).into());
            fields.insert("protocol".into(), client.protocol.into());
            fields
        });
    }
}

impl SecurityAdmin for Host {
    fn change(&self, edit: Edit, by: Actor, reply: Reply<Result<Vec<Change>, ChangeError>>) {
        let command = Command { edit, by, reply };
        if let Err(error) = self.edits.try_send(command) {
            let (std::sync::mpsc::TrySendError::Full(command)
            | std::sync::mpsc::TrySendError::Disconnected(command)) = error;
            (command.reply)(Err(ChangeError::Unavailable));
        }
    }

    fn changed(&self, by: &Actor, change: AdminChange) {
        let Some(audit) = &self.audit else { return };
        let AdminChange { change, object, before, after } = change;
        let settings = |settings: Option<ChangedSettings>| {
            settings.map(|settings| settings.into_iter().map(|(name, value)| (name, value.into())).collect())
        };
        audit.add("changed", changed(by, change, cut(&object).into(), (settings(before), settings(after))));
    }

    fn derive(&self, mut user: User, password: Vec<u8>, reply: Reply<Result<User, ChangeError>>) {
        let reply = SharedReply::new(reply);
        let work = move |reply: &SharedReply<Result<User, ChangeError>>| {
            reply.answer(salts().and_then(|salts| {
                user.set_password(&password, &salts).map_err(ChangeError::Invalid)?;
                Ok(user)
            }));
        };
        submit(|job| self.pool.submit(job), &reply, Err(ChangeError::Unavailable), work);
    }
}

/// Random salts.
fn salts() -> Result<Salts, ChangeError> {
    let mut salts = [[0; SALT_BYTES]; 3];
    getrandom::fill(salts.as_flattened_mut()).map_err(|error| ChangeError::Log(error.to_string()))?;
    Ok(Salts(salts))
}

impl LogIns {
    fn check_certificate(&self, presented: &Presented<'_>) -> CertificateOutcome {
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
    fn decide_at_once(&self, log_in: &LogIn) -> Option<LogInResult> {
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
    fn is_limited(&self, log_in: &LogIn) -> bool {
        let attempt = attempt_of(log_in);
        let is_limited = self.failures().is_limited(attempt.user, attempt.address, Instant::now());
        if is_limited {
            self.audit(&attempt, "log-in-limited");
        }
        is_limited
    }

    /// Verifies a token. With an unknown key, it waits until the keys have been read again.
    fn verify_token(self: &Arc<Self>, tokens: &Arc<Tokens>, log_in: LogIn, reply: &SharedReply<LogInResult>) {
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

    fn verify(&self, log_in: &LogIn) -> LogInResult {
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

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn audit(&self, attempt: &Attempt<'_>, event: &str) {
        let Some(audit) = &self.audit else { return };
        let fields = || {
            let mut fields = Map::new();
            fields.insert("user".into(), cut(attempt.user).into());
            fields.insert("address".into(), attempt.address.map(|address| address.to_string()).into());
            fields.insert("protocol".into(), attempt.protocol.into());
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

/// The owner of the log.
struct Writer {
    store: Box<dyn Store>,
    log: CompactedLog<()>,
    published: Arc<Published>,
    audit: Option<Arc<Audit>>,
}

impl Writer {
    fn run(&mut self, commands: &Receiver<Command>) {
        while let Ok(Command { edit, by, reply }) = commands.recv() {
            reply(self.change(edit, &by));
        }
    }

    fn change(&mut self, edit: Edit, by: &Actor) -> Result<Vec<Change>, ChangeError> {
        let state = self.published.state();
        let mut next = SecurityState::clone(&state);
        let mut changes = Vec::new();
        for change in edit(&state)? {
            // Each may depend on those before it: a deletion makes room.
            next.check(&change).map_err(ChangeError::Invalid)?;
            if next.apply(&change) {
                changes.push(change);
            }
        }
        if changes.is_empty() {
            return Ok(changes);
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let records = records(&changes, &next);
        self.log.append(&mut *self.store, unix.as_millis() as u64, &records, ());
        self.log.store_pending(&mut *self.store);
        // Returns when the records are on disk.
        self.store.commit();
        let (mut completions, mut outcomes) = (Vec::new(), Vec::new());
        self.store.completions(&mut completions);
        for completion in &completions {
            self.log.on_completion(completion, &mut outcomes);
        }
        self.log.take_failed(&mut outcomes);
        match outcomes.pop() {
            Some(((), Ok(()))) => {
                self.published.publish(Arc::new(next));
                if let Some(audit) = &self.audit {
                    for change in &changes {
                        audit.add("changed", security_changed(by, &state, change));
                    }
                }
                Ok(changes)
            }
            Some(((), Err(error))) => Err(ChangeError::Log(error.to_string())),
            None => Err(ChangeError::Log("the log has not confirmed the change".to_owned())),
        }
    }
}

/// The records of changes that lead to `next`.
fn records(changes: &[Change], next: &SecurityState) -> Vec<KeyValue> {
    let deletes_rules = changes.iter().any(|change| matches!(change, Change::DeleteRule(_)));
    let last_rule = deletes_rules.then(|| encode_last_rule(next));
    changes.iter().map(encode).chain(last_rule).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use mainstem_log::MemoryStore;
    use mainstem_security::{Ban, BanSubject, MAX_BANS, RuleId, add_ban, create_user, delete_user};
    use serde_json::Value;

    use super::*;

    fn host(limits: &Limits) -> Host {
        Host::open(Box::new(MemoryStore::default()), Settings::default(), limits, Providers::default())
            .unwrap()
    }

    fn change(host: &Host, edit: Edit) -> Result<Vec<Change>, ChangeError> {
        let (sender, receiver) = channel();
        host.change(
            edit,
            Actor { protocol: "test", ..Actor::default() },
            Box::new(move |result| sender.send(result).unwrap()),
        );
        receiver.recv().unwrap()
    }

    fn add(host: &Host, name: &str, password: &str) -> Result<Vec<Change>, ChangeError> {
        let (sender, receiver) = channel();
        let reply = Box::new(move |result| sender.send(result).unwrap());
        host.derive(User::new(name).unwrap(), password.into(), reply);
        let user = receiver.recv().unwrap()?;
        change(host, Box::new(move |state| create_user(state, user)))
    }

    fn log_in(host: &Host, name: &str, password: &str) -> LogInResult {
        let (sender, receiver) = channel();
        let log_in = LogIn {
            user: name.into(),
            password: password.into(),
            certified: Certified::default(),
            address: None,
            protocol: "mqtt",
        };
        host.log_in(log_in, Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap()
    }

    #[test]
    fn a_user_logs_in_until_it_is_deleted() {
        let host = host(&Limits::default());
        let epoch = host.published().epoch();
        add(&host, "alice", "secret").unwrap();
        assert!(host.published().epoch() > epoch);
        assert!(matches!(add(&host, "alice", "other"), Err(ChangeError::Exists(_))));
        for _ in 0..2 {
            let LogInResult::Accepted(who) = log_in(&host, "alice", "secret") else { panic!("it is right") };
            assert_eq!(who.user().map(|user| &**user), Some("alice"));
        }
        assert_eq!(log_in(&host, "alice", "other"), LogInResult::Rejected);
        assert_eq!(log_in(&host, "bob", "secret"), LogInResult::Rejected);
        change(&host, Box::new(|state| delete_user(state, "alice"))).unwrap();
        assert_eq!(log_in(&host, "alice", "secret"), LogInResult::Rejected);
        assert!(matches!(
            change(&host, Box::new(|state| delete_user(state, "alice"))),
            Err(ChangeError::NotFound(_))
        ));
    }

    /// A user whose name is as long as it may be does not become the one of a longer name.
    #[test]
    fn a_name_that_is_too_long_is_that_of_nobody() {
        let host = host(&Limits::default());
        let longest = "x".repeat(MAX_NAME_BYTES);
        add(&host, &longest, "secret").unwrap();
        assert!(matches!(log_in(&host, &longest, "secret"), LogInResult::Accepted(_)));
        for bytes in [MAX_NAME_BYTES + 1, 30_000] {
            assert_eq!(log_in(&host, &"x".repeat(bytes), "secret"), LogInResult::Rejected);
        }
    }

    #[test]
    fn expired_bans_make_room_for_others() {
        let host = host(&Limits::default());
        let subject = |number: usize| BanSubject::ClientId(format!("client-{number}").into());
        let ban = |until_ms| Ban { reason: "".into(), since_ms: 0, until_ms };
        let full = move |_: &SecurityState| {
            Ok((0..MAX_BANS).map(|number| Change::PutBan(subject(number), Arc::new(ban(Some(10))))).collect())
        };
        assert_eq!(change(&host, Box::new(full)).unwrap().len(), MAX_BANS);
        let one_more = move |since_ms: u64| {
            move |state: &SecurityState| Ok(add_ban(state, subject(MAX_BANS), Ban { since_ms, ..ban(None) }))
        };
        assert!(matches!(change(&host, Box::new(one_more(9))), Err(ChangeError::Invalid(_))));
        let changes = change(&host, Box::new(one_more(11))).unwrap();
        assert!(changes.len() > 1 && matches!(changes.last(), Some(Change::PutBan(..))));
    }

    #[test]
    fn a_deletion_of_rules_stores_the_last_identifier() {
        let mut next = SecurityState::default();
        next.note_rule_id(RuleId(4));
        let put = Change::DeleteUser("alice".into());
        assert_eq!(records(std::slice::from_ref(&put), &next), [encode(&put)]);
        let delete = Change::DeleteRule(RuleId(4));
        assert_eq!(records(std::slice::from_ref(&delete), &next), [encode(&delete), encode_last_rule(&next)]);
    }

    #[test]
    fn failed_log_ins_are_limited_but_not_verified_ones() {
        let host = host(&Limits { failures_per_user_max: 2, ..Limits::default() });
        add(&host, "alice", "secret").unwrap();
        assert!(matches!(log_in(&host, "alice", "secret"), LogInResult::Accepted(_)));
        for _ in 0..2 {
            assert_eq!(log_in(&host, "alice", "other"), LogInResult::Rejected);
            assert_eq!(log_in(&host, "bob", "other"), LogInResult::Rejected);
        }
        assert_eq!(log_in(&host, "alice", "other"), LogInResult::Busy);
        assert_eq!(log_in(&host, "bob", "other"), LogInResult::Busy);
        assert!(matches!(log_in(&host, "alice", "secret"), LogInResult::Accepted(_)));
    }

    #[test]
    fn log_ins_that_protocols_verify_are_limited_unless_they_have_worked_before() {
        let limits = Limits { failures_per_address_max: 2, failures_per_user_max: 3, ..Limits::default() };
        let host = host(&limits);
        let at =
            |user, last: u8| Attempt { user, address: Some([192, 0, 2, last].into()), protocol: "kafka" };
        host.attempted(&at("alice", 1), true);
        for _ in 0..2 {
            assert!(host.may_attempt(&at("bob", 1)));
            host.attempted(&at("mallory", 1), false);
        }
        assert!(!host.may_attempt(&at("bob", 1)), "the address has failed too often");
        assert!(host.may_attempt(&at("alice", 1)), "she has logged in from there");
        assert!(host.may_attempt(&at("bob", 2)));
        host.attempted(&at("mallory", 3), false);
        assert!(!host.may_attempt(&at("mallory", 4)), "the user has failed too often");
    }

    #[test]
    fn the_audit_log_has_who_did_what_and_no_secrets() {
        let path = std::env::temp_dir().join(format!("mainstem-audit-{}.jsonl", std::process::id()));
        let limits = Limits { audit_log: Some(path.clone()), ..Limits::default() };
        let host = host(&limits);
        add(&host, "alice", "hunter2hunter2").unwrap();
        log_in(&host, "alice", "hunter2hunter2");
        log_in(&host, "mallory", "guess-guess");
        drop(host);
        // The last owner of the log may be a thread that ends.
        let deadline = Instant::now() + std::time::Duration::from_secs(20);
        let text = loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.lines().count() == 3 || Instant::now() > deadline {
                break text;
            }
            std::thread::yield_now();
        };
        std::fs::remove_file(&path).unwrap();
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let seen: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!(seen, ["changed", "log-in", "log-in-failed"], "{text}");
        assert_eq!((&events[0]["protocol"], &events[0]["object"]), (&"test".into(), &"alice".into()));
        assert_eq!((&events[0]["before"], &events[0]["after"]["disabled"]), (&Value::Null, &false.into()));
        assert_eq!(events[2]["user"], "mallory");
        assert!(!text.contains("hunter2") && !text.contains("guess") && !text.contains("argon2"), "{text}");
    }
}
