//! Property identifiers (2.2.2.2), and the type of each value.

use crate::error::DecodeError;
use crate::wire::Reader;

/// Property identifiers (2.2.2.2). They are Variable Byte Integers on the wire, but all defined ones take one byte.
pub(crate) mod id {
    pub(crate) const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY_INTERVAL: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub(crate) const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(crate) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(crate) const WILL_DELAY_INTERVAL: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(crate) const RESPONSE_INFORMATION: u8 = 0x1A;
    pub(crate) const SERVER_REFERENCE: u8 = 0x1C;
    pub(crate) const REASON_STRING: u8 = 0x1F;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const MAXIMUM_QOS: u8 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(crate) const USER_PROPERTY: u8 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(crate) const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
    pub(crate) const SUBSCRIPTION_IDENTIFIERS_AVAILABLE: u8 = 0x29;
    pub(crate) const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;
}

/// The error for an identifier that is unknown or not allowed in the packet type: Malformed Packet (2.2.2.2).
#[cold]
pub(crate) const fn not_allowed() -> DecodeError {
    DecodeError::malformed("property identifier not valid in this packet (2.2.2.2)")
}

/// Skips the value of property `id`.
pub(crate) fn skip_value(id: u8, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    match id {
        id::PAYLOAD_FORMAT_INDICATOR
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE => reader.u8().map(drop),
        id::SERVER_KEEP_ALIVE | id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            reader.u16().map(drop)
        }
        id::MESSAGE_EXPIRY_INTERVAL
        | id::SESSION_EXPIRY_INTERVAL
        | id::WILL_DELAY_INTERVAL
        | id::MAXIMUM_PACKET_SIZE => reader.u32().map(drop),
        id::SUBSCRIPTION_IDENTIFIER => reader.varint().map(drop),
        id::USER_PROPERTY => {
            reader.binary()?;
            reader.binary().map(drop)
        }
        id::CONTENT_TYPE
        | id::RESPONSE_TOPIC
        | id::CORRELATION_DATA
        | id::ASSIGNED_CLIENT_IDENTIFIER
        | id::AUTHENTICATION_METHOD
        | id::AUTHENTICATION_DATA
        | id::RESPONSE_INFORMATION
        | id::SERVER_REFERENCE
        | id::REASON_STRING => reader.binary().map(drop),
        _ => Err(not_allowed()),
    }
}
