//! A subscriber with a durable session: comes and goes, acknowledges what it gets, and keeps account of it.

use super::link::{Link, Lost};
use super::random::Random;
use super::track::{Arrival, Track};
use super::world::{REPEATED_QOS2, World, count};
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
/// Longest time until a SUBSCRIBE is answered.
const PATIENCE: Duration = Duration::from_secs(30);
const EXPIRY_S: u32 = 3600;

/// The account of a receiver, which is one subscriber or all members of a shared subscription: a track for each stream.
/// Empty until the first SUBACK.
pub(super) type Account = Arc<Mutex<Vec<Track>>>;

/// Who subscribes to what, and when it is there.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) version: Version,
    pub(super) filter: String,
    pub(super) qos: u8,
    pub(super) receive_maximum: u16,
    /// How long it stays connected.
    pub(super) online: Range<Duration>,
    /// How long it stays away.
    pub(super) offline: Range<Duration>,
    /// How long into the run it subscribes.
    pub(super) after: Duration,
    /// Its session is ended and a new one begun every so often.
    pub(super) renew: Option<Range<Duration>>,
    /// It is one of several that share the account, in no order among them.
    pub(super) is_member: bool,
}

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    /// None, or one that is to be discarded.
    New,
    /// CONNACK has come: the broker has it.
    Made,
    /// SUBACK has come.
    Subscribed,
}

/// The state of one subscriber; it outlives the broker.
pub(super) struct Subscriber<'a> {
    world: &'a World,
    plan: Plan,
    random: Random,
    session: Session,
    account: Account,
    /// QoS 2 messages received and not released, by identifier: their stream and number.
    held: HashMap<u16, (usize, u64)>,
    /// How far streams were acknowledged before the session began: of those messages it must get none.
    stale: Vec<u64>,
    is_complete: Arc<AtomicBool>,
    renew_at: Option<Instant>,
    /// What must have come before the session is ended: how far streams were acknowledged when that was due.
    goal: Option<Vec<u64>>,
}

impl<'a> Subscriber<'a> {
    pub(super) fn new(world: &'a World, plan: Plan, index: u64, account: Account) -> Self {
        Self {
            world,
            random: Random::child(world.seed, index),
            plan,
            session: Session::New,
            account,
            held: HashMap::new(),
            stale: Vec::new(),
            is_complete: Arc::default(),
            renew_at: None,
            goal: None,
        }
    }

    /// Becomes true once the run is closing and all messages have come.
    pub(super) fn completion(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_complete)
    }

    /// Comes and goes until the run is over.
    pub(super) fn run(mut self) {
        let begin = Instant::now() + self.plan.after;
        while Instant::now() < begin && !self.world.is_closing() {
            thread::sleep(TURN);
        }
        while !self.world.is_over() {
            let online = self.random.time(&self.plan.online);
            match self.connection(Instant::now() + online) {
                Ok(()) => self.stay_away(),
                Err(Lost::Gone) => thread::sleep(RECONNECT),
                Err(Lost::Wrong(what)) => {
                    self.world.faults.add("protocol", format_args!("{}: {what}", self.plan.name));
                    thread::sleep(RECONNECT);
                }
            }
        }
    }

    fn stay_away(&mut self) {
        let until = Instant::now() + self.random.time(&self.plan.offline);
        while Instant::now() < until && !self.world.is_closing() {
            thread::sleep(TURN);
        }
    }

    /// One connection, from CONNECT to its end or until `until`.
    fn connection(&mut self, until: Instant) -> Result<(), Lost> {
        let acked = self.world.acked();
        let (mut link, connack) = Link::open(self.world.port, self.plan.version, &self.connect())?;
        if self.session == Session::New {
            self.held.clear();
            self.stale = acked;
            self.session = Session::Made;
            if !self.plan.is_member {
                self.tracks().clear();
            }
        } else if !connack.session_present {
            self.world.faults.add("session lost", &self.plan.name);
            self.held.clear();
            self.session = Session::Made;
        }
        if self.session == Session::Made {
            link.put(&Subscribe::new(1).filter(&self.plan.filter, self.plan.qos));
        }
        let subscribe_until = Instant::now() + PATIENCE;
        let mut packets = Vec::new();
        while !self.world.is_over() && (self.world.is_closing() || Instant::now() < until) {
            link.flush()?;
            link.take(TURN, &mut packets)?;
            for packet in packets.drain(..) {
                self.handle(&mut link, packet)?;
            }
            if self.session == Session::Made && Instant::now() > subscribe_until {
                return Err(Lost::Wrong(format!("no SUBACK within {PATIENCE:?}")));
            }
            if self.is_done_with() {
                (self.session, self.renew_at, self.goal) = (Session::New, None, None);
                break;
            }
            if self.world.is_closing() {
                self.is_complete.store(self.has_all(&self.world.acked()), Ordering::SeqCst);
            }
        }
        link.flush()?;
        if self.random.once_in(2) {
            link.put(&wire::DISCONNECT);
            link.flush()?;
        }
        Ok(())
    }

    fn connect(&self) -> Connect {
        let mut props = Props::new().four(SESSION_EXPIRY_INTERVAL, EXPIRY_S);
        if self.plan.receive_maximum < u16::MAX {
            props = props.two(RECEIVE_MAXIMUM, self.plan.receive_maximum);
        }
        let connect = Connect::new(&self.plan.name).props(props);
        // A 3.1.1 session that is to be kept cannot be begun anew; the plan renews none.
        if self.session == Session::New && self.plan.renew.is_some() { connect } else { connect.resume() }
    }

    fn handle(&mut self, link: &mut Link, packet: Packet) -> Result<(), Lost> {
        match packet {
            Packet::Answer(answer) if answer.kind == SUBACK && self.session == Session::Made => {
                if answer.reasons != [self.plan.qos] {
                    return Err(Lost::Wrong(format!("SUBACK with {:?}", answer.reasons)));
                }
                self.subscribed();
                Ok(())
            }
            Packet::Publish(message) => self.receive(link, &message),
            Packet::Ack(ack) if ack.kind == PUBREL => {
                self.held.remove(&ack.id);
                link.put(&wire::ack(PUBCOMP, ack.id));
                Ok(())
            }
            other => Err(Lost::Wrong(format!("a subscriber got {other:?}"))),
        }
    }

    /// SUBACK has come: what is published from now on is to come.
    fn subscribed(&mut self) {
        self.session = Session::Subscribed;
        let renew = self.plan.renew.clone();
        self.renew_at = renew.map(|range| Instant::now() + self.random.time(&range));
        let mut tracks = self.tracks();
        // The first member's subscription is the group's. One that was lost and made again owes what it owed.
        if tracks.is_empty() {
            *tracks = self.world.sent().into_iter().map(Track::new).collect();
        }
    }

    fn tracks(&self) -> MutexGuard<'_, Vec<Track>> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message: acknowledged as its quality of service demands, and accounted for.
    fn receive(&mut self, link: &mut Link, message: &Message) -> Result<(), Lost> {
        let stream = self.world.stream_of(&message.topic);
        let number = stream.and_then(|at| Some((at, self.world.streams[at].number_of(&message.payload)?)));
        let Some((stream, number)) = number else {
            return Err(Lost::Wrong(format!("a message that nobody sent, of {}", message.topic)));
        };
        let qos = self.world.streams[stream].qos.min(self.plan.qos);
        if message.qos != qos {
            return Err(Lost::Wrong(format!("QoS {} instead of {qos}", message.qos)));
        }
        if qos == 1 {
            link.put(&wire::ack(PUBACK, message.id));
            self.account_for(stream, number, message);
            return Ok(());
        }
        link.put(&wire::ack(PUBREC, message.id));
        match self.held.insert(message.id, (stream, number)) {
            None => self.account_for(stream, number, message),
            Some(same) if same == (stream, number) => {}
            Some((_, other)) => {
                let what = format!("identifier {} for {number}, held for {other}", message.id);
                return Err(Lost::Wrong(what));
            }
        }
        Ok(())
    }

    fn account_for(&self, stream: usize, number: u64, message: &Message) {
        let (world, name, topic) = (self.world, &self.plan.name, &message.topic);
        if self.stale.get(stream).is_some_and(|stale| number < *stale) && !self.plan.is_member {
            world.faults.add("of an ended session", format_args!("{name}: {topic} {number}"));
        }
        let mut tracks = self.tracks();
        let Some(track) = tracks.get_mut(stream) else { return };
        match track.record(number) {
            Arrival::First => count(&world.delivered),
            Arrival::Before => {}
            Arrival::Late => {
                count(&world.delivered);
                if !self.plan.is_member {
                    world.faults.add("out of order", format_args!("{name}: {topic} {number}"));
                }
            }
            Arrival::Again if message.qos == 2 => {
                world.faults.add(REPEATED_QOS2, format_args!("{name}: {topic} {number}"));
            }
            Arrival::Again => count(&world.repeated),
        }
    }

    /// Looks whether the session is to be ended, all it was owed when that was due having come.
    fn is_done_with(&mut self) -> bool {
        if self.renew_at.is_some_and(|at| Instant::now() > at) && self.goal.is_none() {
            self.goal = Some(self.world.acked());
        }
        self.goal.as_ref().is_some_and(|goal| self.has_all(goal)) && !self.world.is_closing()
    }

    /// Whether all messages of live streams before these have come.
    fn has_all(&self, ends: &[u64]) -> bool {
        let tracks = self.tracks();
        let mut live = self.world.streams.iter().zip(ends).zip(tracks.iter());
        self.session == Session::Subscribed
            && live.all(|((stream, end), track)| stream.retain || track.has_all_before(*end))
    }
}
