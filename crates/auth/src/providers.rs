//! Where users come from besides the user store.
//!
//! Providers form a chain, in this order; each allows, denies, or ignores what a client presents:
//!
//! | provider | allows | denies | ignores |
//! |---|---|---|---|
//! | certificate | a user that the certificate names | a certificate that names none, a disabled user | no certificate, a listener that takes no users from them; a password, if that decides |
//! | API key | the user of a key | a key that is unknown, wrong or expired, or of another user; a disabled user | a password that has not the form of a key |
//! | token | a user of a valid token | a token that is not valid, a disabled user | a password that has not the form of a token |
//! | user store | the password of a user | another password of a user, a disabled user | a name that is no user's, if there is a service |
//! | service | a log-in that the HTTP service or the directory allows | everybody else; everybody while it does not answer | nothing |

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_security::LogIn;

use crate::certificate::CertificateUsers;
use crate::hook::Hook;
use crate::jwt::Tokens;
use crate::ldap::Ldap;
use crate::service::{Answer, Service};

/// Where users come from besides the user store.
#[derive(Debug, Default)]
pub struct Providers {
    /// The listeners that take users from client certificates, by name.
    pub certificates: BTreeMap<String, CertificateUsers>,
    /// Tokens, if any are accepted.
    pub tokens: Option<Arc<Tokens>>,
    /// The service that decides log-ins of users that the user store does not have.
    pub service: Option<Arc<LogInService>>,
}

/// A service outside the broker that decides log-ins.
#[derive(Debug)]
pub enum LogInService {
    /// An HTTP service.
    Hook(Box<Hook>),
    /// A directory.
    Ldap(Box<Ldap>),
}

impl LogInService {
    pub(crate) fn service(&self) -> &Service {
        match self {
            Self::Hook(hook) => hook.service(),
            Self::Ldap(ldap) => ldap.service(),
        }
    }

    /// Asks the service, and waits for the answer.
    pub(crate) fn ask(&self, log_in: &LogIn) -> Answer {
        match self {
            Self::Hook(hook) => hook.ask(log_in),
            Self::Ldap(ldap) => ldap.ask(log_in),
        }
    }
}

impl Providers {
    /// Whether any names users.
    pub(crate) fn have_users(&self) -> bool {
        !self.certificates.is_empty() || self.tokens.is_some() || self.service.is_some()
    }
}
