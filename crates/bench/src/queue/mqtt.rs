//! Work queues over MQTT 5: publishes to `$queue/<name>`, and a subscription to it, both at QoS 1.

use std::net::SocketAddr;

use mainstem_mqtt::packet::{Connect, Disconnect, Packet, QoS, Version};
use mainstem_mqtt::{Header, PacketType};
use serde_json::json;

use super::dialogue::Dialogue;
use super::http;
use super::options::{QueueDurability, QueueOptions};
use super::talk::{Heard, Role, Server, Talk};
use crate::error::BenchError;
use crate::net::Fault;
use crate::opening::{connack, suback, subscribe, unexpected};
use crate::wire::{Acknowledged, PUBACK, Prepared, Received, Stamp, append_ack};

const VERSION: Version = Version::V5;
/// Reason codes from here on are errors.
const REASON_ERROR_MIN: u8 = 0x80;

/// A broker with queues.
#[derive(Debug)]
pub(super) struct Broker<'a> {
    pub(super) options: &'a QueueOptions,
    pub(super) address: SocketAddr,
    pub(super) queue: &'a str,
    /// The HTTP API, if there is one.
    pub(super) http: Option<SocketAddr>,
    pub(super) durability: QueueDurability,
    pub(super) filler: &'a [u8],
}

impl Server for Broker<'_> {
    type Talk = Session;

    fn declare(&mut self) -> Result<(), BenchError> {
        let Some(http) = self.http else { return Ok(()) };
        let settings = json!({ "durability": self.durability.name() });
        http::ask(http, "PUT", &format!("/v1/queues/{}", self.queue), Some(&settings)).map(drop)
    }

    fn open(&self, role: Role, number: u32) -> Result<(Dialogue, Session), BenchError> {
        let (kind, receive_maximum) = match role {
            Role::Publisher => ('p', None),
            Role::Consumer => ('c', Some(self.options.prefetch)),
        };
        let client_id = format!("q{}{kind}{number}", std::process::id());
        let connect = Connect {
            receive_maximum,
            clean_start: true,
            keep_alive: u16::MAX,
            ..Connect::new(VERSION, &client_id)
        };
        let mut bytes = Vec::new();
        let odd = |error: &dyn std::fmt::Display| BenchError::Options(format!("the queue's name: {error}"));
        Packet::Connect(connect).encode(VERSION, &mut bytes).map_err(|error| odd(&error))?;
        let mut dialogue = Dialogue::open(self.address)?;
        dialogue.say(&bytes)?;
        let limits = dialogue.hear(|bytes| {
            let Some((_, frame)) = frame(bytes)? else { return Ok(None) };
            Ok(Some((frame.len(), connack(VERSION, QoS::AtLeastOnce, frame).map_err(broken)?)))
        })?;
        if role == Role::Publisher && u32::from(limits.receive_maximum) < self.options.in_flight {
            let most = limits.receive_maximum;
            return Err(BenchError::Options(format!(
                "the broker takes no more than {most} in flight from one client"
            )));
        }
        let topic = format!("$queue/{}", self.queue);
        let prepared = Prepared::new(VERSION, &topic, QoS::AtLeastOnce, false, self.filler);
        let mut subscription = Vec::new();
        subscribe(VERSION, QoS::AtLeastOnce, &[topic], &mut subscription).map_err(broken)?;
        Ok((dialogue, Session { prepared: prepared.map_err(|error| odd(&error))?, subscription }))
    }

    fn depth(&mut self) -> Result<Option<u64>, BenchError> {
        let Some(http) = self.http else { return Ok(None) };
        let info = http::ask(http, "GET", &format!("/v1/queues/{}", self.queue), None)?;
        let messages = info["messages"].as_u64();
        let messages =
            messages.ok_or_else(|| BenchError::Broken("the broker does not count the queue".into()))?;
        Ok(Some(messages))
    }
}

/// One client.
#[derive(Debug)]
pub(super) struct Session {
    prepared: Prepared,
    /// SUBSCRIBE, encoded.
    subscription: Vec<u8>,
}

impl Talk for Session {
    fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.subscription);
    }

    #[inline]
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>) {
        // Identifier 0 is none [MQTT-2.2.1-2].
        self.prepared.append(out, slot as u16 + 1, stamp, filler);
    }

    #[inline]
    fn take(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut heard: impl FnMut(Heard<'_>),
    ) -> Result<usize, BenchError> {
        let Some((header, frame)) = frame(bytes)? else { return Ok(0) };
        match PacketType::of(header.first) {
            Ok(PacketType::Publish) => {
                let publish = Received::parse(VERSION, &header, frame).ok_or_else(|| odd("a PUBLISH"))?;
                append_ack(out, PUBACK, publish.packet_id);
                heard(Heard::Delivered(publish.payload));
            }
            Ok(PacketType::PubAck) => {
                let ack = Acknowledged::parse(&header, frame).filter(|ack| ack.packet_id > 0);
                let ack = ack.ok_or_else(|| odd("a PUBACK"))?;
                let slot = u32::from(ack.packet_id) - 1;
                heard(match ack.reason {
                    REASON_ERROR_MIN.. => Heard::Refused(slot, format!("reason code {:#04x}", ack.reason)),
                    _ => Heard::Taken(slot),
                });
            }
            Ok(PacketType::SubAck) => suback(VERSION, QoS::AtLeastOnce, frame).map_err(broken)?,
            _ => unexpected(VERSION, &header, frame).map_err(broken)?,
        }
        Ok(frame.len())
    }

    fn leave(&mut self, out: &mut Vec<u8>) {
        let goodbye = Packet::Disconnect(Disconnect::default());
        goodbye.encode(VERSION, out).expect("the packet has no variable part");
    }
}

/// The first packet of `bytes`, if all of it has come.
#[inline]
fn frame(bytes: &[u8]) -> Result<Option<(Header, &[u8])>, BenchError> {
    let Some(header) = Header::parse(bytes).map_err(|error| odd(&error.to_string()))? else {
        return Ok(None);
    };
    Ok(bytes.get(..header.packet_len()).map(|frame| (header, frame)))
}

fn odd(what: &str) -> BenchError {
    BenchError::Broken(format!("the broker sent what makes no sense: {what}"))
}

fn broken(fault: Fault) -> BenchError {
    BenchError::Broken(fault.0)
}
