//! The fixed header (2.1): packet type, flags and length.
//!
//! Parsing it separately lets a connection learn the length of a packet before the packet has arrived, and reject one
//! that is too large without buffering it.

use crate::error::DecodeError;
use crate::wire;

/// The fixed header of a packet (2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// First byte: packet type in the upper four bits, flags in the lower four.
    pub first: u8,
    /// Length of the fixed header itself in bytes, 2 to 5.
    pub len: usize,
    /// Remaining Length: number of bytes after the fixed header, at most 268,435,455 (2.1.4).
    pub remaining: u32,
}

impl Header {
    /// Reads the fixed header at the start of `buf`. Returns `Ok(None)` if it is incomplete.
    ///
    /// The rest of the packet may still be missing. Type and flags are validated by [`decode`](crate::decode()).
    ///
    /// # Errors
    /// `MalformedPacket` if the Remaining Length takes more than four bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Option<Self>, DecodeError> {
        let Some((&first, rest)) = buf.split_first() else { return Ok(None) };
        let Some((remaining, len)) = wire::varint(rest)? else { return Ok(None) };
        Ok(Some(Self { first, len: len + 1, remaining }))
    }

    /// Returns the length of the whole packet in bytes, including the fixed header.
    #[inline]
    pub const fn packet_len(&self) -> usize {
        self.len + self.remaining as usize
    }

    /// Whether the Remaining Length is encoded in the minimum number of bytes [MQTT-1.5.5-1].
    pub(crate) const fn is_minimal(&self) -> bool {
        self.len == wire::varint_len(self.remaining) + 1
    }
}

/// The packet type: the upper four bits of the first byte (2.1.2). 0 is forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each variant is the control packet of that name")]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// Returns the packet type encoded in the first byte of a packet.
    ///
    /// # Errors
    /// `MalformedPacket` for type 0, which is forbidden.
    #[inline]
    pub const fn of(first: u8) -> Result<Self, DecodeError> {
        Ok(match first >> 4 {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return Err(DecodeError::malformed("packet type 0 is forbidden (2.1.2)")),
        })
    }

    /// Returns the first byte of a packet of this type, with the fixed flags of all types except PUBLISH
    /// [MQTT-2.1.3-1]. For PUBLISH, no flag is set, which means QoS 0.
    #[inline]
    pub const fn first_byte(self) -> u8 {
        let flags = match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        };
        (self as u8) << 4 | flags
    }
}
