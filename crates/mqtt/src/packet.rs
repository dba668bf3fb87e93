//! The control packets of MQTT 3.1, 3.1.1 and 5, with one set of types for both directions.
//!
//! A decoded packet borrows from the received bytes and is valid by construction: lengths, UTF-8, flags and the
//! properties allowed for its type have been checked. Topic names and filters are checked only for UTF-8. Properties
//! that 3.x does not have are absent.

pub use crate::lists::{Iter, SubscribeFilters, SubscriptionIds, UnsubscribeFilters, UserProperties};
use crate::reason::ReasonCode;
pub use crate::types::{QoS, RetainHandling, SubscribeFilter, SubscribeOptions, Version};

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
    /// Protocol level. For level 3 the protocol name on the wire is `MQIsdp`.
    pub version: Version,
    /// Clean Start (5), Clean Session (3.x).
    pub clean_start: bool,
    /// Keep alive in seconds; 0 disables it.
    pub keep_alive: u16,
    /// Client identifier. If empty, the server assigns one (5), rejects it (3.1), or requires a clean session (3.1.1).
    pub client_id: &'a str,
    /// The will message.
    pub will: Option<Will<'a>>,
    /// User name.
    pub username: Option<&'a str>,
    /// Password: binary data. MQTT 5 allows it without a user name.
    pub password: Option<&'a [u8]>,
    /// Session Expiry Interval in seconds; `u32::MAX` means never.
    pub session_expiry: Option<u32>,
    /// Receive Maximum: maximum number of QoS 1 and 2 publishes in flight to the client; never 0.
    pub receive_maximum: Option<u16>,
    /// Maximum Packet Size that the client accepts, in bytes; never 0.
    pub maximum_packet_size: Option<u32>,
    /// Topic Alias Maximum that the client accepts.
    pub topic_alias_maximum: Option<u16>,
    /// Whether the client requests Response Information.
    pub request_response_information: Option<bool>,
    /// Whether packets other than PUBLISH, CONNACK and DISCONNECT may have reason strings and user properties.
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
    /// Whether the will is published as a retained message.
    pub retain: bool,
    /// Will topic. The codec checks only that it is UTF-8.
    pub topic: &'a str,
    /// Will payload.
    pub payload: &'a [u8],
    /// Will Delay Interval in seconds.
    pub delay_interval: Option<u32>,
    /// Properties of the will message.
    pub properties: MessageProperties<'a>,
}

/// CONNACK (3.2).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnAck<'a> {
    /// Whether the server resumed a stored session.
    pub session_present: bool,
    /// Reason code. Encoding for 3.x maps it to the nearest return code (0 to 5).
    pub reason: ReasonCode,
    /// Session Expiry Interval in seconds that replaces the one requested by the client.
    pub session_expiry: Option<u32>,
    /// Receive Maximum: maximum number of QoS 1 and 2 publishes in flight to the server.
    pub receive_maximum: Option<u16>,
    /// Maximum QoS that the server accepts (absent: 2).
    pub maximum_qos: Option<QoS>,
    /// Whether retained messages are supported (absent: yes).
    pub retain_available: Option<bool>,
    /// Maximum Packet Size that the server accepts, in bytes.
    pub maximum_packet_size: Option<u32>,
    /// Client identifier assigned by the server.
    pub assigned_client_id: Option<&'a str>,
    /// Topic Alias Maximum that the server accepts.
    pub topic_alias_maximum: Option<u16>,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// Whether wildcard subscriptions are supported (absent: yes).
    pub wildcard_subscription_available: Option<bool>,
    /// Whether subscription identifiers are supported (absent: yes).
    pub subscription_ids_available: Option<bool>,
    /// Whether shared subscriptions are supported (absent: yes).
    pub shared_subscription_available: Option<bool>,
    /// Keep alive in seconds that replaces the one requested by the client.
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
    /// Whether the packet may have been sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// From a client: store the message as the retained message of its topic. From the server: the message is one.
    pub retain: bool,
    /// Topic name, which may be empty if there is a topic alias. The codec checks only that it is UTF-8.
    pub topic: &'a str,
    /// Packet identifier; 0 if and only if QoS is 0.
    pub packet_id: u16,
    /// Topic Alias; never 0.
    pub topic_alias: Option<u16>,
    /// Subscription Identifiers in wire order. Only servers send them.
    pub subscription_ids: SubscriptionIds<'a>,
    /// Properties that are forwarded with the message.
    pub properties: MessageProperties<'a>,
    /// The payload.
    pub payload: &'a [u8],
}

/// Properties of a message that are forwarded to every receiver unaltered (3.3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageProperties<'a> {
    /// Payload Format Indicator: 0 for bytes, 1 for UTF-8. The decoder rejects other values.
    pub payload_format: Option<u8>,
    /// Message Expiry Interval in seconds.
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
    /// Packet identifier that is acknowledged; never 0.
    pub packet_id: u16,
    /// Reason code. 3.x has none on the wire, which decodes as success.
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
    /// Reason code. 3.x has none on the wire.
    pub reason: ReasonCode,
    /// Session Expiry Interval in seconds. Only clients send it.
    pub session_expiry: Option<u32>,
    /// Reason string.
    pub reason_string: Option<&'a str>,
    /// Server Reference. Only servers send it.
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
    /// Creates a CONNECT with a clean start and without keep alive, will, credentials or properties.
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
