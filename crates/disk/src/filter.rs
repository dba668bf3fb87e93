//! What compaction leaves of a batch.

use std::borrow::Cow;

use mainstem_log::{Batch, BatchHeader, Compression, HEADER_BYTES, Malformed, Record, Records, rebuild};

use crate::keys::Keys;
use crate::settings::Decompress;

/// Bit of the attributes: the base timestamp is the time from which on records without value go (KIP-534).
const DELETE_HORIZON: i16 = 0x40;
/// Bit of the attributes: timestamps are those of the append.
const APPEND_TIME: i16 = 8;

/// By what to decide.
pub(crate) struct Filter<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) decompress: Option<&'a Decompress>,
    pub(crate) unix_ms: u64,
    pub(crate) delete_retention_ms: u64,
}

/// The records of a batch as they are before compression; nothing if that is not known.
pub(crate) fn plain<'a>(batch: &Batch<'a>, decompress: Option<&Decompress>) -> Option<Cow<'a, [u8]>> {
    let bytes = &batch.bytes()[HEADER_BYTES..];
    match batch.header.compression() {
        Compression::None => Some(Cow::Borrowed(bytes)),
        compression => decompress.and_then(|plain| plain(compression, bytes)).map(Cow::Owned),
    }
}

impl Filter<'_> {
    /// Appends to `into` what stays of `batch`, and says whether anything does. If `must_stay` at least its header
    /// does.
    ///
    /// # Errors
    /// If its records cannot be read.
    pub(crate) fn pass(
        &self,
        batch: &Batch<'_>,
        must_stay: bool,
        into: &mut Vec<u8>,
    ) -> Result<bool, Malformed> {
        let header = batch.header;
        let plain = if header.is_control() { None } else { plain(batch, self.decompress) };
        let Some(plain) = plain else {
            into.extend_from_slice(batch.bytes());
            return Ok(true);
        };
        let all: Vec<Record<'_>> = Records::of(header, &plain).collect::<Result<_, _>>()?;
        let has_horizon = header.attributes & DELETE_HORIZON != 0;
        let is_past = has_horizon && u64::try_from(header.base_timestamp_ms).unwrap_or(0) <= self.unix_ms;
        let stays = |record: &&Record<'_>| {
            record.key.is_none() || !self.keys.has_later(record) && (record.value.is_some() || !is_past)
        };
        let kept: Vec<&Record<'_>> = all.iter().filter(stays).collect();
        let is_marked = kept.iter().any(|record| record.key.is_some() && record.value.is_none());
        let needs_horizon = is_marked && !has_horizon;
        if kept.is_empty() && !must_stay {
            return Ok(false);
        }
        if kept.len() == all.len() && !needs_horizon {
            into.extend_from_slice(batch.bytes());
            return Ok(true);
        }
        rebuild(&self.header(&header, &kept, needs_horizon), kept.into_iter().copied(), into);
        Ok(true)
    }

    fn header(&self, header: &BatchHeader, kept: &[&Record<'_>], needs_horizon: bool) -> BatchHeader {
        let mut header = *header;
        if header.attributes & APPEND_TIME == 0 {
            let newest = kept.iter().map(|record| record.timestamp_ms).max();
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
