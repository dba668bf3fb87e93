//! The interface through which protocols have passwords verified and users changed.
//!
//! Verifying a password takes tens of milliseconds, and a change waits for the disk. The host of the interface does
//! both on threads of its own; the protocol gets the result by a callback and continues.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::error::SecurityError;
use crate::identity::{CertificateOutcome, Certified, Identity, Presented, Principal};
use crate::published::Published;
use crate::rule::{Action, Origin, ResourceKind};
use crate::state::{Change, SecurityState};
use crate::user::User;

/// A log-in with user name and password, or with a token.
#[derive(Clone)]
pub struct LogIn {
    /// Name of the user. It is ignored with a token, which says who the client is.
    pub user: Arc<str>,
    /// The password or the token.
    pub password: Vec<u8>,
    /// What is known of the certificate of the client.
    pub certified: Certified,
    /// Where the client is.
    pub address: Option<IpAddr>,
    /// The protocol, for the audit log: `mqtt`, `kafka`, `http`.
    pub protocol: &'static str,
    /// The client identifier, if the protocol has one, for services that decide log-ins.
    pub client_id: Option<Arc<str>>,
}

/// Shows no password.
impl fmt::Debug for LogIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogIn")
            .field("user", &self.user)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A log-in that the protocol verifies by itself, as with the keys of SCRAM.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Name of the user.
    pub user: &'a str,
    /// Where the client is.
    pub address: Option<IpAddr>,
    /// The protocol, for the audit log.
    pub protocol: &'static str,
}

/// The result of a log-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogInResult {
    /// The client is this user.
    Accepted(Identity),
    /// The user is unknown or disabled, or the password is wrong. Nothing tells which.
    Rejected,
    /// The service that decides log-ins of this user does not answer; try later.
    Unavailable,
    /// Too many log-ins are waiting, or too many have failed from this address or for this user; try later.
    Busy,
}

/// Receives a result, on any thread. It must not block.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// An action that was denied, for the audit log.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'a> {
    /// Who, and from where.
    pub origin: Origin<'a>,
    /// The protocol: `mqtt`, `kafka`, `http`.
    pub protocol: &'static str,
    /// The action.
    pub action: Action,
    /// The kind of its object.
    pub kind: ResourceKind,
    /// The name of its object.
    pub name: &'a str,
}

/// A client that is refused or disconnected because of a ban, for the audit log: what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BannedClient<'a> {
    /// Its user.
    pub user: Option<&'a str>,
    /// Its client id.
    pub client_id: Option<&'a str>,
    /// Where it is.
    pub address: Option<IpAddr>,
    /// The protocol: `mqtt`, `kafka`, `http`; `None` for a connection that is closed before it speaks one.
    pub protocol: Option<&'static str>,
}

/// Who changes something, and from where, for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// Who.
    pub principal: Principal,
    /// Where the client is.
    pub address: Option<IpAddr>,
    /// The protocol: `kafka`, `http`; `mqtt` for clients that connect too often; `command-line` for a tool that works
    /// on the data directory.
    pub protocol: &'static str,
}

/// Settings of an object, for the audit log: names and values, without secrets.
pub type ChangedSettings = BTreeMap<String, String>;

/// A change by an administrator, other than of users and rules, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminChange {
    /// What was done, as `create-topic`.
    pub change: &'static str,
    /// The name of the object.
    pub object: String,
    /// Its settings before; `None` if it did not exist or has none.
    pub before: Option<ChangedSettings>,
    /// Its settings now; `None` if it was deleted or has none.
    pub after: Option<ChangedSettings>,
}

/// Verifies log-ins, and notes denials and refusals.
pub trait Authenticator: Send + Sync {
    /// What the certificate of a client decides, before anything else of it is verified. It takes microseconds.
    fn check_certificate(&self, presented: &Presented<'_>) -> CertificateOutcome;

    /// Starts to verify a log-in. `reply` gets exactly one result, perhaps before this returns.
    fn log_in(&self, log_in: LogIn, reply: Reply<LogInResult>);

    /// Whether a log-in may be verified by the protocol. Not if too many have failed from this address or for this
    /// user, unless this user has logged in from there a short time ago.
    fn may_attempt(&self, attempt: &Attempt<'_>) -> bool;

    /// Notes the end of a log-in that the protocol has verified, for the limits of failures and the audit log.
    fn attempted(&self, attempt: &Attempt<'_>, is_accepted: bool);

    /// Notes a denial in the audit log, which samples them. Never blocks.
    fn denied(&self, denial: &Denial<'_>);

    /// Counts a client that is refused or disconnected because of a ban, and notes it in the audit log, which samples
    /// them. Never blocks.
    fn banned(&self, client: &BannedClient<'_>);
}

/// Why changes were not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// A change is invalid.
    Invalid(SecurityError),
    /// What is to be changed does not exist: what it is.
    NotFound(String),
    /// What is to be added exists: what it is.
    Exists(String),
    /// The log cannot store it: why.
    Log(String),
    /// The broker stops, or too many changes are waiting.
    Unavailable,
}

/// Computes changes from the newest state. It runs where changes are ordered, so it must be quick.
pub type Edit = Box<dyn FnOnce(&SecurityState) -> Result<Vec<Change>, ChangeError> + Send>;

/// Changes users and rules.
pub trait SecurityAdmin: Send + Sync {
    /// Applies the changes that `edit` returns, all or none; `by` says for the audit log who wants them. `reply` gets
    /// those that changed anything, when they are durable and published.
    fn change(&self, edit: Edit, by: Actor, reply: Reply<Result<Vec<Change>, ChangeError>>);

    /// Notes in the audit log a change that was made elsewhere. Never blocks.
    fn changed(&self, by: &Actor, change: AdminChange);

    /// Derives the verifiers of a user from a password, on a thread for that.
    fn derive(&self, user: User, password: Vec<u8>, reply: Reply<Result<User, ChangeError>>);
}

/// All that protocols need of users and rules.
pub trait SecurityHost: Authenticator + SecurityAdmin {
    /// The newest users and rules.
    fn published(&self) -> &Arc<Published>;
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => write!(f, "{error}"),
            Self::NotFound(what) => write!(f, "{what} does not exist"),
            Self::Exists(what) => write!(f, "{what} exists"),
            Self::Log(error) => write!(f, "the change cannot be stored: {error}"),
            Self::Unavailable => f.write_str("too many changes are waiting, or the broker stops"),
        }
    }
}

impl std::error::Error for ChangeError {}
