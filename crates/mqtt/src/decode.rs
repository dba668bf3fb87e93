//! Packets from bytes. Every check the specification lets a decoder make is made here, once, so that what
//! decodes can be used as it is. Nothing is copied and nothing allocated.
//!
//! What cannot be parsed is a Malformed Packet; what parses but says something the protocol forbids is a
//! Protocol Error (MQTT 5, 1.2). Rules that need the connection's state, its direction, or the grammar of
//! topics belong to the machines, not to this module.

mod ack;
mod connack;
mod connect;
mod publish;
mod session_end;
mod subscribe;

use std::fmt;

use crate::frame::{Header, PacketType};
use crate::packet::{Packet, Version};
use crate::reason::ReasonCode;
use crate::wire::Reader;

/// Decodes one whole packet, fixed header included.
///
/// `version` is that of the connection; CONNECT names its own. Both directions are decoded alike: whether this
/// end may receive such a packet now is for the caller to judge.
///
/// # Errors
/// A [`DecodeError`] with the reason to answer with. In 3.x there is nothing to answer but closing the
/// connection, after CONNACK 1 for `UnsupportedProtocolVersion`.
#[inline]
pub fn decode(version: Version, frame: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let header = Header::parse(frame)?.ok_or(DecodeError::malformed("incomplete fixed header"))?;
    let kind = PacketType::of(header.first)?;
    if header.packet_len() != frame.len() {
        return Err(DecodeError::malformed("not exactly one packet"));
    }
    if kind != PacketType::Connect {
        check_header(version, kind, &header)?;
    }
    let body = Reader::new(&frame[header.len..]);
    match kind {
        PacketType::Publish => publish::publish(version, header.first, body).map(Packet::Publish),
        PacketType::PubAck => ack::ack(version, kind, body).map(Packet::PubAck),
        PacketType::PubRec => ack::ack(version, kind, body).map(Packet::PubRec),
        PacketType::PubRel => ack::ack(version, kind, body).map(Packet::PubRel),
        PacketType::PubComp => ack::ack(version, kind, body).map(Packet::PubComp),
        PacketType::Connect => connect::connect(&header, body).map(Packet::Connect),
        PacketType::ConnAck => connack::connack(version, body).map(Packet::ConnAck),
        PacketType::Subscribe => subscribe::subscribe(version, body).map(Packet::Subscribe),
        PacketType::SubAck => subscribe::suback(version, body).map(Packet::SubAck),
        PacketType::Unsubscribe => subscribe::unsubscribe(version, body).map(Packet::Unsubscribe),
        PacketType::UnsubAck => subscribe::unsuback(version, body).map(Packet::UnsubAck),
        PacketType::PingReq => body.finish().map(|()| Packet::PingReq),
        PacketType::PingResp => body.finish().map(|()| Packet::PingResp),
        PacketType::Disconnect => session_end::disconnect(version, body).map(Packet::Disconnect),
        PacketType::Auth => session_end::auth(version, body).map(Packet::Auth),
    }
}

/// The protocol level that a CONNECT names, if `frame` reaches that far: what form a refusal should take when
/// the packet itself does not decode. Levels above 5 are best refused as MQTT 5 does (3.1.2.2).
pub fn connect_level(frame: &[u8]) -> Option<u8> {
    let header = Header::parse(frame).ok()??;
    if PacketType::of(header.first) != Ok(PacketType::Connect) {
        return None;
    }
    let mut reader = Reader::new(&frame[header.len..]);
    reader.binary().ok()?;
    reader.u8().ok()
}

/// Checks the flags [MQTT-2.1.3-1] and, in MQTT 5, that the Remaining Length is minimal [MQTT-1.5.5-1].
#[inline]
fn check_header(version: Version, kind: PacketType, header: &Header) -> Result<(), DecodeError> {
    if version == Version::V5 && !header.is_minimal() {
        return Err(DecodeError::malformed("Remaining Length longer than needed [MQTT-1.5.5-1]"));
    }
    let flags = match kind {
        PacketType::Publish => return Ok(()),
        // In MQTT 3.1 these three are QoS 1 messages with a DUP flag (3.1, 3.8).
        PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe if version == Version::V3 => {
            header.first & !0b1000
        }
        _ => header.first,
    };
    if flags != kind.first_byte() {
        return Err(DecodeError::malformed("reserved flags of the fixed header [MQTT-2.1.3-1]"));
    }
    Ok(())
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// What to tell the other side: `MalformedPacket`, `ProtocolError`, `TopicAliasInvalid`, or
    /// `UnsupportedProtocolVersion`.
    pub reason: ReasonCode,
    /// What is wrong, with the clause it breaks: for the log.
    pub what: &'static str,
}

impl DecodeError {
    /// The packet cannot be parsed (1.2).
    pub(crate) const fn malformed(what: &'static str) -> Self {
        Self { reason: ReasonCode::MalformedPacket, what }
    }

    /// The packet can be parsed and contains what the protocol forbids (1.2).
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
