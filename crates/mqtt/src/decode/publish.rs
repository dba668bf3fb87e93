//! PUBLISH (3.3), the packet on the hot path. An empty property section skips the parser.

use super::DecodeError;
use crate::packet::{MessageProperties, Publish, QoS, Version};
use crate::properties::{PropertyParser, id, not_allowed};
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

/// Reads the property section (3.3.2.3).
#[inline]
fn properties<'a>(publish: &mut Publish<'a>, body: &mut Reader<'a>) -> Result<(), DecodeError> {
    if let Some((0, rest)) = body.rest().split_first() {
        *body = Reader::new(rest);
        return Ok(());
    }
    parse_properties(publish, body)
}

fn parse_properties<'a>(publish: &mut Publish<'a>, body: &mut Reader<'a>) -> Result<(), DecodeError> {
    let mut parser = PropertyParser::take(body)?;
    while let Some(id) = parser.next_id()? {
        match id {
            id::TOPIC_ALIAS => parser.topic_alias(&mut publish.topic_alias)?,
            id::SUBSCRIPTION_IDENTIFIER => parser.repeated_subscription_id()?,
            _ => message_property(&mut publish.properties, id, &mut parser)?,
        }
    }
    publish.subscription_ids = parser.subscription_ids();
    publish.properties.user_properties = parser.user_properties();
    Ok(())
}

/// Reads a message property, which PUBLISH and the will of a CONNECT have in common (3.3.2.3, 3.1.3.2).
pub(super) fn message_property<'a>(
    properties: &mut MessageProperties<'a>,
    id: u8,
    parser: &mut PropertyParser<'a>,
) -> Result<(), DecodeError> {
    match id {
        id::PAYLOAD_FORMAT_INDICATOR => parser.bit(&mut properties.payload_format),
        id::MESSAGE_EXPIRY_INTERVAL => parser.u32(&mut properties.message_expiry),
        id::CONTENT_TYPE => parser.string(&mut properties.content_type),
        id::RESPONSE_TOPIC => parser.string(&mut properties.response_topic),
        id::CORRELATION_DATA => parser.binary(&mut properties.correlation_data),
        id::USER_PROPERTY => parser.user_property(),
        _ => Err(not_allowed()),
    }
}
