//! Encoding of packets.
//!
//! An encoded packet decodes to the same packet. A value that the protocol forbids or cannot represent is rejected
//! before anything is written. Each packet type writes its fields once to a sink, and the same code measures and writes
//! the packet. Fields that exist only in MQTT 5 are omitted for 3.x.

mod ack;
mod connack;
mod connect;
pub(crate) mod publish;
mod session_end;
mod subscribe;

use crate::error::EncodeError;
use crate::frame::PacketType;
use crate::lists::raw_user_properties;
use crate::packet::{Packet, UserProperties, Version};
use crate::properties::id;
use crate::wire::{Measure, Sink, varint_len};

/// The fields of one packet between its fixed header and its end.
pub(crate) trait Body {
    /// First byte of the fixed header.
    fn first_byte(&self) -> u8;

    /// Rejects values that the wire format can represent but the protocol forbids.
    fn check(&self, version: Version) -> Result<(), EncodeError>;

    fn write<S: Sink>(&self, version: Version, sink: &mut S);
}

impl Packet<'_> {
    /// Appends the packet to `out`, including the fixed header. A CONNECT is encoded for its own version, all other
    /// packets for `version`.
    ///
    /// # Errors
    /// An [`EncodeError`] if the packet cannot be represented. `out` is then unchanged.
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

    /// Returns the number of bytes that [`encode`](Self::encode) appends. Unspecified for a packet that it rejects.
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

/// Checks, measures and then writes a packet.
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

/// PINGREQ and PINGRESP (3.12, 3.13), which consist of a fixed header only.
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

/// Rejects packet identifier 0 [MQTT-2.2.1-3].
fn check_packet_id(packet_id: u16) -> Result<(), EncodeError> {
    if packet_id == 0 { Err(EncodeError::Invalid("packet identifier 0 [MQTT-2.2.1-3]")) } else { Ok(()) }
}

// Each of these writes a property identifier and its value, or nothing if there is no value.

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
        // Already checked to be strings, so copied as bytes.
        UserProperties::Wire(section) => {
            for (name, value) in raw_user_properties(section) {
                sink.u8(id::USER_PROPERTY);
                sink.binary(name);
                sink.binary(value);
            }
        }
    }
}
