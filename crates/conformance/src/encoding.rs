//! The two encodings that everything else is made of: lengths, and bytes with their length.

/// A Variable Byte Integer in its shortest form (1.5.5).
pub fn varint(mut value: u32) -> Vec<u8> {
    assert!(value <= 268_435_455, "{value} does not fit a variable byte integer");
    let mut out = Vec::new();
    loop {
        let byte = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            out.push(byte);
            return out;
        }
        out.push(byte | 0x80);
    }
}

/// Bytes with their two-byte length in front: a string, or binary data.
pub fn data(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut out = u16::try_from(bytes.len()).expect("at most 65,535 bytes").to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}
