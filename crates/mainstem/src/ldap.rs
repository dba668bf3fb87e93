//! The `[ldap]` section of the configuration: a directory that decides log-ins.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use mainstem_auth::{GroupSettings, Ldap, LdapSettings, Scope, ServiceLimits, UserEntry};
use mainstem_mqtt_server::{choices, settings};
use serde::Deserialize;

/// How far below its base a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SearchScope {
    Base,
    OneLevel,
    Subtree,
}

choices!(SearchScope);

impl From<SearchScope> for Scope {
    fn from(scope: SearchScope) -> Self {
        match scope {
            SearchScope::Base => Self::Base,
            SearchScope::OneLevel => Self::OneLevel,
            SearchScope::Subtree => Self::Subtree,
        }
    }
}

settings! {
    /// A directory that decides the log-ins of users that the user store does not have. See security.md.
    pub struct LdapConfig {
        /// The directory: `ldaps://HOST:PORT`, `ldap://HOST:PORT` with `start_tls`, or `ldap://HOST:PORT` on this
        /// machine; empty for none.
        url: String = "";
        /// Whether TLS begins after the connection (StartTLS), for `ldap://`.
        start_tls: bool = false;
        /// PEM file with the authorities that are trusted for it; empty for those of the system.
        ca_file: String = "";
        /// Distinguished name of the entry of a user, such as `uid=${user},ou=people,dc=example,dc=com`; empty to
        /// search it.
        user_dn: String = "";
        /// Where the search of a user begins, such as `ou=people,dc=example,dc=com`.
        user_base: String = "";
        /// How far the search of a user goes.
        user_scope: SearchScope = SearchScope::Subtree, one of "\"base\", \"one-level\", \"subtree\"";
        /// The filter that finds the entry of a user (RFC 4515).
        user_filter: String = "(uid=${user})";
        /// Attribute of the entry that must be the name of the user, with the same case and spaces, such as
        /// `sAMAccountName`; empty to take every spelling as a user of its own.
        user_attribute: String = "uid";
        /// Distinguished name as which the broker searches; empty to search without a log-in, and as the user once it
        /// has logged in.
        bind_dn: String = "";
        /// File with its password.
        bind_password_file: String = "";
        /// Where the search of the groups of a user begins; empty for no roles.
        group_base: String = "";
        /// How far the search of groups goes.
        group_scope: SearchScope = SearchScope::Subtree, one of "\"base\", \"one-level\", \"subtree\"";
        /// The filter that finds the groups of a user, with `${dn}`, the distinguished name of its entry, or `${user}`.
        group_filter: String = "(member=${dn})";
        /// Attribute of a group whose values are roles of the user.
        group_attribute: String = "cn";
        /// Longest time for a log-in, in ms. Without an answer, the client is refused.
        timeout_ms: u32 = 5_000_u32, in 10 ..= 60_000;
        /// Log-ins at the same time, each with a connection. 1,000 more wait; others are refused.
        max_requests: u32 = 4_u32, in 1 ..= 64;
        /// How long an allowed log-in is allowed again without asking, in seconds; 0 for never.
        cache_s: u32 = 60_u32, in 0 ..= 86_400;
        /// Failures in a row after which the directory is not asked for a while.
        max_failures: u32 = 5_u32, in 1 ..= 1_000;
        /// How long it is not asked then, in ms.
        pause_ms: u32 = 5_000_u32, in 100 ..= 600_000;
    }
}

impl LdapConfig {
    /// Checks what the bounds leave open.
    pub(crate) fn check_more(&self) -> Result<(), (&'static str, String)> {
        if self.url.is_empty() {
            let used =
                [("user_dn", &self.user_dn), ("user_base", &self.user_base), ("bind_dn", &self.bind_dn)];
            let used = used.into_iter().find(|(_, value)| !value.is_empty());
            return used.map_or(Ok(()), |(key, _)| Err((key, "has no effect without ldap.url".into())));
        }
        if self.user_dn.is_empty() == self.user_base.is_empty() {
            return Err(("user_dn", "expected either user_dn, or user_base to search users".into()));
        }
        if self.bind_dn.is_empty() != self.bind_password_file.is_empty() {
            return Err((
                "bind_dn",
                "expected bind_password_file with it, and neither without the other".into(),
            ));
        }
        Ok(())
    }

    /// Starts the threads; `None` without a directory.
    ///
    /// # Errors
    /// A message for the user: the URL, a file, a name or a filter is invalid.
    pub(crate) fn open(&self) -> Result<Option<Ldap>, String> {
        if self.url.is_empty() {
            return Ok(None);
        }
        let file = |path: &String| (!path.is_empty()).then(|| PathBuf::from(path));
        let account = file(&self.bind_password_file).map(|path| {
            let bytes = fs::read(&path)
                .map_err(|error| format!("ldap.bind_password_file: {}: {error}", path.display()))?;
            // An editor ends the last line.
            let password = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let password = password.strip_suffix(b"\r").unwrap_or(password).to_vec();
            Ok::<_, String>((self.bind_dn.clone(), password))
        });
        let user = if self.user_dn.is_empty() {
            let (base, filter) = (self.user_base.clone(), self.user_filter.clone());
            UserEntry::Search { base, scope: self.user_scope.into(), filter }
        } else {
            UserEntry::Name(self.user_dn.clone())
        };
        let groups = (!self.group_base.is_empty()).then(|| GroupSettings {
            base: self.group_base.clone(),
            scope: self.group_scope.into(),
            filter: self.group_filter.clone(),
            attribute: self.group_attribute.clone(),
        });
        let settings = LdapSettings {
            url: self.url.clone(),
            start_tls: self.start_tls,
            ca_file: file(&self.ca_file),
            timeout: Duration::from_millis(self.timeout_ms.into()),
            limits: ServiceLimits {
                threads: self.max_requests as usize,
                keep: Duration::from_secs(self.cache_s.into()),
                failures_max: self.max_failures,
                pause: Duration::from_millis(self.pause_ms.into()),
            },
            account: account.transpose()?,
            user,
            user_attribute: (!self.user_attribute.is_empty()).then(|| self.user_attribute.clone()),
            groups,
        };
        Ldap::open(settings).map(Some)
    }
}
