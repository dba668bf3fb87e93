//! Encoding of numbers (unsigned varints) and strings (length, then bytes) in journal entries.

/// The bytes are not a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Appends `value`, seven bits to a byte, low bits first.
pub(crate) fn put(into: &mut Vec<u8>, value: u64) {
    let mut rest = value;
    while rest >= 0x80 {
        into.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

/// Decodes what the functions above have written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Damaged> {
        let (byte, rest) = self.0.split_first().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damaged> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damaged)
    }

    /// A number that has to fit a smaller type.
    pub(crate) fn small<N: TryFrom<u64>>(&mut self) -> Result<N, Damaged> {
        N::try_from(self.number()?).map_err(|_| Damaged)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let len = self.small::<usize>()?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Damaged> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Damaged)
    }

    /// The remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
