//! SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (3.8 to 3.11).

use super::{DecodeError, ack};
use crate::frame::PacketType;
use crate::packet::{
    SubAck, Subscribe, SubscribeFilter, SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters,
    UserProperties, Version,
};
use crate::properties::{PropertyParser, id, not_allowed};
use crate::reason::ReasonCode;
use crate::wire::Reader;

pub(super) fn subscribe(version: Version, mut body: Reader<'_>) -> Result<Subscribe<'_>, DecodeError> {
    let subscribe = subscribe_head(version, &mut body)?;
    while !body.is_empty() {
        subscribe_filter(version, &mut body)?;
    }
    Ok(subscribe)
}

/// Reads everything before the filters, and leaves those unchecked.
pub(super) fn subscribe_head<'a>(
    version: Version,
    body: &mut Reader<'a>,
) -> Result<Subscribe<'a>, DecodeError> {
    let packet_id = body.packet_id()?;
    let mut subscription_id = None;
    let mut user_properties = UserProperties::default();
    if version == Version::V5 {
        let mut parser = PropertyParser::take(body)?;
        while let Some(id) = parser.next_id()? {
            match id {
                id::SUBSCRIPTION_IDENTIFIER => parser.subscription_id(&mut subscription_id)?,
                id::USER_PROPERTY => parser.user_property()?,
                _ => return Err(not_allowed()),
            }
        }
        user_properties = parser.user_properties();
    }
    let filters = SubscribeFilters::Wire(body.rest());
    if body.is_empty() {
        return Err(DecodeError::protocol("SUBSCRIBE without a filter [MQTT-3.8.3-2]"));
    }
    Ok(Subscribe { packet_id, subscription_id, user_properties, filters })
}

/// Reads one filter with its options. In 3.x these are only a QoS (3.1.1) [MQTT-3.8.3-4].
pub(super) fn subscribe_filter<'a>(
    version: Version,
    body: &mut Reader<'a>,
) -> Result<SubscribeFilter<'a>, DecodeError> {
    let filter = body.string()?;
    let byte = body.u8()?;
    if version != Version::V5 && byte > 2 {
        return Err(DecodeError::malformed("requested QoS byte above 2 (3.1.1) [MQTT-3.8.3-4]"));
    }
    Ok(SubscribeFilter { filter, options: SubscribeOptions::try_from(byte)? })
}

pub(super) fn unsubscribe(version: Version, mut body: Reader<'_>) -> Result<Unsubscribe<'_>, DecodeError> {
    let unsubscribe = unsubscribe_head(version, &mut body)?;
    while !body.is_empty() {
        body.string()?;
    }
    Ok(unsubscribe)
}

/// Reads everything before the filters, and leaves those unchecked.
pub(super) fn unsubscribe_head<'a>(
    version: Version,
    body: &mut Reader<'a>,
) -> Result<Unsubscribe<'a>, DecodeError> {
    let packet_id = body.packet_id()?;
    let mut user_properties = UserProperties::default();
    if version == Version::V5 {
        let mut parser = PropertyParser::take(body)?;
        while let Some(id) = parser.next_id()? {
            match id {
                id::USER_PROPERTY => parser.user_property()?,
                _ => return Err(not_allowed()),
            }
        }
        user_properties = parser.user_properties();
    }
    let filters = UnsubscribeFilters::Wire(body.rest());
    if body.is_empty() {
        return Err(DecodeError::protocol("UNSUBSCRIBE without a filter [MQTT-3.10.3-2]"));
    }
    Ok(Unsubscribe { packet_id, user_properties, filters })
}

pub(super) fn suback(version: Version, mut body: Reader<'_>) -> Result<SubAck<'_>, DecodeError> {
    let mut suback = SubAck { packet_id: body.packet_id()?, ..SubAck::default() };
    if version == Version::V5 {
        (suback.reason_string, suback.user_properties) = ack::reason_properties(&mut body)?;
    } else if body.rest().iter().any(|code| !matches!(code, 0..=2 | 0x80)) {
        return Err(DecodeError::protocol("reserved return code (3.1.1) [MQTT-3.9.3-2]"));
    }
    suback.reasons = reasons(PacketType::SubAck, body)?;
    Ok(suback)
}

pub(super) fn unsuback(version: Version, mut body: Reader<'_>) -> Result<SubAck<'_>, DecodeError> {
    let mut unsuback = SubAck { packet_id: body.packet_id()?, ..SubAck::default() };
    if version == Version::V5 {
        (unsuback.reason_string, unsuback.user_properties) = ack::reason_properties(&mut body)?;
        unsuback.reasons = reasons(PacketType::UnsubAck, body)?;
    } else {
        body.finish()?;
    }
    Ok(unsuback)
}

/// Reads the reason codes up to the end of the packet: one per filter, and so at least one (3.9.3, 3.11.3).
fn reasons(kind: PacketType, body: Reader<'_>) -> Result<&[u8], DecodeError> {
    let reasons = body.rest();
    if reasons.is_empty() {
        return Err(DecodeError::malformed("acknowledgement without a reason code (3.9.3, 3.11.3)"));
    }
    for &byte in reasons {
        if !ReasonCode::try_from(byte)?.is_allowed_in(kind) {
            return Err(DecodeError::protocol(
                "reason code not defined for this packet [MQTT-3.9.3-2] [MQTT-3.11.3-2]",
            ));
        }
    }
    Ok(reasons)
}
