//! Contents: how files are cut into chunks, and the hashes that name them.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Size of a chunk, and largest size of an object with contents, bytes.
pub const CHUNK_BYTES: usize = 8 << 20;

/// SHA-256 of some content, in hexadecimal digits.
pub(crate) type Hash = String;

/// Name of an object: the hash of its content, and what distinguishes it from others with this content.
pub(crate) type ObjectName = String;

/// The name of an object that a backup stores. Each backup has names of its own, so that nobody takes an object of a
/// backup under way for one that is left from an earlier one.
pub(crate) fn object_name(hash: &str, backup: &str) -> ObjectName {
    format!("{hash}-{backup}")
}

/// The hash of some content.
pub(crate) fn hash(content: &[u8]) -> Hash {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(content) {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text
}
