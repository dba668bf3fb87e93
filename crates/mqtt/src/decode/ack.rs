//! PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).

use super::DecodeError;
use crate::frame::PacketType;
use crate::packet::{Ack, UserProperties, Version};
use crate::properties::{PropertyParser, id, not_allowed};
use crate::reason::ReasonCode;
use crate::wire::Reader;

#[inline]
pub(super) fn ack(version: Version, kind: PacketType, mut body: Reader<'_>) -> Result<Ack<'_>, DecodeError> {
    let mut ack = Ack { packet_id: body.packet_id()?, ..Ack::default() };
    if body.is_empty() {
        // MQTT 5 may omit Success and everything after it (3.4.2.1).
        return Ok(ack);
    }
    if version != Version::V5 {
        return Err(DecodeError::malformed("bytes after the packet identifier"));
    }
    read_reason(kind, body, &mut ack)?;
    Ok(ack)
}

/// Reads the reason code and, if present, the properties (3.4.2.1, 3.4.2.2).
fn read_reason<'a>(kind: PacketType, mut body: Reader<'a>, ack: &mut Ack<'a>) -> Result<(), DecodeError> {
    ack.reason = reason(kind, &mut body)?;
    if body.is_empty() {
        return Ok(());
    }
    (ack.reason_string, ack.user_properties) = reason_properties(&mut body)?;
    body.finish()
}

/// Reads a reason code that must be allowed in a packet of type `kind`.
pub(super) fn reason(kind: PacketType, body: &mut Reader<'_>) -> Result<ReasonCode, DecodeError> {
    let reason = ReasonCode::try_from(body.u8()?)?;
    if !reason.is_allowed_in(kind) {
        return Err(DecodeError::protocol("reason code not defined for this packet (2.4)"));
    }
    Ok(reason)
}

/// Reads the properties common to all acknowledgements: Reason String and User Property.
pub(super) fn reason_properties<'a>(
    body: &mut Reader<'a>,
) -> Result<(Option<&'a str>, UserProperties<'a>), DecodeError> {
    let mut parser = PropertyParser::take(body)?;
    let mut reason_string = None;
    while let Some(id) = parser.next_id()? {
        match id {
            id::REASON_STRING => parser.string(&mut reason_string)?,
            id::USER_PROPERTY => parser.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    Ok((reason_string, parser.user_properties()))
}
