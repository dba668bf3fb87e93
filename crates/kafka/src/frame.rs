//! Frames: each request and each response comes behind its length, four bytes.

use crate::reader::DecodeError;

/// Bytes of the length that a frame begins with.
pub const LENGTH_BYTES: usize = 4;

/// The length of the frame that `bytes` begin with, the length field included; `None` while that is not whole.
///
/// # Errors
/// [`DecodeError::Malformed`] if the rest of the frame would have more than `len_max` bytes, or fewer than none.
pub fn len(bytes: &[u8], len_max: usize) -> Result<Option<usize>, DecodeError> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    match usize::try_from(i32::from_be_bytes(*length)) {
        Ok(length) if length <= len_max => Ok(Some(LENGTH_BYTES + length)),
        Ok(_) => Err(DecodeError::Malformed("the frame is too long")),
        Err(_) => Err(DecodeError::Malformed("the frame's length is below zero")),
    }
}

/// Leaves room for the length of a frame; [`end`] takes what this returns, when the frame is whole.
pub fn begin(into: &mut Vec<u8>) -> usize {
    into.extend_from_slice(&[0; LENGTH_BYTES]);
    into.len()
}

/// Fills in the length of the frame that began there, and of which `to_follow` bytes are sent from elsewhere.
///
/// # Panics
/// If the frame has more than 2 GiB, or `begun` is not from [`begin`].
pub fn end(into: &mut [u8], begun: usize, to_follow: usize) {
    let length = i32::try_from(into.len() - begun + to_follow).expect("a frame of less than 2 GiB");
    into[begun - LENGTH_BYTES..begun].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_says_where_a_frame_ends() {
        let mut bytes = vec![7];
        let begun = begin(&mut bytes);
        bytes.extend_from_slice(b"abc");
        end(&mut bytes, begun, 2);
        assert_eq!(bytes, [7, 0, 0, 0, 5, b'a', b'b', b'c']);
        assert_eq!(len(&bytes[1..], 5), Ok(Some(9)));
        assert_eq!(len(&bytes[1..4], 5), Ok(None));
        assert_eq!(len(&bytes[1..], 4), Err(DecodeError::Malformed("the frame is too long")));
        assert!(len(&[0xFF; 4], usize::MAX).is_err());
    }
}
