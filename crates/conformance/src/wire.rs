//! Packets to send: builders for whole packets, and the pieces to make wrong ones from.

use crate::Version;
pub use crate::encoding::{data, varint};
use crate::property::Props;

/// Anything that can be sent: bytes go out as they are, builders are encoded for the connection's version.
pub trait Wire {
    /// The bytes on the wire in `version`.
    fn bytes(&self, version: Version) -> Vec<u8>;
}

impl Wire for [u8] {
    fn bytes(&self, _: Version) -> Vec<u8> {
        self.to_vec()
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn bytes(&self, _: Version) -> Vec<u8> {
        self.to_vec()
    }
}

impl Wire for Vec<u8> {
    fn bytes(&self, _: Version) -> Vec<u8> {
        self.clone()
    }
}

/// A packet: its first byte, the remaining length, `body`.
pub fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    out.extend(varint(u32::try_from(body.len()).expect("a body that fits a packet")));
    out.extend_from_slice(body);
    out
}

/// PINGREQ.
pub const PINGREQ: [u8; 2] = [0xC0, 0x00];

/// PUBACK, PUBREC, PUBREL, or PUBCOMP with reason Success: the same four bytes in every version.
///
/// `kind` is one of [`crate::packet::PUBACK`] and its neighbours.
pub fn ack(kind: u8, id: u16) -> Vec<u8> {
    frame(ack_first_byte(kind), &id.to_be_bytes())
}

/// A version 5 acknowledgement with a reason code and properties.
pub fn ack_with(kind: u8, id: u16, reason: u8, props: &Props) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.push(reason);
    body.extend(props.section());
    frame(ack_first_byte(kind), &body)
}

fn ack_first_byte(kind: u8) -> u8 {
    let flags = if kind == crate::packet::PUBREL { 0x02 } else { 0x00 };
    kind << 4 | flags
}

/// DISCONNECT in its two-byte form: normal, in every version.
pub const DISCONNECT: [u8; 2] = [0xE0, 0x00];

/// A version 5 DISCONNECT with a reason code and properties.
pub fn disconnect_with(reason: u8, props: &Props) -> Vec<u8> {
    let mut body = vec![reason];
    body.extend(props.section());
    frame(0xE0, &body)
}

/// A version 5 AUTH.
pub fn auth(reason: u8, props: &Props) -> Vec<u8> {
    let mut body = vec![reason];
    body.extend(props.section());
    frame(0xF0, &body)
}

/// A CONNECT to be.
#[derive(Clone, Debug)]
pub struct Connect {
    client_id: Vec<u8>,
    clean: bool,
    keep_alive: u16,
    will: Option<Will>,
    username: Option<Vec<u8>>,
    password: Option<Vec<u8>>,
    props: Props,
}

impl Connect {
    /// Clean start, keep alive 60 s, nothing else.
    pub fn new(client_id: impl AsRef<[u8]>) -> Self {
        Self {
            client_id: client_id.as_ref().to_vec(),
            clean: true,
            keep_alive: 60,
            will: None,
            username: None,
            password: None,
            props: Props::new(),
        }
    }

    /// Clean Start 0: continue the stored session.
    #[must_use]
    pub fn resume(mut self) -> Self {
        self.clean = false;
        self
    }

    /// Keep alive, seconds.
    #[must_use]
    pub fn keep_alive(mut self, seconds: u16) -> Self {
        self.keep_alive = seconds;
        self
    }

    /// The will.
    #[must_use]
    pub fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    /// User name.
    #[must_use]
    pub fn username(mut self, name: impl AsRef<[u8]>) -> Self {
        self.username = Some(name.as_ref().to_vec());
        self
    }

    /// Password.
    #[must_use]
    pub fn password(mut self, password: impl AsRef<[u8]>) -> Self {
        self.password = Some(password.as_ref().to_vec());
        self
    }

    /// Properties (left out in 3.x), replacing those set before.
    #[must_use]
    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }

    /// Session Expiry Interval in seconds, beside the other properties.
    #[must_use]
    pub fn session_expiry(mut self, seconds: u32) -> Self {
        self.props = self.props.four(crate::property::SESSION_EXPIRY_INTERVAL, seconds);
        self
    }

    /// A session that outlives its connection, in every version: Clean Session 0 in 3.x; in 5 an expiry of
    /// 600 s, and Clean Start 0 as well.
    #[must_use]
    pub fn durable(self) -> Self {
        self.resume().session_expiry(600)
    }

    /// The connect flags this CONNECT has; tests that set wrong ones start from here.
    pub fn flags(&self) -> u8 {
        let mut flags = u8::from(self.clean) << 1;
        if let Some(will) = &self.will {
            flags |= 0x04 | will.qos << 3 | u8::from(will.retain) << 5;
        }
        flags | u8::from(self.password.is_some()) << 6 | u8::from(self.username.is_some()) << 7
    }

    /// The packet with other connect flags than its own.
    pub fn bytes_with_flags(&self, version: Version, flags: u8) -> Vec<u8> {
        let mut body = match version {
            Version::V3 => data("MQIsdp"),
            Version::V4 | Version::V5 => data("MQTT"),
        };
        body.push(version as u8);
        body.push(flags);
        body.extend(self.keep_alive.to_be_bytes());
        if version == Version::V5 {
            body.extend(self.props.section());
        }
        body.extend(data(&self.client_id));
        if let Some(will) = &self.will {
            if version == Version::V5 {
                body.extend(will.props.section());
            }
            body.extend(data(&will.topic));
            body.extend(data(&will.payload));
        }
        body.extend(self.username.iter().flat_map(data));
        body.extend(self.password.iter().flat_map(data));
        frame(0x10, &body)
    }
}

impl Wire for Connect {
    fn bytes(&self, version: Version) -> Vec<u8> {
        self.bytes_with_flags(version, self.flags())
    }
}

/// The will of a CONNECT.
#[derive(Clone, Debug)]
pub struct Will {
    topic: Vec<u8>,
    payload: Vec<u8>,
    qos: u8,
    retain: bool,
    props: Props,
}

impl Will {
    /// A will with QoS 0, not retained.
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        let (topic, payload) = (topic.as_ref().to_vec(), payload.as_ref().to_vec());
        Self { topic, payload, qos: 0, retain: false, props: Props::new() }
    }

    /// QoS of the will message.
    #[must_use]
    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    /// Publish it retained.
    #[must_use]
    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    /// Will properties (left out in 3.x).
    #[must_use]
    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }
}

/// A PUBLISH to be.
#[derive(Clone, Debug)]
pub struct Publish {
    topic: Vec<u8>,
    payload: Vec<u8>,
    qos: u8,
    id: Option<u16>,
    flags: u8,
    props: Props,
}

impl Publish {
    /// QoS 0, not retained.
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        let (topic, payload) = (topic.as_ref().to_vec(), payload.as_ref().to_vec());
        Self { topic, payload, qos: 0, id: None, flags: 0, props: Props::new() }
    }

    /// Quality of service; 3 is possible.
    #[must_use]
    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    /// Packet identifier, written whatever the QoS.
    #[must_use]
    pub fn id(mut self, id: u16) -> Self {
        self.id = Some(id);
        self
    }

    /// RETAIN 1.
    #[must_use]
    pub fn retain(mut self) -> Self {
        self.flags |= 0x01;
        self
    }

    /// DUP 1.
    #[must_use]
    pub fn dup(mut self) -> Self {
        self.flags |= 0x08;
        self
    }

    /// Properties (left out in 3.x).
    #[must_use]
    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }
}

impl Wire for Publish {
    fn bytes(&self, version: Version) -> Vec<u8> {
        let mut body = data(&self.topic);
        body.extend(self.id.iter().flat_map(|id| id.to_be_bytes()));
        if version == Version::V5 {
            body.extend(self.props.section());
        }
        body.extend_from_slice(&self.payload);
        frame(0x30 | self.qos << 1 | self.flags, &body)
    }
}

/// A SUBSCRIBE to be.
#[derive(Clone, Debug)]
pub struct Subscribe {
    id: u16,
    filters: Vec<u8>,
    props: Props,
}

/// No Local: bit 2 of the subscription options (3.8.3.1).
pub const NO_LOCAL: u8 = 0x04;
/// Retain As Published: bit 3 of the subscription options.
pub const RETAIN_AS_PUBLISHED: u8 = 0x08;
/// Retain Handling 1: retained messages only for a new subscription.
pub const RETAINED_IF_NEW: u8 = 0x10;
/// Retain Handling 2: no retained messages.
pub const RETAINED_NEVER: u8 = 0x20;

impl Subscribe {
    /// No filter yet.
    pub fn new(id: u16) -> Self {
        Self { id, filters: Vec::new(), props: Props::new() }
    }

    /// Adds a filter with its options byte: the QoS in 3.x; in 5 also [`NO_LOCAL`] and its neighbours.
    #[must_use]
    pub fn filter(mut self, filter: impl AsRef<[u8]>, options: u8) -> Self {
        self.filters.extend(data(filter));
        self.filters.push(options);
        self
    }

    /// Properties (left out in 3.x).
    #[must_use]
    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }
}

impl Wire for Subscribe {
    fn bytes(&self, version: Version) -> Vec<u8> {
        request(0x82, self.id, &self.props, &self.filters, version)
    }
}

/// An UNSUBSCRIBE to be.
#[derive(Clone, Debug)]
pub struct Unsubscribe {
    id: u16,
    filters: Vec<u8>,
    props: Props,
}

impl Unsubscribe {
    /// No filter yet.
    pub fn new(id: u16) -> Self {
        Self { id, filters: Vec::new(), props: Props::new() }
    }

    /// Adds a filter.
    #[must_use]
    pub fn filter(mut self, filter: impl AsRef<[u8]>) -> Self {
        self.filters.extend(data(filter));
        self
    }

    /// Properties (left out in 3.x).
    #[must_use]
    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }
}

impl Wire for Unsubscribe {
    fn bytes(&self, version: Version) -> Vec<u8> {
        request(0xA2, self.id, &self.props, &self.filters, version)
    }
}

fn request(first: u8, id: u16, props: &Props, filters: &[u8], version: Version) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.extend(props.section());
    }
    body.extend_from_slice(filters);
    frame(first, &body)
}
