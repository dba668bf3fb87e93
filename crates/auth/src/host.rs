//! The host of users and rules: the interface for protocols.
//!
//! The log has a store of its own: it is small, rarely written, and needed before the shards start.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::time::Instant;

use mainstem_log::{Durability, ImageFile, Store};
use mainstem_partition::CompactedLog;
use mainstem_security::{
    Actor, AdminChange, Attempt, Authenticator, BannedClient, CertificateOutcome, Change, ChangeError,
    ChangedSettings, Denial, Edit, LogIn, LogInResult, MAX_NAME_BYTES, Presented, PresentedApiKey, Published,
    Reply, SALT_BYTES, Salts, SecurityAdmin, SecurityError, SecurityHost, SecurityState, Settings, User,
    apply_record, decode_last_use,
};
use serde_json::Map;

use crate::audit::{Audit, cut};
use crate::changes::changed;
use crate::failures::Failures;
use crate::log_ins::{ACCEPTED, FAILED, LIMITED, LogIns};
use crate::providers::Providers;
use crate::reply::{SharedReply, submit};
use crate::verifier::Pool;
use crate::writer::{Command, ConfiguredUsers, Writer};

/// Name of the log.
const LOG: &str = "security";
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
    /// Whether [`Published::audit_events`] gets the same events, for a topic.
    pub has_audit_topic: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: 2,
            waiting_max: 1000,
            failures_per_address_max: 20,
            failures_per_user_max: 20,
            audit_log: None,
            has_audit_topic: false,
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

/// The host. Its threads end when it is dropped.
pub struct Host {
    published: Arc<Published>,
    edits: SyncSender<Command>,
    pool: Pool,
    log_ins: Arc<LogIns>,
    audit: Option<Arc<Audit>>,
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
        let (mut invalid, mut uses) = (None, BTreeMap::new());
        let log = CompactedLog::open(&mut *store, LOG, Durability::Fsync, |key, value| {
            let result = match decode_last_use(key, value) {
                Ok(Some((id, at_ms))) => {
                    uses.insert(id, at_ms);
                    Ok(())
                }
                Ok(None) => apply_record(&mut state, key, value),
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                invalid.get_or_insert(error);
            }
        })
        .map_err(OpenError::Log)?;
        // Opening may create the log.
        store.commit();
        if let Some(error) = invalid {
            return Err(OpenError::Record(error));
        }
        let system = |error: &dyn fmt::Display| OpenError::System(format!("users and rules: {error}"));
        let (mut secret, mut key) = ([0; 32], [0; 32]);
        getrandom::fill(&mut secret)
            .and_then(|()| getrandom::fill(&mut key))
            .map_err(|error| system(&error))?;
        uses.retain(|id, _| state.api_keys().get(*id).is_some());
        let published = Arc::new(Published::new(state));
        let topic = limits.has_audit_topic.then(|| Arc::clone(&published));
        let audit = Audit::open(limits.audit_log.as_deref(), topic).map_err(OpenError::Audit)?.map(Arc::new);
        for (id, at_ms) in uses {
            published.api_key_uses().restore(id, at_ms);
        }
        let pool =
            Pool::start("log-in", limits.threads, limits.waiting_max).map_err(|error| system(&error))?;
        let (edits, commands) = sync_channel(EDITS_MAX);
        let mut writer = Writer { store, log, published: Arc::clone(&published), audit: audit.clone() };
        std::thread::Builder::new()
            .name("security".into())
            .spawn(move || writer.run(&commands))
            .map_err(|error| system(&error))?;
        let failures = Failures::new(limits.failures_per_address_max, limits.failures_per_user_max);
        let log_ins = LogIns::new(Arc::clone(&published), failures, audit.clone(), providers, (secret, key));
        Ok(Self { published, edits, pool, log_ins: Arc::new(log_ins), audit })
    }
}

impl Host {
    /// Replaces the users that the configuration names, and waits until the others see it. What has logged in as a user
    /// that is gone ends, as after the deletion of a user.
    ///
    /// # Errors
    /// The host ends.
    pub fn replace_users(&self, users: ConfiguredUsers) -> Result<(), ChangeError> {
        let (sender, replaced) = channel();
        let reply = Box::new(move |()| {
            if sender.send(()).is_err() {
                log::debug!("nobody waits for the users of the configuration");
            }
        });
        self.edits
            .send(Command::ReplaceUsers { users, reply })
            .map_err(|_| ChangeError::Unavailable)
            .and_then(|()| replaced.recv().map_err(|_| ChangeError::Unavailable))
    }

    /// Puts an image of the log into the directory `into`, and waits for it. Returns its files.
    ///
    /// # Errors
    /// A message for the user: a file cannot be linked, or the host ends.
    pub fn link_image(&self, into: &Path) -> Result<Vec<ImageFile>, String> {
        let (sender, linked) = channel();
        let reply = Box::new(move |result| {
            if sender.send(result).is_err() {
                log::debug!("nobody waits for the image of users and rules");
            }
        });
        let sent = self.edits.send(Command::LinkImage { into: into.to_owned(), reply });
        let linked = sent.ok().and_then(|()| linked.recv().ok());
        linked.ok_or("the broker stops")?.map_err(|error| format!("users and rules: {error}"))
    }

    /// Sets how many log-ins of one address and of one user may fail in a minute; 0 for no limit.
    pub fn set_failure_limits(&self, per_address_max: u32, per_user_max: u32) {
        self.log_ins.failures().set_limits(per_address_max, per_user_max);
    }
}

impl SecurityHost for Host {
    fn published(&self) -> &Arc<Published> {
        &self.published
    }
}

impl Authenticator for Host {
    fn check_certificate(&self, presented: &Presented<'_>) -> CertificateOutcome {
        self.log_ins.check_certificate(presented)
    }

    fn log_in(&self, mut log_in: LogIn, reply: Reply<LogInResult>) {
        if log_in.user.len() > MAX_NAME_BYTES {
            // No user has such a name. It costs what an unknown one costs, but waits with few bytes.
            log_in.user = format!("{}\0", cut(&log_in.user)).into();
        }
        if let Some(presented) = PresentedApiKey::parse(&log_in.password) {
            return reply(self.log_ins.verify_api_key(&log_in, &presented));
        }
        let (shared, reply) = (Arc::clone(&self.log_ins), SharedReply::new(reply));
        if let Some(tokens) = shared.tokens(&log_in.password) {
            if shared.is_limited(&log_in) {
                return reply.answer(LogInResult::Busy);
            }
            let work = move |reply: &SharedReply<LogInResult>| shared.verify_token(&tokens, log_in, reply);
            return submit(|job| self.pool.submit(job), &reply, LogInResult::Busy, work);
        }
        if let Some(service) = shared.service(&log_in) {
            if shared.is_limited(&log_in) {
                return reply.answer(LogInResult::Busy);
            }
            let asked = Arc::clone(&service);
            let work =
                move |reply: &SharedReply<LogInResult>| reply.answer(shared.ask_service(&asked, &log_in));
            return submit(|job| service.service().submit(job), &reply, LogInResult::Busy, work);
        }
        if let Some(result) = self.log_ins.decide_at_once(&log_in) {
            return reply.answer(result);
        }
        let work = move |reply: &SharedReply<LogInResult>| reply.answer(shared.verify(&log_in));
        submit(|job| self.pool.submit(job), &reply, LogInResult::Busy, work);
    }

    fn may_attempt(&self, attempt: &Attempt<'_>) -> bool {
        let Attempt { user, address, .. } = *attempt;
        let now = Instant::now();
        let failures = self.log_ins.failures();
        let is_refused = failures.is_limited(user, address, now) && !failures.is_exempt(user, address, now);
        drop(failures);
        if is_refused {
            self.log_ins.audit(attempt, LIMITED);
        }
        !is_refused
    }

    fn attempted(&self, attempt: &Attempt<'_>, is_accepted: bool) {
        let Attempt { user, address, .. } = *attempt;
        let now = Instant::now();
        if is_accepted {
            self.log_ins.failures().exempt(user, address, now);
            self.log_ins.audit(attempt, ACCEPTED);
        } else {
            self.log_ins.failures().count(user, address, now);
            self.log_ins.audit(attempt, FAILED);
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
        let command = Command::Edit { edit, by, reply };
        if let Err(error) = self.edits.try_send(command) {
            let (std::sync::mpsc::TrySendError::Full(command)
            | std::sync::mpsc::TrySendError::Disconnected(command)) = error;
            if let Command::Edit { reply, .. } = command {
                reply(Err(ChangeError::Unavailable));
            }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use mainstem_log::MemoryStore;
    use mainstem_security::{
        ApiKey, ApiKeyId, Ban, BanSubject, Certified, MAX_BANS, add_api_key, add_ban, create_user,
        delete_user,
    };
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
            client_id: None,
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
    fn configured_users_and_limits_can_be_replaced() {
        let host = host(&Limits { failures_per_user_max: 2, ..Limits::default() });
        add(&host, "alice", "secret").unwrap();
        let epoch = host.published().state().epoch();
        let file_users = [("bob".into(), Arc::new(User::new("bob").unwrap()))].into();
        let users = ConfiguredUsers { file_users, super_users: ["alice".into()].into() };
        host.replace_users(users.clone()).unwrap();
        let state = host.published().state();
        assert_eq!((state.settings().super_users.len(), state.all_users().count()), (1, 2));
        assert_eq!(state.epoch(), epoch + 1);
        // The same once more is no change, and edits keep what was replaced.
        host.replace_users(users).unwrap();
        assert_eq!(host.published().state().epoch(), epoch + 1);
        add(&host, "carol", "secret").unwrap();
        host.replace_users(ConfiguredUsers::default()).unwrap();
        let names: Vec<_> = host.published().state().all_users().map(|user| user.name.to_string()).collect();
        assert_eq!(names, ["alice", "carol"]);
        assert_eq!(log_in(&host, "carol", "other"), LogInResult::Rejected);
        host.set_failure_limits(0, 1);
        assert_eq!(log_in(&host, "carol", "other"), LogInResult::Busy);
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

    fn add_key(host: &Host, number: u64, user: &str, expires_ms: Option<u64>) -> PresentedApiKey {
        let presented = PresentedApiKey::new(ApiKeyId(number), [number as u8; 32]);
        let key = ApiKey {
            user: user.into(),
            hash: presented.hash(),
            roles: Vec::new(),
            description: "".into(),
            created_ms: 0,
            expires_ms,
        };
        let id = presented.id;
        change(host, Box::new(move |state| add_api_key(state, id, key))).unwrap();
        presented
    }

    #[test]
    fn an_api_key_is_the_password_of_its_user_until_it_ends() {
        let host = host(&Limits::default());
        add(&host, "alice", "secret").unwrap();
        let (key, ended) = (add_key(&host, 1, "alice", Some(u64::MAX)), add_key(&host, 2, "alice", Some(1)));
        let text = key.expose();
        for user in ["alice", ""] {
            let LogInResult::Accepted(who) = log_in(&host, user, &text) else { panic!("it is right") };
            assert_eq!(who.user().map(|user| &**user), Some("alice"));
            let proof = who.proof.as_ref().unwrap();
            assert_eq!((proof.api_key, proof.expires_ms), (Some(key.id), Some(u64::MAX)));
            assert!(host.published().state().admits(&who.principal, who.proof.as_deref()));
        }
        assert!(host.published().api_key_uses().last(key.id).is_some());
        let wrong = PresentedApiKey::new(key.id, [9; 32]).expose();
        for (user, password) in [("bob", &text), ("alice", &wrong), ("", &wrong), ("alice", &ended.expose())]
        {
            assert_eq!(log_in(&host, user, password), LogInResult::Rejected, "{user}");
        }
        assert_eq!(host.published().api_key_uses().last(ended.id), None);
        change(&host, Box::new(|state| delete_user(state, "alice"))).unwrap();
        assert_eq!(log_in(&host, "alice", &text), LogInResult::Rejected);
        add(&host, "alice", "other").unwrap();
        assert_eq!(log_in(&host, "alice", &text), LogInResult::Rejected, "a later user does not inherit it");
    }

    #[test]
    fn guesses_of_api_keys_are_limited_by_address_and_lock_nobody_out() {
        let host =
            host(&Limits { failures_per_address_max: 2, failures_per_user_max: 2, ..Limits::default() });
        add(&host, "alice", "secret").unwrap();
        let key = add_key(&host, 1, "alice", None);
        let from = |password: &str, last: u8| {
            let (sender, receiver) = channel();
            let log_in = LogIn {
                user: "alice".into(),
                password: password.into(),
                certified: Certified::default(),
                address: Some([192, 0, 2, last].into()),
                protocol: "mqtt",
                client_id: None,
            };
            host.log_in(log_in, Box::new(move |result| sender.send(result).unwrap()));
            receiver.recv().unwrap()
        };
        let wrong = PresentedApiKey::new(key.id, [9; 32]).expose();
        for expected in [LogInResult::Rejected, LogInResult::Rejected, LogInResult::Busy] {
            assert_eq!(from(&wrong, 1), expected);
        }
        assert!(matches!(from(&key.expose(), 1), LogInResult::Accepted(_)), "the right key from there");
        assert!(matches!(from("secret", 2), LogInResult::Accepted(_)), "her password from elsewhere");
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
