//! Encoding and parsing of the AMQP 0-9-1 frames and methods that work queues use.

use crate::error::BenchError;

/// Frame types (4.2.3).
pub(super) const FRAME_METHOD: u8 = 1;
pub(super) const FRAME_HEADER: u8 = 2;
pub(super) const FRAME_BODY: u8 = 3;
pub(super) const FRAME_HEARTBEAT: u8 = 8;
/// Last byte of every frame.
const FRAME_END: u8 = 0xCE;
/// Size of a frame header: type, channel, length.
const HEAD_BYTES: usize = 7;
/// Frame overhead beyond the payload.
pub(super) const FRAME_BYTES_MORE: usize = HEAD_BYTES + 1;

/// Class id and method id.
pub(super) type Method = (u16, u16);

/// Methods, named as in the specification.
pub(super) mod method {
    use super::Method;

    pub(in super::super) const CONNECTION_START: Method = (10, 10);
    pub(in super::super) const CONNECTION_START_OK: Method = (10, 11);
    pub(in super::super) const CONNECTION_TUNE: Method = (10, 30);
    pub(in super::super) const CONNECTION_TUNE_OK: Method = (10, 31);
    pub(in super::super) const CONNECTION_OPEN: Method = (10, 40);
    pub(in super::super) const CONNECTION_OPEN_OK: Method = (10, 41);
    pub(in super::super) const CONNECTION_CLOSE: Method = (10, 50);
    pub(in super::super) const CONNECTION_CLOSE_OK: Method = (10, 51);
    pub(in super::super) const CHANNEL_OPEN: Method = (20, 10);
    pub(in super::super) const CHANNEL_OPEN_OK: Method = (20, 11);
    pub(in super::super) const CHANNEL_CLOSE: Method = (20, 40);
    pub(in super::super) const QUEUE_DECLARE: Method = (50, 10);
    pub(in super::super) const QUEUE_DECLARE_OK: Method = (50, 11);
    pub(in super::super) const BASIC_QOS: Method = (60, 10);
    pub(in super::super) const BASIC_QOS_OK: Method = (60, 11);
    pub(in super::super) const BASIC_CONSUME: Method = (60, 20);
    pub(in super::super) const BASIC_CONSUME_OK: Method = (60, 21);
    pub(in super::super) const BASIC_PUBLISH: Method = (60, 40);
    pub(in super::super) const BASIC_DELIVER: Method = (60, 60);
    pub(in super::super) const BASIC_ACK: Method = (60, 80);
    pub(in super::super) const BASIC_NACK: Method = (60, 120);
    pub(in super::super) const CONFIRM_SELECT: Method = (85, 10);
    pub(in super::super) const CONFIRM_SELECT_OK: Method = (85, 11);
}

/// A parsed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) payload: &'a [u8],
    /// Total length, including header and end byte.
    pub(super) len: usize,
}

impl<'a> Frame<'a> {
    /// Parses the first frame of `bytes`; `None` if incomplete.
    ///
    /// # Errors
    /// If the frame end byte is missing.
    #[inline]
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Option<Self>, BenchError> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [kind, _, _, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        match rest.get(length) {
            None => Ok(None),
            Some(&FRAME_END) => {
                Ok(Some(Self { kind, payload: &rest[..length], len: length + FRAME_BYTES_MORE }))
            }
            Some(_) => Err(malformed("a frame without its end byte")),
        }
    }
}

/// Appends a frame; `put` appends the payload.
pub(super) fn frame(out: &mut Vec<u8>, kind: u8, channel: u16, put: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out);
    let length = out.len() - length_at - 4;
    out[length_at..length_at + 4].copy_from_slice(&(length as u32).to_be_bytes());
    out.push(FRAME_END);
}

/// Appends a method frame; `put` appends the arguments.
pub(super) fn method(
    out: &mut Vec<u8>,
    channel: u16,
    (class, number): Method,
    put: impl FnOnce(&mut Vec<u8>),
) {
    frame(out, FRAME_METHOD, channel, |out| {
        put_u16(out, class);
        put_u16(out, number);
        put(out);
    });
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a short string (4.2.5.3).
///
/// # Panics
/// If it is longer than 255 bytes.
pub(super) fn put_short(out: &mut Vec<u8>, value: &str) {
    out.push(u8::try_from(value.len()).expect("short strings are short"));
    out.extend_from_slice(value.as_bytes());
}

/// Appends a long string (4.2.5.3).
pub(super) fn put_long(out: &mut Vec<u8>, value: &[u8]) {
    put_u32(out, value.len() as u32);
    out.extend_from_slice(value);
}

/// Cursor over the arguments of a method.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a>(pub(super) &'a [u8]);

impl<'a> Arguments<'a> {
    #[inline]
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], BenchError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(|| malformed("a truncated method"))?;
        self.0 = rest;
        Ok(bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], BenchError> {
        let bytes = self.bytes(N)?;
        Ok(bytes.try_into().unwrap_or([0; N]))
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, BenchError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, BenchError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, BenchError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, BenchError> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    pub(super) fn method(&mut self) -> Result<Method, BenchError> {
        Ok((self.u16()?, self.u16()?))
    }

    #[inline]
    pub(super) fn short(&mut self) -> Result<&'a [u8], BenchError> {
        let length = self.u8()?;
        self.bytes(length.into())
    }
}

pub(super) fn malformed(what: &str) -> BenchError {
    BenchError::Broken(format!("the server sent an invalid frame: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_round_trip() {
        let mut bytes = Vec::new();
        method(&mut bytes, 1, method::BASIC_QOS, |out| {
            put_u32(out, 7);
            put_short(out, "ab");
            put_long(out, b"cde");
        });
        for length in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..length]).unwrap(), None, "{length}");
        }
        let found = Frame::parse(&bytes).unwrap().unwrap();
        assert_eq!((found.kind, found.len), (FRAME_METHOD, bytes.len()));
        let mut arguments = Arguments(found.payload);
        assert_eq!(arguments.method().unwrap(), method::BASIC_QOS);
        assert_eq!((arguments.u32().unwrap(), arguments.short().unwrap()), (7, &b"ab"[..]));
        assert_eq!((arguments.u32().unwrap(), arguments.0), (3, &b"cde"[..]));
        assert!(arguments.u64().is_err());
    }

    #[test]
    fn rejects_a_frame_without_its_end_byte() {
        let mut bytes = Vec::new();
        frame(&mut bytes, FRAME_HEARTBEAT, 0, |_| {});
        *bytes.last_mut().unwrap() = 0;
        assert!(Frame::parse(&bytes).is_err());
    }
}
