//! Copies of old messages, which let those behind them go from the disk.

use std::collections::VecDeque;

use mainstem_log::{Batch, BatchBuilder, BatchHeader, LogId, Store, rebuild};

use super::{ASIDE, Flight, Written};
use crate::ask::{Payload, Plain};

/// A batch with one record alone, at its own offset.
fn alone(payload: &Payload) -> Vec<u8> {
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
    Payload::first(&Plain::copy(&Batch::parse(bytes).ok()?)?)
}

/// Copies a message into the state's log.
pub(super) fn append(
    store: &mut dyn Store,
    state: LogId,
    payload: &Payload,
    is_first: bool,
    in_flight: &mut VecDeque<Flight>,
) -> Option<Payload> {
    let copy = alone(payload);
    let mut builder = BatchBuilder::default();
    builder.push(payload.record().timestamp_ms, Some(ASIDE), Some(&copy));
    let appended = store.append(state, builder.finish()).ok()?;
    in_flight.push_back(Flight {
        ticket: appended.ticket,
        what: Written::Aside(is_first.then(|| payload.record().offset)),
    });
    read(&copy)
}
