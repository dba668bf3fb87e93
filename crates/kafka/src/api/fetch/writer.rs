//! Incremental writer for Fetch responses: record batches go from the log to the output without a copy in between.
//!
//! It must produce the same bytes as encoding a whole `FetchResponse`; a test compares the two.

use crate::Uuid;
use crate::message::Request;
use crate::wire::{Form, Tags, Wire, put_len, put_str};

use super::{EpochEndOffset, FetchRequest, LeaderIdAndEpoch, PartitionData, SnapshotId};

/// Writes the body of a `FetchResponse` to the end of a buffer that the caller passes to each call.
///
/// Calls must follow the wire order: [`begin`](Self::begin); for each topic [`topic`](Self::topic); for each of its
/// partitions [`partition`](Self::partition) and one of the methods that write records; finally
/// [`finish`](Self::finish). Counts are announced in advance, and checked in debug builds only.
#[derive(Debug)]
pub struct FetchResponseWriter {
    form: Form,
    topics_left: usize,
    partitions_left: usize,
    /// Tagged fields of the current partition.
    tags: Tags,
}

/// Bytes reserved for a compact length: exact from 16 KiB to just under 2 MiB. Records of any other size have to be
/// moved afterwards, but those are either small or rare.
const COMPACT_BYTES: usize = 3;

impl FetchResponseWriter {
    /// Writes everything before the topics. Error code and session id exist since version 7.
    pub fn begin(
        into: &mut Vec<u8>,
        version: i16,
        throttle_time_ms: i32,
        error_code: i16,
        session_id: i32,
        topics: usize,
    ) -> Self {
        let form = Form::of(version, FetchRequest::FLEXIBLE_FROM);
        throttle_time_ms.put(into, form);
        if version >= 7 {
            error_code.put(into, form);
            session_id.put(into, form);
        }
        put_len(topics, into, form);
        Self { form, topics_left: topics, partitions_left: 0, tags: Tags::default() }
    }

    /// Begins a topic. Up to version 12 `name` is written, later `topic_id`.
    pub fn topic(&mut self, into: &mut Vec<u8>, name: &str, topic_id: Uuid, partitions: usize) {
        debug_assert!(self.topics_left > 0 && self.partitions_left == 0, "more topics than announced");
        self.topics_left -= 1;
        if self.form.version >= 13 {
            topic_id.put(into, self.form);
        } else {
            put_str(name, into, self.form);
        }
        put_len(partitions, into, self.form);
        self.partitions_left = partitions;
        if partitions == 0 {
            self.put_empty_tags(into);
        }
    }

    /// Writes everything before the records of a partition; ignores `partition.records`.
    pub fn partition(&mut self, into: &mut Vec<u8>, partition: &PartitionData) {
        debug_assert!(self.partitions_left > 0, "more partitions than announced");
        let form = self.form;
        partition.partition_index.put(into, form);
        partition.error_code.put(into, form);
        partition.high_watermark.put(into, form);
        partition.last_stable_offset.put(into, form);
        if form.version >= 5 {
            partition.log_start_offset.put(into, form);
        }
        partition.aborted_transactions.put(into, form);
        if form.version >= 11 {
            partition.preferred_read_replica.put(into, form);
        }
        if form.flexible {
            self.gather_tags(partition);
        }
    }

    fn gather_tags(&mut self, partition: &PartitionData) {
        self.tags = Tags::default();
        if partition.diverging_epoch != EpochEndOffset::default() {
            self.tags.push(0, &partition.diverging_epoch, self.form);
        }
        if partition.current_leader != LeaderIdAndEpoch::default() {
            self.tags.push(1, &partition.current_leader, self.form);
        }
        if partition.snapshot_id != SnapshotId::default() {
            self.tags.push(2, &partition.snapshot_id, self.form);
        }
    }

    /// Copies the records of the partition.
    pub fn records(&mut self, into: &mut Vec<u8>, records: &[u8]) {
        self.begin_records(into, records.len());
        into.extend_from_slice(records);
        self.end_records(into);
    }

    /// Lets `read` append the records of the partition; their length need not be known in advance.
    pub fn records_from<R>(&mut self, into: &mut Vec<u8>, read: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let at = into.len();
        let room = if self.form.flexible { COMPACT_BYTES } else { size_of::<i32>() };
        into.resize(at + room, 0);
        let outcome = read(into);
        let mut length = Vec::with_capacity(size_of::<i32>() + 1);
        put_len(into.len() - at - room, &mut length, self.form);
        if length.len() == room {
            into[at..at + room].copy_from_slice(&length);
        } else {
            into.splice(at..at + room, length);
        }
        self.end_records(into);
        outcome
    }

    /// Announces `len` bytes of records. The caller appends them, or sends them separately at this point, then calls
    /// [`end_records`](Self::end_records).
    pub fn begin_records(&mut self, into: &mut Vec<u8>, len: usize) {
        put_len(len, into, self.form);
    }

    /// Ends the partition after [`begin_records`](Self::begin_records).
    pub fn end_records(&mut self, into: &mut Vec<u8>) {
        if self.form.flexible {
            self.tags.put(into);
        }
        self.partitions_left -= 1;
        if self.partitions_left == 0 {
            self.put_empty_tags(into);
        }
    }

    /// Ends the response.
    pub fn finish(self, into: &mut Vec<u8>) {
        debug_assert!(
            self.topics_left == 0 && self.partitions_left == 0,
            "fewer topics or partitions than announced"
        );
        self.put_empty_tags(into);
    }

    fn put_empty_tags(&self, into: &mut Vec<u8>) {
        if self.form.flexible {
            into.push(0);
        }
    }
}
