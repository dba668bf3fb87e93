//! The doors of one shard as one service: they share its loop, its connections and its store.
//!
//! Each door is a [`Service`] of its own with mail of its own. [`Doors`] hands each event to the door that it is
//! for, and ends each turn with one commit for all.
//!
//! # What this crate must never know
//! What a door says to its clients.
//!
//! # Entry points
//! [`Doors`], and [`Doors::MQTT`] and [`Doors::KAFKA`], the numbers of their listeners.
//!
//! # Invariants
//! - Mail of one door keeps its order.
//! - What any door has appended in a turn leaves with the same commit.

use mainstem_broker as mqtt;
use mainstem_log::Lender;
use mainstem_runtime::{ConnId, Io, Received, Service, TIMER_MARK};
use mainstem_stream as stream;

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
}

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

    /// The doors of one of `shards` shards, which share `stores`.
    pub fn new(mqtt: mqtt::Shard, stream: stream::Shard, stores: Vec<Lender>, shards: usize) -> Self {
        Self {
            mqtt: Door::new(mqtt, shards, 0, Mail::Mqtt),
            stream: Door::new(stream, shards, TIMER_MARK, Mail::Stream),
            stores,
            owners: Vec::new(),
        }
    }

    fn owner(&self, conn: ConnId) -> Owner {
        self.owners[conn.slot()]
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
        for_owner!(self, io, conn, |door, io| door.received(io, conn, bytes))
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        for_owner!(self, io, conn, |door, io| door.drained(io, conn));
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        for_owner!(self, io, conn, |door, io| door.closed(io, conn));
    }

    fn mail(&mut self, io: &mut Io<'_, Mail>, from: usize, mail: Mail) {
        match mail {
            Mail::Mqtt(mail) => self.mqtt.call(io, |door, io| door.mail(io, from, mail)),
            Mail::Stream(mail) => self.stream.call(io, |door, io| door.mail(io, from, mail)),
        }
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        if token & TIMER_MARK == 0 {
            self.mqtt.call(io, |door, io| door.timer(io, token));
        } else {
            self.stream.call(io, |door, io| door.timer(io, token & !TIMER_MARK));
        }
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        self.mqtt.call(io, mqtt::Shard::turn_begins);
        self.stream.call(io, stream::Shard::turn_begins);
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        self.mqtt.call(io, |door, io| door.takes_held(io))
            || self.stream.call(io, |door, io| door.takes_held(io))
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.stream.call(io, stream::Shard::turn_ends);
        // It commits, and then looks at what that has brought.
        self.mqtt.call(io, mqtt::Shard::turn_ends);
        self.stores.iter().for_each(Lender::commit);
        self.stream.call(io, stream::Shard::poll_commits);
    }

    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        self.mqtt.call(io, mqtt::Shard::drain);
        self.stream.call(io, stream::Shard::drain);
    }
}
