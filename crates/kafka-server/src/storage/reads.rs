//! Reading partitions of this shard.
//!
//! Records are returned as file ranges where the store and the output support it, and as copied bytes otherwise.

use std::ops::Range;

use mainstem_kafka::ErrorCode;
use mainstem_log::{Error, FileSlice, LogId, Store};
use mainstem_partition::{Isolation, Watermarks};
use mainstem_runtime::Io;

use super::{BYTES_PER_UNIT, LOOKUP_UNITS, OPEN_UNITS, Storage};
use crate::environment::Environment;
use crate::partition_message::{FetchPart, Fetched, FileRange, ReadLimit, Records};
use crate::shared::Sendable;

/// Finding batches in the index of a log, units.
const READ_UNITS: u32 = 40;

impl Storage {
    /// Reads one partition of this shard, and charges it to the turn. Unless `limit.is_first`, nothing is returned if
    /// not even one batch fits.
    pub(crate) fn read<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        part: &FetchPart,
        isolation: Isolation,
        limit: ReadLimit,
    ) -> Fetched {
        let open = if self.maintenance.is_unopened(part.id) { OPEN_UNITS } else { 0 };
        let fetched = self.read_local(env, part, isolation, limit);
        let read = if fetched.records.is_empty() { LOOKUP_UNITS } else { READ_UNITS };
        io.charge(open + read + (fetched.records.bytes.len() / BYTES_PER_UNIT) as u32);
        fetched
    }

    fn read_local(
        &mut self,
        env: &mut Environment,
        part: &FetchPart,
        isolation: Isolation,
        limit: ReadLimit,
    ) -> Fetched {
        let mut fetched = Fetched::failed(part.part, ErrorCode::None);
        fetched.outcome = self.read_into(env, part, isolation, limit, &mut fetched);
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
        env: &mut Environment,
        part: &FetchPart,
        isolation: Isolation,
        limit: ReadLimit,
        into: &mut Fetched,
    ) -> Result<Watermarks, ErrorCode> {
        let sendable = env.shared().sendable;
        if self.is_uncreated(env, part.id) {
            return if part.offset == 0 {
                Ok(Watermarks::default())
            } else {
                Err(ErrorCode::OffsetOutOfRange)
            };
        }
        let (partition, store) = self.partition(env, part.id)?;
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

pub(super) fn read_error(error: &Error) -> ErrorCode {
    log::error!("a partition cannot be read: {error}");
    match error {
        Error::OutOfRange => ErrorCode::OffsetOutOfRange,
        _ => ErrorCode::KafkaStorageError,
    }
}
