//! What is in records: their headers (KIP-82), and the markers that end transactions (KIP-98).

use mainstem_log::{BatchBuilder, BatchKind, Origin, varint};

use crate::reader::{DecodeError, Reader};

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// A name, which a record may have several times.
    pub key: &'a str,
    /// What it stands for, if anything.
    pub value: Option<&'a [u8]>,
}

/// Appends headers as [`Record::headers`](mainstem_log::Record::headers) has them, their count first.
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

/// Reads the headers of a record, one after the other; it ends behind the first that cannot be read.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    rest: &'a [u8],
    left: u64,
}

impl<'a> Headers<'a> {
    /// Of a record's headers as they are encoded, with their count.
    ///
    /// # Errors
    /// [`DecodeError`] if there is no count.
    pub fn parse(encoded: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = encoded;
        let count = varint::take(&mut rest).ok_or(DecodeError::Truncated)?;
        let left =
            u64::try_from(count).map_err(|_| DecodeError::Malformed("a count of headers is below zero"))?;
        Ok(Self { rest, left })
    }

    fn header(&mut self) -> Result<Header<'a>, DecodeError> {
        let key = self.part()?.ok_or(DecodeError::Malformed("a header has no key"))?;
        let key =
            std::str::from_utf8(key).map_err(|_| DecodeError::Malformed("a header's key is not UTF-8"))?;
        Ok(Header { key, value: self.part()? })
    }

    /// A length and so many bytes; -1 stands for nothing.
    fn part(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let len = varint::take(&mut self.rest).ok_or(DecodeError::Truncated)?;
        if len == -1 {
            return Ok(None);
        }
        let len = usize::try_from(len).map_err(|_| DecodeError::Malformed("a length is below zero"))?;
        let (part, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(Some(part))
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<Header<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let header = self.header();
        if header.is_err() {
            self.left = 0;
        }
        Some(header)
    }
}

/// What becomes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nobody who reads only what was committed sees its records.
    Abort,
    /// Everybody sees its records.
    Commit,
}

/// The marker that a transaction ends with in each partition it wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// What became of the transaction.
    pub outcome: Outcome,
    /// Which of the successive coordinators has decided.
    pub coordinator_epoch: i32,
}

/// The version of a marker's key and of its value.
const MARKER_VERSION: i16 = 0;

impl Marker {
    /// The marker as a control batch of its producer, in the memory of `builder`, which must be empty.
    pub fn batch(
        self,
        builder: &mut BatchBuilder,
        timestamp_ms: i64,
        producer_id: i64,
        producer_epoch: i16,
    ) -> &[u8] {
        debug_assert!(builder.is_empty(), "a marker is alone in its batch");
        let outcome: i16 = match self.outcome {
            Outcome::Abort => 0,
            Outcome::Commit => 1,
        };
        let mut key = [0; 4];
        key[..2].copy_from_slice(&MARKER_VERSION.to_be_bytes());
        key[2..].copy_from_slice(&outcome.to_be_bytes());
        let mut value = [0; 6];
        value[..2].copy_from_slice(&MARKER_VERSION.to_be_bytes());
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        builder.push(timestamp_ms, Some(&key), Some(&value));
        builder.finish_as(&Origin {
            producer_id,
            producer_epoch,
            base_sequence: -1,
            kind: BatchKind::Control,
        })
    }

    /// The marker that is in a record of a control batch; `None` if that marks something else. Later versions only
    /// add to the end.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn parse(record: &mainstem_log::Record<'_>) -> Result<Option<Self>, DecodeError> {
        let mut key = Reader::new(record.key.unwrap_or_default());
        let _version = key.array::<2>()?;
        let outcome = match i16::from_be_bytes(key.array()?) {
            0 => Outcome::Abort,
            1 => Outcome::Commit,
            _ => return Ok(None),
        };
        let mut value = Reader::new(record.value.unwrap_or_default());
        let _version = value.array::<2>()?;
        Ok(Some(Self { outcome, coordinator_epoch: i32::from_be_bytes(value.array()?) }))
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::Batch;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_put(
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
        fn any_bytes_are_headers_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(headers) = Headers::parse(&bytes) {
                prop_assert!(headers.count() <= bytes.len());
            }
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        assert!(Headers::parse(&[1]).is_err(), "a count of -1");
        // A key of -1 bytes, of -2 bytes, and one that is not UTF-8; and a value of -2 bytes.
        for bytes in [[2, 1, 0, 0], [2, 3, 0, 0], [2, 2, 0xFF, 0], [2, 2, b'k', 3]] {
            let mut headers = Headers::parse(&bytes).unwrap();
            assert!(matches!(headers.next(), Some(Err(DecodeError::Malformed(_)))), "{bytes:?}");
            assert_eq!(headers.next(), None);
        }
    }

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        for outcome in [Outcome::Abort, Outcome::Commit] {
            let marker = Marker { outcome, coordinator_epoch: 0x0102_0304 };
            let mut builder = BatchBuilder::default();
            let batch = Batch::parse(marker.batch(&mut builder, 99, 5000, 7)).unwrap();
            assert!(batch.header.is_control() && batch.header.is_transactional());
            assert_eq!((batch.header.producer_id, batch.header.producer_epoch), (5000, 7));
            assert_eq!((batch.header.base_sequence, batch.header.max_timestamp_ms), (-1, 99));
            let record = batch.records().next().unwrap().unwrap();
            assert_eq!(record.key, Some([0, 0, 0, outcome as u8].as_slice()));
            assert_eq!(record.value, Some(b"\0\0\x01\x02\x03\x04".as_slice()));
            assert_eq!(Marker::parse(&record), Ok(Some(marker)));
        }
    }

    #[test]
    fn what_marks_something_else_is_no_marker_of_a_transaction() {
        let record =
            |key, value| mainstem_log::Record { offset: 0, timestamp_ms: 0, key, value, headers: &[0] };
        let snapshot = record(Some(b"\0\0\0\x03".as_slice()), Some(b"".as_slice()));
        assert_eq!(Marker::parse(&snapshot), Ok(None));
        let newer = record(Some(b"\0\x01\0\x01!".as_slice()), Some(b"\0\x01\0\0\0\x05more".as_slice()));
        assert_eq!(
            Marker::parse(&newer),
            Ok(Some(Marker { outcome: Outcome::Commit, coordinator_epoch: 5 }))
        );
        for (key, value) in [(None, None), (Some(b"\0\0\0\x01".as_slice()), Some(b"\0\0\0\0\0".as_slice()))] {
            assert_eq!(Marker::parse(&record(key, value)), Err(DecodeError::Truncated));
        }
    }
}
