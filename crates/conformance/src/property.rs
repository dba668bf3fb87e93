//! Properties (2.2.2): their numbers, a builder for sections of them, and a strict reader.

use crate::encoding::{data, varint};

/// Payload Format Indicator: byte.
pub const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
/// Message Expiry Interval: four bytes, seconds.
pub const MESSAGE_EXPIRY_INTERVAL: u8 = 0x02;
/// Content Type: string.
pub const CONTENT_TYPE: u8 = 0x03;
/// Response Topic: string.
pub const RESPONSE_TOPIC: u8 = 0x08;
/// Correlation Data: binary.
pub const CORRELATION_DATA: u8 = 0x09;
/// Subscription Identifier: variable byte integer.
pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
/// Session Expiry Interval: four bytes, seconds.
pub const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
/// Assigned Client Identifier: string.
pub const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
/// Server Keep Alive: two bytes, seconds.
pub const SERVER_KEEP_ALIVE: u8 = 0x13;
/// Authentication Method: string.
pub const AUTHENTICATION_METHOD: u8 = 0x15;
/// Authentication Data: binary.
pub const AUTHENTICATION_DATA: u8 = 0x16;
/// Request Problem Information: byte.
pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
/// Will Delay Interval: four bytes, seconds.
pub const WILL_DELAY_INTERVAL: u8 = 0x18;
/// Request Response Information: byte.
pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
/// Response Information: string.
pub const RESPONSE_INFORMATION: u8 = 0x1A;
/// Server Reference: string.
pub const SERVER_REFERENCE: u8 = 0x1C;
/// Reason String: string.
pub const REASON_STRING: u8 = 0x1F;
/// Receive Maximum: two bytes.
pub const RECEIVE_MAXIMUM: u8 = 0x21;
/// Topic Alias Maximum: two bytes.
pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
/// Topic Alias: two bytes.
pub const TOPIC_ALIAS: u8 = 0x23;
/// Maximum QoS: byte.
pub const MAXIMUM_QOS: u8 = 0x24;
/// Retain Available: byte.
pub const RETAIN_AVAILABLE: u8 = 0x25;
/// User Property: pair of strings.
pub const USER_PROPERTY: u8 = 0x26;
/// Maximum Packet Size: four bytes.
pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
/// Wildcard Subscription Available: byte.
pub const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
/// Subscription Identifiers Available: byte.
pub const SUBSCRIPTION_IDENTIFIERS_AVAILABLE: u8 = 0x29;
/// Shared Subscription Available: byte.
pub const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;

/// Builds the content of a property section; nothing is checked, wrong sections are wanted too.
#[derive(Clone, Debug, Default)]
pub struct Props(Vec<u8>);

impl Props {
    /// An empty section.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The section's bytes without the length before them.
    pub fn content(&self) -> &[u8] {
        &self.0
    }

    /// Adds a one-byte property.
    #[must_use]
    pub fn byte(self, id: u8, value: u8) -> Self {
        self.raw(&[id, value])
    }

    /// Adds a two-byte property.
    #[must_use]
    pub fn two(self, id: u8, value: u16) -> Self {
        self.raw(&[id]).raw(&value.to_be_bytes())
    }

    /// Adds a four-byte property.
    #[must_use]
    pub fn four(self, id: u8, value: u32) -> Self {
        self.raw(&[id]).raw(&value.to_be_bytes())
    }

    /// Adds a variable byte integer property.
    #[must_use]
    pub fn varint(self, id: u8, value: u32) -> Self {
        self.raw(&[id]).raw(&varint(value))
    }

    /// Adds a string or binary property: the bytes with their length.
    #[must_use]
    pub fn data(self, id: u8, value: impl AsRef<[u8]>) -> Self {
        self.raw(&[id]).raw(&data(value))
    }

    /// Adds a User Property.
    #[must_use]
    pub fn user(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.raw(&[USER_PROPERTY]).raw(&data(name)).raw(&data(value))
    }

    /// Adds bytes as they are.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// The section as it stands in a packet: length, then content.
    pub fn section(&self) -> Vec<u8> {
        let mut out = varint(u32::try_from(self.0.len()).expect("a section that fits a packet"));
        out.extend_from_slice(&self.0);
        out
    }
}

/// The value of one property that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Byte, two bytes, four bytes, or variable byte integer.
    Number(u32),
    /// String or binary data; strings were checked.
    Data(Vec<u8>),
    /// A pair of strings.
    Pair(String, String),
}

/// The properties of a packet that was received, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(pub Vec<(u8, Value)>);

impl Properties {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether property `id` is there.
    pub fn has(&self, id: u8) -> bool {
        self.0.iter().any(|(i, _)| *i == id)
    }

    /// The value of a numeric property.
    pub fn number(&self, id: u8) -> Option<u32> {
        self.numbers(id).first().copied()
    }

    /// All values of a numeric property, in order.
    pub fn numbers(&self, id: u8) -> Vec<u32> {
        let of = |(i, value): &(u8, Value)| match value {
            Value::Number(n) if *i == id => Some(*n),
            _ => None,
        };
        self.0.iter().filter_map(of).collect()
    }

    /// The value of a string or binary property.
    pub fn data(&self, id: u8) -> Option<&[u8]> {
        self.0.iter().find_map(|(i, value)| match value {
            Value::Data(bytes) if *i == id => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// The value of a string property.
    pub fn text(&self, id: u8) -> Option<&str> {
        self.data(id).map(|bytes| std::str::from_utf8(bytes).expect("strings are checked when read"))
    }

    /// The User Properties, in order.
    pub fn user(&self) -> Vec<(&str, &str)> {
        let pairs = self.0.iter().filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((name.as_str(), value.as_str())),
            _ => None,
        });
        pairs.collect()
    }
}
