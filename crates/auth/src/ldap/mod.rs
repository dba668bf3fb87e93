//! A directory (LDAP) that decides the log-ins of users that the user store does not have: a client is the user whose
//! entry it can bind as, with its password.
//!
//! Three properties of directories would let in the wrong user:
//! - A bind without a password succeeds, as nobody (RFC 4513, section 5.1.2). An empty password is refused unasked.
//! - Names compare without regard to case and spaces, and those of the broker do not: `ALICE` would be bound as
//!   `alice`, and no rule of `alice` would apply. So the entry must have exactly the name that the client says.
//! - Names and filters are texts. What a client says is escaped in the one, and never becomes a text in the other.
//!
//! A log-in has a connection of its own, for as long as it takes: binds change who a connection is.
//!
//! The client is ours because a log-in needs three operations of the protocol, and every size must have a bound. Those
//! of the registry read responses of any length, and recurse as deep as a server nests them.

mod ber;
mod connection;
mod filter;
mod message;
mod template;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mainstem_security::{LogIn, MAX_PASSWORD_BYTES, MAX_ROLES, Proof, check_name};

use self::connection::{Connection, Found, Server};
use self::filter::{Filter, description};
use self::message::{Entry, Outcome, Search};
use self::template::{Part, Template, Values};
use crate::service::{Answer, Service, ServiceLimits};

pub use self::message::Scope;

/// How often it is logged that one user cannot log in, at most.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Where the directory is, and how it names users.
#[derive(Clone, Debug)]
pub struct LdapSettings {
    /// `ldaps://HOST:PORT` or `ldap://HOST:PORT`.
    pub url: String,
    /// Whether TLS begins after the connection.
    pub start_tls: bool,
    /// PEM file with the authorities that are trusted for it; `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// Longest time for a log-in.
    pub timeout: Duration,
    /// How much it is asked.
    pub limits: ServiceLimits,
    /// Distinguished name and password with which the broker searches; `None` to search as nobody, and as the user
    /// after its bind.
    pub account: Option<(String, Vec<u8>)>,
    /// How the entry of a user is found.
    pub user: UserEntry,
    /// The attribute that must be the name of the user, exactly; `None` to take any entry that it can bind as.
    pub user_attribute: Option<String>,
    /// Where roles come from, if they come from groups.
    pub groups: Option<GroupSettings>,
}

/// How the entry of a user is found.
#[derive(Clone, Debug)]
pub enum UserEntry {
    /// By its distinguished name, with `${user}`.
    Name(String),
    /// By a search.
    Search {
        /// The entry that the search begins with.
        base: String,
        /// How far it goes.
        scope: Scope,
        /// The filter, with `${user}`.
        filter: String,
    },
}

/// Groups whose members have a role.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// The entry that the search begins with.
    pub base: String,
    /// How far it goes.
    pub scope: Scope,
    /// The filter, with `${user}` or `${dn}`.
    pub filter: String,
    /// The attribute whose values are roles.
    pub attribute: String,
}

/// A directory, and what is known of it.
pub struct Ldap {
    server: Server,
    timeout: Duration,
    account: Option<(String, Vec<u8>)>,
    entries: Entries,
    user_attribute: Option<String>,
    groups: Option<Groups>,
    service: Service,
    /// When it was logged that a user cannot log in.
    logged: Mutex<Option<Instant>>,
}

enum Entries {
    Name(Template),
    Search { base: String, scope: Scope, filter: Filter },
}

struct Groups {
    base: String,
    scope: Scope,
    filter: Filter,
    attribute: String,
}

/// Why a log-in has no answer.
enum Failure {
    /// The directory fails.
    Service(String),
    /// It does what it should, but cannot decide about this user.
    User(String),
}

impl From<String> for Failure {
    fn from(error: String) -> Self {
        Self::Service(error)
    }
}

impl fmt::Debug for Ldap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ldap").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Ldap {
    /// Starts the threads. The directory is not asked before the first log-in.
    ///
    /// # Errors
    /// A message for the user, with the key: something is invalid, or a thread does not start.
    pub fn open(settings: LdapSettings) -> Result<Self, String> {
        let server = Server::new(&settings.url, settings.start_tls, settings.ca_file.as_deref())
            .map_err(|error| format!("ldap.url: {error}"))?;
        let has_user = |key: &str, uses: bool| {
            if uses {
                Ok(())
            } else {
                Err(format!("ldap.{key}: expected ${{user}} in it: everybody would be one user"))
            }
        };
        let entries = match settings.user {
            UserEntry::Name(text) => {
                let template =
                    Template::parse(text.as_bytes()).map_err(|error| format!("ldap.user_dn: {error}"))?;
                has_user("user_dn", template.uses(&Part::User))?;
                if template.uses(&Part::Dn) {
                    return Err("ldap.user_dn: there is no ${dn} before it".into());
                }
                Entries::Name(template)
            }
            UserEntry::Search { base, scope, filter } => {
                let filter = Filter::parse(&filter).map_err(|error| format!("ldap.user_filter: {error}"))?;
                has_user("user_filter", filter.uses(&Part::User))?;
                if filter.uses(&Part::Dn) {
                    return Err("ldap.user_filter: there is no ${dn} before it".into());
                }
                Entries::Search { base, scope, filter }
            }
        };
        let user_attribute = settings.user_attribute.as_deref().map(description).transpose();
        let user_attribute = user_attribute.map_err(|error| format!("ldap.user_attribute: {error}"))?;
        let groups = settings.groups.map(Groups::new).transpose()?;
        if settings.account.as_ref().is_some_and(|(_, password)| password.is_empty()) {
            return Err(
                "ldap.bind_password_file: without a password, the directory takes the broker for nobody"
                    .into(),
            );
        }
        let service = Service::start(format!("directory {}", settings.url), "ldap", settings.limits)?;
        Ok(Self {
            server,
            timeout: settings.timeout,
            account: settings.account,
            entries,
            user_attribute,
            groups,
            service,
            logged: Mutex::default(),
        })
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Asks the directory, and waits for the answer.
    pub(crate) fn ask(&self, log_in: &LogIn) -> Answer {
        // A bind without a password succeeds for every name.
        let is_password = (1..=MAX_PASSWORD_BYTES).contains(&log_in.password.len());
        if !is_password || check_name(&log_in.user).is_err() {
            return Answer::Denied;
        }
        // Names have no U+0000, so the parts cannot be confused.
        let request = [log_in.user.as_bytes(), b"\0", &log_in.password].concat();
        self.service.answer(&request, || match self.decide(&log_in.user, &log_in.password) {
            Ok(answer) => Ok(answer),
            Err(Failure::Service(error)) => Err(error),
            Err(Failure::User(error)) => {
                self.log_user(&log_in.user, &error);
                Ok(Answer::Unavailable)
            }
        })
    }

    fn decide(&self, user: &str, password: &[u8]) -> Result<Answer, Failure> {
        let mut connection = Connection::open(&self.server, Instant::now() + self.timeout)?;
        let mut dn = match &self.entries {
            Entries::Name(template) => template.fill_dn(user),
            Entries::Search { base, scope, filter } => {
                self.become_account(&mut connection)?;
                let filter = filter.encode(&Values { user, dn: "" });
                let found = self.one_entry(&mut connection, (base.as_bytes(), *scope, &filter))?;
                let Some(entry) = found.filter(|entry| self.is_named(entry, user)) else {
                    return Ok(Answer::Denied);
                };
                entry.dn.into_bytes()
            }
        };
        let outcome = connection.bind(&dn, password)?;
        if !is_right(&outcome)? {
            return Ok(Answer::Denied);
        }
        let must_read = matches!(self.entries, Entries::Name(_)) && self.user_attribute.is_some();
        if must_read || self.groups.is_some() {
            self.become_account(&mut connection)?;
        }
        if must_read {
            let filter = Filter::Present("objectClass".into()).encode(&Values::default());
            let entry = self.one_entry(&mut connection, (&dn, Scope::Base, &filter))?;
            let entry = entry.ok_or_else(|| {
                Failure::User(
                    "its entry cannot be read; set ldap.bind_dn to an account that can read it".into(),
                )
            })?;
            if !self.is_named(&entry, user) {
                return Ok(Answer::Denied);
            }
            dn = entry.dn.into_bytes();
        }
        let roles = match &self.groups {
            Some(groups) => groups.roles(&mut connection, user, &String::from_utf8_lossy(&dn))?,
            None => Vec::new(),
        };
        Ok(Answer::Allowed(Arc::new(Proof { is_external: true, roles, ..Proof::default() })))
    }

    /// Binds as the account of the broker, if it has one.
    fn become_account(&self, connection: &mut Connection) -> Result<(), String> {
        let Some((dn, password)) = &self.account else { return Ok(()) };
        let outcome = connection.bind(dn.as_bytes(), password)?;
        if outcome.is_success() { Ok(()) } else { Err(format!("bind as {dn:?} (ldap.bind_dn): {outcome}")) }
    }

    /// The one entry that a search finds.
    fn one_entry(
        &self,
        connection: &mut Connection,
        (base, scope, filter): (&[u8], Scope, &[u8]),
    ) -> Result<Option<Entry>, Failure> {
        // RFC 4511, section 4.5.1.8: 1.1 is no attribute.
        let attribute = self.user_attribute.as_deref().unwrap_or("1.1");
        let search = Search { base, scope, filter, attribute, entries_max: 2, time_s: 0 };
        let Found { mut entries, is_complete } = connection.search(search)?;
        if entries.len() > 1 || !is_complete {
            return Err(Failure::User("it has several entries; make ldap.user_filter narrower".into()));
        }
        // A bind without a name succeeds for every password.
        Ok(entries.pop().filter(|entry| !entry.dn.is_empty()))
    }

    /// Whether an entry has exactly the name that the client says.
    fn is_named(&self, entry: &Entry, user: &str) -> bool {
        let has_name = |value: &Vec<u8>| **value == *user.as_bytes();
        self.user_attribute.is_none() || entry.values.iter().any(has_name)
    }

    /// Logs why a user cannot log in whose password may be right, at intervals.
    fn log_user(&self, user: &str, error: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            log::warn!("the {}: user {user:?} is refused: {error}", self.service.name());
        }
    }
}

impl Groups {
    fn new(settings: GroupSettings) -> Result<Self, String> {
        let filter =
            Filter::parse(&settings.filter).map_err(|error| format!("ldap.group_filter: {error}"))?;
        if !filter.uses(&Part::User) && !filter.uses(&Part::Dn) {
            return Err(
                "ldap.group_filter: expected ${user} or ${dn} in it: everybody would be in every group"
                    .into(),
            );
        }
        let attribute =
            description(&settings.attribute).map_err(|error| format!("ldap.group_attribute: {error}"))?;
        Ok(Self { base: settings.base, scope: settings.scope, filter, attribute })
    }

    /// The roles of a user. A role that is left out could be one that rules deny something, so all must be there.
    fn roles(&self, connection: &mut Connection, user: &str, dn: &str) -> Result<Vec<Arc<str>>, Failure> {
        let found = connection.search(Search {
            base: self.base.as_bytes(),
            scope: self.scope,
            filter: &self.filter.encode(&Values { user, dn }),
            attribute: &self.attribute,
            entries_max: MAX_ROLES as u32 + 1,
            time_s: 0,
        })?;
        let names: Vec<&Vec<u8>> = found.entries.iter().flat_map(|entry| &entry.values).collect();
        if !found.is_complete || names.len() > MAX_ROLES {
            let what = format!("it is in more than {MAX_ROLES} groups; make ldap.group_filter narrower");
            return Err(Failure::User(what));
        }
        let role = |name: &Vec<u8>| {
            let role = std::str::from_utf8(name).ok().filter(|role| check_name(role).is_ok());
            role.map(Into::into)
                .ok_or_else(|| Failure::User("the name of one of its groups cannot be a role".into()))
        };
        names.into_iter().map(role).collect()
    }
}

/// Whether the password is right, by the result of a bind.
///
/// # Errors
/// The result says neither. Only results that no client can bring about on purpose are failures of the directory:
/// others would let a client keep everybody out, by those that pause it.
fn is_right(outcome: &Outcome) -> Result<bool, Failure> {
    let what = || format!("bind as the user: {outcome}");
    match outcome.code {
        0 => Ok(true),
        // Too many wrong passwords (389 Directory Server); no such entry, an invalid name; an entry without a password,
        // the wrong password, no right to bind; an account that is locked.
        19 | 32 | 34 | 48 | 49 | 50 | 53 => Ok(false),
        // An error, another protocol, no TLS; it is busy, away, or at its end.
        1 | 2 | 8 | 13 | 51 | 52 | 80 => Err(Failure::Service(what())),
        _ => Err(Failure::User(what())),
    }
}
