//! Copies of old messages.
//!
//! The log of messages can only be cut at its start, so one old unsettled message would keep everything after it on
//! disk. Copying that message into the state log allows the log of messages to be cut.

use std::collections::VecDeque;

use mainstem_log::{Batch, BatchBuilder, BatchHeader, LogId, Store, rebuild};

use super::{InFlight, RELOCATED, Written};
use crate::request::{Payload, UncompressedBatch};

/// A batch of one record, with its original offset.
fn single_record_batch(payload: &Payload) -> Vec<u8> {
    let record = payload.record();
    let header = BatchHeader {
        base_offset: record.offset,
        base_timestamp_ms: record.timestamp_ms,
        max_timestamp_ms: record.timestamp_ms,
        last_offset_delta: 0,
        ..payload.batch_header()
    };
    let mut bytes = Vec::new();
    rebuild(&header, std::iter::once(record), &mut bytes);
    bytes
}

pub(super) fn read(bytes: &[u8]) -> Option<Payload> {
    Payload::first(&UncompressedBatch::copy(&Batch::parse(bytes).ok()?)?)
}

/// Appends a copy of a message to the state log.
pub(super) fn append(
    store: &mut dyn Store,
    state: LogId,
    payload: &Payload,
    is_first: bool,
    in_flight: &mut VecDeque<InFlight>,
) -> Option<Payload> {
    let copy = single_record_batch(payload);
    let mut builder = BatchBuilder::default();
    builder.push(payload.record().timestamp_ms, Some(RELOCATED), Some(&copy));
    let appended = store.append(state, builder.finish()).ok()?;
    in_flight.push_back(InFlight {
        ticket: appended.ticket,
        kind: Written::Relocated(is_first.then(|| payload.record().offset)),
    });
    read(&copy)
}
