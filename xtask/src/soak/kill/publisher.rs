//! A publisher with a persistent session: resends unacknowledged messages, unchanged, until they are acknowledged.

use super::connection::{Connection, ConnectionError};
use super::random::Random;
use super::shared::{SharedState, count};
use mainstem_conformance::Version;
use mainstem_conformance::packet::{Ack, ConnAck, PUBACK, PUBCOMP, PUBREC, PUBREL, Packet};
use mainstem_conformance::property::RECEIVE_MAXIMUM;
use mainstem_conformance::wire::{self, Connect, Publish};
use std::collections::VecDeque;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum wait for acknowledgements before checking whether more messages are due.
const TURN: Duration = Duration::from_millis(5);
const RECONNECT: Duration = Duration::from_millis(10);
/// Duration of a connection if the broker does not end it.
const CONNECTED: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(10);
/// Maximum time without an acknowledgement while connected.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// Session expiry interval, in seconds.
const EXPIRY_S: u32 = 3600;

/// Configuration of a publisher.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) version: Version,
    /// Index range in the shared streams; all have the same QoS.
    pub(super) streams: Range<usize>,
    /// Maximum unacknowledged messages.
    pub(super) window: usize,
    /// Maximum messages per second.
    pub(super) rate: f64,
}

/// An in-flight message.
struct Sent {
    id: u16,
    stream: usize,
    number: u64,
    /// PUBREC received: only PUBREL is resent.
    is_received: bool,
}

/// State of one publisher; survives restarts of the broker.
pub(super) struct Publisher<'a> {
    shared: &'a SharedState,
    plan: Plan,
    random: Random,
    /// In the order of the first transmission.
    in_flight: VecDeque<Sent>,
    last_id: u16,
    /// Messages published since `began`; determines the pace and the next stream.
    published: u64,
    began: Instant,
    /// A session exists, so CONNACK must set Session Present.
    has_session: bool,
    progress_at: Instant,
}

impl<'a> Publisher<'a> {
    pub(super) fn new(shared: &'a SharedState, plan: Plan, index: u64) -> Self {
        let random = Random::child(shared.seed, index);
        let now = Instant::now();
        Self {
            shared,
            plan,
            random,
            in_flight: VecDeque::new(),
            last_id: 0,
            published: 0,
            began: now,
            has_session: false,
            progress_at: now,
        }
    }

    /// Publishes until the run closes and everything in flight is acknowledged.
    pub(super) fn run(mut self) {
        while !self.is_done() {
            match self.run_connection() {
                Ok(()) => {}
                Err(ConnectionError::Closed) => thread::sleep(RECONNECT),
                Err(ConnectionError::Violation(what)) => {
                    self.shared.violations.add("protocol", format_args!("{}: {what}", self.plan.name));
                    thread::sleep(RECONNECT);
                }
            }
        }
        if !self.in_flight.is_empty() {
            let (count, name) = (self.in_flight.len() as u64, &self.plan.name);
            let received = self.in_flight.iter().filter(|sent| sent.is_received).count();
            let sentence =
                format_args!("{count} of {name}, {received} of them with PUBREC and without PUBCOMP");
            self.shared.violations.add_many("never acknowledged", count, sentence);
        }
    }

    fn is_done(&self) -> bool {
        self.shared.is_over() || self.shared.is_closing() && self.in_flight.is_empty()
    }

    /// Runs one connection.
    fn run_connection(&mut self) -> Result<(), ConnectionError> {
        let connect = Connect::new(&self.plan.name).resume().session_expiry(EXPIRY_S);
        let (mut connection, connack) = Connection::open(self.shared.port, self.plan.version, &connect)?;
        self.resume(&connack);
        let window = window(&self.plan, &connack);
        self.resend(&mut connection);
        let connected_until = Instant::now() + self.random.time(&CONNECTED);
        self.progress_at = Instant::now();
        let mut packets = Vec::new();
        while !self.is_done() && (self.shared.is_closing() || Instant::now() < connected_until) {
            if !self.shared.is_closing() {
                self.publish(&mut connection, window);
            }
            connection.flush()?;
            connection.receive(TURN, &mut packets)?;
            for packet in packets.drain(..) {
                self.handle(&mut connection, packet)?;
            }
            if !self.in_flight.is_empty() && self.progress_at.elapsed() > ACK_TIMEOUT {
                return Err(ConnectionError::Violation(format!("no acknowledgement within {ACK_TIMEOUT:?}")));
            }
        }
        // Drop the connection without DISCONNECT, with acknowledgements in flight.
        if !self.shared.is_closing() {
            self.publish(&mut connection, window);
            connection.flush()?;
        }
        Ok(())
    }

    fn resume(&mut self, connack: &ConnAck) {
        if self.has_session && !connack.session_present {
            self.shared.violations.add("session lost", &self.plan.name);
            // Without a session, PUBREL is impossible; all other messages are published again.
            self.in_flight.retain(|sent| !sent.is_received);
        }
        self.has_session = true;
    }

    /// Resends all in-flight messages in order, with their packet identifiers [MQTT-4.4.0-1].
    fn resend(&mut self, connection: &mut Connection) {
        for sent in &self.in_flight {
            if sent.is_received {
                connection.put(&wire::ack(PUBREL, sent.id));
            } else {
                count(&self.shared.resent);
                connection.put(&self.packet(sent).dup());
            }
        }
    }

    fn packet(&self, sent: &Sent) -> Publish {
        let stream = &self.shared.streams[sent.stream];
        let publish = Publish::new(&stream.topic, stream.payload(sent.number)).qos(stream.qos).id(sent.id);
        if stream.retain { publish.retain() } else { publish }
    }

    /// Publishes as many messages as the window and the rate allow.
    fn publish(&mut self, connection: &mut Connection, window: usize) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a run is short")]
        let due = (self.began.elapsed().as_secs_f64() * self.plan.rate) as u64;
        while self.in_flight.len() < window && self.published < due {
            let stream = self.plan.streams.start + (self.published % self.plan.streams.len() as u64) as usize;
            let sent = Sent {
                id: self.fresh_id(),
                stream,
                number: self.shared.streams[stream].next(),
                is_received: false,
            };
            connection.put(&self.packet(&sent));
            self.in_flight.push_back(sent);
            self.published += 1;
        }
        // Do not make up for downtime in one burst.
        if self.in_flight.len() < window / 2 && self.published + 10 * (window as u64) < due {
            self.began = Instant::now();
            self.published = 0;
        }
    }

    fn fresh_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if self.in_flight.iter().all(|sent| sent.id != self.last_id) {
                return self.last_id;
            }
        }
    }

    fn handle(&mut self, connection: &mut Connection, packet: Packet) -> Result<(), ConnectionError> {
        let Packet::Ack(ack) = packet else {
            return Err(ConnectionError::Violation(format!("unexpected packet for a publisher: {packet:?}")));
        };
        self.progress_at = Instant::now();
        let Some(at) = self.in_flight.iter().position(|sent| sent.id == ack.id) else {
            return Err(ConnectionError::Violation(format!("{} was not in flight", describe(&ack))));
        };
        let (sent, qos) = (&mut self.in_flight[at], self.shared.streams[self.plan.streams.start].qos);
        let stream = &self.shared.streams[sent.stream];
        if matches!(ack.kind, PUBACK | PUBREC) {
            // 0x10 (no matching subscribers) would mean that the subscriptions were lost.
            if ack.reason != 0 && !(stream.retain && ack.reason == 0x10) {
                self.shared
                    .violations
                    .add("publish refused", format_args!("{}: {}", stream.topic, describe(&ack)));
            }
            stream.acknowledge(sent.number);
        }
        match (ack.kind, qos) {
            (PUBACK, 1) => {
                self.in_flight.remove(at);
            }
            (PUBREC, 2) => {
                sent.is_received = true;
                connection.put(&wire::ack(PUBREL, ack.id));
            }
            // 0x92 (packet identifier not found) is the response to a PUBREL resent after completion.
            (PUBCOMP, 2) if sent.is_received && matches!(ack.reason, 0 | 0x92) => {
                self.in_flight.remove(at);
            }
            _ => return Err(ConnectionError::Violation(format!("unexpected {}", describe(&ack)))),
        }
        Ok(())
    }
}

fn describe(ack: &Ack) -> String {
    format!("acknowledgement of type {} for {} with {:#04x}", ack.kind, ack.id, ack.reason)
}

/// The plan's window, limited by the broker's Receive Maximum.
fn window(plan: &Plan, connack: &ConnAck) -> usize {
    let allowed = connack.props.number(RECEIVE_MAXIMUM).unwrap_or(u32::from(u16::MAX));
    plan.window.min(allowed as usize)
}
