//! PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).

use super::{Body, EncodeError, check_packet_id, put_string, put_user_properties};
use crate::frame::PacketType;
use crate::packet::{Ack, UserProperties, Version};
use crate::properties::id;
use crate::reason::ReasonCode;
use crate::wire::{Section, Sink};

/// Encodes an acknowledgement. Has a fast path for success without properties, which takes four bytes.
#[inline]
pub(super) fn encode(
    kind: PacketType,
    ack: &Ack<'_>,
    version: Version,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    if form(ack, version) == Form::IdOnly {
        check_packet_id(ack.packet_id)?;
        let [high, low] = ack.packet_id.to_be_bytes();
        out.extend_from_slice(&[kind.first_byte(), 2, high, low]);
        return Ok(());
    }
    super::encode(&AckBody { kind, ack }, version, out)
}

pub(super) struct AckBody<'a> {
    pub(super) kind: PacketType,
    pub(super) ack: &'a Ack<'a>,
}

/// Which fields of an acknowledgement must be written (3.4.2.1, 3.4.2.2.1).
#[derive(Clone, Copy, PartialEq)]
enum Form {
    IdOnly,
    Reason,
    Full,
}

#[inline]
fn form(ack: &Ack<'_>, version: Version) -> Form {
    if version != Version::V5 {
        Form::IdOnly
    } else if ack.reason_string.is_some() || !ack.user_properties.is_empty() {
        Form::Full
    } else if ack.reason == ReasonCode::Success {
        Form::IdOnly
    } else {
        Form::Reason
    }
}

impl Body for AckBody<'_> {
    fn first_byte(&self) -> u8 {
        self.kind.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        check_packet_id(self.ack.packet_id)?;
        check_reason(self.kind, self.ack.reason, version)
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        sink.u16(self.ack.packet_id);
        let form = form(self.ack, version);
        if form != Form::IdOnly {
            sink.u8(self.ack.reason as u8);
        }
        if form == Form::Full {
            sink.section(&ReasonProperties {
                reason_string: self.ack.reason_string,
                user_properties: self.ack.user_properties,
            });
        }
    }
}

/// Rejects a reason code that MQTT 5 does not define for the packet (2.4).
pub(super) fn check_reason(
    kind: PacketType,
    reason: ReasonCode,
    version: Version,
) -> Result<(), EncodeError> {
    if version == Version::V5 && !reason.is_allowed_in(kind) {
        return Err(EncodeError::Invalid("reason code not defined for this packet (2.4)"));
    }
    Ok(())
}

/// The properties common to all acknowledgements.
pub(super) struct ReasonProperties<'a> {
    pub(super) reason_string: Option<&'a str>,
    pub(super) user_properties: UserProperties<'a>,
}

impl Section for ReasonProperties<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        put_string(sink, id::REASON_STRING, self.reason_string);
        put_user_properties(sink, &self.user_properties);
    }
}
