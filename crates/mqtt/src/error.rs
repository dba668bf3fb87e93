//! Errors of decoding and encoding.

use std::fmt;

use crate::reason::ReasonCode;

/// Why bytes could not be decoded as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Reason code to send: `MalformedPacket`, `ProtocolError`, `TopicAliasInvalid` or `UnsupportedProtocolVersion`.
    pub reason: ReasonCode,
    /// What is wrong and the clause it violates, for the log.
    pub what: &'static str,
}

impl DecodeError {
    /// The packet cannot be parsed (1.2).
    pub(crate) const fn malformed(what: &'static str) -> Self {
        Self { reason: ReasonCode::MalformedPacket, what }
    }

    /// The packet can be parsed but contains something that the protocol forbids (1.2).
    pub(crate) const fn protocol(what: &'static str) -> Self {
        Self { reason: ReasonCode::ProtocolError, what }
    }

    pub(crate) const fn topic_alias(what: &'static str) -> Self {
        Self { reason: ReasonCode::TopicAliasInvalid, what }
    }

    pub(crate) const fn unsupported_version(what: &'static str) -> Self {
        Self { reason: ReasonCode::UnsupportedProtocolVersion, what }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.reason, self.what)
    }
}

impl std::error::Error for DecodeError {}

/// Why a packet cannot be encoded. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// A string or binary field is longer than 65,535 bytes (1.5.4, 1.5.6).
    FieldTooLong,
    /// The packet would have a Remaining Length above 268,435,455 (2.1.4).
    PacketTooLarge,
    /// The protocol version does not have this packet type: AUTH in 3.x.
    NotInVersion,
    /// A field has a value that the protocol forbids. The text names the field and the clause.
    Invalid(&'static str),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FieldTooLong => "field of more than 65,535 bytes",
            Self::PacketTooLarge => "packet with a remaining length above 268,435,455",
            Self::NotInVersion => "packet type unknown to this protocol version",
            Self::Invalid(what) => what,
        })
    }
}

impl std::error::Error for EncodeError {}
