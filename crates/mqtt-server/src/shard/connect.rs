//! CONNECT: which clients are accepted, with which session, and on which shard (3.1, 3.2).
//!
//! A client identifier has one session at most in the whole broker, whichever shard its connections arrive at. So the
//! order is: check the packet; if another shard has the session, hand the connection over with its unread CONNECT; find
//! out who the client is, and check its rights; then resume, end or create the session. The registry decides between
//! two shards that create a session at the same time, and the slower one hands its connection over. What is checked,
//! [`Admission`](crate::admission::Admission) decides; here a refusal is sent, and a connection held or closed.
//!
//! A CONNECT that must wait is held: it stays in the input of its connection and is handled again from the start. It
//! waits for its password, for mail of this turn, or for the former session to end durably. The CONNACK of a durable
//! session waits for the commit, because a crash must not take back what it told the client.

use std::sync::Arc;

use mainstem_mqtt::{ConnAck, Connect, Packet, ReasonCode, Version, connect_level, decode};
use mainstem_runtime::{ConnId, Io, MemoryPressure};
use mainstem_security::{Identity, LogInResult};

use super::Shard;
use crate::access::Access;
use crate::admission::{self, ConnectContext, Granted, LoggedIn, Peer};
use crate::broker_state::Mail;
use crate::connections::{ConnState, Connected, LogInState};
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::SessionKey;
use crate::session::ClientParameters;
use crate::wills::Will;

/// Newest protocol level that the broker speaks.
const NEWEST_LEVEL: u8 = Version::V5 as u8;

/// Cost of a CONNECT, units.
const CONNECT_UNITS: u32 = 30;

/// The session of a CONNECT, and whether it existed before.
struct SessionPlace {
    slot: u32,
    is_present: bool,
}

/// Where the session of a CONNECT is.
enum Attached {
    Here(SessionPlace),
    /// The connection has been handed to the shard that has the session.
    OnOtherShard,
    /// A former session must end first, or its will be durable.
    NotYet,
}

impl Shard {
    /// Checks the type of a packet before it has come in full: a connection that has not sent CONNECT gets no buffer
    /// for anything else.
    pub(super) fn expects(&mut self, conn: ConnId, first: u8) -> Result<(), ProtocolError> {
        let is_waiting = self.connections.state(conn) == ConnState::Waiting;
        if is_waiting && !self.connections.may_come_first(conn, first) {
            let what = if self.connections.authentication(conn).is_some() {
                "another packet than AUTH before CONNACK"
            } else {
                "the first packet is not CONNECT [MQTT-3.1.0-1]"
            };
            return Err(ProtocolError::new(ReasonCode::ProtocolError, what));
        }
        Ok(())
    }

    /// The first packet of a connection, which is a CONNECT.
    pub(super) fn first_packet(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, frame: &[u8]) -> Handled {
        if io.has_pending_mail() {
            // What an earlier session of this client has published on another shard comes first [MQTT-4.6.0-6].
            return Ok(Next::Hold);
        }
        if self.connections.is_logging_in(conn) {
            return Ok(Next::Hold);
        }
        io.charge(CONNECT_UNITS);
        let mut has_waited = false;
        if let Some((journal, number)) = self.connections.awaited_end(conn) {
            // While the disk fails, the end will not be durable soon.
            if self.host.is_ending(journal, number) && !self.shared.is_failing() {
                return Ok(Next::Hold);
            }
            self.connections.await_end(conn, None);
            has_waited = true;
        }
        let connect = self.decode_connect(io, conn, frame)?;
        let context = ConnectContext {
            is_draining: self.connections.is_draining(),
            has_waited,
            is_persistence_enabled: self.host.persistence().is_enabled(),
        };
        let checked = self.admission.check_connect(&connect, context);
        let checked =
            checked.and_then(|()| self.admission.check_bans(&connect, io.peer_address(conn), io.clock));
        if let Err(reason) = checked {
            return self.refuse_connect(io, conn, &connect, refusal(reason));
        }
        let known = self.shared.registry.find(connect.client_id).filter(|known| known.shard != self.me);
        if let Some(known) = known {
            // The shard of the session verifies the password.
            self.hand_over(io, conn, known);
            return Ok(Next::Gone);
        }
        let has_begun = self.connections.authentication(conn).is_some();
        if connect.authentication_method.is_some() && !has_begun {
            return self.begin_authentication(io, conn, &connect, frame);
        }
        match self.log_in(io, conn, &connect) {
            Ok(LoggedIn::As(identity)) => self.admit(io, conn, &connect, &identity),
            Ok(LoggedIn::NotYet) => Ok(Next::Hold),
            Err(reason) => self.refuse_connect(io, conn, &connect, refusal(reason)),
        }
    }

    /// Finds out who sends a CONNECT. The connection waits, unread, while its password is verified.
    fn log_in(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
    ) -> Result<LoggedIn, ReasonCode> {
        match self.connections.log_in(conn) {
            LogInState::Waiting => return Ok(LoggedIn::NotYet),
            LogInState::Over(LogInResult::Accepted(identity)) => return Ok(LoggedIn::As(identity)),
            LogInState::Over(LogInResult::Rejected) => return Err(ReasonCode::BadUserNameOrPassword),
            LogInState::Over(LogInResult::Busy) => return Err(ReasonCode::ServerBusy),
            LogInState::Over(LogInResult::Unavailable) => return Err(ReasonCode::ServerUnavailable),
            LogInState::None => {}
        }
        let peer = Peer::of(io, conn, self.connections.listener(conn));
        let logged_in = self.admission.log_in(conn, connect, peer)?;
        if matches!(logged_in, LoggedIn::NotYet) {
            self.connections.set_log_in(conn, LogInState::Waiting);
        }
        Ok(logged_in)
    }

    /// Gives a CONNECT whose client is known its session.
    fn admit(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        identity: &Identity,
    ) -> Handled {
        let assigned = if connect.client_id.is_empty() { self.shared.new_client_id() } else { None };
        let client_id: Arc<str> = assigned.as_deref().unwrap_or(connect.client_id).into();
        let access = match self.check_client(io, conn, connect, &client_id, identity) {
            Ok(access) => access,
            Err(refusal) => return self.refuse_connect(io, conn, connect, refusal),
        };
        let place = match self.attach_session(io, conn, connect, &client_id) {
            Ok(Attached::Here(place)) => place,
            Ok(Attached::OnOtherShard) => return Ok(Next::Gone),
            Ok(Attached::NotYet) => return Ok(Next::Hold),
            Err(reason) => {
                let refusal = ProtocolError::new(reason, "there is no room for another session");
                return self.refuse_connect(io, conn, connect, refusal);
            }
        };
        self.host.session(place.slot).set_access(access);
        self.narrow(io, place.slot);
        self.arm_proof(io, conn, place.slot);
        self.send_connack(io, conn, connect, &place);
        Ok(if self.connections.state(conn) == ConnState::Vacant { Next::Gone } else { Next::Packet })
    }

    /// Checks what a client that has logged in asks for. Returns its rights.
    fn check_client(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        client_id: &str,
        identity: &Identity,
    ) -> Result<Option<Access>, ProtocolError> {
        let peer = Peer::of(io, conn, self.connections.listener(conn));
        let address = peer.address();
        self.admission.check_user_ban(connect, &identity.principal, address, io.clock).map_err(refusal)?;
        if client_id.is_empty() {
            let what = "there is no client identifier to assign";
            return Err(ProtocolError::new(ReasonCode::ServerUnavailable, what));
        }
        let known = self.shared.registry.find(client_id).filter(|known| known.shard == self.me);
        let resumed = known.and_then(|known| self.host.find_session(known)).map(|session| &*session);
        let access = self.admission.check_rights(connect, client_id, identity, peer, resumed);
        let access = access.map_err(refusal)?;
        // Only clients that have logged in are counted: otherwise strangers could get others banned.
        if self.connections.begin_connect(conn) {
            self.admission.check_flapping(connect, address, io.clock).map_err(refusal)?;
        }
        Ok(access)
    }

    /// Decodes a CONNECT.
    fn decode_connect<'a>(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        frame: &'a [u8],
    ) -> Result<Connect<'a>, ProtocolError> {
        match decode(Version::V5, frame) {
            Ok(Packet::Connect(connect)) => Ok(connect),
            Ok(_) => {
                let what = "the first packet is not CONNECT [MQTT-3.1.0-1]";
                Err(ProtocolError::new(ReasonCode::ProtocolError, what))
            }
            Err(error) => {
                self.answer_undecodable(io, conn, frame, error.reason);
                Err(error.into())
            }
        }
    }

    /// Rejects a CONNECT that does not decode, if its protocol level is known [MQTT-3.1.2-2].
    fn answer_undecodable(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, frame: &[u8], reason: ReasonCode) {
        let Some(level) = connect_level(frame) else { return };
        let version = if level >= NEWEST_LEVEL { Version::V5 } else { Version::V4 };
        if version == Version::V5 || reason == ReasonCode::UnsupportedProtocolVersion {
            self.reject_connect(io, conn, version, None, reason);
        }
    }

    /// Sends a CONNACK with an error. The caller closes the connection.
    fn reject_connect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        version: Version,
        packet_max: Option<u32>,
        reason: ReasonCode,
    ) {
        let Some(packet) = admission::rejected(&self.shared.config, version, packet_max, reason) else {
            return;
        };
        let Some(output) = io.output(conn) else { return };
        match packet.encode(version, output.buffer()) {
            Ok(()) => self.host.counters_mut().messages_sent += 1,
            Err(error) => log::error!("a CONNACK cannot be encoded: {error}"),
        }
    }

    /// Answers a CONNECT with an error. The caller closes the connection.
    pub(super) fn refuse_connect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        refusal: ProtocolError,
    ) -> Handled {
        self.reject_connect(io, conn, connect.version, connect.maximum_packet_size, refusal.reason);
        Err(refusal)
    }

    /// Finds or creates the session, and ends its former connection.
    fn attach_session(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        client_id: &Arc<str>,
    ) -> Result<Attached, ReasonCode> {
        let known = self.shared.registry.find(client_id);
        // A session of another shard is checked there.
        let resumed = known.filter(|key| key.shard == self.me && !connect.clean_start);
        let resumed = resumed.and_then(|key| self.host.find_session(key)).map(|session| &*session);
        if !self.admission.has_room_for_will(connect, client_id, resumed, io.clock.now_ms) {
            return Err(ReasonCode::QuotaExceeded);
        }
        if let Some(known) = known.filter(|known| !self.host.is_closing_session(*known))
            && let Some(attached) = self.attach_known(io, conn, known, connect.clean_start)?
        {
            return Ok(attached);
        }
        // Clients that have a session may come back: they free memory when they take what waits for them.
        if io.memory().pressure_now() == MemoryPressure::Critical || !self.shared.open_session() {
            return Err(ReasonCode::QuotaExceeded);
        }
        let known = self.shared.registry.find(client_id);
        if let Some(closed) = known.filter(|known| self.host.is_closing_session(*known)) {
            // On this shard, what the former session has published leaves before anything that this one publishes.
            self.shared.registry.release(client_id, closed);
        }
        match self.host.add_session(client_id, conn) {
            Ok(key) => Ok(Attached::Here(SessionPlace { slot: key.slot, is_present: false })),
            Err(other) => {
                // Another shard was faster.
                self.shared.close_session();
                self.hand_over(io, conn, other);
                Ok(Attached::OnOtherShard)
            }
        }
    }

    /// Attaches the session `known`, or ends it for a clean start. `None` if a new session is to be created.
    fn attach_known(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        known: SessionKey,
        clean_start: bool,
    ) -> Result<Option<Attached>, ReasonCode> {
        if known.shard != self.me {
            self.hand_over(io, conn, known);
            return Ok(Some(Attached::OnOtherShard));
        }
        if self.host.find_session(known).is_some_and(|session| session.is_connected()) {
            self.disconnect(io, known.slot, ReasonCode::SessionTakenOver, None);
        }
        // The loss of its connection may have ended it.
        if let Some(ending) = self.host.find_ending(known) {
            self.connections.await_end(conn, Some(ending));
            return Ok(Some(Attached::NotYet));
        }
        if self.host.find_session(known).is_none() {
            return Ok(None);
        }
        if !clean_start {
            // A will may be due whose timer has not fired: coming back cancels only a will that is not due.
            self.publisher.check_will(io, &mut self.host, known);
            return match (self.host.has_leaving_will(known), self.shared.is_failing()) {
                (false, _) => Ok(Some(Attached::Here(SessionPlace { slot: known.slot, is_present: true }))),
                (true, false) => Ok(Some(Attached::NotYet)),
                (true, true) => Err(ReasonCode::ServerUnavailable),
            };
        }
        let session = self.host.session(known.slot);
        let (journal, number) = (session.journal(), session.number());
        // After the CONNACK, a crash must not bring the old session back.
        if session.is_durable() && self.shared.is_failing() {
            return Err(ReasonCode::ServerUnavailable);
        }
        self.end_session(io, known.slot);
        if self.host.is_ending(journal, number) {
            self.connections.await_end(conn, Some((journal, number)));
            return Ok(Some(Attached::NotYet));
        }
        Ok(None)
    }

    fn hand_over(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, to: SessionKey) {
        self.vacate(conn);
        self.host.counters_mut().connections_accepted -= 1;
        io.hand_over(conn, usize::from(to.shard));
    }

    /// Connects the session, and sends CONNACK.
    fn send_connack(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        place: &SessionPlace,
    ) {
        let shared = Arc::clone(&self.shared);
        let granted = Granted::new(&shared.config, connect);
        let mut authentication = self.connections.take_authentication(conn);
        let last_message = authentication.as_mut().map(|known| known.take_last_message()).unwrap_or_default();
        self.connect_session(io, conn, connect, place, granted);
        let quotas = self.admission.find_quotas(self.host.session(place.slot), io.clock.now_ms);
        self.connections.set_quotas(conn, quotas);
        let client_id = Arc::clone(self.host.session(place.slot).client_id());
        log::debug!("client {client_id:?} connects, session present: {}", place.is_present);
        let packet = Packet::ConnAck(ConnAck {
            authentication_method: authentication.as_ref().map(|known| known.method().name()),
            authentication_data: (!last_message.is_empty()).then_some(last_message.as_slice()),
            ..admission::accepted(&shared.config, connect, granted, place.is_present, &client_id)
        });
        self.connections.set_authentication(conn, authentication);
        let packet_max = self.host.session(place.slot).packet_max();
        if packet.encoded_len(connect.version) > packet_max as usize {
            log::info!("client {client_id:?} is refused: it has no room for a CONNACK");
            self.reject_connect(io, conn, connect.version, Some(packet_max), ReasonCode::PacketTooLarge);
            self.vacate(conn);
            io.close(conn);
            self.detach(io, place.slot);
            return;
        }
        self.host.send(io, place.slot, &packet);
        self.hold_connack(io, conn, place.slot);
        self.host.start_consumers(place.slot);
        self.host.pump(io, place.slot);
    }

    /// Gives a session its connection.
    fn connect_session(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        place: &SessionPlace,
        granted: Granted,
    ) {
        let slot = place.slot;
        let inflight_max =
            self.config().max_inflight_messages.min(connect.receive_maximum.unwrap_or(u16::MAX));
        let parameters = ClientParameters {
            conn,
            version: connect.version,
            problem_information: connect.request_problem_information.unwrap_or(true),
            inflight_max,
            packet_max: connect.maximum_packet_size.unwrap_or(u32::MAX),
            expiry_s: granted.expiry_s,
        };
        self.host.connect(slot, parameters, place.is_present);
        let session = self.host.session(slot);
        let will = connect.will.as_ref().map(|will| Will::new(will, session.key(), self.publisher.meter()));
        let is_v5 = connect.version == Version::V5;
        let aliases_max = connect.topic_alias_maximum.filter(|_| is_v5).unwrap_or(0);
        session.set_will_and_aliases(will, aliases_max);
        self.host.append_session(io.clock, slot);
        let connected = Connected {
            session: slot,
            version: connect.version,
            keep_alive_timeout_ms: u32::from(granted.keep_alive) * 1500,
        };
        self.connections.connect(conn, connected, io.clock.now_ms);
        self.arm_keep_alive(io, conn);
    }

    /// Holds the CONNACK of a durable session until session and will are on disk: a crash must not take back what the
    /// client was told, nor let the session expire as if the client had not come. The same commit wakes the session for
    /// what came while it had no connection and is not on disk yet.
    fn hold_connack(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, slot: u32) {
        if self.host.session(slot).is_durable() {
            let commit = self.host.commit_session(slot);
            self.connections.hold_connack(conn, commit);
            io.hold_output(conn);
        }
    }

    /// Releases a CONNACK that has waited for `commit`, or rejects the CONNECT if the commit has failed.
    pub(super) fn release_connack(
        &mut self,
        io: &mut Io<'_, Mail>,
        key: SessionKey,
        commit: u64,
        has_failed: bool,
    ) {
        let Some(session) = self.host.find_session(key) else { return };
        let (conn, version, packet_max) = (session.conn(), session.version(), session.packet_max());
        if !session.is_connected() || !self.connections.release_connack(conn, commit) {
            return;
        }
        if !has_failed {
            io.release_output(conn);
            return;
        }
        let client_id = self.host.session(key.slot).client_id();
        log::warn!("client {client_id:?} is refused: its session cannot be kept on disk");
        io.discard_output(conn);
        self.reject_connect(io, conn, version, Some(packet_max), ReasonCode::ServerUnavailable);
        self.vacate(conn);
        io.close(conn);
        self.detach(io, key.slot);
    }
}

pub(super) fn refusal(reason: ReasonCode) -> ProtocolError {
    ProtocolError::new(reason, "CONNECT is refused")
}
