//! Hot path of the wire format: payload stamps, pre-encoded publishes, and minimal parsing.
//!
//! Per-message packets bypass the codec: publishes are encoded once and patched, and parsing checks only lengths.
//! All other packets go through the codec of `mainstem_mqtt`. Tests compare both.

use mainstem_mqtt::packet::{Publish, QoS, Version};
use mainstem_mqtt::{EncodeError, Header, PublishTemplate};

/// Size of the [`Stamp`] at the start of every payload.
pub(crate) const STAMP_BYTES: usize = 16;

/// First bytes of acknowledgement packets (3.4 to 3.7).
pub(crate) const PUBACK: u8 = 0x40;
pub(crate) const PUBREC: u8 = 0x50;
pub(crate) const PUBREL: u8 = 0x62;
pub(crate) const PUBCOMP: u8 = 0x70;

/// Identity of a message, carried in its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Due time (open loop) or send time (closed loop), in nanoseconds on the run's clock.
    pub(crate) due_ns: u64,
    pub(crate) stream: u32,
    /// Sequence number within the stream, from 0.
    pub(crate) sequence: u32,
}

impl Stamp {
    /// Reads the stamp of a payload; `None` if the payload is too short.
    #[inline]
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let (due, rest) = payload.split_first_chunk::<8>()?;
        let (stream, rest) = rest.split_first_chunk::<4>()?;
        let (sequence, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            due_ns: u64::from_le_bytes(*due),
            stream: u32::from_le_bytes(*stream),
            sequence: u32::from_le_bytes(*sequence),
        })
    }

    /// Appends the encoded stamp.
    #[inline]
    pub(crate) fn append(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&self.due_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stream.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// Pre-encoded PUBLISH of one topic, QoS and payload size.
#[derive(Debug)]
pub(crate) struct Prepared {
    head: PublishTemplate,
    qos: QoS,
    retain: bool,
}

impl Prepared {
    /// Encodes a PUBLISH to `topic` with payloads as long as `filler`.
    pub(crate) fn new(
        version: Version,
        topic: &str,
        qos: QoS,
        retain: bool,
        filler: &[u8],
    ) -> Result<Self, EncodeError> {
        let packet_id = u16::from(qos != QoS::AtMostOnce);
        let publish = Publish { topic, qos, retain, packet_id, payload: filler, ..Publish::default() };
        let mut head = PublishTemplate::default();
        PublishTemplate::encode_head(version, &publish, 0, &mut head)?;
        Ok(Self { head, qos, retain })
    }

    /// Appends one PUBLISH whose payload is `stamp` followed by the rest of `filler`.
    #[inline]
    pub(crate) fn append(&self, out: &mut Vec<u8>, packet_id: u16, stamp: &Stamp, filler: &[u8]) {
        out.reserve(self.head.packet_len());
        self.head.append_head(out, self.qos, false, self.retain, packet_id);
        stamp.append(out);
        out.extend_from_slice(&filler[STAMP_BYTES..]);
    }
}

/// A pseudo-random payload, so that compression does not shrink it. Its first [`STAMP_BYTES`] are replaced by a stamp.
pub(crate) fn filler(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_u32;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Fields of a PUBLISH that a receiver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received<'a> {
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    /// 0 at QoS 0.
    pub(crate) packet_id: u16,
    pub(crate) payload: &'a [u8],
}

impl<'a> Received<'a> {
    /// Parses a PUBLISH (3.3); `None` if a length exceeds the packet.
    #[inline]
    pub(crate) fn parse(version: Version, header: &Header, frame: &'a [u8]) -> Option<Self> {
        let (topic_len, rest) = frame.get(header.len..)?.split_first_chunk::<2>()?;
        let mut rest = rest.get(usize::from(u16::from_be_bytes(*topic_len))..)?;
        let qos = header.first >> 1 & 3;
        let mut packet_id = 0;
        if qos > 0 {
            let (id, after) = rest.split_first_chunk::<2>()?;
            (packet_id, rest) = (u16::from_be_bytes(*id), after);
        }
        if version == Version::V5 {
            rest = skip_properties(rest)?;
        }
        Some(Self { qos, retain: header.first & 1 == 1, packet_id, payload: rest })
    }
}

/// Fields of an acknowledgement (3.4 to 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) packet_id: u16,
    /// Reason code; 0 if absent.
    pub(crate) reason: u8,
}

impl Acknowledged {
    #[inline]
    pub(crate) fn parse(header: &Header, frame: &[u8]) -> Option<Self> {
        let body = frame.get(header.len..)?;
        let (id, rest) = body.split_first_chunk::<2>()?;
        Some(Self { packet_id: u16::from_be_bytes(*id), reason: rest.first().copied().unwrap_or(0) })
    }
}

/// Appends a successful acknowledgement, without reason code and properties (3.4.2.1).
#[inline]
pub(crate) fn append_ack(out: &mut Vec<u8>, first: u8, packet_id: u16) {
    let id = packet_id.to_be_bytes();
    out.extend_from_slice(&[first, 2, id[0], id[1]]);
}

#[inline]
fn skip_properties(bytes: &[u8]) -> Option<&[u8]> {
    let mut len = 0_usize;
    for (i, byte) in bytes.iter().take(4).enumerate() {
        len |= usize::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            return bytes.get(i + 1 + len..);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_mqtt::packet::{Ack, MessageProperties, Packet};
    use mainstem_mqtt::{ReasonCode, decode};

    const STAMP: Stamp = Stamp { due_ns: u64::MAX - 1, stream: 7, sequence: 0xDEAD_BEEF };

    fn header(frame: &[u8]) -> Header {
        Header::parse(frame).unwrap().unwrap()
    }

    #[test]
    fn codec_decodes_a_prepared_publish() {
        for version in [Version::V4, Version::V5] {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let filler = filler(300);
                let id = if qos == QoS::AtMostOnce { 0 } else { 515 };
                let mut out = Vec::new();
                Prepared::new(version, "a/b", qos, true, &filler)
                    .unwrap()
                    .append(&mut out, id, &STAMP, &filler);
                let Packet::Publish(publish) = decode(version, &out).unwrap() else {
                    panic!("not a PUBLISH")
                };
                assert_eq!((publish.topic, publish.qos, publish.packet_id), ("a/b", qos, id));
                assert!(publish.retain && !publish.dup);
                assert_eq!(publish.payload.len(), 300);
                assert_eq!(publish.payload[STAMP_BYTES..], filler[STAMP_BYTES..]);
                assert_eq!(Stamp::read(publish.payload), Some(STAMP));
            }
        }
    }

    #[test]
    fn fast_parsing_agrees_with_the_codec() {
        let long = "x".repeat(200);
        let properties = MessageProperties {
            content_type: Some(&long),
            user_properties: [("k", "v")].as_slice().into(),
            ..MessageProperties::default()
        };
        for (version, properties) in [
            (Version::V4, MessageProperties::default()),
            (Version::V5, properties),
            (Version::V5, MessageProperties::default()),
        ] {
            for (qos, packet_id) in [(QoS::AtMostOnce, 0), (QoS::ExactlyOnce, 9)] {
                let publish = Publish {
                    topic: "t",
                    qos,
                    packet_id,
                    properties,
                    payload: b"hello",
                    ..Publish::default()
                };
                let mut frame = Vec::new();
                Packet::Publish(publish).encode(version, &mut frame).unwrap();
                let received = Received::parse(version, &header(&frame), &frame).unwrap();
                assert_eq!(
                    received,
                    Received { qos: qos as u8, retain: false, packet_id, payload: b"hello" }
                );
            }
        }
    }

    #[test]
    fn rejects_lengths_beyond_the_end() {
        for frame in [&[0x30, 2, 0, 9][..], &[0x32, 3, 0, 0, 1], &[0x30, 3, 0, 0, 9], &[0x30, 1, 0]] {
            assert_eq!(Received::parse(Version::V5, &header(frame), frame), None, "{frame:?}");
        }
        assert_eq!(Stamp::read(&[0; 15]), None);
    }

    #[test]
    fn acknowledgements_round_trip() {
        let mut out = Vec::new();
        for first in [PUBACK, PUBREC, PUBREL, PUBCOMP] {
            out.clear();
            append_ack(&mut out, first, 0x0102);
            assert!(decode(Version::V5, &out).is_ok() && decode(Version::V4, &out).is_ok());
            assert_eq!(
                Acknowledged::parse(&header(&out), &out),
                Some(Acknowledged { packet_id: 0x0102, reason: 0 })
            );
        }
        out.clear();
        let refusal = Ack { packet_id: 3, reason: ReasonCode::QuotaExceeded, ..Ack::default() };
        Packet::PubAck(refusal).encode(Version::V5, &mut out).unwrap();
        assert_eq!(Acknowledged::parse(&header(&out), &out).unwrap().reason, 0x97);
    }
}
