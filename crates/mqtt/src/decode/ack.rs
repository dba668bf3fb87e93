//! PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).

use super::DecodeError;
use crate::frame::PacketType;
use crate::packet::{Ack, UserProperties, Version};
use crate::properties::{PropertyWalk, id, not_allowed};
use crate::reason::ReasonCode;
use crate::wire::Reader;

#[inline]
pub(super) fn ack(version: Version, kind: PacketType, mut body: Reader<'_>) -> Result<Ack<'_>, DecodeError> {
    let mut ack = Ack { packet_id: body.packet_id()?, ..Ack::default() };
    if body.is_empty() {
        // MQTT 5 may leave out Success and everything after it (3.4.2.1).
        return Ok(ack);
    }
    if version != Version::V5 {
        return Err(DecodeError::malformed("bytes after the packet identifier"));
    }
    read_reason(kind, body, &mut ack)?;
    Ok(ack)
}

/// The reason code and, if the packet goes on, the properties (3.4.2.1, 3.4.2.2).
fn read_reason<'a>(kind: PacketType, mut body: Reader<'a>, ack: &mut Ack<'a>) -> Result<(), DecodeError> {
    ack.reason = reason(kind, &mut body)?;
    if body.is_empty() {
        return Ok(());
    }
    (ack.reason_string, ack.user_properties) = explanation(&mut body)?;
    body.finish()
}

/// A reason code that a packet of type `kind` may carry.
pub(super) fn reason(kind: PacketType, body: &mut Reader<'_>) -> Result<ReasonCode, DecodeError> {
    let reason = ReasonCode::try_from(body.u8()?)?;
    if !reason.is_allowed_in(kind) {
        return Err(DecodeError::protocol("reason code not defined for this packet (2.4)"));
    }
    Ok(reason)
}

/// The properties that all acknowledgements share: Reason String and User Property.
pub(super) fn explanation<'a>(
    body: &mut Reader<'a>,
) -> Result<(Option<&'a str>, UserProperties<'a>), DecodeError> {
    let mut walk = PropertyWalk::take(body)?;
    let mut reason_string = None;
    while let Some(id) = walk.next_id()? {
        match id {
            id::REASON_STRING => walk.string(&mut reason_string)?,
            id::USER_PROPERTY => walk.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    Ok((reason_string, walk.user_properties()))
}
