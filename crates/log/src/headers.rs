//! Record headers (KIP-82): encoding and lazy decoding.

use crate::batch::Malformed;
use crate::varint;

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Header name. A record may have several headers with the same name.
    pub key: &'a str,
    /// Value; `None` is distinct from an empty value.
    pub value: Option<&'a [u8]>,
}

/// Appends encoded headers, count first, in the form of [`Record::headers`](crate::Record::headers).
pub fn put_headers<'a>(headers: impl ExactSizeIterator<Item = Header<'a>>, into: &mut Vec<u8>) {
    varint::put(signed(headers.len()), into);
    for Header { key, value } in headers {
        varint::put(signed(key.len()), into);
        into.extend_from_slice(key.as_bytes());
        varint::put(value.map_or(-1, |value| signed(value.len())), into);
        into.extend_from_slice(value.unwrap_or_default());
    }
}

fn signed(len: usize) -> i64 {
    len.cast_signed() as i64
}

/// Iterator over the headers of a record. Ends after the first malformed header.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    rest: &'a [u8],
    left: u64,
}

impl<'a> Headers<'a> {
    /// Starts reading encoded headers, which begin with their count.
    ///
    /// # Errors
    /// [`Malformed`] if the count is missing or negative.
    pub fn parse(encoded: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = encoded;
        let count = varint::take(&mut rest).ok_or(Malformed::Length)?;
        let left = u64::try_from(count).map_err(|_| Malformed::Inconsistent)?;
        Ok(Self { rest, left })
    }

    fn header(&mut self) -> Result<Header<'a>, Malformed> {
        let key = self.part()?.ok_or(Malformed::Inconsistent)?;
        let key = std::str::from_utf8(key).map_err(|_| Malformed::Inconsistent)?;
        Ok(Header { key, value: self.part()? })
    }

    /// Reads a length-prefixed byte string. Length -1 encodes `None`.
    fn part(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let len = varint::take(&mut self.rest).ok_or(Malformed::Length)?;
        if len == -1 {
            return Ok(None);
        }
        let len = usize::try_from(len).map_err(|_| Malformed::Inconsistent)?;
        let (part, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(Some(part))
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<Header<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let header = self.header();
        if header.is_err() {
            self.left = 0;
        }
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batch, BatchBuilder};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encoded_headers_round_trip(
            all in prop::collection::vec(("[a-zé]{0,9}", prop::option::of(prop::collection::vec(any::<u8>(), 0..99))), 0..9),
        ) {
            let headers = || all.iter().map(|(key, value)| Header { key, value: value.as_deref() });
            let mut encoded = Vec::new();
            put_headers(headers(), &mut encoded);
            let mut builder = BatchBuilder::default();
            builder.push_with_headers(5, Some(b"key"), None, &encoded);
            let batch = Batch::parse(builder.finish()).unwrap();
            let record = batch.records().next().unwrap().unwrap();
            let read: Result<Vec<_>, _> = Headers::parse(record.headers).unwrap().collect();
            prop_assert_eq!(read.unwrap(), headers().collect::<Vec<_>>());
            for end in 0..encoded.len() {
                let read = Headers::parse(&encoded[..end]).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                prop_assert!(read.is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(headers) = Headers::parse(&bytes) {
                prop_assert!(headers.count() <= bytes.len());
            }
        }
    }

    #[test]
    fn rejects_inconsistent_headers() {
        assert!(Headers::parse(&[1]).is_err(), "a count of -1");
        // A key of length -1, a key of length -2, a key that is not UTF-8, and a value of length -2.
        for bytes in [[2, 1, 0, 0], [2, 3, 0, 0], [2, 2, 0xFF, 0], [2, 2, b'k', 3]] {
            let mut headers = Headers::parse(&bytes).unwrap();
            assert!(matches!(headers.next(), Some(Err(Malformed::Inconsistent))), "{bytes:?}");
            assert_eq!(headers.next(), None);
        }
    }
}
