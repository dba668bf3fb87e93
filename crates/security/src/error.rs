//! Errors of users, verifiers and rules.

use std::fmt;

/// Why a user, a verifier or a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecurityError {
    /// The name of a user or role: what is wrong with it.
    Name(&'static str),
    /// A password.
    Password(&'static str),
    /// A stored password hash.
    PasswordHash(&'static str),
    /// Keys of SCRAM.
    Scram(&'static str),
    /// A rule.
    Rule(String),
    /// A quota.
    Quota(String),
    /// A ban.
    Ban(&'static str),
    /// An API key.
    ApiKey(&'static str),
    /// A record of the security log.
    Record(String),
    /// A line of a password file, from 1 on.
    PasswordFile {
        /// The line.
        line: usize,
        /// What is wrong with it.
        error: Box<SecurityError>,
    },
    /// A limit: what there is too much of.
    Limit(&'static str),
}

impl fmt::Display for SecurityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(what) => write!(f, "the name {what}"),
            Self::Password(what) => write!(f, "the password {what}"),
            Self::PasswordHash(what) => write!(f, "the password hash {what}"),
            Self::Scram(what) => write!(f, "keys of SCRAM: {what}"),
            Self::Rule(what) | Self::Quota(what) => write!(f, "{what}"),
            Self::Record(what) => write!(f, "a record of the security log cannot be read: {what}"),
            Self::PasswordFile { line, error } => write!(f, "line {line}: {error}"),
            Self::ApiKey(what) => write!(f, "the API key: {what}"),
            Self::Ban(what) | Self::Limit(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for SecurityError {}
