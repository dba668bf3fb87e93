//! PUBLISH (3.3).

use super::{Body, EncodeError, put_binary, put_string, put_u8, put_u16, put_u32, put_user_properties};
use crate::frame::PacketType;
use crate::packet::{MessageProperties, Publish, QoS, Version};
use crate::properties::id;
use crate::wire::{Section, Sink, VARINT_MAX};

impl Body for Publish<'_> {
    fn first_byte(&self) -> u8 {
        first_byte(self.qos, self.dup, self.retain)
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        if (self.qos == QoS::AtMostOnce) != (self.packet_id == 0) {
            return Err(EncodeError::Invalid("packet identifier and QoS disagree [MQTT-2.2.1-2]"));
        }
        if self.dup && self.qos == QoS::AtMostOnce {
            return Err(EncodeError::Invalid("DUP with QoS 0 [MQTT-3.3.1-2]"));
        }
        check_head(self, version)
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        write_head(self, version, 0, sink);
        sink.raw(self.payload);
    }
}

#[inline]
pub(crate) const fn first_byte(qos: QoS, dup: bool, retain: bool) -> u8 {
    PacketType::Publish.first_byte() | (dup as u8) << 3 | (qos as u8) << 1 | retain as u8
}

/// Checks the fields that do not depend on the receiver: topic and properties.
pub(crate) fn check_head(publish: &Publish<'_>, version: Version) -> Result<(), EncodeError> {
    if version != Version::V5 {
        return if publish.topic.is_empty() {
            Err(EncodeError::Invalid("empty topic [MQTT-4.7.3-1]"))
        } else {
            Ok(())
        };
    }
    if publish.topic.is_empty() && publish.topic_alias.is_none() {
        return Err(EncodeError::Invalid("empty topic and no Topic Alias (3.3.2.1)"));
    }
    if publish.topic_alias == Some(0) {
        return Err(EncodeError::Invalid("Topic Alias 0 [MQTT-3.3.2-8]"));
    }
    if publish.subscription_ids.iter().any(|id| id == 0 || id > VARINT_MAX) {
        return Err(EncodeError::Invalid("Subscription Identifier outside 1 to 268,435,455 (3.3.2.3.8)"));
    }
    check_message(&publish.properties)
}

/// Writes topic, packet identifier and properties, of which the caller sends the last `omitted` bytes.
pub(crate) fn write_head<S: Sink>(publish: &Publish<'_>, version: Version, omitted: usize, sink: &mut S) {
    sink.string(publish.topic);
    if publish.qos != QoS::AtMostOnce {
        sink.u16(publish.packet_id);
    }
    if version == Version::V5 {
        sink.section_without(&PublishProperties(publish), omitted);
    }
}

/// PUBLISH properties (3.3.2.3). The alias comes first, at an offset that a template can compute.
struct PublishProperties<'a>(&'a Publish<'a>);

impl Section for PublishProperties<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        put_u16(sink, id::TOPIC_ALIAS, self.0.topic_alias);
        for subscription_id in &self.0.subscription_ids {
            sink.u8(id::SUBSCRIPTION_IDENTIFIER);
            sink.varint(subscription_id);
        }
        put_message(sink, &self.0.properties);
    }
}

/// Checks the properties common to PUBLISH and the will of a CONNECT.
pub(super) fn check_message(properties: &MessageProperties<'_>) -> Result<(), EncodeError> {
    if properties.payload_format.is_some_and(|format| format > 1) {
        return Err(EncodeError::Invalid("Payload Format Indicator above 1 (3.3.2.3.2)"));
    }
    Ok(())
}

/// Writes the properties common to PUBLISH and the will of a CONNECT.
pub(super) fn put_message<S: Sink>(sink: &mut S, properties: &MessageProperties<'_>) {
    put_u8(sink, id::PAYLOAD_FORMAT_INDICATOR, properties.payload_format);
    put_u32(sink, id::MESSAGE_EXPIRY_INTERVAL, properties.message_expiry);
    put_string(sink, id::CONTENT_TYPE, properties.content_type);
    put_string(sink, id::RESPONSE_TOPIC, properties.response_topic);
    put_binary(sink, id::CORRELATION_DATA, properties.correlation_data);
    put_user_properties(sink, &properties.user_properties);
}
