//! Contents: how files are cut into chunks, and the hashes that name them.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Size of a chunk, and largest size of an object with contents, bytes.
pub const CHUNK_BYTES: usize = 8 << 20;

/// SHA-256 of some content, in hexadecimal digits.
pub(crate) type Hash = String;

/// The hash of some content.
pub(crate) fn hash(content: &[u8]) -> Hash {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(content) {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text
}
