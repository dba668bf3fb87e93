//! Transaction markers as records of control batches (KIP-98).
//!
//! A marker is the last record of a transaction in a partition. Clients parse markers too, so the encoding is Kafka's.

use mainstem_coordinator::producer::{Marker, Outcome};
use mainstem_log::{Batch, BatchBuilder, BatchKind, Malformed, Origin, Record, ValidBatch};

/// Version of a marker's key and value.
const MARKER_VERSION: i16 = 0;
/// Marker type in the key.
const ABORT: i16 = 0;
const COMMIT: i16 = 1;

/// The record of a control batch that ends a transaction in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerRecord {
    /// Outcome of the transaction.
    pub outcome: Outcome,
    /// Epoch of the transaction coordinator that decided.
    pub coordinator_epoch: i32,
}

impl MarkerRecord {
    /// Encodes the marker as a control batch of its producer. `builder` must be empty; the result is in its memory.
    pub fn batch(
        self,
        builder: &mut BatchBuilder,
        timestamp_ms: i64,
        producer_id: i64,
        producer_epoch: i16,
    ) -> ValidBatch<'_> {
        debug_assert!(builder.is_empty(), "a marker is the only record of its batch");
        let outcome = match self.outcome {
            Outcome::Abort => ABORT,
            Outcome::Commit => COMMIT,
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

    /// Decodes the record of a control batch; `None` if it is another kind of control record. Later versions only
    /// append fields.
    ///
    /// # Errors
    /// [`Malformed::Length`] if key or value is too short.
    pub fn parse(record: &Record<'_>) -> Result<Option<Self>, Malformed> {
        let outcome = match i16::from_be_bytes(after_version(record.key)?) {
            ABORT => Outcome::Abort,
            COMMIT => Outcome::Commit,
            _ => return Ok(None),
        };
        Ok(Some(Self { outcome, coordinator_epoch: i32::from_be_bytes(after_version(record.value)?) }))
    }
}

/// The field that follows the version of a key or value.
fn after_version<const N: usize>(bytes: Option<&[u8]>) -> Result<[u8; N], Malformed> {
    let (_version, rest) = bytes.unwrap_or_default().split_at_checked(2).ok_or(Malformed::Length)?;
    rest.first_chunk().copied().ok_or(Malformed::Length)
}

/// The marker in a control batch, with the fields of its header; `None` if the batch has another control record.
pub(crate) fn marker_of(batch: &Batch<'_>) -> Option<Marker> {
    let record = batch.records().next()?.ok()?;
    let MarkerRecord { outcome, coordinator_epoch } = MarkerRecord::parse(&record).ok()??;
    Some(Marker {
        producer_id: batch.header.producer_id,
        producer_epoch: batch.header.producer_epoch,
        coordinator_epoch,
        outcome,
        timestamp_ms: batch.header.max_timestamp_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_round_trip() {
        for (outcome, code) in [(Outcome::Abort, 0), (Outcome::Commit, 1)] {
            let marker = MarkerRecord { outcome, coordinator_epoch: 0x0102_0304 };
            let mut builder = BatchBuilder::default();
            let batch = Batch::parse(marker.batch(&mut builder, 99, 5000, 7).bytes()).unwrap();
            assert!(batch.header.is_control() && batch.header.is_transactional());
            assert_eq!((batch.header.producer_id, batch.header.producer_epoch), (5000, 7));
            assert_eq!((batch.header.base_sequence, batch.header.max_timestamp_ms), (-1, 99));
            let record = batch.records().next().unwrap().unwrap();
            assert_eq!(record.key, Some([0, 0, 0, code].as_slice()));
            assert_eq!(record.value, Some(b"\0\0\x01\x02\x03\x04".as_slice()));
            assert_eq!(MarkerRecord::parse(&record), Ok(Some(marker)));
            assert_eq!(
                marker_of(&batch).map(|marker| (marker.outcome, marker.producer_id)),
                Some((outcome, 5000))
            );
        }
    }

    #[test]
    fn ignores_other_control_records_and_later_fields() {
        let record = |key, value| Record { offset: 0, timestamp_ms: 0, key, value, headers: &[0] };
        let snapshot = record(Some(b"\0\0\0\x03".as_slice()), Some(b"".as_slice()));
        assert_eq!(MarkerRecord::parse(&snapshot), Ok(None));
        let newer = record(Some(b"\0\x01\0\x01!".as_slice()), Some(b"\0\x01\0\0\0\x05more".as_slice()));
        assert_eq!(
            MarkerRecord::parse(&newer),
            Ok(Some(MarkerRecord { outcome: Outcome::Commit, coordinator_epoch: 5 }))
        );
        for (key, value) in [(None, None), (Some(b"\0\0\0\x01".as_slice()), Some(b"\0\0\0\0\0".as_slice()))] {
            assert_eq!(MarkerRecord::parse(&record(key, value)), Err(Malformed::Length));
        }
    }
}
