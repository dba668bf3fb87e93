//! CONNECT: which clients are accepted, with which session, and on which shard (3.1, 3.2).
//!
//! A client identifier has one session at most in the whole broker, whichever shard its connections arrive at. So the
//! order is: check the packet; if another shard has the session, hand the connection over with its unread CONNECT; find
//! out who the client is (`access.rs`); check its rights; then resume, end or create the session. The registry decides
//! between two shards that create a session at the same time, and the slower one hands its connection over.
//!
//! A CONNECT that must wait is held: it stays in the input of its connection and is handled again from the start. It
//! waits for its password, for mail of this turn, or for the former session to end durably. The CONNACK of a durable
//! session waits for the commit, because a crash must not take back what it told the client.

use std::sync::Arc;

use mainstem_mqtt::{ConnAck, Connect, Packet, QoS, ReasonCode, Version, connect_level, decode};
use mainstem_runtime::{ConnId, Io, MemoryMeter, MemoryPressure};
use mainstem_security::Identity;
use mainstem_topic::{check_name, level_count};

use super::Shard;
use super::access::LoggedIn;
use crate::broker_state::Mail;
use crate::config::{MqttConfig, Redirect};
use crate::connections::{ConnState, Connected};
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::{Content, Message, SessionKey};
use crate::queue_consumers::{is_of_queue, queue_of};
use crate::session::ClientParameters;
use crate::session::account::new_session_cost;
use crate::wills::Will;

/// Newest protocol level that the broker speaks.
const NEWEST_LEVEL: u8 = Version::V5 as u8;

/// Characters of a client identifier in log lines about wills that are too large.
const LOGGED_CHARS: usize = 128;
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
        if is_waiting && !self.may_come_first(conn, first) {
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
        if self.is_logging_in(conn) {
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
        if let Err(reason) = self.check_connect(&connect, has_waited) {
            return self.refuse_connect(io, conn, &connect, reason);
        }
        if let Err(reason) = self.check_bans(io, conn, &connect) {
            return self.refuse_connect(io, conn, &connect, reason);
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
        let identity = match self.log_in(io, conn, &connect) {
            Ok(LoggedIn::As(identity)) => identity,
            Ok(LoggedIn::NotYet) => return Ok(Next::Hold),
            Err(reason) => return self.refuse_connect(io, conn, &connect, reason),
        };
        self.admit(io, conn, &connect, &identity)
    }

    /// Gives a CONNECT whose client is known its session.
    fn admit(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        identity: &Identity,
    ) -> Handled {
        if let Err(reason) = self.check_user_ban(io, conn, connect, &identity.principal) {
            return self.refuse_connect(io, conn, connect, reason);
        }
        let assigned = if connect.client_id.is_empty() { self.shared.new_client_id() } else { None };
        let client_id: Arc<str> = assigned.as_deref().unwrap_or(connect.client_id).into();
        if client_id.is_empty() {
            let reason = ReasonCode::ServerUnavailable;
            self.reject_connect(io, conn, connect.version, connect.maximum_packet_size, reason);
            return Err(ProtocolError::new(reason, "there is no client identifier to assign"));
        }
        let access = match self.check_rights(io, conn, connect, &client_id, identity) {
            Ok(access) => access,
            Err(reason) => return self.refuse_connect(io, conn, connect, reason),
        };
        // Only clients that have logged in are counted: otherwise strangers could get others banned.
        if self.connections.begin_connect(conn)
            && let Err(reason) = self.check_flapping(io, conn, connect)
        {
            return self.refuse_connect(io, conn, connect, reason);
        }
        let place = match self.attach_session(io, conn, connect, &client_id) {
            Ok(Attached::Here(place)) => place,
            Ok(Attached::OnOtherShard) => return Ok(Next::Gone),
            Ok(Attached::NotYet) => return Ok(Next::Hold),
            Err(reason) => {
                self.reject_connect(io, conn, connect.version, connect.maximum_packet_size, reason);
                return Err(ProtocolError::new(reason, "there is no room for another session"));
            }
        };
        self.host.session(place.slot).set_access(access);
        self.narrow(io, place.slot);
        self.arm_proof(io, conn, place.slot);
        self.send_connack(io, conn, connect, &place);
        Ok(if self.connections.state(conn) == ConnState::Vacant { Next::Gone } else { Next::Packet })
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
    pub(super) fn reject_connect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        version: Version,
        packet_max: Option<u32>,
        reason: ReasonCode,
    ) {
        let shared = Arc::clone(&self.shared);
        let moved = matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved);
        let reference = &shared.config.server_reference;
        let bare = ConnAck { reason, ..ConnAck::default() };
        let server_reference = (moved && !reference.is_empty()).then_some(reference.as_str());
        let full = Packet::ConnAck(ConnAck { server_reference, ..bare.clone() });
        // The explanation is left out if the client has no room for it.
        let room = packet_max.unwrap_or(u32::MAX) as usize;
        let packet = if full.encoded_len(version) <= room { full } else { Packet::ConnAck(bare) };
        if packet.encoded_len(version) > room {
            return;
        }
        let Some(output) = io.output(conn) else { return };
        match packet.encode(version, output.buffer()) {
            Ok(()) => self.host.counters_mut().messages_sent += 1,
            Err(error) => log::error!("a CONNACK cannot be encoded: {error}"),
        }
    }

    /// Checks everything about a CONNECT that does not depend on sessions.
    fn check_connect(&self, connect: &Connect<'_>, has_waited: bool) -> Result<(), ReasonCode> {
        let config = self.config();
        if self.connections.is_draining() {
            return Err(ReasonCode::ServerUnavailable);
        }
        match config.redirect {
            Redirect::None => {}
            Redirect::UseAnotherServer => return Err(ReasonCode::UseAnotherServer),
            Redirect::ServerMoved => return Err(ReasonCode::ServerMoved),
        }
        if self.shared.has_too_many_connections() {
            return Err(ReasonCode::QuotaExceeded);
        }
        let is_persistent = match connect.version {
            Version::V5 => connect.session_expiry.unwrap_or(0) > 0,
            _ => !connect.clean_start,
        };
        if (is_persistent || has_waited) && self.host.persistence().is_enabled() && self.shared.is_failing() {
            return Err(ReasonCode::ServerUnavailable);
        }
        let method = connect.authentication_method;
        if method.is_some_and(|name| self.shared.security.method(name).is_none()) {
            return Err(ReasonCode::BadAuthenticationMethod);
        }
        if connect.client_id.is_empty() {
            // 3.1 has no empty identifier; 3.1.1 allows it only to a clean session [MQTT-3.1.3-8].
            let allowed = match connect.version {
                Version::V3 => false,
                Version::V4 => connect.clean_start,
                Version::V5 => true,
            };
            if !allowed || !config.allow_empty_client_id {
                return Err(ReasonCode::ClientIdentifierNotValid);
            }
        }
        let Some(will) = &connect.will else { return Ok(()) };
        self.check_will_content(will)
    }

    fn check_will_content(&self, will: &mainstem_mqtt::Will<'_>) -> Result<(), ReasonCode> {
        let config = self.config();
        if check_name(will.topic).is_err()
            || level_count(will.topic) > usize::from(config.max_topic_levels)
            || will.topic.starts_with("$SYS/")
            || (is_of_queue(will.topic) && queue_of(will.topic).is_none())
        {
            return Err(ReasonCode::TopicNameInvalid);
        }
        if will.properties.response_topic.is_some_and(|topic| check_name(topic).is_err()) {
            return Err(ReasonCode::ProtocolError);
        }
        if will.qos > config.qos_max() {
            return Err(ReasonCode::QoSNotSupported);
        }
        if will.retain && !config.retain_available {
            return Err(ReasonCode::RetainNotSupported);
        }
        Ok(())
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
        if !self.has_room_for_will(io, connect, client_id, known) {
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

    /// Whether the will of a CONNECT is within the limit of its session. Refusals are logged, at intervals. A session
    /// of another shard is checked there.
    fn has_room_for_will(
        &mut self,
        io: &Io<'_, Mail>,
        connect: &Connect<'_>,
        client_id: &str,
        known: Option<SessionKey>,
    ) -> bool {
        let Some(will) = &connect.will else { return true };
        let bytes_max = self.config().max_session_bytes;
        let session = known.filter(|key| key.shard == self.me && !connect.clean_start);
        let session = session.and_then(|key| self.host.find_session(key));
        // The will of the session is replaced.
        let kept = session.map_or(new_session_cost(client_id), |session| {
            session.memory() - session.ext_ref().map_or(0, |ext| ext.will.bytes())
        });
        let has_room = kept + will_content(will, None).size() as u64 <= bytes_max;
        if !has_room && self.will_log.is_due(io.clock.now_ms) {
            let client_id: String = client_id.chars().take(LOGGED_CHARS).collect();
            log::warn!(
                "client {client_id:?} is refused: with its will, its session would have more than {bytes_max} bytes (mqtt.max_session_bytes)"
            );
        }
        has_room
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
        self.refresh_quotas(io, conn, place.slot);
        let client_id = Arc::clone(self.host.session(place.slot).client_id());
        log::debug!("client {client_id:?} connects, session present: {}", place.is_present);
        let packet = Packet::ConnAck(ConnAck {
            authentication_method: authentication.as_ref().map(|known| known.method().name()),
            authentication_data: (!last_message.is_empty()).then_some(last_message.as_slice()),
            ..connack(&shared.config, connect, granted, place.is_present, &client_id)
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
        let will = connect.will.as_ref().map(|will| own_will(will, session.key(), self.publisher.meter()));
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

/// What the broker grants of what a CONNECT asks for.
#[derive(Clone, Copy, Debug)]
struct Granted {
    /// Seconds.
    keep_alive: u16,
    asked_expiry_s: u32,
    expiry_s: u32,
}

impl Granted {
    fn new(config: &MqttConfig, connect: &Connect<'_>) -> Self {
        let is_v5 = connect.version == Version::V5;
        let keep_alive = match (connect.keep_alive, config.keep_alive_s_max) {
            (asked, u16::MAX) => asked,
            // A client of 3.x cannot be told of another than its own.
            (asked, _) if !is_v5 => asked,
            (0, most) => most,
            (asked, most) => asked.min(most),
        };
        let asked_expiry_s = match (is_v5, connect.clean_start) {
            (true, _) => connect.session_expiry.unwrap_or(0),
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        let expiry_s = asked_expiry_s.min(config.session_expiry_s_max);
        Self { keep_alive, asked_expiry_s, expiry_s }
    }
}

fn connack<'a>(
    config: &'a MqttConfig,
    connect: &Connect<'_>,
    granted: Granted,
    session_present: bool,
    client_id: &'a str,
) -> ConnAck<'a> {
    let Granted { keep_alive, asked_expiry_s, expiry_s } = granted;
    let response = config.response_information.as_str();
    let wants_response = connect.request_response_information == Some(true);
    ConnAck {
        session_present,
        session_expiry: (expiry_s != asked_expiry_s).then_some(expiry_s),
        receive_maximum: (config.receive_maximum != u16::MAX).then_some(config.receive_maximum),
        maximum_qos: (config.qos_max() < QoS::ExactlyOnce).then_some(config.qos_max()),
        retain_available: (!config.retain_available).then_some(false),
        maximum_packet_size: Some(config.max_packet_size_bytes),
        assigned_client_id: connect.client_id.is_empty().then_some(client_id),
        topic_alias_maximum: (config.topic_alias_maximum > 0).then_some(config.topic_alias_maximum),
        wildcard_subscription_available: (!config.wildcard_subscription_available).then_some(false),
        subscription_ids_available: (!config.subscription_ids_available).then_some(false),
        shared_subscription_available: (!config.shared_subscription_available).then_some(false),
        server_keep_alive: (keep_alive != connect.keep_alive).then_some(keep_alive),
        response_information: (wants_response && !response.is_empty()).then_some(response),
        ..ConnAck::default()
    }
}

fn will_content<'a>(will: &mainstem_mqtt::Will<'a>, publisher: Option<SessionKey>) -> Content<'a> {
    Content {
        qos: will.qos,
        retain: will.retain,
        publisher,
        topic: will.topic,
        payload: will.payload,
        properties: will.properties,
    }
}

fn own_will(will: &mainstem_mqtt::Will<'_>, publisher: SessionKey, meter: &MemoryMeter) -> Will {
    let content = will_content(will, Some(publisher));
    Will {
        message: Message::new(&content, 0, meter),
        expiry_s: will.properties.message_expiry,
        delay_s: will.delay_interval.unwrap_or(0),
    }
}
