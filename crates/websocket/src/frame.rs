//! Frames (RFC 6455, section 5): headers, and what the peer sends.
//!
//! [`FrameReader`] takes bytes as they arrive, cut anywhere. Payloads of data frames pass through it; only those of
//! control frames are collected, since they have at most 125 bytes. A header is judged as soon as its first two bytes
//! are there, and nothing is reserved for the length that it claims.

use crate::close::{CloseCode, Violation};
use crate::mask::Mask;

/// Longest payload of a control frame, bytes.
pub(crate) const CONTROL_BYTES_MAX: usize = 125;
/// Longest payload of a frame from the peer, bytes: about twice the largest MQTT packet.
pub(crate) const RECEIVED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Longest header with a mask, bytes.
const HEADER_BYTES_MAX: usize = 14;
const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
/// Values of the length field that announce a longer one.
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn parse(bits: u8) -> Option<Self> {
        let known = [Self::Continuation, Self::Text, Self::Binary, Self::Close, Self::Ping, Self::Pong];
        known.into_iter().find(|opcode| *opcode as u8 == bits)
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The header of an unmasked whole message, as a server sends it.
pub(crate) struct Header {
    bytes: [u8; 10],
    len: usize,
}

impl Header {
    pub(crate) fn new(opcode: Opcode, payload: usize) -> Self {
        let mut bytes = [0; 10];
        bytes[0] = FIN | opcode as u8;
        let len = match payload {
            0..126 => {
                bytes[1] = payload as u8;
                2
            }
            126..0x1_0000 => {
                bytes[1] = LENGTH_16;
                bytes[2..4].copy_from_slice(&(payload as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = LENGTH_64;
                bytes[2..].copy_from_slice(&(payload as u64).to_be_bytes());
                10
            }
        };
        Self { bytes, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A control frame from the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Ping(Vec<u8>),
    Pong,
    Close(Vec<u8>),
}

/// The frame that the peer is sending.
#[derive(Clone, Copy, Debug)]
struct Current {
    opcode: Opcode,
    /// Bytes of its payload that have not arrived.
    left: u64,
    mask: Mask,
}

/// Reads the frames of a peer.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    header: [u8; HEADER_BYTES_MAX],
    header_len: usize,
    current: Option<Current>,
    /// A message has begun and its last fragment has not.
    is_fragmented: bool,
    /// Payload of the current control frame.
    control: Vec<u8>,
    /// Frames since the last [`take_frames`](Self::take_frames).
    frames: u32,
}

impl FrameReader {
    /// Takes bytes from the front of `received` and appends payloads of data frames to `input`, up to the end of a
    /// control frame or of the bytes.
    ///
    /// # Errors
    /// The peer violates the protocol. The reader must not be used any more.
    pub(crate) fn read(
        &mut self,
        received: &mut &[u8],
        input: &mut Vec<u8>,
    ) -> Result<Option<Control>, Violation> {
        loop {
            let Some(current) = &mut self.current else {
                match self.read_header(received)? {
                    Some(begun) => self.current = Some(begun),
                    None => return Ok(None),
                }
                continue;
            };
            let count = usize::try_from(current.left).unwrap_or(usize::MAX).min(received.len());
            let (payload, rest) = received.split_at(count);
            *received = rest;
            current.left -= count as u64;
            let opcode = current.opcode;
            current.mask.unmask(payload, if opcode.is_control() { &mut self.control } else { input });
            if current.left > 0 {
                return Ok(None);
            }
            self.current = None;
            let control = std::mem::take(&mut self.control);
            match opcode {
                Opcode::Continuation | Opcode::Text | Opcode::Binary => {}
                Opcode::Close => return Ok(Some(Control::Close(control))),
                Opcode::Ping => return Ok(Some(Control::Ping(control))),
                Opcode::Pong => return Ok(Some(Control::Pong)),
            }
        }
    }

    /// Number of frames that began since the last call.
    pub(crate) fn take_frames(&mut self) -> u32 {
        std::mem::take(&mut self.frames)
    }

    /// Completes the header of the next frame. `None` if bytes are missing.
    fn read_header(&mut self, received: &mut &[u8]) -> Result<Option<Current>, Violation> {
        self.fill_header(2, received);
        if self.header_len < 2 {
            return Ok(None);
        }
        let opcode = self.check_start()?;
        let length_len = match self.header[1] & !MASKED {
            LENGTH_16 => 2,
            LENGTH_64 => 8,
            _ => 0,
        };
        let key_at = 2 + length_len;
        self.fill_header(key_at + 4, received);
        let left = match length_len {
            _ if self.header_len < key_at => return Ok(None),
            2 => u64::from(u16::from_be_bytes([self.header[2], self.header[3]])),
            8 => self.header[2..].first_chunk().copied().map_or(0, u64::from_be_bytes),
            _ => u64::from(self.header[1] & !MASKED),
        };
        if left > u64::MAX >> 1 {
            return Err(Violation::protocol("the length of a frame has its highest bit set"));
        }
        if left > RECEIVED_BYTES_MAX {
            let reason = "a frame has more than 512 MiB";
            return Err(Violation { code: CloseCode::TOO_BIG, reason });
        }
        if self.header_len < key_at + 4 {
            return Ok(None);
        }
        let key = self.header[key_at..].first_chunk().copied().unwrap_or_default();
        if !opcode.is_control() {
            self.is_fragmented = self.header[0] & FIN == 0;
        }
        self.header_len = 0;
        self.frames += 1;
        Ok(Some(Current { opcode, left, mask: Mask::new(key) }))
    }

    fn fill_header(&mut self, len: usize, received: &mut &[u8]) {
        let count = len.saturating_sub(self.header_len).min(received.len());
        let (taken, rest) = received.split_at(count);
        self.header[self.header_len..self.header_len + count].copy_from_slice(taken);
        self.header_len += count;
        *received = rest;
    }

    /// Checks the first two bytes of a header.
    fn check_start(&self) -> Result<Opcode, Violation> {
        let [first, second] = [self.header[0], self.header[1]];
        if first & RESERVED != 0 {
            return Err(Violation::protocol("a frame has reserved bits, and no extension was negotiated"));
        }
        let Some(opcode) = Opcode::parse(first & 0x0F) else {
            return Err(Violation::protocol("a frame has a reserved opcode"));
        };
        if second & MASKED == 0 {
            return Err(Violation::protocol("a frame of the client has no mask"));
        }
        match opcode {
            Opcode::Continuation if !self.is_fragmented => {
                Err(Violation::protocol("a fragment continues no message"))
            }
            Opcode::Text | Opcode::Binary if self.is_fragmented => {
                Err(Violation::protocol("a message begins before the last fragment of another one"))
            }
            // MQTT 5, section 6.
            Opcode::Text => {
                Err(Violation { code: CloseCode::UNSUPPORTED_DATA, reason: "MQTT travels in binary frames" })
            }
            _ if opcode.is_control() && first & FIN == 0 => {
                Err(Violation::protocol("a control frame is fragmented"))
            }
            _ if opcode.is_control() && usize::from(second & !MASKED) > CONTROL_BYTES_MAX => {
                Err(Violation::protocol("a control frame has more than 125 bytes"))
            }
            _ => Ok(opcode),
        }
    }
}
