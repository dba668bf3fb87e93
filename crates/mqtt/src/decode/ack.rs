//! PUBACK, PUBREC, PUBREL, PUBCOMP (3.4 to 3.7).

use super::DecodeError;
use crate::frame::PacketType;
use crate::packet::{Ack, UserProperties, Version};
use crate::properties::{PropertyParser, id, not_allowed};
use crate::reason::ReasonCode;
use crate::wire::Reader;

const PUBACK: u8 = PacketType::PubAck.first_byte();
const PUBREC: u8 = PacketType::PubRec.first_byte();
const PUBREL: u8 = PacketType::PubRel.first_byte();
const PUBCOMP: u8 = PacketType::PubComp.first_byte();

/// Decodes an acknowledgement in its shortest form, which is most of what a subscriber sends: four bytes, the same in
/// all versions. `None` for any other packet, also an invalid one: [`decode`](crate::decode()) decides about it.
#[inline]
pub fn short_ack(frame: &[u8]) -> Option<(PacketType, u16)> {
    let &[first, 2, high, low] = frame else { return None };
    let kind = match first {
        PUBACK => PacketType::PubAck,
        PUBREC => PacketType::PubRec,
        PUBREL => PacketType::PubRel,
        PUBCOMP => PacketType::PubComp,
        _ => return None,
    };
    let packet_id = u16::from_be_bytes([high, low]);
    (packet_id != 0).then_some((kind, packet_id))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;
    use crate::packet::Packet;

    #[test]
    fn a_short_ack_is_what_decoding_finds() {
        for (first, len, high, low) in (0..=255).flat_map(|first| {
            [1, 2, 3].into_iter().flat_map(move |len| {
                [(0, 0), (0, 1), (1, 0), (0xBF, 0xFF), (0xFF, 0xFF)]
                    .map(|(high, low)| (first, len, high, low))
            })
        }) {
            let frame = [first, len, high, low];
            for version in [Version::V3, Version::V4, Version::V5] {
                let decoded = match decode(version, &frame) {
                    Ok(Packet::PubAck(ack)) => Some((PacketType::PubAck, ack)),
                    Ok(Packet::PubRec(ack)) => Some((PacketType::PubRec, ack)),
                    Ok(Packet::PubRel(ack)) => Some((PacketType::PubRel, ack)),
                    Ok(Packet::PubComp(ack)) => Some((PacketType::PubComp, ack)),
                    _ => None,
                };
                // In MQTT 3.1 a PUBREL may have a DUP flag, which is left to `decode`.
                let decoded = decoded.filter(|(kind, _)| kind.first_byte() == first);
                let short =
                    short_ack(&frame).map(|(kind, packet_id)| (kind, Ack { packet_id, ..Ack::default() }));
                assert_eq!(short, decoded, "{frame:?} {version:?}");
            }
        }
        assert_eq!(short_ack(&[PUBACK, 3, 0, 1, 0]), None);
        assert_eq!(short_ack(&[PUBACK, 2, 0]), None);
    }
}
