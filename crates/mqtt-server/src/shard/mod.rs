//! One shard of the MQTT server, as the [`Service`] that the runtime drives.
//!
//! [`Shard`] owns the machines that hold all state (connections, sessions, deliveries, the router, persistence) and
//! connects them: it decodes packets, calls machines, and applies what they return to the connections, mailboxes and
//! timers of [`Io`]. The files of this folder are the handlers, by what they handle. Machines never see the shard.

mod access;
mod authenticate;
mod bridge;
mod connect;
mod durability;
mod lifecycle;
mod publish;
mod queues;
mod subscribe;
mod timers;

use std::sync::Arc;

use mainstem_log::{Error, Stores};
use mainstem_mqtt::{
    Ack, Disconnect, Header, Packet, PacketType, Publish, QoS, ReasonCode, Version, decode, short_ack,
};
use mainstem_runtime::{Clock, ConnId, Io, MemoryPressure, ProtocolTag, Received, Service};

use crate::admission::Admission;
use crate::broker_state::{Mail, Shared};
use crate::config::MqttConfig;
use crate::connections::{ConnState, Connections};
use crate::handled::{Handled, Next, ProtocolError};
use crate::publisher::Publisher;
use crate::retained::RetainedSweep;
use crate::session::Session;
use crate::session_host::{self, Restored, SessionHost};
use crate::sys::Sys;
use crate::timers::Timer;

/// A shard is overloaded from this many queued messages on, and so many more for each of its connections.
const BACKLOG_MESSAGES: u64 = 1024;
const BACKLOG_MESSAGES_EACH: u64 = 8;
/// The same in bytes of output that sockets have not taken.
const BACKLOG_BYTES: u64 = 512 * 1024;
const BACKLOG_BYTES_EACH: u64 = 1024;

/// Packets above this size are not collected when memory runs out, bytes.
const LARGE_BYTES: usize = 128 * 1024;
/// Cost of a packet without what its type adds, units.
const PACKET_UNITS: u32 = 2;
/// Cost of a new connection, and of the end of one, units.
const CONNECTION_UNITS: u32 = 20;
const SUBSCRIBE: u8 = PacketType::Subscribe as u8;
const UNSUBSCRIBE: u8 = PacketType::Unsubscribe as u8;

/// One shard of the MQTT server: a [`Service`] for the runtime's loop.
pub struct Shard {
    me: u16,
    shared: Arc<Shared>,
    admission: Admission,
    connections: Connections,
    host: SessionHost,
    publisher: Publisher,
    retained_sweep: RetainedSweep,
    sys: Option<Sys>,
}

impl Shard {
    /// The stores, to lend them and to take them back.
    pub fn stores_mut(&mut self) -> &mut Stores {
        self.host.stores_mut()
    }

    /// Shard number `me`, without persistence. All shards of a broker have the same `shared`.
    pub fn new(me: usize, shared: Arc<Shared>) -> Self {
        let me = me as u16;
        Self {
            me,
            admission: Admission::new(me, Arc::clone(&shared)),
            connections: Connections::default(),
            host: SessionHost::new(me, Arc::clone(&shared)),
            publisher: Publisher::new(me, Arc::clone(&shared)),
            retained_sweep: RetainedSweep::default(),
            sys: None,
            shared,
        }
    }

    /// Shard number `me` with the sessions of `stores`. The first store is the shard's own; others may be those of
    /// former shards. When all shards are restored, [`settle_origins`] must be called with them.
    ///
    /// # Errors
    /// Errors of a store, and [`Error::Corrupt`] if something cannot be read.
    pub fn restore(
        me: usize,
        shared: Arc<Shared>,
        stores: Stores,
        clock: Clock,
    ) -> Result<(Self, Restored), Error> {
        let mut new = Self::new(me, shared);
        let restored = new.host.restore(stores, clock, new.publisher.meter())?;
        Ok((new, restored))
    }

    /// Number of acks, publishes, commits and session ends in progress, and of messages held in memory until they are
    /// on disk. 0 when everything has come to rest.
    pub fn unfinished(&mut self) -> usize {
        self.host.unfinished()
    }

    /// The accounts of all sessions, bytes: what each says, and what it should say by what the session keeps.
    pub fn accounts(&mut self) -> Vec<(u64, u64)> {
        self.host.accounts()
    }

    fn config(&self) -> &MqttConfig {
        &self.shared.config
    }

    fn handle(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, frame: &[u8]) -> Handled {
        let ConnState::Serving(slot) = self.connections.state(conn) else {
            return if self.connections.authentication(conn).is_some() {
                self.continue_authentication(io, conn, frame)
            } else {
                self.first_packet(io, conn, frame)
            };
        };
        if self.connections.is_connack_held(conn) {
            return Ok(Next::Hold);
        }
        if let Some((kind, packet_id)) = short_ack(frame) {
            self.host.on_ack(io, slot, kind, &Ack { packet_id, ..Ack::default() });
            return Ok(Next::Packet);
        }
        match frame[0] >> 4 {
            SUBSCRIBE => return self.on_filters(io, conn, slot, true, frame),
            UNSUBSCRIBE => return self.on_filters(io, conn, slot, false, frame),
            _ => {}
        }
        match decode(self.connections.version(conn), frame)? {
            Packet::Publish(publish) => return self.publish_or_hold(io, conn, slot, &publish),
            Packet::PubAck(ack) => self.host.on_ack(io, slot, PacketType::PubAck, &ack),
            Packet::PubRec(ack) => self.host.on_ack(io, slot, PacketType::PubRec, &ack),
            Packet::PubRel(ack) => self.host.on_ack(io, slot, PacketType::PubRel, &ack),
            Packet::PubComp(ack) => self.host.on_ack(io, slot, PacketType::PubComp, &ack),
            Packet::PingReq => self.host.send(io, slot, &Packet::PingResp),
            Packet::Disconnect(disconnect) => return self.on_disconnect(io, conn, slot, &disconnect),
            Packet::Connect(_) => {
                return Err(ProtocolError::new(ReasonCode::ProtocolError, "second CONNECT [MQTT-3.1.0-2]"));
            }
            Packet::Auth(auth) => return self.reauthenticate(io, conn, slot, &auth),
            Packet::Subscribe(_) | Packet::Unsubscribe(_) => unreachable!("handled one filter at a time"),
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                return Err(ProtocolError::new(ReasonCode::ProtocolError, "a packet that only servers send"));
            }
        }
        Ok(Next::Packet)
    }

    /// Handles a PUBLISH, unless it has to wait for a later turn.
    fn publish_or_hold(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Handled {
        let now_ms = io.clock.now_ms;
        let session = self.host.session(slot);
        let is_early = is_early(session, publish);
        let is_receiver = session.has_in_flight();
        let is_early = is_early || self.host.has_unfinished_publish(slot);
        if self.connections.must_wait(conn, &self.shared, now_ms, is_receiver) || is_early {
            return Ok(Next::Hold);
        }
        if self.connections.quotas(conn).is_some()
            && let Some(handled) = self.check_quotas(io, conn, slot, publish)
        {
            return handled;
        }
        self.publisher.begin_publish();
        let handled = self.on_publish(io, conn, slot, publish);
        self.connections.end_publish(conn, now_ms, self.publisher.end_publish());
        handled
    }

    /// Ends a connection that broke a rule. Only MQTT 5 clients are sent the reason.
    fn refuse(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, refusal: &ProtocolError) {
        let ConnState::Serving(slot) = self.connections.state(conn) else {
            log::debug!("a connection is refused: {}", refusal.what);
            self.vacate(conn);
            io.close(conn);
            return;
        };
        let client_id = Arc::clone(self.host.session(slot).client_id());
        log::info!("client {client_id:?} is disconnected: {} ({:?})", refusal.what, refusal.reason);
        self.disconnect(io, slot, refusal.reason, Some(refusal.what));
    }

    /// Ends the connection of a session from the server's side. Its will is due, as if the connection had been lost.
    fn disconnect(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        reason: ReasonCode,
        what: Option<&'static str>,
    ) {
        let session = self.host.session(slot);
        let (conn, version) = (session.conn(), session.version());
        if version == Version::V5 {
            let shared = Arc::clone(&self.shared);
            let reference = &shared.config.server_reference;
            let leaving = reason == ReasonCode::ServerShuttingDown && !reference.is_empty();
            let bare = Disconnect { reason, ..Disconnect::default() };
            let full = Disconnect {
                reason_string: what.filter(|_| session.accepts_problem_information()),
                server_reference: leaving.then_some(reference.as_str()),
                ..bare
            };
            // The explanation is left out if the client has no room for it.
            let fits = Packet::Disconnect(full).encoded_len(version) <= session.packet_max() as usize;
            self.host.send(io, slot, &Packet::Disconnect(if fits { full } else { bare }));
        }
        self.vacate(conn);
        io.close(conn);
        self.detach(io, slot);
    }

    /// Frees the slot of a connection that has ended.
    fn vacate(&mut self, conn: ConnId) {
        self.connections.vacate(conn);
        self.host.counters_mut().connections -= 1;
        self.shared.remove_connection();
    }
}

/// Finds the QoS 2 publishes that had reached only some of their targets when the process ended. When their clients
/// send them again, as they must, the others get them.
pub fn settle_origins(shards: &mut [Shard]) {
    let mut hosts: Vec<&mut SessionHost> = shards.iter_mut().map(|shard| &mut shard.host).collect();
    session_host::settle_origins(&mut hosts);
}

/// Whether to wait for the rest of a packet.
///
/// # Errors
/// The packet is large, and memory runs out.
fn collect(io: &Io<'_, Mail>, packet_len: usize) -> Result<Next, ProtocolError> {
    if packet_len > LARGE_BYTES && io.memory().pressure_now() == MemoryPressure::Critical {
        let reason = "no memory for a large packet (memory.max_bytes)";
        return Err(ProtocolError::new(ReasonCode::QuotaExceeded, reason));
    }
    Ok(Next::Packet)
}

/// Whether a packet with this first byte is answered.
fn is_answered(first: u8) -> bool {
    const PUBACK: u8 = PacketType::PubAck as u8;
    const PUBCOMP: u8 = PacketType::PubComp as u8;
    const DISCONNECT: u8 = PacketType::Disconnect as u8;
    const PUBLISH: u8 = PacketType::Publish as u8;
    match first >> 4 {
        PUBACK | PUBCOMP | DISCONNECT => false,
        PUBLISH => first & 0b0110 != 0,
        _ => true,
    }
}

/// Whether a PUBLISH has to wait. It may repeat a QoS 2 publish of which other shards have yet to report who misses it.
/// Or an earlier publish was rejected and its client does not know: if the connection is lost now, the client sends
/// that one again, behind this one [MQTT-4.6.0-6]. Or too many acks wait for the disk already.
fn is_early(session: &Session, publish: &Publish<'_>) -> bool {
    let Some(ext) = session.ext_ref() else { return false };
    match publish.qos {
        QoS::AtMostOnce => false,
        QoS::AtLeastOnce => ext.acks.has_refusal() || ext.acks.is_full(),
        QoS::ExactlyOnce => {
            ext.acks.has_refusal() || ext.acks.is_full() || ext.qos2.is_unconfirmed(publish.packet_id)
        }
    }
}

impl Service for Shard {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, ProtocolTag(listener): ProtocolTag) {
        io.charge(CONNECTION_UNITS);
        self.connections.accept(conn, listener, io.clock.now_ms);
        self.host.counters_mut().connections += 1;
        self.host.counters_mut().connections_accepted += 1;
        self.shared.add_connection();
        let deadline = io.clock.now_ms + u64::from(self.config().connect_timeout_ms);
        io.set_timer(deadline, Timer::Connect(conn).token());
    }

    fn received(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, bytes: &[u8]) -> Received {
        let packet_max = self.config().max_packet_size_bytes;
        let mut received = Received::default();
        let (mut packets, mut answers) = (0, 0);
        let outcome = loop {
            let rest = &bytes[received.consumed..];
            let header = match Header::parse(rest) {
                Ok(Some(header)) => header,
                Ok(None) => break Ok(Next::Packet),
                Err(error) => break Err(error.into()),
            };
            if header.packet_len() > packet_max as usize {
                break Err(ProtocolError::new(
                    ReasonCode::PacketTooLarge,
                    "packet larger than the maximum [MQTT-3.2.2-15]",
                ));
            }
            if let Err(refusal) = self.expects(conn, header.first) {
                break Err(refusal);
            }
            if rest.len() < header.packet_len() {
                received.next_len = header.packet_len();
                break collect(io, header.packet_len());
            }
            if packets > 0 && io.is_exhausted() {
                received.hold = true;
                break Ok(Next::Hold);
            }
            let is_answered = is_answered(header.first);
            if is_answered && io.is_congested(conn) {
                // A client that asks and never reads is not read either: its answers take memory.
                received.hold = true;
                break Ok(Next::Hold);
            }
            match self.handle(io, conn, &rest[..header.packet_len()]) {
                Ok(Next::Packet) => {
                    io.charge(PACKET_UNITS);
                    received.consumed += header.packet_len();
                    packets += 1;
                    answers += u64::from(is_answered);
                }
                Ok(next @ (Next::Hold | Next::Pause(_))) => {
                    (received.hold, received.pause_ms) = (true, next.pause_ms());
                    break Ok(Next::Hold);
                }
                outcome => break outcome,
            }
        };
        self.host.counters_mut().messages_received += packets;
        if packets > 0 {
            self.connections.on_packets(conn, io.clock.now_ms);
            if answers == 0 && self.connections.is_publisher(conn) {
                // Nothing is sent in answer to these acknowledgements, and a publish may wait behind them.
                io.confirm_receipt(conn);
            }
        }
        if let Err(refusal) = outcome {
            received.consumed = bytes.len();
            self.refuse(io, conn, &refusal);
        }
        if let ConnState::Serving(slot) = self.connections.state(conn)
            && packets > 0
        {
            self.host.pump(io, slot);
        }
        received
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        if let Some(ConnState::Serving(slot)) = self.connections.find(conn) {
            self.host.pump(io, slot);
        }
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        io.charge(CONNECTION_UNITS);
        let state = self.connections.state(conn);
        self.vacate(conn);
        if let ConnState::Serving(slot) = state {
            self.detach(io, slot);
        }
    }

    fn mail(&mut self, io: &mut Io<'_, Mail>, _from: usize, mail: Mail) {
        self.on_mail(io, mail);
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        self.on_timer(io, Timer::from_token(token));
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        let is_first = self.connections.next_turn();
        self.host.release_closed_sessions();
        self.poll_completions(io);
        let is_behind = self.host.persistence().is_behind() || self.publisher.bridge().is_behind();
        self.connections.begin_turn(io.congested() || is_behind);
        self.host.begin_turn(io.memory().pressure());
        self.poll_security(io);
        if is_first {
            self.start_timers(io);
        }
        self.host.continue_fan_outs(io);
        self.host.pump_continuing(io);
    }

    fn takes_mail(&mut self, _io: &mut Io<'_, Mail>) -> bool {
        !self.host.has_too_many_fan_outs()
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        !io.congested() && !self.host.persistence().is_behind() && !self.publisher.bridge().is_behind()
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.commit_turn(io);
        self.host.remove_ended_subscriptions(io);
        let connections = io.connections() as u64;
        let overloaded = self.host.end_turn() > BACKLOG_MESSAGES + BACKLOG_MESSAGES_EACH * connections
            || io.backlog_bytes() > BACKLOG_BYTES + BACKLOG_BYTES_EACH * connections;
        self.shared.set_overloaded(self.me, overloaded);
        let counters = self.host.counters_mut();
        counters.bytes_received = io.stats.bytes_read;
        counters.bytes_sent = io.stats.bytes_written;
        counters.socket_reads = io.stats.reads;
        counters.socket_writes = io.stats.writes;
        self.shared.counters[usize::from(self.me)].update(counters);
        if self.host.has_more_to_do() {
            io.request_turn();
        }
    }

    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        self.connections.begin_drain();
        self.host.begin_drain(io);
        for (conn, state) in self.connections.all() {
            match state {
                ConnState::Vacant => {}
                ConnState::Waiting => {
                    self.vacate(conn);
                    io.close(conn);
                }
                ConnState::Serving(session) => {
                    self.disconnect(io, session, ReasonCode::ServerShuttingDown, None);
                }
            }
        }
    }
}
