//! BER (X.690), as far as LDAP uses it (RFC 4511, section 5.1): tags of one byte and definite lengths.
//!
//! A reader goes over the elements of one level. The caller opens those levels that a message has, so that no input
//! makes it recurse.

/// Universal tags.
pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0A;
pub(crate) const SEQUENCE: u8 = 0x30;

/// One element.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let length = content.len();
    if let Ok(short) = u8::try_from(length)
        && short < 0x80
    {
        bytes.push(short);
    } else {
        let digits = length.to_be_bytes();
        let digits = &digits[digits.iter().position(|digit| *digit != 0).unwrap_or(digits.len())..];
        bytes.push(0x80 | digits.len() as u8);
        bytes.extend_from_slice(digits);
    }
    bytes.extend_from_slice(content);
    bytes
}

/// An element that contains others.
pub(crate) fn constructed(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    element(tag, &parts.concat())
}

/// An INTEGER or ENUMERATED.
pub(crate) fn integer(tag: u8, value: u32) -> Vec<u8> {
    let mut bytes = [0; 5];
    bytes[1..].copy_from_slice(&value.to_be_bytes());
    // The shortest form whose first bit, the sign, is not set.
    let is_needed = |at: usize| bytes[at] != 0 || bytes[at + 1] & 0x80 != 0;
    let start = (0..4).find(|at| is_needed(*at)).unwrap_or(4);
    element(tag, &bytes[start..])
}

/// The bytes of a length that follow its first byte, at most four; `None` if the length is indefinite or longer.
pub(crate) fn length_bytes(first: u8) -> Option<usize> {
    match first {
        0..=0x7F => Some(0),
        0x81..=0x84 => Some(usize::from(first & 0x7F)),
        _ => None,
    }
}

/// The length of an element, from its first byte and those that follow.
pub(crate) fn length(first: u8, more: &[u8]) -> usize {
    if more.is_empty() {
        return usize::from(first);
    }
    more.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// Goes over the elements of one level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements<'a>(pub(crate) &'a [u8]);

impl<'a> Elements<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element: its tag and content. `None` at the end, or if it is malformed.
    pub(crate) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        // Tags of several bytes.
        if tag & 0x1F == 0x1F {
            return None;
        }
        let (more, rest) = rest.split_at_checked(length_bytes(first)?)?;
        let (content, rest) = rest.split_at_checked(length(first, more))?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next element, if it has this tag.
    pub(crate) fn expect(&mut self, expected: u8) -> Option<&'a [u8]> {
        self.next().and_then(|(tag, content)| (tag == expected).then_some(content))
    }

    /// The next element as a number that is not negative.
    pub(crate) fn number(&mut self, tag: u8) -> Option<u32> {
        let content = self.expect(tag)?;
        let is_negative = content.first()? & 0x80 != 0;
        let digits = &content[content.iter().take_while(|digit| **digit == 0).count()..];
        (!is_negative && digits.len() <= 4)
            .then(|| digits.iter().fold(0, |value, digit| value << 8 | u32::from(*digit)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_of_the_standard() {
        // X.690, 8.1.3: short and long form of lengths; 8.3: integers in two's complement.
        assert_eq!(element(OCTET_STRING, b"ab"), b"\x04\x02ab");
        assert_eq!(element(OCTET_STRING, &[7; 0x80])[..3], *b"\x04\x81\x80");
        assert_eq!(element(OCTET_STRING, &[7; 0x1234])[..4], *b"\x04\x82\x12\x34");
        for (value, content) in [
            (0, &b"\x00"[..]),
            (0x7F, b"\x7F"),
            (0x80, b"\x00\x80"),
            (0x0100, b"\x01\x00"),
            (u32::MAX, b"\x00\xFF\xFF\xFF\xFF"),
        ] {
            assert_eq!(integer(INTEGER, value), element(INTEGER, content), "{value}");
        }
    }

    #[test]
    fn malformed_elements_are_refused() {
        for bytes in [
            &b""[..],
            b"\x04",
            b"\x04\x01",
            b"\x04\x80\x00\x00",
            b"\x04\x81",
            b"\x04\x85\x00\x00\x00\x00\x01x",
            b"\x04\x84\xFF\xFF\xFF\xFFx",
            b"\x1F\x81\x01\x00",
        ] {
            assert_eq!(Elements(bytes).next(), None, "{bytes:x?}");
        }
        for bytes in [&b"\x02\x00"[..], b"\x02\x01\x80", b"\x02\x05\x01\x00\x00\x00\x00", b"\x04\x01\x01"] {
            assert_eq!(Elements(bytes).number(INTEGER), None, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value: u32, content: Vec<u8>, tag in 0u8..0x1F) {
            let bytes = [integer(INTEGER, value), element(tag, &content)].concat();
            let mut elements = Elements(&bytes);
            prop_assert_eq!(elements.number(INTEGER), Some(value));
            prop_assert_eq!(elements.next(), Some((tag, &content[..])));
            prop_assert!(elements.is_empty());
        }

        #[test]
        fn no_bytes_are_read_twice(bytes: Vec<u8>) {
            let mut elements = Elements(&bytes);
            let mut read = 0;
            while let Some((_, content)) = elements.next() {
                read += 2 + content.len();
            }
            prop_assert!(read <= bytes.len());
        }
    }
}
