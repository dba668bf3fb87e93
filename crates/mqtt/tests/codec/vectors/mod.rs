//! Test vectors: named bytes, and the packet they decode to or the reason they are rejected.
//!
//! The decode tests, the encode tests and the fuzz seeds all use this table.

mod acks;
mod connack;
mod connect;
mod connect_properties;
mod publish;
mod session;
mod suback;
mod subscribe;

use mainstem_mqtt::{Packet, ReasonCode, Version};

pub(crate) struct Vector {
    /// Unique name.
    pub(crate) name: &'static str,
    /// Protocol version of the connection.
    pub(crate) version: Version,
    /// A valid or invalid packet.
    pub(crate) bytes: &'static [u8],
    pub(crate) expected: Expected,
}

/// Expected result of decoding.
pub(crate) enum Expected {
    /// Decodes to this packet, which encodes to the same bytes.
    Canonical(Packet<'static>),
    /// Decodes to this packet, which encodes to different bytes.
    Lenient(Packet<'static>),
    /// Rejected with this reason and an error text that contains this clause.
    Rejected(ReasonCode, &'static str),
}

/// Returns all test vectors.
pub(crate) fn all() -> Vec<Vector> {
    [
        connect::vectors(),
        connect_properties::vectors(),
        connack::vectors(),
        publish::vectors(),
        acks::vectors(),
        subscribe::vectors(),
        suback::vectors(),
        session::vectors(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn valid(
    name: &'static str,
    version: Version,
    bytes: &'static [u8],
    packet: impl Into<Packet<'static>>,
) -> Vector {
    Vector { name, version, bytes, expected: Expected::Canonical(packet.into()) }
}

fn lenient(
    name: &'static str,
    version: Version,
    bytes: &'static [u8],
    packet: impl Into<Packet<'static>>,
) -> Vector {
    Vector { name, version, bytes, expected: Expected::Lenient(packet.into()) }
}

fn invalid(
    name: &'static str,
    version: Version,
    bytes: &'static [u8],
    reason: ReasonCode,
    clause: &'static str,
) -> Vector {
    Vector { name, version, bytes, expected: Expected::Rejected(reason, clause) }
}
