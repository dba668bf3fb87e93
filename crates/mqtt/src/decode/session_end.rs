//! DISCONNECT (3.14) and AUTH (3.15).

use super::{DecodeError, ack};
use crate::frame::PacketType;
use crate::packet::{Auth, Disconnect, Version};
use crate::properties::{PropertyParser, id, not_allowed};
use crate::wire::Reader;

pub(super) fn disconnect(version: Version, mut body: Reader<'_>) -> Result<Disconnect<'_>, DecodeError> {
    let mut disconnect = Disconnect::default();
    if body.is_empty() {
        // MQTT 5 may omit Normal disconnection and everything after it (3.14.2.1). 3.x has nothing else.
        return Ok(disconnect);
    }
    if version != Version::V5 {
        return Err(DecodeError::malformed("DISCONNECT of 3.x with a body"));
    }
    disconnect.reason = ack::reason(PacketType::Disconnect, &mut body)?;
    if body.is_empty() {
        return Ok(disconnect);
    }
    let mut parser = PropertyParser::take(&mut body)?;
    while let Some(id) = parser.next_id()? {
        match id {
            id::SESSION_EXPIRY_INTERVAL => parser.u32(&mut disconnect.session_expiry)?,
            id::REASON_STRING => parser.string(&mut disconnect.reason_string)?,
            id::SERVER_REFERENCE => parser.string(&mut disconnect.server_reference)?,
            id::USER_PROPERTY => parser.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    disconnect.user_properties = parser.user_properties();
    body.finish()?;
    Ok(disconnect)
}

pub(super) fn auth(version: Version, mut body: Reader<'_>) -> Result<Auth<'_>, DecodeError> {
    if version != Version::V5 {
        return Err(DecodeError::malformed("packet type 15 is reserved in 3.x (3.1.1, 2.2.1)"));
    }
    let mut auth = Auth::default();
    if body.is_empty() {
        // Success without properties may be omitted (3.15.2.1).
        return Ok(auth);
    }
    auth.reason = ack::reason(PacketType::Auth, &mut body)?;
    let mut parser = PropertyParser::take(&mut body)?;
    while let Some(id) = parser.next_id()? {
        match id {
            id::AUTHENTICATION_METHOD => parser.string(&mut auth.authentication_method)?,
            id::AUTHENTICATION_DATA => parser.binary(&mut auth.authentication_data)?,
            id::REASON_STRING => parser.string(&mut auth.reason_string)?,
            id::USER_PROPERTY => parser.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    auth.user_properties = parser.user_properties();
    body.finish()?;
    if auth.authentication_method.is_none() && auth != Auth::default() {
        return Err(DecodeError::protocol("AUTH without an Authentication Method (3.15.2.2.2)"));
    }
    Ok(auth)
}
