//! Wills of durable sessions: one that is due after the broker died is published, one that is not yet due is not.

use super::link::{Link, Lost};
use super::random::Random;
use super::world::World;
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
/// Where wills go.
const TOPIC: &str = "kill/will";
const DUE: &str = "due";
const NOT_DUE: &str = "not due";
/// Longest will delay of those that are to be published, in seconds.
const DELAY_S_MAX: u64 = 2;
/// Longest time from the end of a connection to its will, beyond the delay, until it counts as late.
const PATIENCE: Duration = Duration::from_secs(30);
const EXPIRY_S: u32 = 3600;

/// Keeps note of all wills, with a durable session.
pub(super) fn watch(world: &World) {
    let connect = Connect::new("kill-will-watch").resume().session_expiry(EXPIRY_S);
    let mut watch = || -> Result<(), Lost> {
        let (mut link, connack) = Link::open(world.port, Version::V5, &connect)?;
        if !connack.session_present {
            if world.is_watching.load(Ordering::SeqCst) {
                world.faults.add("session lost", "watcher of wills");
            }
            link.put(&Subscribe::new(1).filter(format!("{TOPIC}/#"), 1));
        }
        let mut packets = Vec::new();
        while !world.is_over() {
            link.flush()?;
            link.take(TURN, &mut packets)?;
            for packet in packets.drain(..) {
                match packet {
                    Packet::Publish(message) => {
                        link.put(&wire::ack(PUBACK, message.id));
                        world.wills.lock().unwrap_or_else(PoisonError::into_inner).push(message.payload);
                    }
                    Packet::Answer(_) => world.is_watching.store(true, Ordering::SeqCst),
                    other => return Err(Lost::Wrong(format!("{other:?}"))),
                }
            }
        }
        Ok(())
    };
    repeat(world, "watcher of wills", World::is_over, &mut watch);
}

/// A client whose will is due soon after its connection was lost: it stays away until the will has come.
pub(super) fn due(world: &World, index: u64) {
    let mut random = Random::child(world.seed, index);
    let mut number = 0;
    let mut client = || -> Result<(), Lost> {
        number += 1;
        let payload = format!("{DUE} {number}");
        let delay = random.below(DELAY_S_MAX + 1);
        let ended = hold(world, "kill-will-due", &payload, delay as u32)?;
        let until = Instant::now() + Duration::from_secs(delay) + PATIENCE;
        while ended == Ended::Lost && !has_come(world, &payload) && !world.is_over() {
            if Instant::now() > until {
                world.late_wills.lock().unwrap_or_else(PoisonError::into_inner).push(payload);
                return Ok(());
            }
            thread::sleep(TURN);
        }
        Ok(())
    };
    repeat(world, "client with a will", World::is_closing, &mut client);
}

/// Whether all wills have come that were late while the broker died again and again.
pub(super) fn all_have_come(world: &World) -> bool {
    let late = world.late_wills.lock().unwrap_or_else(PoisonError::into_inner);
    late.iter().all(|payload| has_come(world, payload))
}

/// Those that have not come are lost.
pub(super) fn judge(world: &World) {
    let late = world.late_wills.lock().unwrap_or_else(PoisonError::into_inner);
    for payload in late.iter().filter(|payload| !has_come(world, payload)) {
        world.faults.add("will lost", payload);
    }
}

/// A client whose will is due much later: it is always back before that.
pub(super) fn not_due(world: &World) {
    let mut client = || hold(world, "kill-will-not-due", NOT_DUE, EXPIRY_S).map(drop);
    repeat(world, "client with a delayed will", World::is_closing, &mut client);
    if has_come(world, NOT_DUE) {
        world.faults.add("will published before its time", NOT_DUE);
    }
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Lost,
    Left,
}

/// Connects with a will and stays until the broker ends it, or the run closes.
fn hold(world: &World, name: &str, payload: &str, delay_s: u32) -> Result<Ended, Lost> {
    let props = Props::new().four(WILL_DELAY_INTERVAL, delay_s);
    let will = Will::new(format!("{TOPIC}/{name}"), payload).qos(1).props(props);
    let connect = Connect::new(name).resume().session_expiry(EXPIRY_S).will(will);
    let (mut link, _) = Link::open(world.port, Version::V5, &connect)?;
    let mut packets = Vec::new();
    while !world.is_closing() {
        match link.take(TURN, &mut packets) {
            Ok(()) => {}
            Err(Lost::Gone) => return Ok(Ended::Lost),
            Err(wrong) => return Err(wrong),
        }
    }
    link.put(&wire::DISCONNECT);
    link.flush()?;
    Ok(Ended::Left)
}

fn has_come(world: &World, payload: &str) -> bool {
    let wills = world.wills.lock().unwrap_or_else(PoisonError::into_inner);
    wills.iter().any(|will| will == payload.as_bytes())
}

/// Runs a client again and again, until `is_done` says so.
fn repeat(
    world: &World,
    name: &str,
    is_done: fn(&World) -> bool,
    client: &mut dyn FnMut() -> Result<(), Lost>,
) {
    while !is_done(world) {
        if let Err(Lost::Wrong(what)) = client() {
            world.faults.add("protocol", format_args!("{name}: {what}"));
        }
        thread::sleep(RECONNECT);
    }
}
