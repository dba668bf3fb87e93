//! PUBLISH (3.3): the packet that matters most for speed.

use super::DecodeError;
use crate::packet::{MessageProperties, Publish, QoS, Version};
use crate::properties::{PropertyWalk, id, not_allowed};
use crate::wire::Reader;

#[inline]
pub(super) fn publish(version: Version, first: u8, mut body: Reader<'_>) -> Result<Publish<'_>, DecodeError> {
    let qos = QoS::try_from(first >> 1 & 0b11)?;
    let mut publish = Publish { dup: first & 0b1000 != 0, qos, retain: first & 1 != 0, ..Publish::default() };
    publish.topic = body.string()?;
    if qos != QoS::AtMostOnce {
        publish.packet_id = body.packet_id()?;
    } else if publish.dup {
        return Err(DecodeError::malformed("DUP with QoS 0 [MQTT-3.3.1-2]"));
    }
    if version == Version::V5 {
        properties(&mut publish, &mut body)?;
    }
    if publish.topic.is_empty() && publish.topic_alias.is_none() {
        return Err(DecodeError::protocol("empty topic and no Topic Alias (3.3.2.1) [MQTT-4.7.3-1]"));
    }
    publish.payload = body.rest();
    Ok(publish)
}

/// The property section (3.3.2.3).
#[inline]
fn properties<'a>(publish: &mut Publish<'a>, body: &mut Reader<'a>) -> Result<(), DecodeError> {
    if let Some((0, rest)) = body.rest().split_first() {
        *body = Reader::new(rest);
        return Ok(());
    }
    walk_properties(publish, body)
}

fn walk_properties<'a>(publish: &mut Publish<'a>, body: &mut Reader<'a>) -> Result<(), DecodeError> {
    let mut walk = PropertyWalk::take(body)?;
    while let Some(id) = walk.next_id()? {
        match id {
            id::TOPIC_ALIAS => walk.topic_alias(&mut publish.topic_alias)?,
            id::SUBSCRIPTION_IDENTIFIER => walk.repeated_subscription_id()?,
            _ => message_property(&mut publish.properties, id, &mut walk)?,
        }
    }
    publish.subscription_ids = walk.subscription_ids();
    publish.properties.user_properties = walk.user_properties();
    Ok(())
}

/// A property of the message itself, which PUBLISH and the will of a CONNECT share (3.3.2.3, 3.1.3.2).
pub(super) fn message_property<'a>(
    properties: &mut MessageProperties<'a>,
    id: u8,
    walk: &mut PropertyWalk<'a>,
) -> Result<(), DecodeError> {
    match id {
        id::PAYLOAD_FORMAT_INDICATOR => walk.bit(&mut properties.payload_format),
        id::MESSAGE_EXPIRY_INTERVAL => walk.u32(&mut properties.message_expiry),
        id::CONTENT_TYPE => walk.string(&mut properties.content_type),
        id::RESPONSE_TOPIC => walk.string(&mut properties.response_topic),
        id::CORRELATION_DATA => walk.binary(&mut properties.correlation_data),
        id::USER_PROPERTY => walk.user_property(),
        _ => Err(not_allowed()),
    }
}
