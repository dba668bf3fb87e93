//! The parser of property sections (2.2.2).
//!
//! Each packet type lists the properties it allows in a `match` over their identifiers, so an unknown or misplaced
//! property is rejected by default. Every property except the repeatable ones may occur once.

use crate::error::DecodeError;
use crate::lists::{SubscriptionIds, UserProperties};
pub(crate) use crate::property_id::{id, not_allowed};
use crate::wire::Reader;

/// Parser of one property section: returns identifiers, and reads and checks values.
///
/// A packet type loops over [`next_id`](Self::next_id), reads the value of each identifier it allows, and returns
/// [`not_allowed`] for any other. Repeatable properties are checked but not copied; the parser records the smallest
/// byte range that contains all of them.
#[derive(Debug)]
pub(crate) struct PropertyParser<'a> {
    section: &'a [u8],
    reader: Reader<'a>,
    user_properties: Span,
    subscription_ids: Span,
}

/// The byte range from the first to the last property with the same identifier.
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

impl<'a> PropertyParser<'a> {
    /// Reads the property section at the start of `reader`: Property Length, then that many bytes (2.2.2.1).
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

    /// Returns the next identifier, or `None` at the end of the section. Read its value before the next call.
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

    /// Checks one User Property (two strings) and includes it in the recorded range.
    pub(crate) fn user_property(&mut self) -> Result<(), DecodeError> {
        let start = self.position() - 1;
        self.reader.string()?;
        self.reader.string()?;
        self.user_properties.cover(start, self.position());
        Ok(())
    }

    /// Checks one Subscription Identifier and includes it in the recorded range.
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

    /// Topic Alias: 0 is rejected with Topic Alias invalid [MQTT-3.3.2-8].
    pub(crate) fn topic_alias(&mut self, slot: &mut Option<u16>) -> Result<(), DecodeError> {
        match self.reader.u16()? {
            0 => Err(DecodeError::topic_alias("Topic Alias 0 [MQTT-3.3.2-8]")),
            value => set(slot, value),
        }
    }

    /// The Subscription Identifier of a SUBSCRIBE, which may have only one (3.8.2.1.2).
    pub(crate) fn subscription_id(&mut self, slot: &mut Option<u32>) -> Result<(), DecodeError> {
        let value = self.subscription_id_value()?;
        set(slot, value)
    }

    /// A byte that must be 0 or 1; any other value is a Protocol Error.
    pub(crate) fn bit(&mut self, slot: &mut Option<u8>) -> Result<(), DecodeError> {
        match self.reader.u8()? {
            value @ 0..=1 => set(slot, value),
            _ => Err(DecodeError::protocol("property of a value other than 0 and 1")),
        }
    }

    /// A byte that must be 0 or 1, as a boolean.
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

/// Sets a value that must not be set yet: only the repeatable properties may occur more than once.
fn set<T>(slot: &mut Option<T>, value: T) -> Result<(), DecodeError> {
    if slot.replace(value).is_some() {
        return Err(DecodeError::protocol("property given twice"));
    }
    Ok(())
}
