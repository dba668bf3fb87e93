//! A publisher with a durable session: what was not acknowledged is sent again, as it was, until it is.

use super::link::{Link, Lost};
use super::random::Random;
use super::world::{World, count};
use mainstem_conformance::Version;
use mainstem_conformance::packet::{Ack, ConnAck, PUBACK, PUBCOMP, PUBREC, PUBREL, Packet};
use mainstem_conformance::property::RECEIVE_MAXIMUM;
use mainstem_conformance::wire::{self, Connect, Publish};
use std::collections::VecDeque;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// How long it waits for acknowledgements before it looks whether it may send more.
const TURN: Duration = Duration::from_millis(5);
const RECONNECT: Duration = Duration::from_millis(10);
/// How long it keeps a connection, if the broker does not end it.
const KEEP: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(10);
/// Longest time that acknowledgements may take while the broker runs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds that its session outlives a connection.
const EXPIRY_S: u32 = 3600;

/// Who publishes what, and how fast.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) version: Version,
    /// Of the world's streams; all of the same quality of service.
    pub(super) streams: Range<usize>,
    /// Most messages that are not acknowledged.
    pub(super) window: usize,
    /// Most messages per second.
    pub(super) rate: f64,
}

/// A message that was sent, and whose exchange is not complete.
struct Sent {
    id: u16,
    stream: usize,
    number: u64,
    /// PUBREC has come: only the PUBREL is sent again.
    is_received: bool,
}

/// The state of one publisher; it outlives the broker.
pub(super) struct Publisher<'a> {
    world: &'a World,
    plan: Plan,
    random: Random,
    /// In the order of their first sending.
    in_flight: VecDeque<Sent>,
    last_id: u16,
    /// Messages sent for the first time, for the pace and the choice of the stream.
    published: u64,
    began: Instant,
    /// The broker has said that it has a session.
    has_session: bool,
    moved: Instant,
}

impl<'a> Publisher<'a> {
    pub(super) fn new(world: &'a World, plan: Plan, index: u64) -> Self {
        let random = Random::child(world.seed, index);
        let now = Instant::now();
        Self {
            world,
            plan,
            random,
            in_flight: VecDeque::new(),
            last_id: 0,
            published: 0,
            began: now,
            has_session: false,
            moved: now,
        }
    }

    /// Publishes until the run closes and everything in flight is acknowledged.
    pub(super) fn run(mut self) {
        while !self.is_done() {
            match self.connection() {
                Ok(()) => {}
                Err(Lost::Gone) => thread::sleep(RECONNECT),
                Err(Lost::Wrong(what)) => {
                    self.world.faults.add("protocol", format_args!("{}: {what}", self.plan.name));
                    thread::sleep(RECONNECT);
                }
            }
        }
        if !self.in_flight.is_empty() {
            let (count, name) = (self.in_flight.len() as u64, &self.plan.name);
            let received = self.in_flight.iter().filter(|sent| sent.is_received).count();
            let sentence = format_args!("{count} of {name}, {received} of them received and not completed");
            self.world.faults.add_many("never acknowledged", count, sentence);
        }
    }

    fn is_done(&self) -> bool {
        self.world.is_over() || self.world.is_closing() && self.in_flight.is_empty()
    }

    /// One connection, from CONNECT to its end.
    fn connection(&mut self) -> Result<(), Lost> {
        let connect = Connect::new(&self.plan.name).resume().session_expiry(EXPIRY_S);
        let (mut link, connack) = Link::open(self.world.port, self.plan.version, &connect)?;
        self.resume(&connack);
        let window = window(&self.plan, &connack);
        self.send_again(&mut link);
        let keep_until = Instant::now() + self.random.time(&KEEP);
        self.moved = Instant::now();
        let mut packets = Vec::new();
        while !self.is_done() && (self.world.is_closing() || Instant::now() < keep_until) {
            if !self.world.is_closing() {
                self.publish(&mut link, window);
            }
            link.flush()?;
            link.take(TURN, &mut packets)?;
            for packet in packets.drain(..) {
                self.handle(&mut link, packet)?;
            }
            if !self.in_flight.is_empty() && self.moved.elapsed() > PATIENCE {
                return Err(Lost::Wrong(format!("no acknowledgement within {PATIENCE:?}")));
            }
        }
        // The connection is dropped without DISCONNECT, and acknowledgements under way with it.
        if !self.world.is_closing() {
            self.publish(&mut link, window);
            link.flush()?;
        }
        Ok(())
    }

    fn resume(&mut self, connack: &ConnAck) {
        if self.has_session && !connack.session_present {
            self.world.faults.add("session lost", &self.plan.name);
            // Without a session nothing can be released; the rest is published anew.
            self.in_flight.retain(|sent| !sent.is_received);
        }
        self.has_session = true;
    }

    /// Everything in flight, in its order, with its identifier [MQTT-4.4.0-1].
    fn send_again(&mut self, link: &mut Link) {
        for sent in &self.in_flight {
            if sent.is_received {
                link.put(&wire::ack(PUBREL, sent.id));
            } else {
                count(&self.world.resent);
                link.put(&self.packet(sent).dup());
            }
        }
    }

    fn packet(&self, sent: &Sent) -> Publish {
        let stream = &self.world.streams[sent.stream];
        let publish = Publish::new(&stream.topic, stream.payload(sent.number)).qos(stream.qos).id(sent.id);
        if stream.retain { publish.retain() } else { publish }
    }

    /// Sends what window and rate allow.
    fn publish(&mut self, link: &mut Link, window: usize) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a run is short")]
        let due = (self.began.elapsed().as_secs_f64() * self.plan.rate) as u64;
        while self.in_flight.len() < window && self.published < due {
            let stream = self.plan.streams.start + (self.published % self.plan.streams.len() as u64) as usize;
            let sent = Sent {
                id: self.fresh_id(),
                stream,
                number: self.world.streams[stream].next(),
                is_received: false,
            };
            link.put(&self.packet(&sent));
            self.in_flight.push_back(sent);
            self.published += 1;
        }
        // What could not be sent while the broker was down is not made up for in one go.
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

    fn handle(&mut self, link: &mut Link, packet: Packet) -> Result<(), Lost> {
        let Packet::Ack(ack) = packet else {
            return Err(Lost::Wrong(format!("a publisher got {packet:?}")));
        };
        self.moved = Instant::now();
        let Some(at) = self.in_flight.iter().position(|sent| sent.id == ack.id) else {
            return Err(Lost::Wrong(format!("{} was not in flight", shown(&ack))));
        };
        let (sent, qos) = (&mut self.in_flight[at], self.world.streams[self.plan.streams.start].qos);
        let stream = &self.world.streams[sent.stream];
        if matches!(ack.kind, PUBACK | PUBREC) {
            // 0x10, nobody subscribes, would say that the subscriptions are gone.
            if ack.reason != 0 && !(stream.retain && ack.reason == 0x10) {
                self.world.faults.add("publish refused", format_args!("{}: {}", stream.topic, shown(&ack)));
            }
            stream.acknowledge(sent.number);
        }
        match (ack.kind, qos) {
            (PUBACK, 1) => {
                self.in_flight.remove(at);
            }
            (PUBREC, 2) => {
                sent.is_received = true;
                link.put(&wire::ack(PUBREL, ack.id));
            }
            // 0x92, not found, is what a PUBREL gets that is sent again after the broker was done with it.
            (PUBCOMP, 2) if sent.is_received && matches!(ack.reason, 0 | 0x92) => {
                self.in_flight.remove(at);
            }
            _ => return Err(Lost::Wrong(format!("{} out of turn", shown(&ack)))),
        }
        Ok(())
    }
}

fn shown(ack: &Ack) -> String {
    format!("acknowledgement of type {} for {} with {:#04x}", ack.kind, ack.id, ack.reason)
}

/// What the plan wants, as far as the broker allows it.
fn window(plan: &Plan, connack: &ConnAck) -> usize {
    let allowed = connack.props.number(RECEIVE_MAXIMUM).unwrap_or(u32::from(u16::MAX));
    plan.window.min(allowed as usize)
}
