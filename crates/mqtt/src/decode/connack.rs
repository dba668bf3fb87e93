//! CONNACK (3.2).

use super::{DecodeError, ack};
use crate::frame::PacketType;
use crate::packet::{ConnAck, QoS, Version};
use crate::properties::{PropertyWalk, id, not_allowed};
use crate::reason::ReasonCode;
use crate::wire::Reader;

pub(super) fn connack(version: Version, mut body: Reader<'_>) -> Result<ConnAck<'_>, DecodeError> {
    let flags = body.u8()?;
    let mut connack = ConnAck::default();
    // In MQTT 3.1 the whole byte is reserved and says nothing.
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
    let mut walk = PropertyWalk::take(body)?;
    let mut maximum_qos = None;
    while let Some(id) = walk.next_id()? {
        match id {
            id::SESSION_EXPIRY_INTERVAL => walk.u32(&mut connack.session_expiry)?,
            id::RECEIVE_MAXIMUM => walk.receive_maximum(&mut connack.receive_maximum)?,
            id::MAXIMUM_QOS => walk.bit(&mut maximum_qos)?,
            id::RETAIN_AVAILABLE => walk.flag(&mut connack.retain_available)?,
            id::MAXIMUM_PACKET_SIZE => walk.maximum_packet_size(&mut connack.maximum_packet_size)?,
            id::ASSIGNED_CLIENT_IDENTIFIER => walk.string(&mut connack.assigned_client_id)?,
            id::TOPIC_ALIAS_MAXIMUM => walk.u16(&mut connack.topic_alias_maximum)?,
            id::REASON_STRING => walk.string(&mut connack.reason_string)?,
            id::WILDCARD_SUBSCRIPTION_AVAILABLE => walk.flag(&mut connack.wildcard_subscription_available)?,
            id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE => walk.flag(&mut connack.subscription_ids_available)?,
            id::SHARED_SUBSCRIPTION_AVAILABLE => walk.flag(&mut connack.shared_subscription_available)?,
            id::SERVER_KEEP_ALIVE => walk.u16(&mut connack.server_keep_alive)?,
            id::RESPONSE_INFORMATION => walk.string(&mut connack.response_information)?,
            id::SERVER_REFERENCE => walk.string(&mut connack.server_reference)?,
            id::AUTHENTICATION_METHOD => walk.string(&mut connack.authentication_method)?,
            id::AUTHENTICATION_DATA => walk.binary(&mut connack.authentication_data)?,
            id::USER_PROPERTY => walk.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    connack.maximum_qos = maximum_qos.map(QoS::try_from).transpose()?;
    connack.user_properties = walk.user_properties();
    Ok(())
}
