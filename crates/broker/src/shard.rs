//! One shard of the MQTT door: connections, their packets, and what each of them sets off.

use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_mqtt::alias::InboundAliases;
use mainstem_mqtt::{
    DecodeError, Disconnect, Header, Packet, PacketType, ReasonCode, SubscribeOptions, Version, decode,
};
use mainstem_runtime::{ConnId, Io, Received, Service};
use mainstem_topic::FilterId;

use crate::answers::Commits;
use crate::config::MqttConfig;
use crate::delivery::Deliveries;
use crate::journal::{Arrived, Journal};
use crate::lifecycle::Ending;
use crate::message::{MessagePool, SessionKey};
use crate::outside::Elsewhere;
use crate::pressure::Level;
use crate::restore::Unsure;
use crate::retained_log::RetainedLog;
use crate::routes::{Cache, Matched, new_cache};
use crate::session::Session;
use crate::shared::{Mail, Shared};
use crate::timers::Timer;
use crate::work::Work;

/// Deliveries of one turn after which publishers wait for the next: what bounds the length of a turn.
const DELIVERIES_PER_TURN: u32 = 32 * 1024;
/// Deliveries that one connection may cause in a turn even so: light publishers never queue behind heavy ones.
const LIGHT_DELIVERIES: u32 = 64;

/// Longest wait of a publisher for receivers that are behind on a shard that has a backlog, ms.
const BRAKE_MS: u64 = 1_000;
/// Wait of a publisher for receivers whose queues are half full, ms: short, since nothing tells when they are
/// not. Readers that take a few hundred messages a second lose none.
const URGENT_BRAKE_MS: u64 = 5;
/// A shard is overloaded from this many queued messages on, and so many more for each of its connections.
const BACKLOG_MESSAGES: u64 = 1024;
const BACKLOG_MESSAGES_EACH: u64 = 8;
/// The same in bytes of output that sockets have not taken.
const BACKLOG_BYTES: u64 = 512 * 1024;
const BACKLOG_BYTES_EACH: u64 = 1024;

/// How a connection is to end.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: ReasonCode,
    pub(crate) what: &'static str,
}

impl Refusal {
    pub(crate) fn new(reason: ReasonCode, what: &'static str) -> Self {
        Self { reason, what }
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        Self { reason: error.reason, what: error.what }
    }
}

/// What to do after a packet.
pub(crate) type Handled = Result<Next, Refusal>;

/// Where to go on after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// With the next packet.
    Packet,
    /// With this packet, in a later turn.
    Hold,
    /// Nowhere: the connection has ended or gone to another shard.
    Gone,
}

/// A subscriber of a filter, in the list that a fan-out runs over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscriber {
    pub(crate) session: u32,
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
}

/// What the shard knows of a connection, session or not.
#[derive(Debug, Default)]
pub(crate) struct Conn {
    pub(crate) generation: u32,
    pub(crate) state: ConnState,
    pub(crate) version: Option<Version>,
    pub(crate) last_packet_ms: u64,
    /// One and a half times the keep alive; 0 is none.
    pub(crate) patience_ms: u32,
    /// The turn that `caused` counts for.
    pub(crate) turn: u64,
    /// Deliveries caused in that turn.
    pub(crate) caused: u32,
    /// Deliveries caused by its last publish.
    pub(crate) last_caused: u32,
    pub(crate) aliases: Option<Box<InboundAliases>>,
    /// It has published something.
    pub(crate) publishes: bool,
    /// Set while its publishes wait for receivers that are behind.
    pub(crate) brake: Option<Brake>,
    /// With this commit its session and will are on disk. Until then its CONNACK is held back, and whatever follows
    /// it; 0 is over.
    pub(crate) connack_waits: u64,
    /// Its CONNECT is answered when the end of this session is on disk: journal and number.
    pub(crate) connect_ends: Option<(u16, u32)>,
}

/// Why a publisher waits, and since when.
#[derive(Debug)]
pub(crate) struct Brake {
    level: Level,
    matched: Arc<Matched>,
    since_ms: u64,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConnState {
    /// The slot is free.
    #[default]
    Vacant,
    /// CONNECT has not come.
    Waiting,
    /// It serves the session in this slot.
    Serving(u32),
}

/// The MQTT door on one shard: a [`Service`] for the runtime's loop.
pub struct Shard {
    pub(crate) me: u16,
    pub(crate) shared: Arc<Shared>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) deliveries: Deliveries,
    /// Subscribers on this shard, by filter.
    pub(crate) local: HashMap<FilterId, Vec<Subscriber>, foldhash::fast::RandomState>,
    pub(crate) cache: Cache,
    pub(crate) pool: MessagePool,
    pub(crate) scratch: crate::publish::Scratch,
    /// Sessions whose walk through the retained messages goes on in the next turn.
    pub(crate) walking: Vec<SessionKey>,
    /// Where the look for expired retained messages goes on.
    pub(crate) swept: String,
    pub(crate) draining: bool,
    pub(crate) sys: Option<crate::sys::Sys>,
    /// Retained messages on disk; the first shard has them.
    pub(crate) retained_log: Option<RetainedLog>,
    pub(crate) commits: Commits,
    /// Sessions whose end is to be entered.
    pub(crate) ending: Vec<Ending>,
    /// Sessions that have given away what could not be kept at first.
    pub(crate) doubtful: Vec<SessionKey>,
    /// Sessions that are over, and whose client identifiers are free when this turn's mail is on its way.
    pub(crate) departed: Vec<(Arc<str>, SessionKey)>,
    /// Number of the last answer.
    pub(crate) next_answer: u64,
    /// A commit is to be begun even if nothing has been entered: somebody waits for one.
    pub(crate) commit_is_due: bool,
    /// What had been entered when the last turn ended.
    pub(crate) entered_before: u64,
    pub(crate) arrived: Vec<Arrived>,
    /// The latest time that a timer for marks is set for, ms.
    pub(crate) marks_armed_ms: u64,
    /// See [`crate::settle_origins`].
    pub(crate) unsure: Vec<Unsure>,
    pub(crate) outside: Elsewhere,
    pub(crate) queues: Work,
    turn: u64,
    /// Deliveries of this turn.
    pub(crate) work: u32,
    /// What the publish just handled met, if most of its receivers are behind.
    pub(crate) pressed: Option<(Level, Arc<Matched>)>,
    /// Mail to another shard has nowhere to go, or more waits for the disk than may be added to.
    congested: bool,
    flushed: crate::counters::Counters,
}

impl Shard {
    /// The shard number `me`. All shards of a broker have the same `shared`.
    pub fn new(me: usize, shared: Arc<Shared>) -> Self {
        let deliveries = Deliveries::new(&shared.config);
        Self {
            me: me as u16,
            conns: Vec::new(),
            deliveries,
            local: HashMap::default(),
            cache: new_cache(),
            pool: MessagePool::default(),
            scratch: crate::publish::Scratch::default(),
            walking: Vec::new(),
            swept: String::new(),
            draining: false,
            sys: None,
            retained_log: None,
            commits: Commits::default(),
            ending: Vec::new(),
            doubtful: Vec::new(),
            departed: Vec::new(),
            next_answer: 0,
            commit_is_due: false,
            entered_before: 0,
            arrived: Vec::new(),
            marks_armed_ms: 0,
            unsure: Vec::new(),
            outside: Elsewhere::default(),
            queues: Work::default(),
            turn: 0,
            work: 0,
            pressed: None,
            congested: false,
            flushed: crate::counters::Counters::default(),
            shared,
        }
    }

    /// Whether this turn has caused its share of deliveries.
    pub(crate) fn is_busy(&self) -> bool {
        self.work >= DELIVERIES_PER_TURN
    }

    pub(crate) fn config(&self) -> &MqttConfig {
        &self.shared.config
    }

    pub(crate) fn conn(&mut self, conn: ConnId) -> &mut Conn {
        &mut self.conns[conn.slot()]
    }

    fn handle(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, frame: &[u8]) -> Handled {
        let Conn { state, version, connack_waits, .. } = self.conns[conn.slot()];
        let ConnState::Serving(slot) = state else { return self.first_packet(io, conn, frame) };
        if connack_waits > 0 {
            return Ok(Next::Hold);
        }
        let version = version.unwrap_or(Version::V4);
        let packet = decode(version, frame)?;
        match packet {
            Packet::Publish(publish) => {
                let is_early = self.is_in_doubt(slot, &publish) || self.is_behind_refusal(slot, &publish);
                if self.must_wait(io, conn, slot) || is_early {
                    return Ok(Next::Hold);
                }
                let before = self.work;
                self.pressed = None;
                let handled = self.on_publish(io, conn, slot, &publish);
                let pressed = self.pressed.take();
                let caused = self.work - before;
                let known = self.conn(conn);
                known.publishes = true;
                known.caused += caused;
                known.last_caused = caused;
                if let Some((level, matched)) = pressed {
                    known.brake = Some(Brake { level, matched, since_ms: io.clock.now_ms });
                }
                handled
            }
            Packet::PubAck(ack) => {
                self.on_puback(io, slot, &ack);
                Ok(Next::Packet)
            }
            Packet::PubRec(ack) => {
                self.on_pubrec(io, slot, &ack);
                Ok(Next::Packet)
            }
            Packet::PubRel(ack) => {
                self.on_pubrel(io, slot, &ack);
                Ok(Next::Packet)
            }
            Packet::PubComp(ack) => {
                self.on_pubcomp(io, slot, &ack);
                Ok(Next::Packet)
            }
            Packet::Subscribe(subscribe) => self.on_subscribe(io, slot, &subscribe),
            Packet::Unsubscribe(unsubscribe) => {
                self.on_unsubscribe(io, slot, &unsubscribe);
                Ok(Next::Packet)
            }
            Packet::PingReq => {
                self.send(io, slot, &Packet::PingResp);
                Ok(Next::Packet)
            }
            Packet::Disconnect(disconnect) => self.on_disconnect(io, conn, slot, &disconnect),
            Packet::Connect(_) => {
                Err(Refusal::new(ReasonCode::ProtocolError, "second CONNECT [MQTT-3.1.0-2]"))
            }
            Packet::Auth(_) => Err(Refusal::new(
                ReasonCode::ProtocolError,
                "AUTH without an authentication method [MQTT-4.12.0-6]",
            )),
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                Err(Refusal::new(ReasonCode::ProtocolError, "a packet that only servers send"))
            }
        }
    }

    /// Whether a PUBLISH has to wait for a later turn: this one has caused its share of deliveries, or mail to
    /// another shard has nowhere to go.
    fn must_wait(&mut self, io: &Io<'_, Mail>, conn: ConnId, slot: u32) -> bool {
        let (turn, work, congested) = (self.turn, self.work, self.congested);
        let shared = &self.shared;
        // Behind its PUBLISH may come acknowledgements that somebody waits for, this client among them.
        let is_receiver = !self.deliveries.sessions.at(slot).window.is_empty();
        let conn = &mut self.conns[conn.slot()];
        if conn.turn != turn {
            conn.turn = turn;
            conn.caused = 0;
        }
        if let Some(brake) = &conn.brake {
            let waited_ms = io.clock.now_ms - brake.since_ms;
            let is_urgent = brake.level == Level::Urgent && waited_ms < URGENT_BRAKE_MS;
            let is_backlog = waited_ms < BRAKE_MS && shared.any_overloaded(brake.matched.reach());
            if !is_receiver && (is_urgent || is_backlog) {
                return true;
            }
            conn.brake = None;
        }
        if congested {
            return true;
        }
        // What its last publish caused is the best guess of what the next will.
        let heavy = conn.caused + conn.last_caused > LIGHT_DELIVERIES;
        heavy && (work >= DELIVERIES_PER_TURN || io.others_wait())
    }

    /// Sends a packet to a session's client, if it is connected.
    pub(crate) fn send(&mut self, io: &mut Io<'_, Mail>, slot: u32, packet: &Packet<'_>) {
        let Session { conn, version, connected, packet_max, .. } = self.deliveries.sessions.at(slot);
        if !*connected || packet.encoded_len(*version) > *packet_max as usize {
            return;
        }
        let Some(output) = io.output(*conn) else { return };
        match packet.encode(*version, output.buffer()) {
            Ok(()) => self.deliveries.counters.messages_sent += 1,
            Err(error) => log::error!("a packet cannot be encoded: {error}"),
        }
    }

    /// Ends a connection that broke a rule: with the reason in MQTT 5, without a word in 3.x.
    fn refuse(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, refusal: &Refusal) {
        let ConnState::Serving(slot) = self.conn(conn).state else {
            log::debug!("a connection is refused: {}", refusal.what);
            self.vacate(conn);
            io.close(conn);
            return;
        };
        let client_id = Arc::clone(&self.deliveries.sessions.at(slot).client_id);
        log::info!("client {client_id:?} is disconnected: {} ({:?})", refusal.what, refusal.reason);
        self.disconnect(io, slot, refusal.reason, Some(refusal.what));
    }

    /// Ends the connection of a session from our side, as one that was lost: its will is due.
    pub(crate) fn disconnect(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        reason: ReasonCode,
        what: Option<&'static str>,
    ) {
        let session = self.deliveries.sessions.at(slot);
        let (conn, version) = (session.conn, session.version);
        if version == Version::V5 {
            let shared = Arc::clone(&self.shared);
            let reference = &shared.config.server_reference;
            let leaving = reason == ReasonCode::ServerShuttingDown && !reference.is_empty();
            let bare = Disconnect { reason, ..Disconnect::default() };
            let full = Disconnect {
                reason_string: what.filter(|_| session.problem_information),
                server_reference: leaving.then_some(reference.as_str()),
                ..bare
            };
            // What explains is left out rather than sent to a client that has no room for it.
            let fits = Packet::Disconnect(full).encoded_len(version) <= session.packet_max as usize;
            self.send(io, slot, &Packet::Disconnect(if fits { full } else { bare }));
        }
        self.vacate(conn);
        io.close(conn);
        self.detach(io, slot);
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn vacate(&mut self, conn: ConnId) {
        let generation = self.conn(conn).generation;
        *self.conn(conn) = Conn { generation, ..Conn::default() };
        self.deliveries.counters.connections -= 1;
        self.shared.leave();
    }
}

/// Whether a packet with this first byte is answered.
fn wants_answer(first: u8) -> bool {
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

impl Service for Shard {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, _listener: usize) {
        if self.conns.len() <= conn.slot() {
            self.conns.resize_with(conn.slot() + 1, Conn::default);
        }
        *self.conn(conn) = Conn {
            generation: conn.generation(),
            state: ConnState::Waiting,
            last_packet_ms: io.clock.now_ms,
            ..Conn::default()
        };
        self.deliveries.counters.connections += 1;
        self.deliveries.counters.connections_accepted += 1;
        self.shared.enter();
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
                break Err(Refusal::new(
                    ReasonCode::PacketTooLarge,
                    "packet larger than the maximum [MQTT-3.2.2-15]",
                ));
            }
            if let Err(refusal) = self.expects(conn, header.first) {
                break Err(refusal);
            }
            if rest.len() < header.packet_len() {
                received.next_len = header.packet_len();
                break Ok(Next::Packet);
            }
            if io.is_congested(conn) && wants_answer(header.first) {
                // A client that asks and never reads is not read either: answers take memory.
                received.hold = true;
                break Ok(Next::Hold);
            }
            match self.handle(io, conn, &rest[..header.packet_len()]) {
                Ok(Next::Packet) => {
                    received.consumed += header.packet_len();
                    packets += 1;
                    answers += u64::from(wants_answer(header.first));
                }
                Ok(Next::Hold) => {
                    received.hold = true;
                    break Ok(Next::Hold);
                }
                outcome => break outcome,
            }
        };
        self.deliveries.counters.messages_received += packets;
        if packets > 0 {
            // Whole packets count, not bytes [MQTT-3.1.2-22].
            self.conn(conn).last_packet_ms = io.clock.now_ms;
            if answers == 0 && self.conn(conn).publishes {
                // Nothing may go back on these acknowledgements, and a publish may wait behind them.
                io.confirm_receipt(conn);
            }
        }
        if let Err(refusal) = outcome {
            received.consumed = bytes.len();
            self.refuse(io, conn, &refusal);
        }
        if let Conn { state: ConnState::Serving(slot), .. } = self.conns[conn.slot()]
            && packets > 0
        {
            self.pump(io, slot);
        }
        received
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        if let Some(Conn { generation, state: ConnState::Serving(slot), .. }) = self.conns.get(conn.slot())
            && *generation == conn.generation()
        {
            self.pump(io, *slot);
        }
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        let state = self.conn(conn).state;
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
        self.turn += 1;
        self.work = 0;
        self.free_departed();
        self.poll_commits(io);
        self.congested = io.congested() || self.is_disk_behind() || self.outside.is_behind;
        if self.turn == 1 {
            self.start_timers(io);
        }
        for key in std::mem::take(&mut self.walking) {
            if let Some(session) = self.deliveries.sessions.get(key) {
                session.rare().walk_is_due = false;
                self.pump(io, key.slot);
            }
        }
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        !self.is_busy() && !io.congested() && !self.is_disk_behind() && !self.outside.is_behind
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.work = 0;
        self.commit_turn(io);
        let connections = io.connections() as u64;
        let overloaded = self.deliveries.backlog > BACKLOG_MESSAGES + BACKLOG_MESSAGES_EACH * connections
            || io.backlog_bytes() > BACKLOG_BYTES + BACKLOG_BYTES_EACH * connections;
        self.shared.set_overloaded(self.me, overloaded);
        self.deliveries.end_of_message();
        let counters = &mut self.deliveries.counters;
        counters.bytes_received = io.stats.bytes_read;
        counters.bytes_sent = io.stats.bytes_written;
        counters.socket_reads = io.stats.reads;
        counters.socket_writes = io.stats.writes;
        if *counters != self.flushed {
            self.flushed = *counters;
            self.shared.counters[usize::from(self.me)].store(counters);
        }
        if !self.walking.is_empty() {
            io.again_soon();
        }
    }

    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        self.draining = true;
        self.deliveries.journals.iter_mut().for_each(Journal::hurry_marks);
        for slot in 0..self.conns.len() {
            let Conn { generation, state, .. } = self.conns[slot];
            let conn = ConnId::from_parts(slot as u32, generation);
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
