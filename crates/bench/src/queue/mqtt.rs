//! Work queues over MQTT 5: PUBLISH to `$queue/<name>` and a subscription to it, both at QoS 1.
//!
//! MQTT has no packets to create a queue or to read its depth; the HTTP API does both. Without it, the first message
//! creates the queue, and the depth is unknown.

use std::net::SocketAddr;

use mainstem_mqtt::packet::{Connect, Disconnect, Packet, QoS, Version};
use mainstem_mqtt::{Header, PacketType};
use serde_json::json;

use super::blocking::BlockingConnection;
use super::http;
use super::options::{QueueDurability, QueueOptions};
use super::protocol::{Protocol, Role, Server, ServerEvent};
use crate::error::BenchError;
use crate::handshake::{connack, suback, subscribe, unexpected};
use crate::net::Fault;
use crate::wire::{Acknowledged, PUBACK, Prepared, Received, Stamp, append_ack};

const VERSION: Version = Version::V5;
/// Smallest reason code that is an error.
const REASON_ERROR_MIN: u8 = 0x80;

/// An MQTT broker with queues.
#[derive(Debug)]
pub(super) struct Broker<'a> {
    pub(super) options: &'a QueueOptions,
    pub(super) address: SocketAddr,
    pub(super) queue: &'a str,
    /// Address of the HTTP API, if known.
    pub(super) http: Option<SocketAddr>,
    pub(super) durability: QueueDurability,
    pub(super) filler: &'a [u8],
}

impl Server for Broker<'_> {
    type Protocol = Session;

    fn declare(&mut self) -> Result<(), BenchError> {
        let Some(http) = self.http else { return Ok(()) };
        let settings = json!({ "durability": self.durability.name() });
        http::request(http, "PUT", &format!("/v1/queues/{}", self.queue), Some(&settings)).map(drop)
    }

    fn open(&self, role: Role, number: u32) -> Result<(BlockingConnection, Session), BenchError> {
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
        let invalid = |error: &dyn std::fmt::Display| BenchError::Options(format!("queue name: {error}"));
        Packet::Connect(connect).encode(VERSION, &mut bytes).map_err(|error| invalid(&error))?;
        let mut conn = BlockingConnection::open(self.address)?;
        conn.send(&bytes)?;
        let limits = conn.receive(|bytes| {
            let Some((_, frame)) = frame(bytes)? else { return Ok(None) };
            Ok(Some((frame.len(), connack(VERSION, QoS::AtLeastOnce, frame).map_err(broken)?)))
        })?;
        if role == Role::Publisher && u32::from(limits.receive_maximum) < self.options.in_flight {
            let max = limits.receive_maximum;
            return Err(BenchError::Options(format!(
                "the broker allows at most {max} messages in flight per client"
            )));
        }
        let topic = format!("$queue/{}", self.queue);
        let prepared = Prepared::new(VERSION, &topic, QoS::AtLeastOnce, false, self.filler);
        let mut subscription = Vec::new();
        subscribe(VERSION, QoS::AtLeastOnce, &[topic], &mut subscription).map_err(broken)?;
        Ok((conn, Session { prepared: prepared.map_err(|error| invalid(&error))?, subscription }))
    }

    fn depth(&mut self) -> Result<Option<u64>, BenchError> {
        let Some(http) = self.http else { return Ok(None) };
        let info = http::request(http, "GET", &format!("/v1/queues/{}", self.queue), None)?;
        let messages = info["messages"].as_u64();
        let messages = messages.ok_or_else(|| {
            BenchError::Broken("the HTTP API returned no message count of the queue".into())
        })?;
        Ok(Some(messages))
    }
}

/// Protocol state of one client.
#[derive(Debug)]
pub(super) struct Session {
    prepared: Prepared,
    /// Encoded SUBSCRIBE.
    subscription: Vec<u8>,
}

impl Protocol for Session {
    fn start_consuming(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.subscription);
    }

    #[inline]
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>) {
        // Packet identifier 0 is invalid [MQTT-2.2.1-2].
        self.prepared.append(out, slot as u16 + 1, stamp, filler);
    }

    #[inline]
    fn handle_input(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut on_event: impl FnMut(ServerEvent<'_>),
    ) -> Result<usize, BenchError> {
        let Some((header, frame)) = frame(bytes)? else { return Ok(0) };
        match PacketType::of(header.first) {
            Ok(PacketType::Publish) => {
                let publish = Received::parse(VERSION, &header, frame).ok_or_else(|| malformed("PUBLISH"))?;
                append_ack(out, PUBACK, publish.packet_id);
                on_event(ServerEvent::Delivered(publish.payload));
            }
            Ok(PacketType::PubAck) => {
                let ack = Acknowledged::parse(&header, frame).filter(|ack| ack.packet_id > 0);
                let ack = ack.ok_or_else(|| malformed("PUBACK"))?;
                let slot = u32::from(ack.packet_id) - 1;
                on_event(match ack.reason {
                    REASON_ERROR_MIN.. => {
                        ServerEvent::Refused(slot, format!("reason code {:#04x}", ack.reason))
                    }
                    _ => ServerEvent::Acknowledged(slot),
                });
            }
            Ok(PacketType::SubAck) => suback(VERSION, QoS::AtLeastOnce, frame).map_err(broken)?,
            _ => unexpected(VERSION, &header, frame).map_err(broken)?,
        }
        Ok(frame.len())
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let disconnect = Packet::Disconnect(Disconnect::default());
        disconnect.encode(VERSION, out).expect("the packet has no variable part");
    }
}

/// The first packet of `bytes`; `None` if incomplete.
#[inline]
fn frame(bytes: &[u8]) -> Result<Option<(Header, &[u8])>, BenchError> {
    let Some(header) = Header::parse(bytes).map_err(|error| malformed(&error.to_string()))? else {
        return Ok(None);
    };
    Ok(bytes.get(..header.packet_len()).map(|frame| (header, frame)))
}

fn malformed(what: &str) -> BenchError {
    BenchError::Broken(format!("the broker sent a malformed packet: {what}"))
}

fn broken(fault: Fault) -> BenchError {
    BenchError::Broken(fault.0)
}
