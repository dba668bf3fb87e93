//! Packets to bytes. What is encoded decodes again to the same packet: a value that the protocol cannot
//! represent, or forbids, is refused before a byte is written.
//!
//! Each packet describes its fields once, to a sink; the same description measures the packet and writes
//! it. For 3.x the fields that only MQTT 5 has are left out.

mod ack;
mod connack;
mod connect;
pub(crate) mod publish;
mod session_end;
mod subscribe;

use std::fmt;

use crate::frame::PacketType;
use crate::lists::raw_user_properties;
use crate::packet::{Packet, UserProperties, Version};
use crate::properties::id;
use crate::wire::{Measure, Sink, varint_len};

/// The fields of one packet between its fixed header and its end.
pub(crate) trait Body {
    /// First byte of the fixed header.
    fn first_byte(&self) -> u8;

    /// Refuses values that the wire format has room for and the protocol forbids.
    fn check(&self, version: Version) -> Result<(), EncodeError>;

    fn write<S: Sink>(&self, version: Version, sink: &mut S);
}

impl Packet<'_> {
    /// Appends the packet to `out`, fixed header included. CONNECT is encoded for its own version, all others
    /// for `version`.
    ///
    /// # Errors
    /// An [`EncodeError`] if the packet cannot be represented; then `out` is as it was.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Connect(connect) => encode(connect, connect.version, out),
            Self::ConnAck(connack) => encode(connack, version, out),
            Self::Publish(publish) => encode(publish, version, out),
            Self::PubAck(ack) => ack::encode(PacketType::PubAck, ack, version, out),
            Self::PubRec(ack) => ack::encode(PacketType::PubRec, ack, version, out),
            Self::PubRel(ack) => ack::encode(PacketType::PubRel, ack, version, out),
            Self::PubComp(ack) => ack::encode(PacketType::PubComp, ack, version, out),
            Self::Subscribe(subscribe) => encode(subscribe, version, out),
            Self::SubAck(suback) => encode(&subscribe::SubAckBody(suback), version, out),
            Self::Unsubscribe(unsubscribe) => encode(unsubscribe, version, out),
            Self::UnsubAck(unsuback) => encode(&subscribe::UnsubAckBody(unsuback), version, out),
            Self::PingReq => encode(&Ping(PacketType::PingReq), version, out),
            Self::PingResp => encode(&Ping(PacketType::PingResp), version, out),
            Self::Disconnect(disconnect) => encode(disconnect, version, out),
            Self::Auth(auth) => encode(auth, version, out),
        }
    }

    /// Bytes that [`encode`](Self::encode) appends; without meaning for a packet it refuses.
    pub fn encoded_len(&self, version: Version) -> usize {
        match self {
            Self::Connect(connect) => encoded_len(connect, connect.version),
            Self::ConnAck(connack) => encoded_len(connack, version),
            Self::Publish(publish) => encoded_len(publish, version),
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => {
                encoded_len(&ack::AckBody { kind: PacketType::PubAck, ack }, version)
            }
            Self::Subscribe(subscribe) => encoded_len(subscribe, version),
            Self::SubAck(suback) => encoded_len(&subscribe::SubAckBody(suback), version),
            Self::Unsubscribe(unsubscribe) => encoded_len(unsubscribe, version),
            Self::UnsubAck(unsuback) => encoded_len(&subscribe::UnsubAckBody(unsuback), version),
            Self::PingReq | Self::PingResp => encoded_len(&Ping(PacketType::PingReq), version),
            Self::Disconnect(disconnect) => encoded_len(disconnect, version),
            Self::Auth(auth) => encoded_len(auth, version),
        }
    }
}

/// Checks, measures, then writes.
pub(crate) fn encode(body: &impl Body, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    body.check(version)?;
    let mut measure = Measure::default();
    body.write(version, &mut measure);
    let remaining = measure.finish()?;
    out.reserve(1 + varint_len(remaining as u32) + remaining);
    let body_start = fixed_header(body.first_byte(), remaining, out);
    body.write(version, out);
    debug_assert_eq!(out.len() - body_start, remaining, "measured and written length differ");
    Ok(())
}

/// Appends a fixed header (2.1) and returns where the rest of the packet starts.
pub(crate) fn fixed_header(first: u8, remaining: usize, out: &mut Vec<u8>) -> usize {
    out.u8(first);
    out.varint(remaining as u32);
    out.len()
}

fn encoded_len(body: &impl Body, version: Version) -> usize {
    let mut measure = Measure::default();
    body.write(version, &mut measure);
    1 + varint_len(u32::try_from(measure.len()).unwrap_or(u32::MAX)) + measure.len()
}

/// PINGREQ and PINGRESP (3.12, 3.13): nothing but a fixed header.
struct Ping(PacketType);

impl Body for Ping {
    fn first_byte(&self) -> u8 {
        self.0.first_byte()
    }

    fn check(&self, _version: Version) -> Result<(), EncodeError> {
        Ok(())
    }

    fn write<S: Sink>(&self, _version: Version, _sink: &mut S) {}
}

/// Refuses packet identifier 0 [MQTT-2.2.1-3].
fn check_packet_id(packet_id: u16) -> Result<(), EncodeError> {
    if packet_id == 0 { Err(EncodeError::Invalid("packet identifier 0 [MQTT-2.2.1-3]")) } else { Ok(()) }
}

// Properties to a sink: identifier and value if there is a value, nothing otherwise.

fn put_u8<S: Sink>(sink: &mut S, id: u8, value: Option<u8>) {
    if let Some(value) = value {
        sink.raw(&[id, value]);
    }
}

fn put_flag<S: Sink>(sink: &mut S, id: u8, value: Option<bool>) {
    put_u8(sink, id, value.map(u8::from));
}

fn put_u16<S: Sink>(sink: &mut S, id: u8, value: Option<u16>) {
    if let Some(value) = value {
        sink.u8(id);
        sink.u16(value);
    }
}

fn put_u32<S: Sink>(sink: &mut S, id: u8, value: Option<u32>) {
    if let Some(value) = value {
        sink.u8(id);
        sink.u32(value);
    }
}

fn put_string<S: Sink>(sink: &mut S, id: u8, value: Option<&str>) {
    if let Some(value) = value {
        sink.u8(id);
        sink.string(value);
    }
}

fn put_binary<S: Sink>(sink: &mut S, id: u8, value: Option<&[u8]>) {
    if let Some(value) = value {
        sink.u8(id);
        sink.binary(value);
    }
}

fn put_user_properties<S: Sink>(sink: &mut S, properties: &UserProperties<'_>) {
    match *properties {
        UserProperties::Pairs(pairs) => {
            for &(name, value) in pairs {
                sink.u8(id::USER_PROPERTY);
                sink.string(name);
                sink.string(value);
            }
        }
        // Already checked as strings, and so copied as bytes.
        UserProperties::Wire(section) => {
            for (name, value) in raw_user_properties(section) {
                sink.u8(id::USER_PROPERTY);
                sink.binary(name);
                sink.binary(value);
            }
        }
    }
}

/// Why a packet cannot be encoded. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// A string or binary field is longer than 65,535 bytes (1.5.4, 1.5.6).
    FieldTooLong,
    /// The packet would have a Remaining Length above 268,435,455 (2.1.4).
    PacketTooLarge,
    /// The protocol version has no such packet: AUTH in 3.x.
    NotInVersion,
    /// A field has a value that the protocol forbids; the text says which, with the clause.
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
