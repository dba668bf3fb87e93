//! Reading partitions for a fetch, on the shard that owns them.
//!
//! Records are returned as file ranges where the store and the output support it, and as copied bytes otherwise. If
//! what a shard has read [is short](is_short) of what the fetch waits for, the shard registers the fetch as a watcher
//! at once, so that no record can arrive between the read and the registration.

use std::ops::Range;

use mainstem_kafka::ErrorCode;
use mainstem_log::{Error, FileSlice, LogId, Store};
use mainstem_partition::{Isolation, Watermarks};

use crate::partition_message::{
    FetchPart, FetchPartitions, Fetched, FileRange, ReadLimit, Records, is_short,
};
use crate::shard::Shard;
use crate::shared::Sendable;

impl Shard {
    /// Reads partitions of this shard for a fetch of another shard.
    pub(crate) fn fetch_local(&mut self, work: &FetchPartitions) -> Vec<Fetched> {
        let mut left = work.bytes_max;
        let mut all = Vec::with_capacity(work.parts.len());
        let mut is_first = true;
        for part in &work.parts {
            let bytes_max = part.bytes_max.min(left);
            let limit = ReadLimit { bytes_max, bytes_min: work.bytes_min, is_first };
            let fetched = self.read_local(part, work.isolation, limit);
            left = left.saturating_sub(fetched.records.len());
            is_first &= fetched.records.is_empty();
            all.push(fetched);
        }
        if let Some(watcher) = work.watcher
            && is_short(&all, work.bytes_min)
        {
            for part in &work.parts {
                self.watch(part.id, watcher);
            }
        }
        all
    }

    /// Reads one partition of this shard. Unless `is_first`, nothing is returned if not even one batch fits.
    pub(crate) fn read_local(&mut self, part: &FetchPart, isolation: Isolation, limit: ReadLimit) -> Fetched {
        let mut fetched = Fetched::failed(part.part, ErrorCode::None);
        fetched.outcome = self.read_into(part, isolation, limit, &mut fetched);
        fetched.available = match fetched.outcome {
            // A fetch that waits for any record does not need to know how many there are.
            Ok(watermarks) if limit.bytes_min > 1 => {
                fetched.records.available(watermarks.end(isolation), limit.bytes_max)
            }
            _ => fetched.records.len(),
        };
        fetched
    }

    fn read_into(
        &mut self,
        part: &FetchPart,
        isolation: Isolation,
        limit: ReadLimit,
        into: &mut Fetched,
    ) -> Result<Watermarks, ErrorCode> {
        let sendable = self.shared.sendable;
        if self.is_uncreated(part.id) {
            return if part.offset == 0 {
                Ok(Watermarks::default())
            } else {
                Err(ErrorCode::OffsetOutOfRange)
            };
        }
        let (partition, store) = self.partition(part.id)?;
        let watermarks = partition.watermarks(store);
        let offset = u64::try_from(part.offset).map_err(|_| ErrorCode::OffsetOutOfRange)?;
        if offset < watermarks.start || offset > watermarks.high_watermark {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        let (end, bytes_max) = (watermarks.end(isolation), limit.bytes_max);
        if offset >= end || (bytes_max == 0 && !limit.is_first) {
            return Ok(watermarks);
        }
        into.records = read_records(store, partition.log(), offset..end, bytes_max, sendable)
            .map_err(|error| read_error(&error))?;
        if !limit.is_first && into.records.len() > bytes_max {
            into.records = Records::default();
        } else if isolation == Isolation::ReadCommitted {
            into.aborted = partition.aborted(offset..end);
        }
        Ok(watermarks)
    }
}

/// Reads batches as file ranges if the store and the output support it.
fn read_records(
    store: &mut dyn Store,
    log: LogId,
    offsets: Range<u64>,
    bytes_max: usize,
    sendable: Option<Sendable>,
) -> Result<Records, Error> {
    let mut records = Records::default();
    let slices = match sendable {
        Some(_) => store.file_slices(log, offsets.clone(), bytes_max)?,
        None => None,
    };
    let ranges = slices.zip(sendable).and_then(|(slices, sendable)| {
        let range = |slice: FileSlice| {
            let file = sendable(&slice.source)?;
            Some(FileRange { file, position: slice.position, len: slice.len as usize, end: slice.end })
        };
        slices.into_iter().map(range).collect()
    });
    match ranges {
        Some(files) => records.files = files,
        None => store.read(log, offsets, bytes_max, &mut records.bytes)?,
    }
    Ok(records)
}

pub(crate) fn read_error(error: &Error) -> ErrorCode {
    log::error!("a partition cannot be read: {error}");
    match error {
        Error::OutOfRange => ErrorCode::OffsetOutOfRange,
        _ => ErrorCode::KafkaStorageError,
    }
}
