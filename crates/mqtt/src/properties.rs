//! Property identifiers (2.2.2.2) and the walk over a property section.

use crate::decode::DecodeError;
use crate::lists::{SubscriptionIds, UserProperties};
use crate::wire::Reader;

/// Property identifiers (2.2.2.2). On the wire they are Variable Byte Integers, and all of them take one byte.
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

/// The walk over one property section: hands out identifiers, reads and checks values.
///
/// A packet type loops over [`next_id`](Self::next_id) and reads a value for each identifier it allows; what it
/// does not allow ends in [`not_allowed`]. The repeatable properties stay where they are: the section remembers
/// the narrowest range of bytes that holds them all.
#[derive(Debug)]
pub(crate) struct PropertyWalk<'a> {
    section: &'a [u8],
    reader: Reader<'a>,
    user_properties: Span,
    subscription_ids: Span,
}

/// Where the first of several equal properties starts and the last one ends.
#[derive(Debug, Default)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    fn cover(&mut self, start: usize, end: usize) {
        if self.end == 0 {
            self.start = start;
        }
        self.end = end;
    }
}

impl<'a> PropertyWalk<'a> {
    /// Takes the property section at the front of `reader`: Property Length, then that many bytes (2.2.2.1).
    #[inline]
    pub(crate) fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = reader.varint()?;
        let section = reader.take(len as usize)?;
        Ok(Self {
            section,
            reader: Reader::new(section),
            user_properties: Span::default(),
            subscription_ids: Span::default(),
        })
    }

    /// The next identifier, or `None` at the end of the section. Its value must be read before the next call.
    #[inline]
    pub(crate) fn next_id(&mut self) -> Result<Option<u8>, DecodeError> {
        if self.reader.is_empty() { Ok(None) } else { self.reader.u8().map(Some) }
    }

    pub(crate) fn user_properties(&self) -> UserProperties<'a> {
        UserProperties::Wire(&self.section[self.user_properties.start..self.user_properties.end])
    }

    pub(crate) fn subscription_ids(&self) -> SubscriptionIds<'a> {
        SubscriptionIds::Wire(&self.section[self.subscription_ids.start..self.subscription_ids.end])
    }

    /// Checks one User Property (two strings) and leaves it where it stands.
    pub(crate) fn user_property(&mut self) -> Result<(), DecodeError> {
        let start = self.position() - 1;
        self.reader.string()?;
        self.reader.string()?;
        self.user_properties.cover(start, self.position());
        Ok(())
    }

    /// Checks one Subscription Identifier and leaves it where it stands.
    pub(crate) fn repeated_subscription_id(&mut self) -> Result<(), DecodeError> {
        let start = self.position() - 1;
        self.subscription_id_value()?;
        self.subscription_ids.cover(start, self.position());
        Ok(())
    }

    pub(crate) fn u16(&mut self, slot: &mut Option<u16>) -> Result<(), DecodeError> {
        set(slot, self.reader.u16()?)
    }

    pub(crate) fn u32(&mut self, slot: &mut Option<u32>) -> Result<(), DecodeError> {
        set(slot, self.reader.u32()?)
    }

    pub(crate) fn string(&mut self, slot: &mut Option<&'a str>) -> Result<(), DecodeError> {
        set(slot, self.reader.string()?)
    }

    pub(crate) fn binary(&mut self, slot: &mut Option<&'a [u8]>) -> Result<(), DecodeError> {
        set(slot, self.reader.binary()?)
    }

    /// Receive Maximum: a Protocol Error if 0 (3.1.2.11.3, 3.2.2.3.3).
    pub(crate) fn receive_maximum(&mut self, slot: &mut Option<u16>) -> Result<(), DecodeError> {
        match self.reader.u16()? {
            0 => Err(DecodeError::protocol("Receive Maximum 0 (3.1.2.11.3)")),
            value => set(slot, value),
        }
    }

    /// Maximum Packet Size: a Protocol Error if 0 (3.1.2.11.4, 3.2.2.3.6).
    pub(crate) fn maximum_packet_size(&mut self, slot: &mut Option<u32>) -> Result<(), DecodeError> {
        match self.reader.u32()? {
            0 => Err(DecodeError::protocol("Maximum Packet Size 0 (3.1.2.11.4)")),
            value => set(slot, value),
        }
    }

    /// Topic Alias: 0 is answered with Topic Alias invalid [MQTT-3.3.2-8].
    pub(crate) fn topic_alias(&mut self, slot: &mut Option<u16>) -> Result<(), DecodeError> {
        match self.reader.u16()? {
            0 => Err(DecodeError::topic_alias("Topic Alias 0 [MQTT-3.3.2-8]")),
            value => set(slot, value),
        }
    }

    /// The one Subscription Identifier a SUBSCRIBE may have (3.8.2.1.2).
    pub(crate) fn subscription_id(&mut self, slot: &mut Option<u32>) -> Result<(), DecodeError> {
        let value = self.subscription_id_value()?;
        set(slot, value)
    }

    /// A byte that is 0 or 1; any other value is a Protocol Error.
    pub(crate) fn bit(&mut self, slot: &mut Option<u8>) -> Result<(), DecodeError> {
        match self.reader.u8()? {
            value @ 0..=1 => set(slot, value),
            _ => Err(DecodeError::protocol("property of a value other than 0 and 1")),
        }
    }

    /// A byte that is 0 or 1 and means no or yes.
    pub(crate) fn flag(&mut self, slot: &mut Option<bool>) -> Result<(), DecodeError> {
        let mut bit = slot.map(u8::from);
        self.bit(&mut bit)?;
        *slot = bit.map(|bit| bit == 1);
        Ok(())
    }

    fn subscription_id_value(&mut self) -> Result<u32, DecodeError> {
        match self.reader.varint()? {
            0 => Err(DecodeError::protocol("Subscription Identifier 0 (3.3.2.3.8, 3.8.2.1.2)")),
            value => Ok(value),
        }
    }

    fn position(&self) -> usize {
        self.section.len() - self.reader.rest().len()
    }
}

/// Fills a slot that must still be empty: all but the repeatable properties are allowed once.
fn set<T>(slot: &mut Option<T>, value: T) -> Result<(), DecodeError> {
    if slot.replace(value).is_some() {
        return Err(DecodeError::protocol("property given twice"));
    }
    Ok(())
}

/// An identifier that the packet type does not allow, or that does not exist: Malformed Packet (2.2.2.2).
#[cold]
pub(crate) const fn not_allowed() -> DecodeError {
    DecodeError::malformed("property identifier not valid in this packet (2.2.2.2)")
}

/// Steps over the value of property `id`.
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
