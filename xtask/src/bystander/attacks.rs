//! The attacks: each function plays one round of one attacker.
//!
//! | file | attacks |
//! |---|---|
//! | `connections` | on the edge: storms, silent and slow connections, garbage |
//! | `packets` | MQTT packets that cost more than they should |
//! | `sessions` | MQTT sessions, subscriptions, retained messages, wills |
//! | `kafka` | the Kafka protocol |
//! | `http` | the HTTP API and its work queues |

pub(super) mod connections;
pub(super) mod http;
pub(super) mod kafka;
pub(super) mod packets;
pub(super) mod sessions;

use super::attacker::{Attacker, Link};
use mainstem_conformance::Version;
use mainstem_conformance::wire::{Connect, Wire};
use std::io;

/// Connects an MQTT client and waits for its CONNACK.
fn client<'a>(attacker: &Attacker<'a>, version: Version, connect: &Connect) -> io::Result<Link<'a>> {
    let mut link = attacker.open()?;
    link.send(&connect.bytes(version))?;
    link.await_reply()?;
    Ok(link)
}
