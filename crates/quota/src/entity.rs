//! What a quota is for: a user, a client id, both, or an address; or the default of those.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The user name under which quotas count clients without a user, as in Kafka.
pub const ANONYMOUS: &str = "ANONYMOUS";
/// Longest name of a user or client id that can have a quota of its own, bytes.
pub const MAX_ENTITY_NAME_BYTES: usize = 1024;

/// A name, or the default of all names that have no quota of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// All names without a quota of their own. Each gets the quota for itself.
    Default,
    /// This name.
    Exact(Arc<str>),
}

/// What a quota is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entity {
    /// A user.
    User(Name),
    /// A client id, whoever the user is.
    ClientId(Name),
    /// A client id of a user.
    UserClientId(Name, Name),
    /// An address; `None` for the default of addresses.
    Address(Option<IpAddr>),
}

impl Name {
    /// The name; `None` for the default.
    pub fn exact(&self) -> Option<&Arc<str>> {
        match self {
            Self::Default => None,
            Self::Exact(name) => Some(name),
        }
    }

    /// From a name, or the default without one.
    pub fn from_option(name: Option<&str>) -> Self {
        name.map_or(Self::Default, |name| Self::Exact(name.into()))
    }
}

impl Entity {
    /// From its parts, of which each may be absent.
    ///
    /// # Errors
    /// There is no such entity: what is wrong, in Kafka's words.
    pub fn from_parts(
        user: Option<Name>,
        client_id: Option<Name>,
        address: Option<Option<IpAddr>>,
    ) -> Result<Self, String> {
        for name in [&user, &client_id].into_iter().flatten().filter_map(Name::exact) {
            if name.is_empty() {
                return Err("Empty quota entity name".into());
            }
            if name.len() > MAX_ENTITY_NAME_BYTES {
                return Err(format!(
                    "The name of a quota entity is longer than {MAX_ENTITY_NAME_BYTES} bytes"
                ));
            }
        }
        match (user, client_id, address) {
            (Some(user), Some(client_id), None) => Ok(Self::UserClientId(user, client_id)),
            (Some(user), None, None) => Ok(Self::User(user)),
            (None, Some(client_id), None) => Ok(Self::ClientId(client_id)),
            (None, None, Some(address)) => Ok(Self::Address(address.map(|address| address.to_canonical()))),
            (None, None, None) => Err("Invalid empty quota entity".into()),
            _ => Err("Invalid quota entity combination: an ip has no user or client-id".into()),
        }
    }

    /// The user part, if it has one.
    pub fn user(&self) -> Option<&Name> {
        match self {
            Self::User(user) | Self::UserClientId(user, _) => Some(user),
            Self::ClientId(_) | Self::Address(_) => None,
        }
    }

    /// The part with the client id, if it has one.
    pub fn client_id(&self) -> Option<&Name> {
        match self {
            Self::ClientId(client_id) | Self::UserClientId(_, client_id) => Some(client_id),
            Self::User(_) | Self::Address(_) => None,
        }
    }

    /// The address part, if it has one; in it `None` for the default.
    pub fn address(&self) -> Option<Option<IpAddr>> {
        match self {
            Self::Address(address) => Some(*address),
            _ => None,
        }
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            |name: &Name| name.exact().map_or_else(|| "<default>".to_owned(), |name| format!("{name:?}"));
        match self {
            Self::User(user) => write!(f, "user {}", name(user)),
            Self::ClientId(client_id) => write!(f, "client-id {}", name(client_id)),
            Self::UserClientId(user, client_id) => {
                write!(f, "user {}, client-id {}", name(user), name(client_id))
            }
            Self::Address(Some(address)) => write!(f, "ip {address}"),
            Self::Address(None) => f.write_str("ip <default>"),
        }
    }
}
