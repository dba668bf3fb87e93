//! Packets received: a strict reader of what a server may send, and of nothing else.
//!
//! Whatever the specification forbids a server to send (reserved bits, a property out of place or twice, an
//! unknown reason code, ill-formed UTF-8, a topic name with wildcards, a length not in its shortest form) is
//! an error here, so every test of every file checks it on the way.

use std::collections::HashSet;

use crate::property::{self as prop, Properties, Value};
use crate::{Version, reason};

/// Packet type PUBACK.
pub const PUBACK: u8 = 4;
/// Packet type PUBREC.
pub const PUBREC: u8 = 5;
/// Packet type PUBREL.
pub const PUBREL: u8 = 6;
/// Packet type PUBCOMP.
pub const PUBCOMP: u8 = 7;
/// Packet type SUBACK.
pub const SUBACK: u8 = 9;
/// Packet type UNSUBACK.
pub const UNSUBACK: u8 = 11;

const CONNACK: u8 = 2;
const PUBLISH: u8 = 3;
const PINGRESP: u8 = 13;
const DISCONNECT: u8 = 14;
const AUTH: u8 = 15;

/// A packet from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// CONNACK.
    ConnAck(ConnAck),
    /// PUBLISH.
    Publish(Message),
    /// PUBACK, PUBREC, PUBREL, or PUBCOMP.
    Ack(Ack),
    /// SUBACK or UNSUBACK.
    Answer(Answer),
    /// PINGRESP.
    PingResp,
    /// DISCONNECT.
    Disconnect(Disconnect),
    /// AUTH.
    Auth(Disconnect),
}

/// A CONNACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnAck {
    /// Session Present.
    pub session_present: bool,
    /// Reason code, or return code in 3.x.
    pub reason: u8,
    /// Its properties.
    pub props: Properties,
}

/// A PUBLISH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// DUP.
    pub dup: bool,
    /// Quality of service.
    pub qos: u8,
    /// RETAIN.
    pub retain: bool,
    /// Topic name; empty where an alias stands for it.
    pub topic: String,
    /// Packet identifier; 0 at QoS 0.
    pub id: u16,
    /// Its properties.
    pub props: Properties,
    /// Application data.
    pub payload: Vec<u8>,
    /// Bytes of the whole packet.
    pub packet_len: usize,
}

impl Message {
    /// The payload as text, for comparing.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// A PUBACK, PUBREC, PUBREL, or PUBCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// [`PUBACK`], [`PUBREC`], [`PUBREL`], or [`PUBCOMP`].
    pub kind: u8,
    /// Packet identifier.
    pub id: u16,
    /// Reason code; 0 where the packet has none.
    pub reason: u8,
    /// Its properties.
    pub props: Properties,
}

/// A SUBACK or UNSUBACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// [`SUBACK`] or [`UNSUBACK`].
    pub kind: u8,
    /// Packet identifier.
    pub id: u16,
    /// One code per filter; an UNSUBACK of 3.x has none.
    pub reasons: Vec<u8>,
    /// Its properties.
    pub props: Properties,
}

/// A DISCONNECT, or an AUTH, which has the same fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Reason code; 0 where the packet has none.
    pub reason: u8,
    /// Its properties.
    pub props: Properties,
}

/// Length of the packet at the start of `bytes`, or `None` while its remaining length is incomplete.
///
/// # Errors
/// If the remaining length is not in its shortest form.
pub fn packet_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(rest) = bytes.get(1..) else { return Ok(None) };
    let mut reader = Reader(rest);
    if !rest.iter().take(4).any(|byte| byte & 0x80 == 0) && rest.len() < 4 {
        return Ok(None);
    }
    let remaining = reader.varint()?;
    Ok(Some(bytes.len() - reader.0.len() + remaining as usize))
}

/// Reads one whole packet from a server.
///
/// # Errors
/// What the server should not have sent.
pub fn decode(version: Version, packet: &[u8]) -> Result<Packet, String> {
    let first = packet[0];
    let (kind, flags) = (first >> 4, first & 0x0F);
    let mut body = Reader(&packet[1..]);
    body.varint()?;
    let want_flags = if kind == PUBREL { 2 } else { 0 };
    if kind != PUBLISH && flags != want_flags {
        return Err(format!("reserved flags of the fixed header: {first:#04x}"));
    }
    let decoded = match kind {
        CONNACK => Packet::ConnAck(connack(version, &mut body)?),
        PUBLISH => Packet::Publish(publish(version, flags, &mut body, packet.len())?),
        PUBACK | PUBREC | PUBREL | PUBCOMP => Packet::Ack(ack(version, kind, &mut body)?),
        SUBACK | UNSUBACK => Packet::Answer(answer(version, kind, &mut body)?),
        PINGRESP => Packet::PingResp,
        DISCONNECT if version == Version::V5 => Packet::Disconnect(disconnect(kind, &mut body)?),
        AUTH if version == Version::V5 => Packet::Auth(disconnect(kind, &mut body)?),
        _ => return Err(format!("a packet that no server sends: {first:#04x}")),
    };
    if body.0.is_empty() { Ok(decoded) } else { Err(format!("{} bytes too many", body.0.len())) }
}

fn connack(version: Version, body: &mut Reader) -> Result<ConnAck, String> {
    let flags = body.byte()?;
    if flags & 0xFE != 0 {
        return Err(format!("reserved bits of the CONNACK flags: {flags:#04x}"));
    }
    let (session_present, reason) = (flags == 1, body.byte()?);
    let known = if version == Version::V5 { reason::server_may_send(CONNACK, reason) } else { reason <= 5 };
    if !known || session_present && reason != 0 {
        return Err(format!("CONNACK with session present {session_present}, reason {reason:#04x}"));
    }
    let props = if version == Version::V5 { body.properties(CONNACK)? } else { Properties::default() };
    Ok(ConnAck { session_present, reason, props })
}

fn publish(version: Version, flags: u8, body: &mut Reader, packet_len: usize) -> Result<Message, String> {
    let (dup, qos, retain) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
    if qos == 3 || qos == 0 && dup {
        return Err(format!("PUBLISH flags {flags:#03x}"));
    }
    let topic = body.text()?;
    let id = if qos > 0 { body.id()? } else { 0 };
    let props = if version == Version::V5 { body.properties(PUBLISH)? } else { Properties::default() };
    let alias = props.number(prop::TOPIC_ALIAS);
    if topic.contains(['+', '#']) || topic.is_empty() && alias.is_none() {
        return Err(format!("topic name {topic:?}"));
    }
    let payload = std::mem::take(&mut body.0).to_vec();
    Ok(Message { dup, qos, retain, topic, id, props, payload, packet_len })
}

fn ack(version: Version, kind: u8, body: &mut Reader) -> Result<Ack, String> {
    let id = body.id()?;
    let (reason, props) = if version == Version::V5 { body.short_form(kind)? } else { Default::default() };
    Ok(Ack { kind, id, reason, props })
}

fn answer(version: Version, kind: u8, body: &mut Reader) -> Result<Answer, String> {
    let id = body.id()?;
    let props = if version == Version::V5 { body.properties(kind)? } else { Properties::default() };
    let reasons = std::mem::take(&mut body.0).to_vec();
    let known = |code: &u8| match (version, kind) {
        (Version::V5, _) => reason::server_may_send(kind, *code),
        (_, SUBACK) => matches!(code, 0 | 1 | 2 | 0x80),
        _ => false,
    };
    match reasons.iter().find(|code| !known(code)) {
        Some(code) => Err(format!("reason code {code:#04x} in a packet of type {kind}")),
        None => Ok(Answer { kind, id, reasons, props }),
    }
}

fn disconnect(kind: u8, body: &mut Reader) -> Result<Disconnect, String> {
    let (reason, props) = body.short_form(kind)?;
    Ok(Disconnect { reason, props })
}

/// What is left of a packet's bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self.0.split_at_checked(count).ok_or("the packet ends inside a field")?;
        self.0 = tail;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn two(&mut self) -> Result<u16, String> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn id(&mut self) -> Result<u16, String> {
        match self.two()? {
            0 => Err("packet identifier 0".into()),
            id => Ok(id),
        }
    }

    fn varint(&mut self) -> Result<u32, String> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                let shortest = byte != 0 || shift == 0;
                return if shortest {
                    Ok(value)
                } else {
                    Err("a variable byte integer with a spare byte".into())
                };
            }
        }
        Err("a variable byte integer of more than four bytes".into())
    }

    fn data(&mut self) -> Result<&'a [u8], String> {
        let len = self.two()?;
        self.take(usize::from(len))
    }

    fn text(&mut self) -> Result<String, String> {
        let text = std::str::from_utf8(self.data()?).map_err(|e| format!("a string: {e}"))?;
        if text.contains('\0') { Err("U+0000 in a string".into()) } else { Ok(text.into()) }
    }

    /// Reason code and properties, of which the end may be missing (3.4.2.1, 3.14.2.1).
    fn short_form(&mut self, kind: u8) -> Result<(u8, Properties), String> {
        if self.0.is_empty() {
            return Ok((0, Properties::default()));
        }
        let reason = self.byte()?;
        if !reason::server_may_send(kind, reason) {
            return Err(format!("reason code {reason:#04x} in a packet of type {kind}"));
        }
        if self.0.is_empty() {
            return Ok((reason, Properties::default()));
        }
        Ok((reason, self.properties(kind)?))
    }

    fn properties(&mut self, kind: u8) -> Result<Properties, String> {
        let len = self.varint()? as usize;
        let mut section = Reader(self.take(len)?);
        let mut seen = HashSet::new();
        let mut list = Vec::new();
        while !section.0.is_empty() {
            let id = section.byte()?;
            let repeatable =
                id == prop::USER_PROPERTY || id == prop::SUBSCRIPTION_IDENTIFIER && kind == PUBLISH;
            if !allowed(kind).contains(&id) || !seen.insert(id) && !repeatable {
                return Err(format!("property {id:#04x}, out of place or twice, in a packet of type {kind}"));
            }
            list.push((id, section.value(id)?));
        }
        Ok(Properties(list))
    }

    fn value(&mut self, id: u8) -> Result<Value, String> {
        let value = match id {
            prop::RETAIN_AVAILABLE
            | prop::WILDCARD_SUBSCRIPTION_AVAILABLE
            | prop::SUBSCRIPTION_IDENTIFIERS_AVAILABLE
            | prop::SHARED_SUBSCRIPTION_AVAILABLE
            | prop::PAYLOAD_FORMAT_INDICATOR
            | prop::MAXIMUM_QOS => Value::Number(within(id, self.byte()?.into(), 0..=1)?),
            prop::TOPIC_ALIAS | prop::RECEIVE_MAXIMUM => {
                Value::Number(within(id, self.two()?.into(), 1..=65_535)?)
            }
            prop::SERVER_KEEP_ALIVE | prop::TOPIC_ALIAS_MAXIMUM => Value::Number(self.two()?.into()),
            prop::MESSAGE_EXPIRY_INTERVAL | prop::SESSION_EXPIRY_INTERVAL => Value::Number(self.four()?),
            prop::MAXIMUM_PACKET_SIZE => Value::Number(within(id, self.four()?, 1..=u32::MAX)?),
            prop::SUBSCRIPTION_IDENTIFIER => Value::Number(within(id, self.varint()?, 1..=u32::MAX)?),
            prop::CORRELATION_DATA | prop::AUTHENTICATION_DATA => Value::Data(self.data()?.to_vec()),
            prop::USER_PROPERTY => Value::Pair(self.text()?, self.text()?),
            _ => Value::Data(self.text()?.into_bytes()),
        };
        Ok(value)
    }

    fn four(&mut self) -> Result<u32, String> {
        Ok(u32::from(self.two()?) << 16 | u32::from(self.two()?))
    }
}

fn within(id: u8, value: u32, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    if range.contains(&value) { Ok(value) } else { Err(format!("property {id:#04x} is {value}")) }
}

/// The properties that a server may put in a packet of type `kind` (2.2.2.2).
fn allowed(kind: u8) -> &'static [u8] {
    match kind {
        CONNACK => &[
            0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29,
            0x2A,
        ],
        PUBLISH => &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26],
        DISCONNECT => &[0x1C, 0x1F, 0x26],
        AUTH => &[0x15, 0x16, 0x1F, 0x26],
        _ => &[0x1F, 0x26],
    }
}
