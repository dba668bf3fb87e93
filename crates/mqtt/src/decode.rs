//! Decoding of packets.
//!
//! All checks that the specification allows without connection state are made here, once, so later code can rely on a
//! decoded packet. Nothing is copied or allocated.
//!
//! A packet that cannot be parsed is a Malformed Packet; one that can be parsed but contains something forbidden is a
//! Protocol Error (MQTT 5, 1.2). Rules that depend on the state of the connection, on the direction, or on the syntax
//! of topics are checked elsewhere.

mod ack;
mod connack;
mod connect;
mod filters;
mod publish;
mod session_end;
mod subscribe;

pub use ack::short_ack;
pub use filters::FilterReader;

use crate::error::DecodeError;
use crate::frame::{Header, PacketType};
use crate::packet::{Packet, Version};
use crate::wire::Reader;

/// Decodes one whole packet, including the fixed header.
///
/// `version` is the protocol version of the connection; a CONNECT has its own. Packets of both directions are accepted;
/// the caller checks whether this packet type is allowed here and now.
///
/// # Errors
/// A [`DecodeError`] with the reason code to send. A 3.x connection can only be closed, after CONNACK 1 in the case of
/// `UnsupportedProtocolVersion`.
#[inline]
pub fn decode(version: Version, frame: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let (header, kind) = whole_packet(version, frame)?;
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

/// Checks the fixed header of one whole packet.
#[inline]
fn whole_packet(version: Version, frame: &[u8]) -> Result<(Header, PacketType), DecodeError> {
    let header = Header::parse(frame)?.ok_or(DecodeError::malformed("incomplete fixed header"))?;
    let kind = PacketType::of(header.first)?;
    if header.packet_len() != frame.len() {
        return Err(DecodeError::malformed("not exactly one packet"));
    }
    if kind != PacketType::Connect {
        check_header(version, kind, &header)?;
    }
    Ok((header, kind))
}

/// Returns the protocol level of a CONNECT, if `frame` is long enough.
///
/// Use it to choose the version of the error response if the CONNECT itself cannot be decoded. Respond to levels above
/// 5 as in MQTT 5 (3.1.2.2).
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
        // In MQTT 3.1 these three have QoS 1 and a DUP flag (3.1, 3.8).
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
