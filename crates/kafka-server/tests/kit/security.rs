//! A host of users and rules in memory, which verifies log-ins at once.

use std::sync::{Arc, Mutex};

use mainstem_kafka_server::Security;
use mainstem_security::{
    Actor, AdminChange, Anonymous, Attempt, Authenticator, BannedClient, CertificateOutcome, Certified,
    Change, ChangeError, Denial, Edit, Identity, LogIn, LogInResult, Presented, Published, Reply, Salts,
    SecurityAdmin, SecurityHost, SecurityState, Settings, User,
};

const SALTS: Salts = Salts([[1; 16], [2; 16], [3; 16]]);

/// The host. Clones share it.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) published: Arc<Published>,
    /// Held by who changes something.
    changes: Arc<Mutex<()>>,
    /// Log-ins that the server has verified: the user, and whether they were accepted.
    pub(crate) attempts: Arc<Mutex<Vec<(String, bool)>>>,
    /// What was denied: `USER ACTION KIND:NAME`.
    pub(crate) denials: Arc<Mutex<Vec<String>>>,
    /// Who was refused because of a ban: `USER CLIENT-ID`.
    pub(crate) banned: Arc<Mutex<Vec<String>>>,
    /// Who changed what.
    pub(crate) changes_seen: Arc<Mutex<Vec<(String, AdminChange)>>>,
}

impl Host {
    /// Users with their passwords; `root` may do everything. Clients without a user are refused.
    pub(crate) fn new(users: &[(&str, &str)]) -> Self {
        Self::with(users, Settings::default())
    }

    /// As [`Self::new`], and clients without a user are served.
    pub(crate) fn open_to_all(users: &[(&str, &str)]) -> Self {
        Self::with(users, Settings { anonymous: Anonymous::Allowed, ..Settings::default() })
    }

    fn with(users: &[(&str, &str)], settings: Settings) -> Self {
        let settings = Settings { super_users: ["root".into()].into(), ..settings };
        let host = Self {
            published: Arc::new(Published::new(SecurityState::new(settings))),
            changes: Arc::default(),
            attempts: Arc::default(),
            denials: Arc::default(),
            banned: Arc::default(),
            changes_seen: Arc::default(),
        };
        for (name, password) in users {
            let mut user = User::new(name).unwrap();
            user.set_password(password.as_bytes(), &SALTS).unwrap();
            host.apply(&Change::PutUser(Arc::new(user)));
        }
        host
    }

    pub(crate) fn apply(&self, change: &Change) {
        let mut state = SecurityState::clone(&self.published.state());
        state.check(change).expect("a valid change");
        state.apply(change);
        self.published.publish(Arc::new(state));
    }

    /// What the server gets.
    pub(crate) fn security(&self) -> Security {
        Security { host: Arc::new(self.clone()), unknown_user_secret: [7; 32] }
    }
}

impl Authenticator for Host {
    fn log_in(&self, log_in: LogIn, reply: Reply<LogInResult>) {
        let state = self.published.state();
        let user =
            state.user(&log_in.user).filter(|user| user.verify_password(&log_in.password) && !user.disabled);
        reply(
            user.map_or(LogInResult::Rejected, |user| LogInResult::Accepted(Identity::of_user(&user.name))),
        );
    }

    fn check_certificate(&self, _presented: &Presented<'_>) -> CertificateOutcome {
        CertificateOutcome::Ignored(Certified::default())
    }

    /// After three failures, users must wait.
    fn may_attempt(&self, attempt: &Attempt<'_>) -> bool {
        let attempts = self.attempts.lock().unwrap();
        let failed = |(user, is_accepted): &&(String, bool)| user == attempt.user && !is_accepted;
        attempts.iter().filter(failed).count() < 3
    }

    fn attempted(&self, attempt: &Attempt<'_>, is_accepted: bool) {
        self.attempts.lock().unwrap().push((attempt.user.to_owned(), is_accepted));
    }

    fn denied(&self, denial: &Denial<'_>) {
        let Denial { origin, action, kind, name, .. } = denial;
        let line = format!("{} {} {kind}:{name}", origin.principal, action.name());
        self.denials.lock().unwrap().push(line);
    }

    fn banned(&self, client: &BannedClient<'_>) {
        self.published.note_ban_refused();
        let name = |name: Option<&str>| name.unwrap_or("-").to_owned();
        self.banned.lock().unwrap().push(format!("{} {}", name(client.user), name(client.client_id)));
    }
}

impl SecurityHost for Host {
    fn published(&self) -> &Arc<Published> {
        &self.published
    }
}

impl SecurityAdmin for Host {
    fn derive(&self, mut user: User, password: Vec<u8>, reply: Reply<Result<User, ChangeError>>) {
        let derived = user.set_password(&password, &SALTS).map_err(ChangeError::Invalid);
        reply(derived.map(|()| user));
    }

    fn changed(&self, by: &Actor, change: AdminChange) {
        self.changes_seen.lock().unwrap().push((by.principal.to_string(), change));
    }

    fn change(&self, edit: Edit, _by: Actor, reply: Reply<Result<Vec<Change>, ChangeError>>) {
        let _guard = self.changes.lock().unwrap();
        let state = self.published.state();
        let outcome = edit(&state).and_then(|changes| {
            changes.iter().try_for_each(|change| state.check(change)).map_err(ChangeError::Invalid)?;
            Ok(changes)
        });
        if let Ok(changes) = &outcome {
            for change in changes {
                self.apply(change);
            }
        }
        reply(outcome);
    }
}
