//! Who a connection is, by whatever has proven it: a password, an API key, a certificate or a token.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::api_key::ApiKeyId;

/// Who acts: a user, or nobody in particular.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Principal {
    /// A connection without a user.
    #[default]
    Anonymous,
    /// A user, by name.
    User(Arc<str>),
}

impl Principal {
    /// The user's name.
    pub fn user(&self) -> Option<&Arc<str>> {
        match self {
            Self::Anonymous => None,
            Self::User(name) => Some(name),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.user().map_or("anonymous", |name| name))
    }
}

/// Who a connection is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user, if it has one.
    pub principal: Principal,
    /// What it has proven beside that.
    pub proof: Option<Arc<Proof>>,
}

/// What a connection has proven beside a password of the user store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Whether a certificate or a token names the user, who need not be in the user store then.
    pub is_external: bool,
    /// The common name of its certificate.
    pub common_name: Option<Arc<str>>,
    /// Roles beside those of the user store.
    pub roles: Vec<Arc<str>>,
    /// When the proof ends, Unix time in ms.
    pub expires_ms: Option<u64>,
    /// The API key that it has logged in with, without which it may not be connected.
    pub api_key: Option<ApiKeyId>,
}

impl Identity {
    /// A user of the user store.
    pub fn of_user(name: &Arc<str>) -> Self {
        Self { principal: Principal::User(Arc::clone(name)), proof: None }
    }

    /// The name of the user.
    pub fn user(&self) -> Option<&Arc<str>> {
        self.principal.user()
    }

    /// When it ends, Unix time in ms.
    pub fn expires_ms(&self) -> Option<u64> {
        self.proof.as_ref().and_then(|proof| proof.expires_ms)
    }

    /// The same, with the common name of a certificate.
    #[must_use]
    pub fn with_common_name(mut self, common_name: Option<&Arc<str>>) -> Self {
        if let Some(name) = common_name {
            Arc::make_mut(self.proof.get_or_insert_default()).common_name = Some(Arc::clone(name));
        }
        self
    }
}

/// A certificate that a transport has verified.
#[derive(Clone, Copy)]
pub enum PeerCertificate<'a> {
    /// The certificate, in DER.
    Der(&'a [u8]),
    /// Its common name, as a trusted proxy tells it.
    CommonName(&'a str),
}

impl fmt::Debug for PeerCertificate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Der(bytes) => write!(f, "Der({} bytes)", bytes.len()),
            Self::CommonName(name) => write!(f, "CommonName({name:?})"),
        }
    }
}

/// What a client presents before anything is verified that takes time.
#[derive(Clone, Copy, Debug)]
pub struct Presented<'a> {
    /// Name of the listener.
    pub listener: &'a str,
    /// Its certificate, if it has one.
    pub certificate: Option<PeerCertificate<'a>>,
    /// Whether it also presents a password or a token.
    pub has_password: bool,
    /// Where the client is.
    pub address: Option<IpAddr>,
    /// The protocol, for the audit log.
    pub protocol: &'static str,
}

/// What the certificate of a client decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateOutcome {
    /// Nothing: what else the client presents decides.
    Ignored(Certified),
    /// The client is this user.
    Accepted(Identity),
    /// The client is refused: its certificate names no user, or one that is disabled.
    Refused,
}

/// What is known of the certificate of a client whose password decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certified {
    /// Its common name.
    pub common_name: Option<Arc<str>>,
    /// The user that the password must be of.
    pub user: Option<Arc<str>>,
}

impl Certified {
    /// An identity that something else has proven, if the certificate agrees.
    pub fn confirm(&self, identity: Identity) -> Option<Identity> {
        let agrees = self.user.is_none() || self.user.as_ref() == identity.user();
        agrees.then(|| identity.with_common_name(self.common_name.as_ref()))
    }
}
