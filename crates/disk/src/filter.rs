//! The compaction filter: decides which records of a batch are retained.
//!
//! A batch that loses no record is copied unchanged, compressed or not. Otherwise it is rebuilt uncompressed. A
//! tombstone gets a delete horizon when it is first processed and is dropped once that has passed (KIP-534).

use std::borrow::Cow;

use mainstem_log::{Batch, BatchHeader, Compression, HEADER_BYTES, Malformed, Record, Records, rebuild};

use crate::keys::Keys;
use crate::settings::Decompress;

/// Attribute bit: the base timestamp is the delete horizon, the time after which tombstones are dropped (KIP-534).
const DELETE_HORIZON: i16 = 0x40;
/// Attribute bit: timestamps are the append time.
const APPEND_TIME: i16 = 8;

/// Inputs of the decision.
pub(crate) struct Filter<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) decompress: Option<&'a Decompress>,
    pub(crate) unix_ms: u64,
    pub(crate) delete_retention_ms: u64,
}

/// Returns the uncompressed records of a batch; `None` if it cannot be decompressed.
pub(crate) fn decompressed<'a>(batch: &Batch<'a>, decompress: Option<&Decompress>) -> Option<Cow<'a, [u8]>> {
    let bytes = &batch.bytes()[HEADER_BYTES..];
    match batch.header.compression() {
        Compression::None => Some(Cow::Borrowed(bytes)),
        compression => decompress.and_then(|decompressed| decompressed(compression, bytes)).map(Cow::Owned),
    }
}

impl Filter<'_> {
    /// Appends the retained part of `batch` to `into` and returns whether there is any. With `must_stay` at least the
    /// header is retained.
    ///
    /// # Errors
    /// If the records are malformed.
    pub(crate) fn apply(
        &self,
        batch: &Batch<'_>,
        must_stay: bool,
        into: &mut Vec<u8>,
    ) -> Result<bool, Malformed> {
        let header = batch.header;
        let decompressed = if header.is_control() { None } else { decompressed(batch, self.decompress) };
        let Some(decompressed) = decompressed else {
            into.extend_from_slice(batch.bytes());
            return Ok(true);
        };
        let all: Vec<Record<'_>> = Records::of(header, &decompressed).collect::<Result<_, _>>()?;
        let has_horizon = header.attributes & DELETE_HORIZON != 0;
        let is_past = has_horizon && u64::try_from(header.base_timestamp_ms).unwrap_or(0) <= self.unix_ms;
        let is_retained = |record: &&Record<'_>| {
            record.key.is_none() || !self.keys.has_later(record) && (record.value.is_some() || !is_past)
        };
        let retained: Vec<&Record<'_>> = all.iter().filter(is_retained).collect();
        let has_tombstone = retained.iter().any(|record| record.key.is_some() && record.value.is_none());
        let needs_horizon = has_tombstone && !has_horizon;
        if retained.is_empty() && !must_stay {
            return Ok(false);
        }
        if retained.len() == all.len() && !needs_horizon {
            into.extend_from_slice(batch.bytes());
            return Ok(true);
        }
        rebuild(&self.header(&header, &retained, needs_horizon), retained.into_iter().copied(), into);
        Ok(true)
    }

    fn header(&self, header: &BatchHeader, retained: &[&Record<'_>], needs_horizon: bool) -> BatchHeader {
        let mut header = *header;
        if header.attributes & APPEND_TIME == 0 {
            let newest = retained.iter().map(|record| record.timestamp_ms).max();
            header.max_timestamp_ms = newest.unwrap_or(header.max_timestamp_ms);
        }
        if needs_horizon {
            let horizon = self.unix_ms.saturating_add(self.delete_retention_ms);
            header.base_timestamp_ms = i64::try_from(horizon).unwrap_or(i64::MAX);
            header.attributes |= DELETE_HORIZON;
        }
        header
    }
}
