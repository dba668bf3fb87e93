//! Reader of retained messages: each must be at least as new as the last acknowledged one of its topic.

use super::connection::{Connection, ConnectionError};
use super::shared::{RETAINED, SharedState, Stream};
use mainstem_conformance::Version;
use mainstem_conformance::packet::{Message, PUBACK, Packet, SUBACK};
use mainstem_conformance::wire::{self, Connect, Subscribe};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(20);
/// Interval between checks, unless the broker was restarted.
const PAUSE: Duration = Duration::from_secs(2);
/// Timeout of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// Checks the retained messages after every restart and at intervals, until the run closes.
pub(super) fn watch(shared: &SharedState) {
    let mut checked_restarts = 0;
    let mut next = Instant::now();
    while !shared.is_closing() {
        let restarts = shared.restarts.load(Ordering::SeqCst);
        if restarts != checked_restarts || Instant::now() > next {
            match check(shared) {
                Ok(()) => (checked_restarts, next) = (restarts, Instant::now() + PAUSE),
                Err(ConnectionError::Closed) => {}
                Err(ConnectionError::Violation(what)) => {
                    shared.violations.add("protocol", format_args!("reader of retained messages: {what}"));
                }
            }
        }
        thread::sleep(TURN);
    }
}

/// Checks all retained messages on a new connection without a session.
///
/// # Errors
/// If the connection ends before the check is complete.
pub(super) fn check(shared: &SharedState) -> Result<(), ConnectionError> {
    let acked = shared.acked();
    let (mut connection, _) = Connection::open(shared.port, Version::V5, &Connect::new("kill-retained"))?;
    connection.put(&Subscribe::new(1).filter(format!("{RETAINED}/#"), 1));
    connection.flush()?;
    let mut values: Vec<Option<u64>> = vec![None; shared.streams.len()];
    let until = Instant::now() + CHECK_TIMEOUT;
    let (mut is_subscribed, mut packets) = (false, Vec::new());
    while !is_subscribed || missing(shared, &acked, &values).next().is_some() {
        if Instant::now() > until {
            break;
        }
        connection.receive(TURN, &mut packets)?;
        for packet in packets.drain(..) {
            match packet {
                Packet::Answer(answer) if answer.kind == SUBACK => is_subscribed = true,
                Packet::Publish(message) => {
                    connection.put(&wire::ack(PUBACK, message.id));
                    record(shared, &acked, &mut values, &message)?;
                }
                other => return Err(ConnectionError::Violation(format!("{other:?}"))),
            }
        }
        connection.flush()?;
    }
    let found = values.iter().flatten().count() as u64;
    shared.retained_checked.fetch_add(found, Ordering::Relaxed);
    for stream in missing(shared, &acked, &values) {
        let sentence = format_args!("{}: nothing, acknowledged before {}", stream.topic, stream.acked());
        shared.violations.add("retained message lost", sentence);
    }
    Ok(())
}

/// Checks a message with the RETAIN flag. Live messages are ignored, because they were not read from the store.
fn record(
    shared: &SharedState,
    acked: &[u64],
    values: &mut [Option<u64>],
    message: &Message,
) -> Result<(), ConnectionError> {
    if !message.retain {
        return Ok(());
    }
    let at = shared.stream_of(&message.topic);
    let number = at.and_then(|at| Some((at, shared.streams[at].number_of(&message.payload)?)));
    let Some((at, number)) = number else {
        return Err(ConnectionError::Violation(format!(
            "a retained message that was never sent, on {}",
            message.topic
        )));
    };
    if number + 1 < acked[at] || number >= shared.streams[at].sent() {
        let sentence = format_args!("{}: {number}, acknowledged before {}", message.topic, acked[at]);
        shared.violations.add("retained message stale", sentence);
    }
    values[at] = Some(number);
    Ok(())
}

/// Retained streams whose message should exist and has not arrived. Streams that may have been cleared are excluded.
fn missing<'a>(
    shared: &'a SharedState,
    acked: &'a [u64],
    values: &'a [Option<u64>],
) -> impl Iterator<Item = &'a Stream> {
    let all = shared.streams.iter().zip(acked).zip(values);
    let due = |stream: &Stream, acked: u64| {
        stream.retain && acked > 0 && !Stream::clears_within(acked - 1..stream.sent())
    };
    all.filter(move |((stream, acked), value)| value.is_none() && due(stream, **acked))
        .map(|((stream, _), _)| stream)
}
