//! The control packets of MQTT 3.1, 3.1.1 and 5 as borrowed values: one set of types for both directions.
//!
//! A decoded packet borrows from the bytes it was read from and is valid by construction: lengths, UTF-8,
//! flags, and the set of properties its type allows were checked. Properties that 3.x lacks are simply absent.

use crate::decode::DecodeError;
pub use crate::lists::{Iter, SubscribeFilters, SubscriptionIds, UnsubscribeFilters, UserProperties};
use crate::reason::ReasonCode;

/// The protocol level of a connection, as CONNECT names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1 (`MQIsdp`, level 3).
    V3 = 3,
    /// MQTT 3.1.1 (`MQTT`, level 4).
    V4 = 4,
    /// MQTT 5 (`MQTT`, level 5).
    V5 = 5,
}

/// Quality of service of one message or one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// At most once: no acknowledgement.
    #[default]
    AtMostOnce = 0,
    /// At least once: PUBACK.
    AtLeastOnce = 1,
    /// Exactly once: PUBREC, PUBREL, PUBCOMP.
    ExactlyOnce = 2,
}

/// Any control packet, in either direction.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the control packet of that name")]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(SubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// CONNECT (3.1).
#[derive(Clone, Debug, PartialEq)]
pub struct Connect<'a> {
    /// Protocol level; for level 3 the name on the wire is `MQIsdp`.
    pub version: Version,
    /// Clean Start (5), Clean Session (3.x).
    pub clean_start: bool,
    /// Seconds; 0 turns keep alive off.
    pub keep_alive: u16,
    /// May be empty: then the server assigns one (5), or refuses (3.1), or asks for a clean session (3.1.1).
    pub client_id: &'a str,
    /// The will message, if the client left one.
    pub will: Option<Will<'a>>,
    /// User name.
    pub username: Option<&'a str>,
    /// Password: binary data, and in 5 allowed without a user name.
    pub password: Option<&'a [u8]>,
    /// Session Expiry Interval, seconds; `u32::MAX` means never.
    pub session_expiry: Option<u32>,
    /// How many QoS 1 and 2 publishes the client takes at once; never 0.
    pub receive_maximum: Option<u16>,
    /// The largest packet the client takes, in bytes; never 0.
    pub maximum_packet_size: Option<u32>,
    /// How many topic aliases the client takes.
    pub topic_alias_maximum: Option<u16>,
    /// Whether the client asks for Response Information.
    pub request_response_information: Option<bool>,
    /// Whether the client wants reason strings and user properties on anything but PUBLISH, CONNACK, DISCONNECT.
    pub request_problem_information: Option<bool>,
    /// Extended authentication: method.
    pub authentication_method: Option<&'a str>,
    /// Extended authentication: data; a Protocol Error without a method.
    pub authentication_data: Option<&'a [u8]>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
}

/// The will of a CONNECT (3.1.2.5, 3.1.3.2).
#[derive(Clone, Debug, PartialEq)]
pub struct Will<'a> {
    /// QoS at which the will is published.
    pub qos: QoS,
    /// Whether the will is published retained.
    pub retain: bool,
    /// Will topic, as on the wire; the codec checks only that it is UTF-8.
    pub topic: &'a str,
    /// Will payload.
    pub payload: &'a [u8],
    /// Will Delay Interval, seconds.
    pub delay_interval: Option<u32>,
    /// The properties that go out with the will message.
    pub properties: MessageProperties<'a>,
}

/// CONNACK (3.2).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnAck<'a> {
    /// Whether the server continues a stored session.
    pub session_present: bool,
    /// The reason code; when encoding for 3.x it becomes the nearest return code (0 to 5).
    pub reason: ReasonCode,
    /// Session Expiry Interval that the server uses instead of the client's, seconds.
    pub session_expiry: Option<u32>,
    /// How many QoS 1 and 2 publishes the server takes at once.
    pub receive_maximum: Option<u16>,
    /// Highest QoS the server takes, where that is not 2.
    pub maximum_qos: Option<QoS>,
    /// Whether retained messages are supported (absent: yes).
    pub retain_available: Option<bool>,
    /// The largest packet the server takes, in bytes.
    pub maximum_packet_size: Option<u32>,
    /// The client identifier the server made up.
    pub assigned_client_id: Option<&'a str>,
    /// How many topic aliases the server takes.
    pub topic_alias_maximum: Option<u16>,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// Whether wildcard subscriptions are supported (absent: yes).
    pub wildcard_subscription_available: Option<bool>,
    /// Whether subscription identifiers are supported (absent: yes).
    pub subscription_ids_available: Option<bool>,
    /// Whether shared subscriptions are supported (absent: yes).
    pub shared_subscription_available: Option<bool>,
    /// Keep alive that the client must use instead of its own, seconds.
    pub server_keep_alive: Option<u16>,
    /// Response Information.
    pub response_information: Option<&'a str>,
    /// Server Reference.
    pub server_reference: Option<&'a str>,
    /// Extended authentication: method.
    pub authentication_method: Option<&'a str>,
    /// Extended authentication: data.
    pub authentication_data: Option<&'a [u8]>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
}

/// PUBLISH (3.3).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Publish<'a> {
    /// Sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Store as the topic's retained message, or: this is one.
    pub retain: bool,
    /// Topic name as on the wire, which may be empty when an alias stands for it. UTF-8 is checked, wildcards are not.
    pub topic: &'a str,
    /// Packet identifier; 0 exactly when QoS is 0.
    pub packet_id: u16,
    /// Topic Alias; never 0.
    pub topic_alias: Option<u16>,
    /// Subscription Identifiers, in the order on the wire; only servers send them.
    pub subscription_ids: SubscriptionIds<'a>,
    /// The properties that travel with the message to its receivers.
    pub properties: MessageProperties<'a>,
    /// The message itself.
    pub payload: &'a [u8],
}

/// Properties that belong to the message itself and are forwarded to every receiver unaltered (3.3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageProperties<'a> {
    /// Payload Format Indicator: 0 bytes, 1 UTF-8. Other values do not decode.
    pub payload_format: Option<u8>,
    /// Message Expiry Interval, seconds.
    pub message_expiry: Option<u32>,
    /// Content Type.
    pub content_type: Option<&'a str>,
    /// Response Topic.
    pub response_topic: Option<&'a str>,
    /// Correlation Data.
    pub correlation_data: Option<&'a [u8]>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ack<'a> {
    /// The packet identifier acknowledged; never 0.
    pub packet_id: u16,
    /// Reason code; 3.x has none on the wire and decodes as success.
    pub reason: ReasonCode,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
}

/// SUBSCRIBE (3.8).
#[derive(Clone, Debug, PartialEq)]
pub struct Subscribe<'a> {
    /// Packet identifier; never 0.
    pub packet_id: u16,
    /// Subscription Identifier, 1 to 268,435,455.
    pub subscription_id: Option<u32>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
    /// The filters, at least one.
    pub filters: SubscribeFilters<'a>,
}

/// One filter of a SUBSCRIBE with its options (3.8.3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubscribeFilter<'a> {
    /// Topic filter as on the wire: UTF-8 is checked, its wildcards are not.
    pub filter: &'a str,
    /// Subscription options; 3.x has only the QoS.
    pub options: SubscribeOptions,
}

/// Subscription options (3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Maximum QoS.
    pub qos: QoS,
    /// Do not send what this client published itself.
    pub no_local: bool,
    /// Keep the RETAIN flag as it was published.
    pub retain_as_published: bool,
    /// When to send retained messages.
    pub retain_handling: RetainHandling,
}

/// Retain Handling of a subscription (3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RetainHandling {
    /// Send retained messages at every subscribe.
    #[default]
    Send = 0,
    /// Send them only if the subscription is new.
    SendIfNew = 1,
    /// Do not send them.
    DoNotSend = 2,
}

/// SUBACK and UNSUBACK (3.9, 3.11). An UNSUBACK of 3.x carries no codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SubAck<'a> {
    /// Packet identifier of the request.
    pub packet_id: u16,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
    /// One reason code per filter, as bytes ([`ReasonCode`] values).
    pub reasons: &'a [u8],
}

/// UNSUBSCRIBE (3.10).
#[derive(Clone, Debug, PartialEq)]
pub struct Unsubscribe<'a> {
    /// Packet identifier; never 0.
    pub packet_id: u16,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
    /// The filters, at least one.
    pub filters: UnsubscribeFilters<'a>,
}

/// DISCONNECT (3.14).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disconnect<'a> {
    /// Reason code; 3.x has none on the wire.
    pub reason: ReasonCode,
    /// Session Expiry Interval, seconds; only clients send it.
    pub session_expiry: Option<u32>,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// Server Reference; only servers send it.
    pub server_reference: Option<&'a str>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
}

/// AUTH (3.15).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Auth<'a> {
    /// Success, Continue authentication, or Re-authenticate.
    pub reason: ReasonCode,
    /// Authentication method.
    pub authentication_method: Option<&'a str>,
    /// Authentication data.
    pub authentication_data: Option<&'a [u8]>,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// User properties, in order.
    pub user_properties: UserProperties<'a>,
}

impl Connect<'_> {
    /// A CONNECT that asks for a clean start, without keep alive, will, credentials or properties.
    pub const fn new(version: Version, client_id: &str) -> Connect<'_> {
        Connect {
            version,
            clean_start: true,
            keep_alive: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            session_expiry: None,
            receive_maximum: None,
            maximum_packet_size: None,
            topic_alias_maximum: None,
            request_response_information: None,
            request_problem_information: None,
            authentication_method: None,
            authentication_data: None,
            user_properties: UserProperties::Pairs(&[]),
        }
    }
}

impl SubscribeOptions {
    /// Only a maximum QoS: all that 3.x knows.
    pub const fn qos(qos: QoS) -> Self {
        Self { qos, no_local: false, retain_as_published: false, retain_handling: RetainHandling::Send }
    }
}

impl TryFrom<u8> for Version {
    type Error = DecodeError;

    /// The version of a protocol level.
    ///
    /// # Errors
    /// `UnsupportedProtocolVersion` for a level other than 3, 4, 5 [MQTT-3.1.2-2].
    fn try_from(level: u8) -> Result<Self, DecodeError> {
        match level {
            3 => Ok(Self::V3),
            4 => Ok(Self::V4),
            5 => Ok(Self::V5),
            _ => Err(DecodeError::unsupported_version("protocol level is none of 3, 4, 5 [MQTT-3.1.2-2]")),
        }
    }
}

impl TryFrom<u8> for QoS {
    type Error = DecodeError;

    /// # Errors
    /// `MalformedPacket` for a value above 2 [MQTT-3.3.1-4].
    #[inline]
    fn try_from(bits: u8) -> Result<Self, DecodeError> {
        match bits {
            0 => Ok(Self::AtMostOnce),
            1 => Ok(Self::AtLeastOnce),
            2 => Ok(Self::ExactlyOnce),
            _ => Err(DecodeError::malformed("QoS 3 [MQTT-3.3.1-4]")),
        }
    }
}

impl TryFrom<u8> for SubscribeOptions {
    type Error = DecodeError;

    /// Subscription options as they stand in a SUBSCRIBE of MQTT 5 (3.8.3.1).
    ///
    /// # Errors
    /// `ProtocolError` for QoS 3 or Retain Handling 3, `MalformedPacket` for reserved bits [MQTT-3.8.3-5].
    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        if byte & 0b1100_0000 != 0 {
            return Err(DecodeError::malformed("reserved bits of subscription options set [MQTT-3.8.3-5]"));
        }
        let qos = QoS::try_from(byte & 0b11)
            .map_err(|_| DecodeError::protocol("maximum QoS of a subscription is 3 (3.8.3.1)"))?;
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::protocol("Retain Handling is 3 (3.8.3.1)")),
        };
        Ok(Self {
            qos,
            no_local: byte & 0b100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }
}

impl From<SubscribeOptions> for u8 {
    fn from(options: SubscribeOptions) -> Self {
        options.qos as u8
            | u8::from(options.no_local) << 2
            | u8::from(options.retain_as_published) << 3
            | (options.retain_handling as u8) << 4
    }
}

macro_rules! into_packet {
    ($($variant:ident),*) => {$(
        impl<'a> From<$variant<'a>> for Packet<'a> {
            fn from(packet: $variant<'a>) -> Self {
                Self::$variant(packet)
            }
        }
    )*};
}

into_packet!(Connect, ConnAck, Publish, Subscribe, Unsubscribe, Disconnect, Auth);
