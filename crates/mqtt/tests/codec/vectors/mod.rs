//! Wire cases: named bytes, and what they say or why they are refused. The decode and encode tests and the
//! seeds of the fuzz targets all come from this one table.

mod acks;
mod connack;
mod connect;
mod connect_properties;
mod publish;
mod session;
mod suback;
mod subscribe;

use mainstem_mqtt::{Packet, ReasonCode, Version};

/// One wire case.
pub(crate) struct Vector {
    /// What the case is about; no two have the same name.
    pub(crate) name: &'static str,
    /// Version of the connection.
    pub(crate) version: Version,
    /// One packet, or what is meant to look like one.
    pub(crate) bytes: &'static [u8],
    /// What decoding must find.
    pub(crate) expected: Expected,
}

/// What decoding must find.
pub(crate) enum Expected {
    /// This packet, and encoding it gives the same bytes.
    Canonical(Packet<'static>),
    /// This packet, and encoding it gives other bytes.
    Lenient(Packet<'static>),
    /// A refusal with this reason, in whose text this clause stands.
    Refused(ReasonCode, &'static str),
}

/// The whole table.
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
    Vector { name, version, bytes, expected: Expected::Refused(reason, clause) }
}
