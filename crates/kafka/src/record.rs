//! The markers that end transactions, as records have them (KIP-98).

use mainstem_log::{BatchBuilder, BatchKind, Origin};

use crate::reader::{DecodeError, Reader};

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
        builder
            .finish_as(&Origin { producer_id, producer_epoch, base_sequence: -1, kind: BatchKind::Control })
            .bytes()
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

    use super::*;

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
