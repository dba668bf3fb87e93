//! Attacks on the edge of the broker: connection storms, silent and slow connections, garbage.

use super::super::attacker::{Attacker, Link};
use mainstem_conformance::Version;
use mainstem_conformance::wire::{Connect, Wire};
use std::io;
use std::time::Duration;

/// Connections per round of a storm.
const STORM: usize = 50;
/// Silent or slow connections of one attacker.
const HELD: usize = 200;
/// Idle HTTP connections: the default of `http.max_connections`.
const IDLE_HTTP: usize = 256;
/// Bytes of garbage per write, and writes per connection.
const GARBAGE_BYTES: usize = 64 << 10;
const GARBAGE_WRITES: usize = 1_000;
/// Pause of slow writers between bytes.
const DRIP: Duration = Duration::from_millis(200);

/// Connects, sends CONNECT, and leaves without waiting for the response.
pub(in super::super) fn connect_storm(attacker: &mut Attacker<'_>) -> io::Result<()> {
    for number in 0..STORM {
        let id = format!("{}-{number}", attacker.unique("storm"));
        attacker.open()?.send(&Connect::new(id).bytes(Version::V5))?;
    }
    Ok(())
}

/// Connects and never sends CONNECT.
pub(in super::super) fn never_connect(attacker: &mut Attacker<'_>) -> io::Result<()> {
    hold(attacker, HELD)
}

/// Occupies all connections of the HTTP listener.
pub(in super::super) fn idle_http(attacker: &mut Attacker<'_>) -> io::Result<()> {
    hold(attacker, IDLE_HTTP)
}

/// Opens `count` silent connections and holds them until the broker closes the first.
fn hold(attacker: &Attacker<'_>, count: usize) -> io::Result<()> {
    let mut links = (0..count).map(|_| attacker.open()).collect::<io::Result<Vec<Link<'_>>>>()?;
    while !attacker.is_over() {
        links[0].discard(DRIP)?;
    }
    Ok(())
}

/// Sends the bytes of a CONNECT one at a time, on many connections.
pub(in super::super) fn slow_connect(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let connect = Connect::new(attacker.unique("loris")).bytes(Version::V5);
    let mut links = (0..HELD).map(|_| attacker.open()).collect::<io::Result<Vec<Link<'_>>>>()?;
    for byte in &connect[..connect.len() - 1] {
        for link in &mut links {
            link.send(&[*byte])?;
        }
        attacker.pause(DRIP);
    }
    Ok(())
}

/// Sends a packet that is refused, then garbage for as long as the broker reads it.
pub(in super::super) fn garbage_after_refusal(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    link.send(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF])?;
    let garbage = vec![0xFF; GARBAGE_BYTES];
    for _ in 0..GARBAGE_WRITES {
        link.send(&garbage)?;
    }
    Ok(())
}

/// The first packet claims 256 MiB, and is no CONNECT; its bytes follow slowly.
pub(in super::super) fn huge_first_packet(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    link.send(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F])?;
    for _ in 0..GARBAGE_WRITES {
        link.send(&[0; 1024])?;
    }
    link.await_close(DRIP);
    Ok(())
}
