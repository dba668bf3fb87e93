//! The connections of one shard: their state before and after CONNECT, keep alive, and when their publishes must wait.
//!
//! A publish whose receivers cannot keep up sets a brake on its connection: messages would be lost that nobody had to
//! lose. How much work a connection may cause in a turn is up to the runtime.

use std::sync::Arc;

use mainstem_mqtt::alias::InboundAliases;
use mainstem_mqtt::{PacketType, Version};
use mainstem_quota::ClientQuotas;
use mainstem_runtime::ConnId;
use mainstem_security::LogInResult;

use crate::authentication::Authentication;
use crate::broker_state::Shared;
use crate::filter_list::FilterList;
use crate::pressure::Level;
use crate::routes::Matched;

/// Longest wait of a publisher for receivers that are behind on a shard that has a backlog, ms.
const BRAKE_MS: u64 = 1_000;
/// Wait of a publisher for receivers whose queues are half full, ms: short, because no event says when they are not.
/// Readers that take a few hundred messages per second lose none.
const URGENT_BRAKE_MS: u64 = 5;

/// State of one connection slot.
#[derive(Debug, Default)]
struct Conn {
    generation: u32,
    state: ConnState,
    version: Option<Version>,
    last_packet_ms: u64,
    /// One and a half times the keep alive; 0 is none.
    keep_alive_timeout_ms: u32,
    aliases: Option<Box<InboundAliases>>,
    /// It has published something.
    publishes: bool,
    /// Set while its publishes wait for receivers that are behind.
    brake: Option<Brake>,
    /// The commit that makes session and will durable. Until then the CONNACK is held back; 0 is none.
    connack_commit: u64,
    /// The session, by journal and number, whose end must be on disk before CONNECT is answered.
    awaited_end: Option<(u16, u32)>,
    /// The SUBSCRIBE or UNSUBSCRIBE at the start of its input, if that continues from an earlier turn.
    filter_list: Option<Box<FilterList>>,
    /// Number of its listener.
    listener: u16,
    log_in: LogInState,
    /// Its enhanced authentication, if its CONNECT has a method.
    authentication: Option<Box<Authentication>>,
    /// Its CONNECT has come and may have to wait.
    has_connect: bool,
    /// Its quotas, if it has any.
    quotas: Option<Arc<ClientQuotas>>,
    /// Until when it waits for a quota, ms.
    paused_until_ms: u64,
}

/// Why a publisher waits, and since when.
#[derive(Debug)]
struct Brake {
    level: Level,
    matched: Arc<Matched>,
    since_ms: u64,
}

/// How far the log-in of a CONNECT is.
#[derive(Clone, Debug, Default)]
pub(crate) enum LogInState {
    /// It has none, or has not begun.
    #[default]
    None,
    /// The password is being verified.
    Waiting,
    Over(LogInResult),
}

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

/// What a connection is after its CONNECT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    /// Slot of its session.
    pub(crate) session: u32,
    pub(crate) version: Version,
    pub(crate) keep_alive_timeout_ms: u32,
}

/// All connections of a shard.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    conns: Vec<Conn>,
    turn: u64,
    /// Mail to another shard has nowhere to go, or more waits for the disk than may be added to.
    is_congested: bool,
    /// The shard ends: no CONNECT is accepted.
    is_draining: bool,
}

impl Connections {
    fn at(&mut self, conn: ConnId) -> &mut Conn {
        &mut self.conns[conn.slot()]
    }

    pub(crate) fn accept(&mut self, conn: ConnId, listener: u16, now_ms: u64) {
        if self.conns.len() <= conn.slot() {
            self.conns.resize_with(conn.slot() + 1, Conn::default);
        }
        *self.at(conn) = Conn {
            generation: conn.generation(),
            state: ConnState::Waiting,
            last_packet_ms: now_ms,
            listener,
            ..Conn::default()
        };
    }

    /// No CONNECT is accepted from now on.
    pub(crate) fn begin_drain(&mut self) {
        self.is_draining = true;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// CONNECT has been accepted.
    pub(crate) fn connect(&mut self, conn: ConnId, connected: Connected, now_ms: u64) {
        let Connected { session, version, keep_alive_timeout_ms } = connected;
        let listener = self.at(conn).listener;
        *self.at(conn) = Conn {
            generation: conn.generation(),
            state: ConnState::Serving(session),
            version: Some(version),
            last_packet_ms: now_ms,
            keep_alive_timeout_ms,
            listener,
            ..Conn::default()
        };
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn vacate(&mut self, conn: ConnId) {
        let generation = self.at(conn).generation;
        *self.at(conn) = Conn { generation, ..Conn::default() };
    }

    pub(crate) fn state(&self, conn: ConnId) -> ConnState {
        self.conns[conn.slot()].state
    }

    /// State of a connection that may be gone.
    pub(crate) fn find(&self, conn: ConnId) -> Option<ConnState> {
        let known = self.conns.get(conn.slot())?;
        (known.generation == conn.generation()).then_some(known.state)
    }

    /// Protocol version of a connection after its CONNECT.
    pub(crate) fn version(&self, conn: ConnId) -> Version {
        self.conns[conn.slot()].version.unwrap_or(Version::V4)
    }

    /// All connections, vacant slots included, as they are now.
    pub(crate) fn all(&self) -> Vec<(ConnId, ConnState)> {
        let known = self.conns.iter().enumerate();
        known.map(|(slot, known)| (ConnId::from_parts(slot as u32, known.generation), known.state)).collect()
    }

    // Keep alive.

    /// Whole packets have come, which restart the keep alive [MQTT-3.1.2-22].
    pub(crate) fn on_packets(&mut self, conn: ConnId, now_ms: u64) {
        self.at(conn).last_packet_ms = now_ms;
    }

    /// When the keep alive of a connection ends, if it has one.
    pub(crate) fn keep_alive_ends_ms(&mut self, conn: ConnId) -> Option<u64> {
        let known = self.at(conn);
        let timeout_ms = u64::from(known.keep_alive_timeout_ms);
        (timeout_ms > 0).then_some(known.last_packet_ms + timeout_ms)
    }

    // CONNECT and CONNACK.

    /// Number of the listener that a connection came by.
    pub(crate) fn listener(&self, conn: ConnId) -> u16 {
        self.conns[conn.slot()].listener
    }

    /// The enhanced authentication of a connection, if it has one.
    pub(crate) fn authentication(&mut self, conn: ConnId) -> Option<&mut Authentication> {
        self.at(conn).authentication.as_deref_mut()
    }

    pub(crate) fn take_authentication(&mut self, conn: ConnId) -> Option<Box<Authentication>> {
        self.at(conn).authentication.take()
    }

    pub(crate) fn set_authentication(&mut self, conn: ConnId, authentication: Option<Box<Authentication>>) {
        self.at(conn).authentication = authentication;
    }

    pub(crate) fn log_in(&self, conn: ConnId) -> LogInState {
        self.conns[conn.slot()].log_in.clone()
    }

    /// Whether a CONNECT waits for its password to be verified.
    pub(crate) fn is_logging_in(&self, conn: ConnId) -> bool {
        matches!(self.conns[conn.slot()].log_in, LogInState::Waiting)
    }

    /// Whether a packet with this first byte may come on a connection that has had no CONNACK.
    pub(crate) fn may_come_first(&self, conn: ConnId, first: u8) -> bool {
        const CONNECT: u8 = PacketType::Connect as u8;
        const AUTH: u8 = PacketType::Auth as u8;
        const DISCONNECT: u8 = PacketType::Disconnect as u8;
        let is_authenticating = self.conns[conn.slot()].authentication.is_some();
        match first >> 4 {
            CONNECT => !is_authenticating,
            AUTH | DISCONNECT => is_authenticating,
            _ => false,
        }
    }

    /// Begins to handle a CONNECT. Returns false if it is handled again, because it had to wait.
    pub(crate) fn begin_connect(&mut self, conn: ConnId) -> bool {
        !std::mem::replace(&mut self.at(conn).has_connect, true)
    }

    pub(crate) fn set_log_in(&mut self, conn: ConnId, state: LogInState) {
        self.at(conn).log_in = state;
    }

    /// The log-in of a connection is over. The connection may be gone.
    pub(crate) fn end_log_in(&mut self, conn: ConnId, result: LogInResult) {
        let known = self.conns.get_mut(conn.slot());
        if let Some(known) = known.filter(|known| known.generation == conn.generation())
            && matches!(known.log_in, LogInState::Waiting)
        {
            known.log_in = LogInState::Over(result);
        }
    }

    /// CONNECT waits until the end of this session, by journal and number, is on disk.
    pub(crate) fn await_end(&mut self, conn: ConnId, session: Option<(u16, u32)>) {
        self.at(conn).awaited_end = session;
    }

    pub(crate) fn awaited_end(&mut self, conn: ConnId) -> Option<(u16, u32)> {
        self.at(conn).awaited_end
    }

    /// Holds the CONNACK, and all that follows, until `commit` is over.
    pub(crate) fn hold_connack(&mut self, conn: ConnId, commit: u64) {
        self.at(conn).connack_commit = commit;
    }

    pub(crate) fn is_connack_held(&self, conn: ConnId) -> bool {
        self.conns[conn.slot()].connack_commit > 0
    }

    /// Whether the CONNACK has waited for `commit` or an earlier one; it waits no longer.
    pub(crate) fn release_connack(&mut self, conn: ConnId, commit: u64) -> bool {
        let known = self.at(conn);
        let is_due = (1..=commit).contains(&known.connack_commit);
        if is_due {
            known.connack_commit = 0;
        }
        is_due
    }

    // Quotas.

    pub(crate) fn set_quotas(&mut self, conn: ConnId, quotas: Option<Arc<ClientQuotas>>) {
        self.at(conn).quotas = quotas;
    }

    /// The quotas of a connection, if it has any.
    #[inline]
    pub(crate) fn quotas(&self, conn: ConnId) -> Option<&Arc<ClientQuotas>> {
        self.conns[conn.slot()].quotas.as_ref()
    }

    /// The connection is not read for this time because of a quota. Unless its peer `has_closed`, it counts as alive
    /// then: its packets cannot be read. Returns false if it has been waiting already.
    pub(crate) fn pause(&mut self, conn: ConnId, wait_ms: u64, now_ms: u64, has_closed: bool) -> bool {
        let known = self.at(conn);
        if !has_closed {
            known.last_packet_ms = now_ms;
        }
        let is_first = known.paused_until_ms < now_ms;
        known.paused_until_ms = now_ms + wait_ms;
        is_first
    }

    // Topic aliases.

    /// Takes the table out while a topic may be borrowed from it.
    pub(crate) fn take_aliases(&mut self, conn: ConnId) -> Option<Box<InboundAliases>> {
        self.at(conn).aliases.take()
    }

    pub(crate) fn put_aliases(&mut self, conn: ConnId, aliases: Box<InboundAliases>) {
        self.at(conn).aliases = Some(aliases);
    }

    // Long packets.

    /// Keeps the progress of a SUBSCRIBE or UNSUBSCRIBE that continues in a later turn.
    pub(crate) fn put_filter_list(&mut self, conn: ConnId, list: Box<FilterList>) {
        self.at(conn).filter_list = Some(list);
    }

    pub(crate) fn take_filter_list(&mut self, conn: ConnId) -> Option<Box<FilterList>> {
        self.at(conn).filter_list.take()
    }

    // The turn and its publishes.

    pub(crate) fn begin_turn(&mut self, is_congested: bool) {
        self.is_congested = is_congested;
    }

    /// Counts a turn; true for the first.
    pub(crate) fn next_turn(&mut self) -> bool {
        self.turn += 1;
        self.turn == 1
    }

    /// A PUBLISH of this connection has been handled; most of its receivers may be behind.
    pub(crate) fn end_publish(&mut self, conn: ConnId, now_ms: u64, pressure: Option<(Level, Arc<Matched>)>) {
        let known = self.at(conn);
        known.publishes = true;
        if let Some((level, matched)) = pressure {
            known.brake = Some(Brake { level, matched, since_ms: now_ms });
        }
    }

    /// Whether the connection has published something.
    pub(crate) fn is_publisher(&self, conn: ConnId) -> bool {
        self.conns[conn.slot()].publishes
    }

    /// Whether a PUBLISH has to wait for a later turn. A receiver with messages in flight is never braked: behind its
    /// PUBLISH may come acknowledgements that others wait for.
    pub(crate) fn must_wait(
        &mut self,
        conn: ConnId,
        shared: &Shared,
        now_ms: u64,
        is_receiver: bool,
    ) -> bool {
        let is_congested = self.is_congested;
        let known = self.at(conn);
        if let Some(brake) = &known.brake {
            let waited_ms = now_ms - brake.since_ms;
            let is_urgent = brake.level == Level::Urgent && waited_ms < URGENT_BRAKE_MS;
            let is_backlog = waited_ms < BRAKE_MS && shared.any_overloaded(brake.matched.reach());
            if !is_receiver && (is_urgent || is_backlog) {
                return true;
            }
            known.brake = None;
        }
        is_congested
    }
}
