//! A PUBLISH that is encoded once and sent to many receivers.
//!
//! For a fan-out, almost all bytes of the packet are the same for all receivers. A template holds the encoded packet
//! and the positions of the few fields that differ, so sending to a receiver is a copy and a patch.

use crate::encode::fixed_header;
use crate::encode::publish::{check_head, first_byte, write_head};
use crate::error::EncodeError;
use crate::packet::{Publish, QoS, Version};
use crate::wire::{Measure, VARINT_MAX, varint_len};

/// Capacity that a template keeps for the next message, bytes.
const CAPACITY_KEPT: usize = 64 * 1024;
/// Payloads up to this size have room reserved for them, bytes. Larger ones are mostly sent by the caller.
const INLINE_MAX: usize = 8 * 1024;
/// Length of a Topic Alias property in bytes: identifier and value.
const ALIAS_LEN: usize = 3;

/// A PUBLISH encoded for one variant: protocol version, QoS 0 or above, subscription identifiers, with or without topic
/// and topic alias.
///
/// For each receiver it is copied, and the bytes that differ are patched: the first byte, the packet identifier and the
/// topic alias. The buffer is reused from one message to the next, so encoding does not allocate once it has grown.
#[derive(Clone, Debug, Default)]
pub struct PublishTemplate {
    /// The packet up to the payload, followed by the payload if it is inline.
    bytes: Vec<u8>,
    head_len: usize,
    /// Length of what follows the head: user properties that the caller sends, and the payload.
    tail_len: usize,
    /// Length of these user properties.
    omitted_len: usize,
    /// Offset of the packet identifier; 0 for QoS 0, which has none.
    packet_id_at: usize,
    /// Offset of the Topic Alias value; 0 if there is none.
    alias_at: usize,
}

impl PublishTemplate {
    /// Encodes `publish` into `buf`, including the payload.
    ///
    /// `dup`, `retain`, `packet_id` and the exact QoS are set per receiver; only whether QoS is 0 matters here.
    ///
    /// # Errors
    /// As [`Packet::encode`](crate::packet::Packet::encode). The content of `buf` is then unspecified until it is
    /// encoded again.
    pub fn encode(version: Version, publish: &Publish<'_>, buf: &mut Self) -> Result<(), EncodeError> {
        Self::encode_head(version, publish, 0, buf)?;
        buf.bytes.extend_from_slice(publish.payload);
        Ok(())
    }

    /// Like [`encode`](Self::encode), but without the payload, for payloads that are large enough to be sent from a
    /// shared buffer. Only [`append_head`](Self::append_head) may be called on the result.
    ///
    /// `omitted` is the length of user properties that `publish` lacks and that the caller sends between the head and
    /// the payload, as [`UserProperties::append_to`](crate::UserProperties::append_to) encodes them. Only MQTT 5 has
    /// any.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_head(
        version: Version,
        publish: &Publish<'_>,
        omitted: usize,
        buf: &mut Self,
    ) -> Result<(), EncodeError> {
        debug_assert!(omitted == 0 || version == Version::V5, "properties before MQTT 5");
        buf.bytes.clear();
        // A large packet must not leave its memory to the small ones that follow.
        buf.bytes.shrink_to(CAPACITY_KEPT);
        check_head(publish, version)?;
        let mut measure = Measure::default();
        write_head(publish, version, omitted, &mut measure);
        let head = measure.finish()?;
        let tail = omitted + publish.payload.len();
        let remaining = head + tail;
        if remaining > VARINT_MAX as usize {
            return Err(EncodeError::PacketTooLarge);
        }
        let inline = if tail > INLINE_MAX { 0 } else { tail };
        buf.bytes.reserve(1 + varint_len(remaining as u32) + head + inline);
        let start = fixed_header(first_byte(publish.qos, false, false), remaining, &mut buf.bytes);
        write_head(publish, version, omitted, &mut buf.bytes);

        let after_topic = start + 2 + publish.topic.len();
        let has_id = publish.qos != QoS::AtMostOnce;
        buf.packet_id_at = if has_id { after_topic } else { 0 };
        buf.head_len = start + head;
        buf.tail_len = tail;
        buf.omitted_len = omitted;
        buf.alias_at = 0;
        if version == Version::V5 && publish.topic_alias.is_some() {
            let properties_at = after_topic + if has_id { 2 } else { 0 };
            let len_bytes =
                buf.bytes[properties_at..].iter().take_while(|&&byte| byte & 0x80 != 0).count() + 1;
            buf.alias_at = properties_at + len_bytes + ALIAS_LEN - 2;
        }
        Ok(())
    }

    /// Returns a placeholder for a message that cannot be encoded. Its length exceeds the limit of every receiver.
    pub fn unsendable() -> Self {
        Self { tail_len: usize::MAX, ..Self::default() }
    }

    /// Appends the whole packet for one receiver.
    ///
    /// `qos` must be 0 if and only if the template was encoded for QoS 0, and `packet_id` must be 0 if and only if
    /// `qos` is 0. `dup` requires a `qos` above 0.
    #[inline]
    pub fn append(&self, out: &mut Vec<u8>, qos: QoS, dup: bool, retain: bool, packet_id: u16) {
        debug_assert_eq!(self.bytes.len(), self.packet_len(), "the payload is not in the template");
        self.copy(&self.bytes, out, first_byte(qos, dup, retain), packet_id);
    }

    /// Appends everything except the omitted properties and the payload for one receiver; the caller sends them.
    /// Parameters as for [`append`](Self::append).
    #[inline]
    pub fn append_head(&self, out: &mut Vec<u8>, qos: QoS, dup: bool, retain: bool, packet_id: u16) {
        self.copy(&self.bytes[..self.head_len], out, first_byte(qos, dup, retain), packet_id);
    }

    /// Sets the topic alias of the receiver in `packet`, which this template has just appended. The template must have
    /// been encoded with an alias.
    #[inline]
    pub fn patch_alias(&self, packet: &mut [u8], alias: u16) {
        debug_assert!(self.alias_at != 0, "template without a topic alias");
        debug_assert!(alias != 0, "topic alias 0 [MQTT-3.3.2-8]");
        packet[self.alias_at..self.alias_at + 2].copy_from_slice(&alias.to_be_bytes());
    }

    /// Returns the length of the whole packet in bytes, including what the caller sends.
    #[inline]
    pub const fn packet_len(&self) -> usize {
        self.head_len + self.tail_len
    }

    /// Returns the length of the user properties that the caller sends after the head, in bytes.
    #[inline]
    pub const fn omitted_len(&self) -> usize {
        self.omitted_len
    }

    /// Returns the length of the packet up to what the caller sends, in bytes.
    #[inline]
    pub const fn head_len(&self) -> usize {
        self.head_len
    }

    #[inline]
    fn copy(&self, bytes: &[u8], out: &mut Vec<u8>, first: u8, packet_id: u16) {
        let has_id = self.packet_id_at != 0;
        debug_assert_eq!(has_id, first & 0b110 != 0, "QoS of another variant");
        debug_assert_eq!(has_id, packet_id != 0, "packet identifier and QoS disagree [MQTT-2.2.1-2]");
        debug_assert!(has_id || first & 0b1000 == 0, "DUP with QoS 0 [MQTT-3.3.1-2]");
        let start = out.len();
        out.extend_from_slice(bytes);
        let packet = &mut out[start..];
        packet[0] = first;
        if has_id {
            packet[self.packet_id_at..self.packet_id_at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
    }
}
