//! CONNACK (3.2).

use super::{DecodeError, ack};
use crate::frame::PacketType;
use crate::packet::{ConnAck, QoS, Version};
use crate::properties::{PropertyParser, id, not_allowed};
use crate::reason::ReasonCode;
use crate::wire::Reader;

pub(super) fn connack(version: Version, mut body: Reader<'_>) -> Result<ConnAck<'_>, DecodeError> {
    let flags = body.u8()?;
    let mut connack = ConnAck::default();
    // In MQTT 3.1 the whole byte is reserved and ignored.
    if version != Version::V3 {
        if flags > 1 {
            return Err(DecodeError::malformed("reserved connect acknowledge flags [MQTT-3.2.2-1]"));
        }
        connack.session_present = flags == 1;
    }
    if version == Version::V5 {
        connack.reason = ack::reason(PacketType::ConnAck, &mut body)?;
        properties(&mut connack, &mut body)?;
    } else {
        connack.reason = ReasonCode::from_connect_return_code(body.u8()?)?;
    }
    if connack.session_present && connack.reason != ReasonCode::Success {
        return Err(DecodeError::protocol("session present in a refusal [MQTT-3.2.2-6]"));
    }
    body.finish()?;
    Ok(connack)
}

/// CONNACK properties (3.2.2.3).
fn properties<'a>(connack: &mut ConnAck<'a>, body: &mut Reader<'a>) -> Result<(), DecodeError> {
    let mut parser = PropertyParser::take(body)?;
    let mut maximum_qos = None;
    while let Some(id) = parser.next_id()? {
        match id {
            id::SESSION_EXPIRY_INTERVAL => parser.u32(&mut connack.session_expiry)?,
            id::RECEIVE_MAXIMUM => parser.receive_maximum(&mut connack.receive_maximum)?,
            id::MAXIMUM_QOS => parser.bit(&mut maximum_qos)?,
            id::RETAIN_AVAILABLE => parser.flag(&mut connack.retain_available)?,
            id::MAXIMUM_PACKET_SIZE => parser.maximum_packet_size(&mut connack.maximum_packet_size)?,
            id::ASSIGNED_CLIENT_IDENTIFIER => parser.string(&mut connack.assigned_client_id)?,
            id::TOPIC_ALIAS_MAXIMUM => parser.u16(&mut connack.topic_alias_maximum)?,
            id::REASON_STRING => parser.string(&mut connack.reason_string)?,
            id::WILDCARD_SUBSCRIPTION_AVAILABLE => {
                parser.flag(&mut connack.wildcard_subscription_available)?;
            }
            id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE => parser.flag(&mut connack.subscription_ids_available)?,
            id::SHARED_SUBSCRIPTION_AVAILABLE => parser.flag(&mut connack.shared_subscription_available)?,
            id::SERVER_KEEP_ALIVE => parser.u16(&mut connack.server_keep_alive)?,
            id::RESPONSE_INFORMATION => parser.string(&mut connack.response_information)?,
            id::SERVER_REFERENCE => parser.string(&mut connack.server_reference)?,
            id::AUTHENTICATION_METHOD => parser.string(&mut connack.authentication_method)?,
            id::AUTHENTICATION_DATA => parser.binary(&mut connack.authentication_data)?,
            id::USER_PROPERTY => parser.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    connack.maximum_qos = maximum_qos.map(QoS::try_from).transpose()?;
    connack.user_properties = parser.user_properties();
    Ok(())
}
