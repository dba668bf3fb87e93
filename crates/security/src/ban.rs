//! Bans: users, client ids and networks that may not connect, until a time or until the ban is deleted.
//!
//! A ban is of one kind, and any that matches refuses a connection. A ban that has expired has no effect; it is deleted
//! when another one is added.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::error::SecurityError;
use crate::network::Network;

/// Most bans.
pub const MAX_BANS: usize = 100_000;
/// Longest reason, bytes.
pub const MAX_REASON_BYTES: usize = 255;
/// Longest client id or user that can be banned, bytes: as long as MQTT allows.
const MAX_NAME_BYTES: usize = 65_535;

/// Who is banned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BanSubject {
    /// A user.
    User(Arc<str>),
    /// A client identifier, whoever the user is.
    ClientId(Arc<str>),
    /// An address, or all addresses of a network.
    Network(Network),
}

/// Why and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// What administrators read; may be empty.
    pub reason: Arc<str>,
    /// When it was added, Unix time, ms.
    pub since_ms: u64,
    /// When it ends, Unix time, ms; `None` if it does not.
    pub until_ms: Option<u64>,
}

/// All bans.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    by_subject: BTreeMap<BanSubject, Arc<Ban>>,
    /// Lengths of the prefixes of the banned networks, by whether they are of IPv6, with their number.
    prefixes: BTreeMap<(bool, u8), usize>,
}

impl Ban {
    /// Whether it still holds.
    pub fn is_active(&self, unix_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| unix_ms < until_ms)
    }

    /// Checks a ban.
    ///
    /// # Errors
    /// A name or the reason is too long, or the name empty.
    pub(crate) fn check(&self, subject: &BanSubject) -> Result<(), SecurityError> {
        if self.reason.len() > MAX_REASON_BYTES || self.reason.chars().any(char::is_control) {
            return Err(SecurityError::Ban("the reason has at most 255 bytes and no control characters"));
        }
        match subject {
            BanSubject::User(name) | BanSubject::ClientId(name)
                if name.is_empty() || name.len() > MAX_NAME_BYTES =>
            {
                Err(SecurityError::Ban("a user or client id has 1 to 65535 bytes"))
            }
            _ => Ok(()),
        }
    }
}

impl Bans {
    /// Number of bans, including those that have expired.
    pub fn len(&self) -> usize {
        self.by_subject.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_subject.is_empty()
    }

    /// All bans.
    pub fn iter(&self) -> impl Iterator<Item = (&BanSubject, &Arc<Ban>)> {
        self.by_subject.iter()
    }

    /// The ban of a subject.
    pub fn get(&self, subject: &BanSubject) -> Option<&Arc<Ban>> {
        self.by_subject.get(subject)
    }

    /// The subjects whose bans have expired.
    pub fn expired(&self, unix_ms: u64) -> BTreeSet<BanSubject> {
        self.iter().filter(|(_, ban)| !ban.is_active(unix_ms)).map(|(subject, _)| subject.clone()).collect()
    }

    /// Adds or replaces a ban. Returns whether anything is different now.
    pub(crate) fn put(&mut self, subject: &BanSubject, ban: &Arc<Ban>) -> bool {
        let before = self.by_subject.insert(subject.clone(), Arc::clone(ban));
        if before.is_none()
            && let BanSubject::Network(network) = subject
        {
            *self.prefixes.entry(network.prefix()).or_default() += 1;
        }
        before.as_ref() != Some(ban)
    }

    /// Deletes a ban. Returns whether there was one.
    pub(crate) fn remove(&mut self, subject: &BanSubject) -> bool {
        let is_known = self.by_subject.remove(subject).is_some();
        if is_known
            && let BanSubject::Network(network) = subject
            && let Some(count) = self.prefixes.get_mut(&network.prefix())
        {
            *count -= 1;
            if *count == 0 {
                self.prefixes.remove(&network.prefix());
            }
        }
        is_known
    }

    fn active(&self, subject: &BanSubject, unix_ms: u64) -> bool {
        self.get(subject).is_some_and(|ban| ban.is_active(unix_ms))
    }

    /// The subject of a ban of a user.
    pub fn of_user(&self, user: &str, unix_ms: u64) -> Option<BanSubject> {
        if self.is_empty() {
            return None;
        }
        Some(BanSubject::User(user.into())).filter(|subject| self.active(subject, unix_ms))
    }

    /// The subject of a ban of a client id.
    pub fn of_client_id(&self, client_id: &str, unix_ms: u64) -> Option<BanSubject> {
        if self.is_empty() {
            return None;
        }
        Some(BanSubject::ClientId(client_id.into())).filter(|subject| self.active(subject, unix_ms))
    }

    /// The subject of a ban of an address.
    pub fn of_address(&self, address: IpAddr, unix_ms: u64) -> Option<BanSubject> {
        let address = address.to_canonical();
        let prefixes = self.prefixes.keys().filter(|(is_v6, _)| *is_v6 == address.is_ipv6());
        let mut networks = prefixes.map(|(_, bits)| BanSubject::Network(Network::of_prefix(address, *bits)));
        networks.find(|subject| self.active(subject, unix_ms))
    }

    /// The subject of a ban of a client.
    pub fn find(
        &self,
        user: Option<&str>,
        client_id: Option<&str>,
        address: Option<IpAddr>,
        unix_ms: u64,
    ) -> Option<BanSubject> {
        if self.is_empty() {
            return None;
        }
        let by_user = user.and_then(|user| self.of_user(user, unix_ms));
        let by_client_id = || client_id.and_then(|client_id| self.of_client_id(client_id, unix_ms));
        let by_address = || address.and_then(|address| self.of_address(address, unix_ms));
        by_user.or_else(by_client_id).or_else(by_address)
    }
}

impl fmt::Display for BanSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name:?}"),
            Self::ClientId(name) => write!(f, "client id {name:?}"),
            Self::Network(network) => write!(f, "network {network}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(until_ms: Option<u64>) -> Arc<Ban> {
        Arc::new(Ban { reason: "tests".into(), since_ms: 1, until_ms })
    }

    fn network(text: &str) -> BanSubject {
        BanSubject::Network(text.parse().unwrap())
    }

    #[test]
    fn a_client_is_banned_by_user_client_id_or_network_until_the_ban_ends() {
        let mut bans = Bans::default();
        assert!(bans.put(&BanSubject::User("eve".into()), &ban(None)));
        assert!(bans.put(&BanSubject::ClientId("c1".into()), &ban(Some(100))));
        assert!(bans.put(&network("192.0.2.0/24"), &ban(None)));
        assert!(bans.put(&network("2001:db8::/32"), &ban(Some(50))));
        let find = |user, client_id, address: &str, unix_ms| {
            let address = address.parse().ok();
            bans.find(user, client_id, address, unix_ms).map(|subject| subject.to_string())
        };
        assert_eq!(find(Some("eve"), Some("x"), "", 1).as_deref(), Some("user \"eve\""));
        assert_eq!(find(Some("c1"), Some("eve"), "203.0.113.1", 1), None);
        assert_eq!(find(None, Some("c1"), "", 99).as_deref(), Some("client id \"c1\""));
        assert_eq!(find(None, Some("c1"), "", 100), None);
        assert_eq!(find(None, None, "192.0.2.9", 1).as_deref(), Some("network 192.0.2.0/24"));
        assert_eq!(find(None, None, "::ffff:192.0.2.9", 1).as_deref(), Some("network 192.0.2.0/24"));
        assert_eq!(find(None, None, "2001:db8:1::1", 49).as_deref(), Some("network 2001:db8::/32"));
        assert_eq!(find(None, None, "2001:db8:1::1", 50), None);
        assert_eq!(bans.expired(100).len(), 2);
    }

    #[test]
    fn networks_of_any_length_are_found_and_forgotten() {
        let mut bans = Bans::default();
        for text in ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3"] {
            bans.put(&network(text), &ban(None));
            bans.put(&network(text), &ban(Some(9)));
        }
        assert_eq!(bans.prefixes.len(), 4);
        for text in ["0.0.0.0/0", "10.1.0.0/16", "10.1.2.3", "10.0.0.0/8"] {
            assert!(bans.of_address("10.1.2.3".parse().unwrap(), 1).is_some(), "{text}");
            assert!(bans.remove(&network(text)) && !bans.remove(&network(text)));
        }
        assert!(bans.of_address("10.1.2.3".parse().unwrap(), 1).is_none() && bans.prefixes.is_empty());
    }
}
