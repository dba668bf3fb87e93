//! A subscriber with a persistent session: disconnects and resumes, acknowledges messages, and trackers their arrival.
//!
//! Guarantees start at the SUBACK: every message acknowledged to its publisher after it must arrive, in order, and at
//! QoS 2 exactly once. The state survives restarts of the broker, as a client's session state does.

use super::connection::{Connection, ConnectionError};
use super::random::Random;
use super::shared::{REPEATED_QOS2, SharedState, count};
use super::tracker::{Arrival, StreamTracker};
use mainstem_conformance::Version;
use mainstem_conformance::packet::{Message, PUBACK, PUBCOMP, PUBREC, PUBREL, Packet, SUBACK};
use mainstem_conformance::property::{Props, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL};
use mainstem_conformance::wire::{self, Connect, Subscribe};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(20);
const RECONNECT: Duration = Duration::from_millis(10);
/// Timeout of SUBACK.
const SUBACK_TIMEOUT: Duration = Duration::from_secs(30);
const EXPIRY_S: u32 = 3600;

/// Trackers of a receiver, one per stream. The receiver is one subscriber, or all members of a shared subscription.
/// Empty until the first SUBACK.
pub(super) type Trackers = Arc<Mutex<Vec<StreamTracker>>>;

/// Configuration of a subscriber.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) version: Version,
    pub(super) filter: String,
    pub(super) qos: u8,
    pub(super) receive_maximum: u16,
    /// Duration of a connection.
    pub(super) online: Range<Duration>,
    /// Time between connections.
    pub(super) offline: Range<Duration>,
    /// Delay of the first connection, from the start of the run.
    pub(super) after: Duration,
    /// Lifetime of a session before it is replaced by a new one; `None` for a permanent session.
    pub(super) renew: Option<Range<Duration>>,
    /// Member of a shared subscription: shares its trackers, and order is not checked.
    pub(super) is_member: bool,
}

/// State of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    /// No session, or one to discard.
    New,
    /// CONNACK received: the broker has created it.
    Created,
    /// SUBACK received.
    Subscribed,
}

/// State of one subscriber; survives restarts of the broker.
pub(super) struct Subscriber<'a> {
    shared: &'a SharedState,
    plan: Plan,
    random: Random,
    session: Session,
    trackers: Trackers,
    /// QoS 2 messages between PUBREC and PUBREL, by packet identifier: stream and number.
    unreleased: HashMap<u16, (usize, u64)>,
    /// Per stream, the messages acknowledged before the session began. None of them may arrive.
    stale: Vec<u64>,
    is_complete: Arc<AtomicBool>,
    renew_at: Option<Instant>,
    /// Messages per stream that must arrive before the session is replaced: those acknowledged when it became due.
    goal: Option<Vec<u64>>,
}

impl<'a> Subscriber<'a> {
    pub(super) fn new(shared: &'a SharedState, plan: Plan, index: u64, trackers: Trackers) -> Self {
        Self {
            shared,
            random: Random::child(shared.seed, index),
            plan,
            session: Session::New,
            trackers,
            unreleased: HashMap::new(),
            stale: Vec::new(),
            is_complete: Arc::default(),
            renew_at: None,
            goal: None,
        }
    }

    /// Flag that is set once the run is closing and all messages have arrived.
    pub(super) fn completion(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_complete)
    }

    /// Connects and disconnects until the run is over.
    pub(super) fn run(mut self) {
        let begin = Instant::now() + self.plan.after;
        while Instant::now() < begin && !self.shared.is_closing() {
            thread::sleep(TURN);
        }
        while !self.shared.is_over() {
            let online = self.random.time(&self.plan.online);
            match self.run_connection(Instant::now() + online) {
                Ok(()) => self.stay_offline(),
                Err(ConnectionError::Closed) => thread::sleep(RECONNECT),
                Err(ConnectionError::Violation(what)) => {
                    self.shared.violations.add("protocol", format_args!("{}: {what}", self.plan.name));
                    thread::sleep(RECONNECT);
                }
            }
        }
    }

    fn stay_offline(&mut self) {
        let until = Instant::now() + self.random.time(&self.plan.offline);
        while Instant::now() < until && !self.shared.is_closing() {
            thread::sleep(TURN);
        }
    }

    /// Runs one connection, until `until` at the latest.
    fn run_connection(&mut self, until: Instant) -> Result<(), ConnectionError> {
        let acked = self.shared.acked();
        let (mut connection, connack) =
            Connection::open(self.shared.port, self.plan.version, &self.connect())?;
        if self.session == Session::New {
            self.unreleased.clear();
            self.stale = acked;
            self.session = Session::Created;
            if !self.plan.is_member {
                self.trackers().clear();
            }
        } else if !connack.session_present {
            self.shared.violations.add("session lost", &self.plan.name);
            self.unreleased.clear();
            self.session = Session::Created;
        }
        if self.session == Session::Created {
            connection.put(&Subscribe::new(1).filter(&self.plan.filter, self.plan.qos));
        }
        let subscribe_until = Instant::now() + SUBACK_TIMEOUT;
        let mut packets = Vec::new();
        while !self.shared.is_over() && (self.shared.is_closing() || Instant::now() < until) {
            connection.flush()?;
            connection.receive(TURN, &mut packets)?;
            for packet in packets.drain(..) {
                self.handle(&mut connection, packet)?;
            }
            if self.session == Session::Created && Instant::now() > subscribe_until {
                return Err(ConnectionError::Violation(format!("no SUBACK within {SUBACK_TIMEOUT:?}")));
            }
            if self.is_session_over() {
                (self.session, self.renew_at, self.goal) = (Session::New, None, None);
                break;
            }
            if self.shared.is_closing() {
                self.is_complete.store(self.has_all(&self.shared.acked()), Ordering::SeqCst);
            }
        }
        connection.flush()?;
        if self.random.once_in(2) {
            connection.put(&wire::DISCONNECT);
            connection.flush()?;
        }
        Ok(())
    }

    fn connect(&self) -> Connect {
        let mut props = Props::new().four(SESSION_EXPIRY_INTERVAL, EXPIRY_S);
        if self.plan.receive_maximum < u16::MAX {
            props = props.two(RECEIVE_MAXIMUM, self.plan.receive_maximum);
        }
        let connect = Connect::new(&self.plan.name).props(props);
        // Clean Session in 3.1.1 would end the session on disconnect, so only MQTT 5 plans set `renew`.
        if self.session == Session::New && self.plan.renew.is_some() { connect } else { connect.resume() }
    }

    fn handle(&mut self, connection: &mut Connection, packet: Packet) -> Result<(), ConnectionError> {
        match packet {
            Packet::Answer(answer) if answer.kind == SUBACK && self.session == Session::Created => {
                if answer.reasons != [self.plan.qos] {
                    return Err(ConnectionError::Violation(format!(
                        "SUBACK with reason codes {:?}",
                        answer.reasons
                    )));
                }
                self.subscribed();
                Ok(())
            }
            Packet::Publish(message) => self.receive(connection, &message),
            Packet::Ack(ack) if ack.kind == PUBREL => {
                self.unreleased.remove(&ack.id);
                connection.put(&wire::ack(PUBCOMP, ack.id));
                Ok(())
            }
            other => {
                Err(ConnectionError::Violation(format!("unexpected packet for a subscriber: {other:?}")))
            }
        }
    }

    /// Handles SUBACK: messages published from now on must arrive.
    fn subscribed(&mut self) {
        self.session = Session::Subscribed;
        let renew = self.plan.renew.clone();
        self.renew_at = renew.map(|range| Instant::now() + self.random.time(&range));
        let mut trackers = self.trackers();
        // The first member's SUBACK starts the group. A subscription made again after a loss retains its obligations.
        if trackers.is_empty() {
            *trackers = self.shared.sent().into_iter().map(StreamTracker::new).collect();
        }
    }

    fn trackers(&self) -> MutexGuard<'_, Vec<StreamTracker>> {
        self.trackers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acknowledges a message according to its QoS, and trackers it.
    fn receive(&mut self, connection: &mut Connection, message: &Message) -> Result<(), ConnectionError> {
        let stream = self.shared.stream_of(&message.topic);
        let number = stream.and_then(|at| Some((at, self.shared.streams[at].number_of(&message.payload)?)));
        let Some((stream, number)) = number else {
            return Err(ConnectionError::Violation(format!(
                "a message that was never sent, on {}",
                message.topic
            )));
        };
        let qos = self.shared.streams[stream].qos.min(self.plan.qos);
        if message.qos != qos {
            return Err(ConnectionError::Violation(format!("QoS {} instead of {qos}", message.qos)));
        }
        if qos == 1 {
            connection.put(&wire::ack(PUBACK, message.id));
            self.record_delivery(stream, number, message);
            return Ok(());
        }
        connection.put(&wire::ack(PUBREC, message.id));
        match self.unreleased.insert(message.id, (stream, number)) {
            None => self.record_delivery(stream, number, message),
            Some(same) if same == (stream, number) => {}
            Some((_, other)) => {
                let what = format!(
                    "packet identifier {} for message {number}, in use for message {other}",
                    message.id
                );
                return Err(ConnectionError::Violation(what));
            }
        }
        Ok(())
    }

    fn record_delivery(&self, stream: usize, number: u64, message: &Message) {
        let (shared, name, topic) = (self.shared, &self.plan.name, &message.topic);
        if self.stale.get(stream).is_some_and(|stale| number < *stale) && !self.plan.is_member {
            shared.violations.add("from a previous session", format_args!("{name}: {topic} {number}"));
        }
        let mut trackers = self.trackers();
        let Some(tracker) = trackers.get_mut(stream) else { return };
        match tracker.record(number) {
            Arrival::InOrder => count(&shared.delivered),
            Arrival::BeforeSubscription => {}
            Arrival::OutOfOrder => {
                count(&shared.delivered);
                if !self.plan.is_member {
                    shared.violations.add("out of order", format_args!("{name}: {topic} {number}"));
                }
            }
            Arrival::Duplicate if message.qos == 2 => {
                shared.violations.add(REPEATED_QOS2, format_args!("{name}: {topic} {number}"));
            }
            Arrival::Duplicate => count(&shared.repeated),
        }
    }

    /// Whether the session is due for replacement and has received all messages up to that point.
    fn is_session_over(&mut self) -> bool {
        if self.renew_at.is_some_and(|at| Instant::now() > at) && self.goal.is_none() {
            self.goal = Some(self.shared.acked());
        }
        self.goal.as_ref().is_some_and(|goal| self.has_all(goal)) && !self.shared.is_closing()
    }

    /// Whether all messages of live streams before `ends` have arrived.
    fn has_all(&self, ends: &[u64]) -> bool {
        let trackers = self.trackers();
        let mut live = self.shared.streams.iter().zip(ends).zip(trackers.iter());
        self.session == Session::Subscribed
            && live.all(|((stream, end), tracker)| stream.retain || tracker.has_all_before(*end))
    }
}
