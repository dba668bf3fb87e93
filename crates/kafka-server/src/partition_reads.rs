//! Reading partitions for a fetch, on the shard that owns them.
//!
//! Records are returned as file ranges where the store and the output support it, and as copied bytes otherwise. If
//! what a shard has read [is short](is_short) of what the fetch waits for, the shard registers the fetch as a watcher
//! at once, so that no record can arrive between the read and the registration.

use std::ops::Range;

use mainstem_kafka::ErrorCode;
use mainstem_log::{Error, FileSlice, LogId, Store};
use mainstem_partition::{Isolation, Watermarks};
use mainstem_runtime::Io;

use crate::partition_message::{
    FetchPart, FetchPartitions, Fetched, FileRange, PartitionResponse, ReadLimit, Records, is_short,
};
use crate::pending_work::RemoteRead;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::shared::Sendable;
use crate::work_slices::{BYTES_PER_UNIT, LOOKUP_UNITS, OPEN_UNITS};

/// Finding batches in the index of a log, units.
const READ_UNITS: u32 = 40;

impl Shard {
    /// Reads partitions of this shard for a fetch of another shard, as far as the turn lasts. Returns what is left.
    pub(crate) fn read_for_shard(
        &mut self,
        io: &mut Io<'_, Mail>,
        mut read: Box<RemoteRead>,
    ) -> Option<Box<RemoteRead>> {
        let begin = if read.is_sliced { read.all.len() } else { 0 };
        while let Some(part) = read.request.parts.get(read.all.len()) {
            if !self.pending_work.has_room(io.charged()) {
                // Records may arrive before the last partition is read.
                self.watch_parts(&read.request, begin..read.all.len());
                read.is_sliced = true;
                return Some(read);
            }
            let bytes_max = part.bytes_max.min(read.left);
            let limit = ReadLimit { bytes_max, bytes_min: read.request.bytes_min, is_first: read.is_first };
            let fetched = self.read_charged(io, part, read.request.isolation, limit);
            read.left = read.left.saturating_sub(fetched.records.len());
            read.is_first &= fetched.records.is_empty();
            read.all.push(fetched);
        }
        let RemoteRead { job, request, all, is_sliced, .. } = *read;
        if is_short(&all, request.bytes_min) {
            self.watch_parts(&request, begin..all.len());
        } else if is_sliced && let Some(watcher) = request.watcher {
            request.parts.iter().for_each(|part| self.partitions.unwatch(part.id, watcher));
        }
        self.send_partition_response(io, job, PartitionResponse::Fetched(all));
        None
    }

    fn watch_parts(&mut self, request: &FetchPartitions, parts: Range<usize>) {
        let Some(watcher) = request.watcher else { return };
        for part in &request.parts[parts] {
            self.watch(part.id, watcher);
        }
    }

    /// Reads one partition as [`Self::read_local`] does, and charges it to the turn.
    pub(crate) fn read_charged(
        &mut self,
        io: &mut Io<'_, Mail>,
        part: &FetchPart,
        isolation: Isolation,
        limit: ReadLimit,
    ) -> Fetched {
        let open = if self.maintenance.is_unopened(part.id) { OPEN_UNITS } else { 0 };
        let fetched = self.read_local(part, isolation, limit);
        let read = if fetched.records.is_empty() { LOOKUP_UNITS } else { READ_UNITS };
        io.charge(open + read + (fetched.records.bytes.len() / BYTES_PER_UNIT) as u32);
        fetched
    }

    /// Reads one partition of this shard. Unless `is_first`, nothing is returned if not even one batch fits.
    fn read_local(&mut self, part: &FetchPart, isolation: Isolation, limit: ReadLimit) -> Fetched {
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
