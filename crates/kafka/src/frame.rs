//! Frames: each request and each response is preceded by its length, four bytes.
//!
//! The length is checked against a maximum before the frame is buffered, so a peer cannot make the broker reserve
//! memory by sending a large number.

use crate::reader::DecodeError;

/// Size of the length prefix, bytes.
pub const LENGTH_BYTES: usize = 4;

/// Length of the frame at the start of `bytes`, including the length prefix; `None` while the prefix is incomplete.
///
/// # Errors
/// [`DecodeError::Malformed`] if the frame without the prefix exceeds `len_max` bytes, or the length is negative.
pub fn frame_len(bytes: &[u8], len_max: usize) -> Result<Option<usize>, DecodeError> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    match usize::try_from(i32::from_be_bytes(*length)) {
        Ok(length) if length <= len_max => Ok(Some(LENGTH_BYTES + length)),
        Ok(_) => Err(DecodeError::Malformed("the frame is too long")),
        Err(_) => Err(DecodeError::Malformed("the frame length is negative")),
    }
}

/// Reserves the length prefix of a frame. Pass the result to [`end_frame`] when the frame is complete.
pub fn begin_frame(into: &mut Vec<u8>) -> usize {
    into.extend_from_slice(&[0; LENGTH_BYTES]);
    into.len()
}

/// Fills in the length of the frame that started at `begun`. `to_follow` bytes of it are sent separately, after `into`.
///
/// # Panics
/// If the frame exceeds 2 GiB, or `begun` does not come from [`begin_frame`].
pub fn end_frame(into: &mut [u8], begun: usize, to_follow: usize) {
    let length = i32::try_from(into.len() - begun + to_follow).expect("a frame of less than 2 GiB");
    into[begun - LENGTH_BYTES..begun].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_of_a_frame() {
        let mut bytes = vec![7];
        let begun = begin_frame(&mut bytes);
        bytes.extend_from_slice(b"abc");
        end_frame(&mut bytes, begun, 2);
        assert_eq!(bytes, [7, 0, 0, 0, 5, b'a', b'b', b'c']);
        assert_eq!(frame_len(&bytes[1..], 5), Ok(Some(9)));
        assert_eq!(frame_len(&bytes[1..4], 5), Ok(None));
        assert_eq!(frame_len(&bytes[1..], 4), Err(DecodeError::Malformed("the frame is too long")));
        assert!(frame_len(&[0xFF; 4], usize::MAX).is_err());
    }
}
