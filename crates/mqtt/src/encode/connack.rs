//! CONNACK (3.2).

use super::ack::check_reason;
use super::connect::check_limits;
use super::{
    Body, EncodeError, put_binary, put_flag, put_string, put_u8, put_u16, put_u32, put_user_properties,
};
use crate::frame::PacketType;
use crate::packet::{ConnAck, QoS, Version};
use crate::properties::id;
use crate::reason::ReasonCode;
use crate::wire::{Section, Sink};

impl Body for ConnAck<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::ConnAck.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        if self.session_present && self.reason != ReasonCode::Success {
            return Err(EncodeError::Invalid("session present in a refusal [MQTT-3.2.2-6]"));
        }
        if version != Version::V5 {
            return Ok(());
        }
        check_reason(PacketType::ConnAck, self.reason, version)?;
        check_limits(self.receive_maximum, self.maximum_packet_size)
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        // MQTT 3.1 has no Session Present; the byte is reserved.
        sink.u8(u8::from(self.session_present && version != Version::V3));
        if version == Version::V5 {
            sink.u8(self.reason as u8);
            sink.section(self);
        } else {
            sink.u8(self.reason.connect_return_code());
        }
    }
}

/// CONNACK properties (3.2.2.3).
impl Section for ConnAck<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        // Maximum QoS is 0 or 1 on the wire. Absence means 2 (3.2.2.3.4).
        let maximum_qos = self.maximum_qos.filter(|&qos| qos != QoS::ExactlyOnce);
        put_u32(sink, id::SESSION_EXPIRY_INTERVAL, self.session_expiry);
        put_u16(sink, id::RECEIVE_MAXIMUM, self.receive_maximum);
        put_u8(sink, id::MAXIMUM_QOS, maximum_qos.map(|qos| qos as u8));
        put_flag(sink, id::RETAIN_AVAILABLE, self.retain_available);
        put_u32(sink, id::MAXIMUM_PACKET_SIZE, self.maximum_packet_size);
        put_string(sink, id::ASSIGNED_CLIENT_IDENTIFIER, self.assigned_client_id);
        put_u16(sink, id::TOPIC_ALIAS_MAXIMUM, self.topic_alias_maximum);
        put_string(sink, id::REASON_STRING, self.reason_string);
        put_flag(sink, id::WILDCARD_SUBSCRIPTION_AVAILABLE, self.wildcard_subscription_available);
        put_flag(sink, id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE, self.subscription_ids_available);
        put_flag(sink, id::SHARED_SUBSCRIPTION_AVAILABLE, self.shared_subscription_available);
        put_u16(sink, id::SERVER_KEEP_ALIVE, self.server_keep_alive);
        put_string(sink, id::RESPONSE_INFORMATION, self.response_information);
        put_string(sink, id::SERVER_REFERENCE, self.server_reference);
        put_string(sink, id::AUTHENTICATION_METHOD, self.authentication_method);
        put_binary(sink, id::AUTHENTICATION_DATA, self.authentication_data);
        put_user_properties(sink, &self.user_properties);
    }
}
