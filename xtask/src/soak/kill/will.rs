//! Wills across restarts of the broker: a will that became due must be published, one that is not due yet must not.

use super::connection::{Connection, ConnectionError};
use super::random::Random;
use super::shared::SharedState;
use mainstem_conformance::Version;
use mainstem_conformance::packet::{PUBACK, Packet};
use mainstem_conformance::property::{Props, WILL_DELAY_INTERVAL};
use mainstem_conformance::wire::{self, Connect, Subscribe, Will};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(20);
const RECONNECT: Duration = Duration::from_millis(10);
/// Topic prefix of all wills.
const TOPIC: &str = "kill/will";
const DUE: &str = "due";
const NOT_DUE: &str = "not due";
/// Maximum Will Delay Interval of wills that must be published, in seconds.
const DELAY_S_MAX: u64 = 2;
/// Time beyond the delay after which a will counts as late.
const LATE: Duration = Duration::from_secs(30);
const EXPIRY_S: u32 = 3600;

/// Records all published wills, with a persistent session.
pub(super) fn watch(shared: &SharedState) {
    let connect = Connect::new("kill-will-watch").resume().session_expiry(EXPIRY_S);
    let mut watch = || -> Result<(), ConnectionError> {
        let (mut connection, connack) = Connection::open(shared.port, Version::V5, &connect)?;
        if !connack.session_present {
            if shared.is_watching.load(Ordering::SeqCst) {
                shared.violations.add("session lost", "watcher of wills");
            }
            connection.put(&Subscribe::new(1).filter(format!("{TOPIC}/#"), 1));
        }
        let mut packets = Vec::new();
        while !shared.is_over() {
            connection.flush()?;
            connection.receive(TURN, &mut packets)?;
            for packet in packets.drain(..) {
                match packet {
                    Packet::Publish(message) => {
                        connection.put(&wire::ack(PUBACK, message.id));
                        shared.wills.lock().unwrap_or_else(PoisonError::into_inner).push(message.payload);
                    }
                    Packet::Answer(_) => shared.is_watching.store(true, Ordering::SeqCst),
                    other => return Err(ConnectionError::Violation(format!("{other:?}"))),
                }
            }
        }
        Ok(())
    };
    repeat(shared, "watcher of wills", SharedState::is_over, &mut watch);
}

/// Runs a client whose will becomes due soon after a connection loss. It stays offline until the will is published.
pub(super) fn run_due(shared: &SharedState, index: u64) {
    let mut random = Random::child(shared.seed, index);
    let mut number = 0;
    let mut client = || -> Result<(), ConnectionError> {
        number += 1;
        let payload = format!("{DUE} {number}");
        let delay = random.below(DELAY_S_MAX + 1);
        let ended = connect_with_will(shared, "kill-will-due", &payload, delay as u32)?;
        let until = Instant::now() + Duration::from_secs(delay) + LATE;
        while ended == Ended::Broken && !is_published(shared, &payload) && !shared.is_over() {
            if Instant::now() > until {
                shared.late_wills.lock().unwrap_or_else(PoisonError::into_inner).push(payload);
                return Ok(());
            }
            thread::sleep(TURN);
        }
        Ok(())
    };
    repeat(shared, "client with a will", SharedState::is_closing, &mut client);
}

/// Whether all late wills have been published by now.
pub(super) fn late_wills_published(shared: &SharedState) -> bool {
    let late = shared.late_wills.lock().unwrap_or_else(PoisonError::into_inner);
    late.iter().all(|payload| is_published(shared, payload))
}

/// Reports wills that were never published.
pub(super) fn report_lost(shared: &SharedState) {
    let late = shared.late_wills.lock().unwrap_or_else(PoisonError::into_inner);
    for payload in late.iter().filter(|payload| !is_published(shared, payload)) {
        shared.violations.add("will lost", payload);
    }
}

/// Runs a client with a long will delay. It always reconnects before the will is due.
pub(super) fn run_not_due(shared: &SharedState) {
    let mut client = || connect_with_will(shared, "kill-will-not-due", NOT_DUE, EXPIRY_S).map(drop);
    repeat(shared, "client with a delayed will", SharedState::is_closing, &mut client);
    if is_published(shared, NOT_DUE) {
        shared.violations.add("will published before its delay", NOT_DUE);
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Broken,
    Disconnected,
}

/// Connects with a will and stays connected until the connection breaks or the run closes.
fn connect_with_will(
    shared: &SharedState,
    name: &str,
    payload: &str,
    delay_s: u32,
) -> Result<Ended, ConnectionError> {
    let props = Props::new().four(WILL_DELAY_INTERVAL, delay_s);
    let will = Will::new(format!("{TOPIC}/{name}"), payload).qos(1).props(props);
    let connect = Connect::new(name).resume().session_expiry(EXPIRY_S).will(will);
    let (mut connection, _) = Connection::open(shared.port, Version::V5, &connect)?;
    let mut packets = Vec::new();
    while !shared.is_closing() {
        match connection.receive(TURN, &mut packets) {
            Ok(()) => {}
            Err(ConnectionError::Closed) => return Ok(Ended::Broken),
            Err(error) => return Err(error),
        }
    }
    connection.put(&wire::DISCONNECT);
    connection.flush()?;
    Ok(Ended::Disconnected)
}

fn is_published(shared: &SharedState, payload: &str) -> bool {
    let wills = shared.wills.lock().unwrap_or_else(PoisonError::into_inner);
    wills.iter().any(|will| will == payload.as_bytes())
}

/// Runs a client repeatedly until `is_done`.
fn repeat(
    shared: &SharedState,
    name: &str,
    is_done: fn(&SharedState) -> bool,
    client: &mut dyn FnMut() -> Result<(), ConnectionError>,
) {
    while !is_done(shared) {
        if let Err(ConnectionError::Violation(what)) = client() {
            shared.violations.add("protocol", format_args!("{name}: {what}"));
        }
        thread::sleep(RECONNECT);
    }
}
