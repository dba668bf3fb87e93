//! The mechanisms and their names.

use mainstem_security::ScramAlgorithm;

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// RFC 4616: name and password in plain text, for encrypted connections.
    Plain,
    /// RFC 7677: neither side reveals the password or what the server stores of it.
    ScramSha256,
    /// The same with SHA-512, as Kafka defines it.
    ScramSha512,
    /// RFC 7628: a token, for encrypted connections.
    OauthBearer,
}

impl Mechanism {
    /// All mechanisms.
    pub const ALL: [Self; 4] = [Self::Plain, Self::ScramSha256, Self::ScramSha512, Self::OauthBearer];

    /// The registered name, for example `SCRAM-SHA-256`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OauthBearer => "OAUTHBEARER",
        }
    }

    /// The mechanism of a registered name, which is in upper case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// The algorithm, if the mechanism is a SCRAM mechanism.
    pub const fn scram_algorithm(self) -> Option<ScramAlgorithm> {
        match self {
            Self::Plain | Self::OauthBearer => None,
            Self::ScramSha256 => Some(ScramAlgorithm::Sha256),
            Self::ScramSha512 => Some(ScramAlgorithm::Sha512),
        }
    }
}
