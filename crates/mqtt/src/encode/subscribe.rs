//! SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (3.8 to 3.11).

use super::ack::ReasonProperties;
use super::{Body, EncodeError, check_packet_id, put_user_properties};
use crate::frame::PacketType;
use crate::packet::{SubAck, Subscribe, Unsubscribe, Version};
use crate::properties::id;
use crate::reason::ReasonCode;
use crate::wire::{Section, Sink, VARINT_MAX};

impl Body for Subscribe<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Subscribe.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        check_packet_id(self.packet_id)?;
        if self.filters.is_empty() {
            return Err(EncodeError::Invalid("SUBSCRIBE without a filter [MQTT-3.8.3-2]"));
        }
        if version == Version::V5 && self.subscription_id.is_some_and(|id| id == 0 || id > VARINT_MAX) {
            return Err(EncodeError::Invalid("Subscription Identifier outside 1 to 268,435,455 (3.8.2.1.2)"));
        }
        Ok(())
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        sink.u16(self.packet_id);
        if version == Version::V5 {
            sink.section(self);
        }
        for filter in &self.filters {
            sink.string(filter.filter);
            sink.u8(match version {
                Version::V5 => filter.options.into(),
                Version::V3 | Version::V4 => filter.options.qos as u8,
            });
        }
    }
}

/// SUBSCRIBE properties (3.8.2.1).
impl Section for Subscribe<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        if let Some(subscription_id) = self.subscription_id {
            sink.u8(id::SUBSCRIPTION_IDENTIFIER);
            sink.varint(subscription_id);
        }
        put_user_properties(sink, &self.user_properties);
    }
}

impl Body for Unsubscribe<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Unsubscribe.first_byte()
    }

    fn check(&self, _version: Version) -> Result<(), EncodeError> {
        check_packet_id(self.packet_id)?;
        if self.filters.is_empty() {
            return Err(EncodeError::Invalid("UNSUBSCRIBE without a filter [MQTT-3.10.3-2]"));
        }
        Ok(())
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        sink.u16(self.packet_id);
        if version == Version::V5 {
            sink.section(self);
        }
        for filter in &self.filters {
            sink.string(filter);
        }
    }
}

/// UNSUBSCRIBE properties (3.10.2.1).
impl Section for Unsubscribe<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        put_user_properties(sink, &self.user_properties);
    }
}

/// Reason codes that are converted and written at once.
const CODES_AT_ONCE: usize = 64;

pub(super) struct SubAckBody<'a>(pub(super) &'a SubAck<'a>);

impl Body for SubAckBody<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::SubAck.first_byte()
    }

    fn check(&self, _version: Version) -> Result<(), EncodeError> {
        check_packet_id(self.0.packet_id)?;
        check_reasons(PacketType::SubAck, self.0.reasons)
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        sink.u16(self.0.packet_id);
        if version == Version::V5 {
            sink.section(&reason_properties(self.0));
            sink.raw(self.0.reasons);
        } else {
            // 3.1.1 has a single failure code (3.9.3). 3.1 defines none, but its clients expect the same.
            for reasons in self.0.reasons.chunks(CODES_AT_ONCE) {
                let mut codes = [0; CODES_AT_ONCE];
                for (code, reason) in codes.iter_mut().zip(reasons) {
                    *code = (*reason).min(ReasonCode::UnspecifiedError as u8);
                }
                sink.raw(&codes[..reasons.len()]);
            }
        }
    }
}

pub(super) struct UnsubAckBody<'a>(pub(super) &'a SubAck<'a>);

impl Body for UnsubAckBody<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::UnsubAck.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        check_packet_id(self.0.packet_id)?;
        if version == Version::V5 { check_reasons(PacketType::UnsubAck, self.0.reasons) } else { Ok(()) }
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        sink.u16(self.0.packet_id);
        if version == Version::V5 {
            sink.section(&reason_properties(self.0));
            sink.raw(self.0.reasons);
        }
    }
}

fn reason_properties<'a>(suback: &SubAck<'a>) -> ReasonProperties<'a> {
    ReasonProperties { reason_string: suback.reason_string, user_properties: suback.user_properties }
}

/// Rejects an empty list of reasons, and codes that are not defined for the packet (3.9.3, 3.11.3).
fn check_reasons(kind: PacketType, reasons: &[u8]) -> Result<(), EncodeError> {
    if reasons.is_empty() {
        return Err(EncodeError::Invalid("acknowledgement without a reason code (3.9.3, 3.11.3)"));
    }
    // There may be many codes, but few different ones.
    let mut is_used = [false; 1 << u8::BITS];
    for reason in reasons {
        is_used[usize::from(*reason)] = true;
    }
    let mut used = (0..=u8::MAX).filter(|byte| is_used[usize::from(*byte)]);
    if used.any(|byte| !ReasonCode::try_from(byte).is_ok_and(|reason| reason.is_allowed_in(kind))) {
        return Err(EncodeError::Invalid("reason code not defined for this packet (3.9.3, 3.11.3)"));
    }
    Ok(())
}
