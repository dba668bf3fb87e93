//! The doors of one shard as one service: they share its loop, its connections and its store.
//!
//! Each door is a [`Service`] of its own with mail of its own. [`Doors`] hands each event to the door that it is
//! for, and ends each turn with one commit for all.
//!
//! # What this crate must never know
//! What a door says to its clients.
//!
//! # Entry points
//! [`Table`] of bindings; [`Doors`], and [`Doors::MQTT`] and [`Doors::KAFKA`], the numbers of their listeners.
//!
//! # Invariants
//! - Mail of one door keeps its order.
//! - What any door has appended in a turn leaves with the same commit.
//! - What a turn wants of work queues is asked for together: what it settles first, then what it sends.
//!
//! # Files
//! `binding` what of a message becomes what of a record, and back · `queues` work queues for MQTT clients.

mod binding;
mod queues;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_broker as mqtt;
use mainstem_log::Lender;
use mainstem_mqtt::ReasonCode;
use mainstem_runtime::{ConnId, Io, Received, Service, TIMER_MARK};
use mainstem_stream as stream;
use slab::Slab;

pub use binding::{Inbound, Key, Outbound, Template, find_loop};
use binding::{Passed, Scratch};
use queues::Queues;

/// Batches or so of records that go out in one turn at most.
const OUTGOING_PER_TURN: usize = 8;

/// What goes from one door to another.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// In the order of their sinks, and of the Kafka door's bound topics.
    pub inbound: Vec<Inbound>,
    /// In the order of the Kafka door's sources.
    pub outbound: Vec<Outbound>,
}

/// The bindings of all shards, which may become more while they run.
#[derive(Debug, Default)]
pub struct Table {
    newest: Mutex<Arc<Bindings>>,
    /// Number of changes.
    version: AtomicU64,
}

impl Table {
    /// With the bindings that there are from the start.
    pub fn new(bindings: Bindings) -> Arc<Self> {
        Arc::new(Self { newest: Mutex::new(Arc::new(bindings)), version: AtomicU64::new(0) })
    }

    /// Adds one under the next number, which its sink is to get, or its source has.
    pub fn add_inbound(&self, binding: Inbound) {
        self.change(|bindings| bindings.inbound.push(binding));
    }

    /// The same for the other direction.
    pub fn add_outbound(&self, binding: Outbound) {
        self.change(|bindings| bindings.outbound.push(binding));
    }

    fn change(&self, change: impl FnOnce(&mut Bindings)) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Bindings::clone(&newest);
        change(&mut next);
        *newest = Arc::new(next);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The bindings that there are.
    pub fn bindings(&self) -> Arc<Bindings> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Mail between the doors of two shards.
pub enum Mail {
    /// From the MQTT door to itself.
    Mqtt(mqtt::Mail),
    /// From the Kafka door to itself.
    Stream(stream::Mail),
}

/// The doors of one shard.
pub struct Doors {
    mqtt: Door<mqtt::Shard>,
    stream: Door<stream::Shard>,
    stores: Vec<Lender>,
    /// Whose each connection is, by slot.
    owners: Vec<Owner>,
    table: Arc<Table>,
    /// As of the last look, and the version of that.
    bindings: Arc<Bindings>,
    bindings_version: u64,
    /// Messages on their way to a topic, and who waits.
    sunk: Slab<Option<mqtt::SinkTicket>>,
    queues: Queues,
    headers: Vec<u8>,
    scratch: Scratch,
    /// Records of each outbound binding that became no message; noted once.
    passed: Vec<u64>,
    /// When fences are next asked for, ms.
    fence_at_ms: u64,
}

/// Time between two fences, ms: what may go out twice after a crash.
const FENCE_MS: u64 = 200;

/// A door, and mail of its own that has not been handed over.
struct Door<S: Service> {
    service: S,
    outbox: Vec<Vec<S::Mail>>,
    timer_mark: u64,
    wrap: fn(S::Mail) -> Mail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Mqtt,
    Stream,
}

impl<S: Service> Door<S> {
    fn new(service: S, shards: usize, timer_mark: u64, wrap: fn(S::Mail) -> Mail) -> Self {
        Self { service, outbox: (0..shards).map(|_| Vec::new()).collect(), timer_mark, wrap }
    }

    /// Lets the door do something, and sends the mail that comes of it.
    fn call<R>(&mut self, io: &mut Io<'_, Mail>, what: impl FnOnce(&mut S, &mut Io<'_, S::Mail>) -> R) -> R {
        let outcome = what(&mut self.service, &mut io.narrow(&mut self.outbox, self.timer_mark));
        for (to, mails) in self.outbox.iter_mut().enumerate() {
            for mail in mails.drain(..) {
                io.send(to, (self.wrap)(mail));
            }
        }
        outcome
    }
}

impl Doors {
    /// Number of the MQTT door's listener.
    pub const MQTT: usize = 0;
    /// Number of the Kafka door's listener.
    pub const KAFKA: usize = 1;

    /// The MQTT door, for those who look what it remembers.
    pub fn mqtt(&mut self) -> &mut mqtt::Shard {
        &mut self.mqtt.service
    }

    /// The doors of one of `shards` shards, which share `stores`.
    pub fn new(
        mqtt: mqtt::Shard,
        stream: stream::Shard,
        stores: Vec<Lender>,
        table: Arc<Table>,
        shards: usize,
    ) -> Self {
        Self {
            passed: Vec::new(),
            bindings: table.bindings(),
            bindings_version: 0,
            table,
            sunk: Slab::new(),
            queues: Queues::default(),
            headers: Vec::new(),
            scratch: Scratch::default(),
            fence_at_ms: 0,
            mqtt: Door::new(mqtt, shards, 0, Mail::Mqtt),
            stream: Door::new(stream, shards, TIMER_MARK, Mail::Stream),
            stores,
            owners: Vec::new(),
        }
    }

    fn owner(&self, conn: ConnId) -> Owner {
        self.owners[conn.slot()]
    }

    /// Brings the bindings up to date: they are there before messages meet them.
    fn look_at_bindings(&mut self) {
        let version = self.table.version.load(Ordering::Acquire);
        if version != self.bindings_version {
            self.bindings_version = version;
            self.bindings = self.table.bindings();
        }
    }

    /// Carries what the doors have for one another.
    fn carry(&mut self, io: &mut Io<'_, Mail>) {
        self.look_at_bindings();
        for message in self.mqtt.service.take_sunk() {
            match message.sink {
                mqtt::Sink::Filter(bound) => self.carry_in(io, &message, bound as usize),
                mqtt::Sink::Queue => self.carry_to_queue(io, &message),
            }
        }
        for (token, sank) in self.stream.service.take_settled() {
            let ticket = self.sunk.remove(token as usize);
            let outcome = match sank {
                stream::Sank::Kept => mqtt::Outcome::Kept,
                stream::Sank::NotKept => mqtt::Outcome::NotKept,
                stream::Sank::NoRoom => mqtt::Outcome::Refused(ReasonCode::QuotaExceeded),
                stream::Sank::Invalid => mqtt::Outcome::Refused(ReasonCode::ImplementationSpecificError),
            };
            self.mqtt.call(io, |door, io| door.settle_sunk(io, ticket, outcome));
        }
        self.hear_queues(io);
        let is_behind = self.stream.service.is_sink_behind() || self.queues.is_behind();
        self.mqtt.service.hold_for_sinks(is_behind);
    }

    /// A message for a topic.
    fn carry_in(&mut self, io: &mut Io<'_, Mail>, message: &mqtt::Sunk, bound: usize) {
        let Some(binding) = self.bindings.inbound.get(bound) else { return };
        self.headers.clear();
        binding::headers(message, io.clock.now_ms, &mut self.headers);
        let key = binding.key.of(message);
        let record = stream::Incoming {
            bound,
            key,
            spread: key.unwrap_or(message.topic().as_bytes()),
            value: message.payload(),
            headers: &self.headers,
            timestamp_ms: io.clock.unix_ms.cast_signed(),
            token: self.sunk.insert(message.ticket) as u64,
        };
        self.stream.call(io, |door, io| door.sink(io, &record));
    }

    /// Lets records of topics go out, as far as the MQTT door takes them.
    fn carry_out(&mut self, io: &mut Io<'_, Mail>) {
        self.look_at_bindings();
        if self.bindings.outbound.is_empty() {
            return;
        }
        for _ in 0..OUTGOING_PER_TURN {
            if self.mqtt.call(io, |door, io| door.holds_outside(io)) {
                break;
            }
            let Some(records) = self.stream.service.take_outgoing() else { break };
            for record in &records {
                self.carry_record(io, record);
            }
            io.again_soon();
        }
        for (token, is_safe) in self.mqtt.service.take_fenced() {
            self.stream.call(io, |door, io| door.fenced(io, token, is_safe));
        }
        if io.clock.now_ms >= self.fence_at_ms {
            let wanted = self.stream.service.wanted_fences();
            if !wanted.is_empty() {
                self.fence_at_ms = io.clock.now_ms + FENCE_MS;
            }
            for token in wanted {
                self.mqtt.call(io, |door, io| door.fence_outside(io, token));
            }
        }
    }

    fn carry_record(&mut self, io: &mut Io<'_, Mail>, record: &stream::Outgoing) {
        let bindings = Arc::clone(&self.bindings);
        let Some(binding) = bindings.outbound.get(record.source) else { return };
        let message = binding::message(binding, record, io.clock.unix_ms, &mut self.scratch);
        let is_published = match message {
            Ok(message) => self.mqtt.call(io, |door, io| door.publish_outside(io, &message)),
            Err(Passed::Expired) => return,
            Err(Passed::Lacks) => false,
        };
        if !is_published {
            self.passed.resize(bindings.outbound.len(), 0);
            let passed = &mut self.passed[record.source];
            *passed += 1;
            if *passed == 1 {
                let stream::Outgoing { partition, offset, .. } = record;
                log::warn!(
                    "binding {}: the record at {offset} of partition {partition} makes no topic name, or too large a message; it is left out, as are others like it",
                    binding.name
                );
            }
        }
    }
}

/// Calls the door that a connection belongs to.
macro_rules! for_owner {
    ($doors:ident, $io:ident, $conn:ident, $call:expr) => {
        match $doors.owner($conn) {
            Owner::Mqtt => $doors.mqtt.call($io, $call),
            Owner::Stream => $doors.stream.call($io, $call),
        }
    };
}

impl Service for Doors {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, listener: usize) {
        if self.owners.len() <= conn.slot() {
            self.owners.resize(conn.slot() + 1, Owner::Mqtt);
        }
        self.owners[conn.slot()] = if listener == Self::KAFKA { Owner::Stream } else { Owner::Mqtt };
        for_owner!(self, io, conn, |door, io| door.accepted(io, conn, listener));
    }

    fn received(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, bytes: &[u8]) -> Received {
        let received = for_owner!(self, io, conn, |door, io| door.received(io, conn, bytes));
        self.carry(io);
        received
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        for_owner!(self, io, conn, |door, io| door.drained(io, conn));
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        for_owner!(self, io, conn, |door, io| door.closed(io, conn));
        self.carry(io);
    }

    fn mail(&mut self, io: &mut Io<'_, Mail>, from: usize, mail: Mail) {
        match mail {
            Mail::Mqtt(mail) => self.mqtt.call(io, |door, io| door.mail(io, from, mail)),
            Mail::Stream(mail) => self.stream.call(io, |door, io| door.mail(io, from, mail)),
        }
        self.carry(io);
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        if token & TIMER_MARK == 0 {
            self.mqtt.call(io, |door, io| door.timer(io, token));
        } else {
            self.stream.call(io, |door, io| door.timer(io, token & !TIMER_MARK));
        }
        self.carry(io);
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        self.mqtt.call(io, mqtt::Shard::turn_begins);
        self.stream.call(io, stream::Shard::turn_begins);
        self.carry(io);
        self.carry_out(io);
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        self.mqtt.call(io, Service::takes_held) || self.stream.call(io, Service::takes_held)
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.carry(io);
        self.ask_queues(io);
        self.stream.call(io, stream::Shard::turn_ends);
        // It commits, and then looks at what that has brought.
        self.mqtt.call(io, mqtt::Shard::turn_ends);
        self.stores.iter().for_each(Lender::commit);
        self.stream.call(io, stream::Shard::poll_commits);
        self.carry(io);
        self.carry_out(io);
        if self.mqtt.service.has_errands() {
            // What has just come has made room for more.
            io.again_soon();
        }
    }

    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        self.mqtt.call(io, mqtt::Shard::drain);
        // Wills reach their queues, and what clients had goes back, before those take nothing any more.
        self.carry(io);
        self.ask_queues(io);
        self.stream.call(io, stream::Shard::drain);
    }
}
