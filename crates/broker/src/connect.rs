//! CONNECT: who may come in, with which session, and on which shard (3.1, 3.2).

use std::sync::Arc;

use mainstem_mqtt::alias::OutboundAliases;
use mainstem_mqtt::session::Pending;
use mainstem_mqtt::{ConnAck, Connect, Packet, PacketType, QoS, ReasonCode, Version, connect_level, decode};
use mainstem_runtime::{ConnId, Io};
use mainstem_topic::{check_name, level_count};

use crate::config::Redirect;
use crate::message::{Content, Message, SessionKey};
use crate::session::{Session, Will};
use crate::shard::{Conn, ConnState, Handled, Next, Refusal, Shard};
use crate::shared::Mail;
use crate::work::{is_of_queue, queue_of};

/// How far the levels reach that this broker speaks.
const NEWEST_LEVEL: u8 = Version::V5 as u8;

/// The session that a CONNECT is given.
struct Seat {
    slot: u32,
    present: bool,
}

/// What became of a CONNECT.
enum Seated {
    Here(Seat),
    /// The connection has been handed to the shard that has the session.
    Elsewhere,
    /// The session that it replaces is still on disk.
    NotYet,
}

impl Shard {
    /// Whether a packet of this type may come now, judged before it has come in full: a connection that has
    /// not sent CONNECT gets no buffer for anything else.
    pub(crate) fn expects(&self, conn: ConnId, first: u8) -> Result<(), Refusal> {
        let waiting = self.conns[conn.slot()].state == ConnState::Waiting;
        if waiting && first >> 4 != PacketType::Connect as u8 {
            return Err(Refusal::new(
                ReasonCode::ProtocolError,
                "the first packet is not CONNECT [MQTT-3.1.0-1]",
            ));
        }
        Ok(())
    }

    /// The first packet of a connection, which is a CONNECT.
    pub(crate) fn first_packet(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, frame: &[u8]) -> Handled {
        let mut has_waited = false;
        if let Some((journal, number)) = self.conn(conn).connect_ends {
            // While nothing can be kept, it will not be over soon.
            if self.is_ending(journal, number) && self.can_keep() {
                return Ok(Next::Hold);
            }
            self.conn(conn).connect_ends = None;
            has_waited = true;
        }
        let connect = match decode(Version::V5, frame) {
            Ok(Packet::Connect(connect)) => connect,
            Ok(_) => {
                return Err(Refusal::new(
                    ReasonCode::ProtocolError,
                    "the first packet is not CONNECT [MQTT-3.1.0-1]",
                ));
            }
            Err(error) => {
                self.answer_undecodable(io, conn, frame, error.reason);
                return Err(error.into());
            }
        };
        if let Err(reason) = self.admit(&connect, has_waited) {
            self.turn_away(io, conn, connect.version, connect.maximum_packet_size, reason);
            return Err(Refusal::new(reason, "CONNECT is refused"));
        }
        let client_id: Arc<str> = if connect.client_id.is_empty() {
            self.shared.new_client_id().into()
        } else {
            connect.client_id.into()
        };
        let seat = match self.seat(io, conn, &connect, &client_id) {
            Ok(Seated::Here(seat)) => seat,
            Ok(Seated::Elsewhere) => return Ok(Next::Gone),
            Ok(Seated::NotYet) => return Ok(Next::Hold),
            Err(reason) => {
                self.turn_away(io, conn, connect.version, connect.maximum_packet_size, reason);
                return Err(Refusal::new(reason, "there is no room for another session"));
            }
        };
        self.welcome(io, conn, &connect, &seat);
        Ok(if self.conn(conn).state == ConnState::Vacant { Next::Gone } else { Next::Packet })
    }

    /// A CONNECT that does not decode: answered where its protocol level is known [MQTT-3.1.2-2].
    fn answer_undecodable(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, frame: &[u8], reason: ReasonCode) {
        let Some(level) = connect_level(frame) else { return };
        let version = if level >= NEWEST_LEVEL { Version::V5 } else { Version::V4 };
        if version == Version::V5 || reason == ReasonCode::UnsupportedProtocolVersion {
            self.turn_away(io, conn, version, None, reason);
        }
    }

    /// CONNACK with an error; the connection is closed by the refusal that follows.
    fn turn_away(
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
        // What explains is left out rather than sent to a client that has no room for it.
        let room = packet_max.unwrap_or(u32::MAX) as usize;
        let packet = if full.encoded_len(version) <= room { full } else { Packet::ConnAck(bare) };
        if packet.encoded_len(version) > room {
            return;
        }
        let Some(output) = io.output(conn) else { return };
        match packet.encode(version, output.buffer()) {
            Ok(()) => self.deliveries.counters.messages_sent += 1,
            Err(error) => log::error!("a CONNACK cannot be encoded: {error}"),
        }
    }

    /// Everything about a CONNECT that can be judged without looking at sessions.
    fn admit(&self, connect: &Connect<'_>, has_waited: bool) -> Result<(), ReasonCode> {
        let config = self.config();
        if self.draining {
            return Err(ReasonCode::ServerUnavailable);
        }
        match config.redirect {
            Redirect::None => {}
            Redirect::UseAnotherServer => return Err(ReasonCode::UseAnotherServer),
            Redirect::ServerMoved => return Err(ReasonCode::ServerMoved),
        }
        if self.shared.is_crowded() {
            return Err(ReasonCode::QuotaExceeded);
        }
        let lasts = match connect.version {
            Version::V5 => connect.session_expiry.unwrap_or(0) > 0,
            _ => !connect.clean_start,
        };
        if (lasts || has_waited) && self.keeps_sessions() && !self.can_keep() {
            return Err(ReasonCode::ServerUnavailable);
        }
        if connect.authentication_method.is_some() {
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

    /// Finds or makes the session, ending whatever connection it has.
    fn seat(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        client_id: &Arc<str>,
    ) -> Result<Seated, ReasonCode> {
        if let Some(known) = self.shared.registry.find(client_id).filter(|known| !self.has_departed(*known)) {
            if known.shard != self.me {
                self.hand_over(io, conn, known);
                return Ok(Seated::Elsewhere);
            }
            if let Some(ending) = self.find_ending(known) {
                self.conn(conn).connect_ends = Some(ending);
                return Ok(Seated::NotYet);
            }
            if self.deliveries.sessions.at(known.slot).connected {
                self.disconnect(io, known.slot, ReasonCode::SessionTakenOver, None);
            }
            // Losing its connection may have ended it.
            if let Some(ending) = self.find_ending(known) {
                self.conn(conn).connect_ends = Some(ending);
                return Ok(Seated::NotYet);
            }
            if self.deliveries.sessions.get(known).is_some() {
                if !connect.clean_start {
                    // One may be due that its timer has not come to: who comes back takes back only what is not.
                    self.check_will(io, known);
                    if self.owes_will(known) {
                        let can_keep = self.can_keep();
                        return if can_keep {
                            Ok(Seated::NotYet)
                        } else {
                            Err(ReasonCode::ServerUnavailable)
                        };
                    }
                    return Ok(Seated::Here(Seat { slot: known.slot, present: true }));
                }
                // Once the client has been told, a crash must not bring the old session back.
                if self.deliveries.sessions.at(known.slot).lasts() && !self.can_keep() {
                    return Err(ReasonCode::ServerUnavailable);
                }
                let session = self.deliveries.sessions.at(known.slot);
                let (journal, number) = (session.journal, session.number);
                self.end_session(io, known.slot);
                if self.is_ending(journal, number) {
                    self.conn(conn).connect_ends = Some((journal, number));
                    return Ok(Seated::NotYet);
                }
            }
        }
        if !self.shared.open_session() {
            return Err(ReasonCode::QuotaExceeded);
        }
        if let Some(departed) = self.shared.registry.find(client_id).filter(|known| self.has_departed(*known))
        {
            // Here, what the former one has published is on its way before anything that this one will.
            self.shared.registry.release(client_id, departed);
        }
        let key = self.deliveries.sessions.insert(self.me, Arc::clone(client_id), conn);
        if let Err(other) = self.shared.registry.claim(client_id, key) {
            // Another shard was faster by a moment.
            self.deliveries.sessions.remove(key.slot);
            self.shared.close_session();
            self.hand_over(io, conn, other);
            return Ok(Seated::Elsewhere);
        }
        self.deliveries.counters.sessions += 1;
        Ok(Seated::Here(Seat { slot: key.slot, present: false }))
    }

    /// Whether a session of this shard is over, and only its client identifier is not free yet.
    fn has_departed(&mut self, key: SessionKey) -> bool {
        key.shard == self.me && self.deliveries.sessions.get(key).is_none() && self.find_ending(key).is_none()
    }

    fn hand_over(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, to: SessionKey) {
        self.vacate(conn);
        self.deliveries.counters.connections_accepted -= 1;
        io.hand_over(conn, usize::from(to.shard));
    }

    /// Ties connection and session together and says so.
    fn welcome(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, connect: &Connect<'_>, seat: &Seat) {
        let shared = Arc::clone(&self.shared);
        let config = &shared.config;
        let five = connect.version == Version::V5;
        let keep_alive = match (connect.keep_alive, config.keep_alive_s_max) {
            (asked, u16::MAX) => asked,
            // A client of 3.x cannot be told of another than its own.
            (asked, _) if !five => asked,
            (0, most) => most,
            (asked, most) => asked.min(most),
        };
        let asked_expiry = match (five, connect.clean_start) {
            (true, _) => connect.session_expiry.unwrap_or(0),
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        let expiry_s = asked_expiry.min(config.session_expiry_s_max);
        let session = self.deliveries.sessions.at(seat.slot);
        session.conn = conn;
        session.connected = true;
        self.deliveries.backlog += session.queue.len() as u64;
        session.version = connect.version;
        session.problem_information = connect.request_problem_information.unwrap_or(true);
        session.inflight_max = config.max_inflight_messages.min(connect.receive_maximum.unwrap_or(u16::MAX));
        session.packet_max = connect.maximum_packet_size.unwrap_or(u32::MAX);
        session.expiry_s = expiry_s;
        if expiry_s > 0 && !seat.present {
            self.begin_to_last(seat.slot);
        }
        self.bring_in_window(seat.slot);
        let session = self.deliveries.sessions.at(seat.slot);
        if let Some(rare) = &mut session.rare {
            rare.will = None;
            rare.will_leaving = None;
            rare.will_at_ms = None;
        }
        if let Some(will) = &connect.will {
            let key = self.deliveries.sessions.key(self.me, seat.slot);
            let kept = keep_will(will, key);
            self.deliveries.sessions.at(seat.slot).rare().will = Some(kept);
        }
        let session = self.deliveries.sessions.at(seat.slot);
        if let Some(most) = connect.topic_alias_maximum.filter(|most| five && *most > 0) {
            session.rare().aliases = Some(OutboundAliases::new(most));
        }
        session.set_online(true);
        self.enter_session(io, seat.slot);
        let client_id = Arc::clone(&self.deliveries.sessions.at(seat.slot).client_id);
        self.deliveries.counters.clients_connected += 1;
        let patience_ms = u32::from(keep_alive) * 1500;
        let generation = conn.generation();
        let last_packet_ms = io.clock.now_ms;
        *self.conn(conn) = Conn {
            generation,
            state: ConnState::Serving(seat.slot),
            version: Some(connect.version),
            last_packet_ms,
            patience_ms,
            ..Conn::default()
        };
        self.arm_keep_alive(io, conn);
        log::debug!("client {client_id:?} connects, session present: {}", seat.present);
        let response = config.response_information.as_str();
        let connack = ConnAck {
            session_present: seat.present,
            session_expiry: (expiry_s != asked_expiry).then_some(expiry_s),
            receive_maximum: (config.receive_maximum != u16::MAX).then_some(config.receive_maximum),
            maximum_qos: (config.qos_max() < QoS::ExactlyOnce).then_some(config.qos_max()),
            retain_available: (!config.retain_available).then_some(false),
            maximum_packet_size: Some(config.max_packet_size_bytes),
            assigned_client_id: connect.client_id.is_empty().then_some(&*client_id),
            topic_alias_maximum: (config.topic_alias_maximum > 0).then_some(config.topic_alias_maximum),
            wildcard_subscription_available: (!config.wildcard_subscription_available).then_some(false),
            subscription_ids_available: (!config.subscription_ids_available).then_some(false),
            shared_subscription_available: (!config.shared_subscription_available).then_some(false),
            server_keep_alive: (keep_alive != connect.keep_alive).then_some(keep_alive),
            response_information: (connect.request_response_information == Some(true)
                && !response.is_empty())
            .then_some(response),
            ..ConnAck::default()
        };
        let packet = Packet::ConnAck(connack);
        let packet_max = self.deliveries.sessions.at(seat.slot).packet_max;
        if packet.encoded_len(connect.version) > packet_max as usize {
            log::info!("client {client_id:?} is refused: it has no room for a CONNACK");
            self.turn_away(io, conn, connect.version, Some(packet_max), ReasonCode::PacketTooLarge);
            self.vacate(conn);
            io.close(conn);
            self.detach(io, seat.slot);
            return;
        }
        self.send(io, seat.slot, &packet);
        self.welcome_when_kept(io, conn, seat.slot);
        self.start_consumers(seat.slot);
        self.pump(io, seat.slot);
    }

    /// A crash must not take the session of which the client has been told, nor its will, nor let it expire as if
    /// nobody had come. The same commit wakes it for what came while it had no connection and is not on disk yet.
    fn welcome_when_kept(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, slot: u32) {
        if self.deliveries.sessions.at(slot).lasts() {
            let commit = self.commits.current();
            self.conn(conn).connack_waits = commit;
            io.hold_output(conn);
            let key = self.deliveries.sessions.key(self.me, slot);
            self.commits.wake_with(commit, key);
            self.commit_is_due = true;
        }
    }

    /// Lets a CONNACK go that has waited for `commit`, or takes it back if that has failed.
    pub(crate) fn end_welcome(
        &mut self,
        io: &mut Io<'_, Mail>,
        key: SessionKey,
        commit: u64,
        has_failed: bool,
    ) {
        let Some(session) = self.deliveries.sessions.get(key) else { return };
        let Session { conn, connected, version, packet_max, .. } = *session;
        if !connected || !(1..=commit).contains(&self.conn(conn).connack_waits) {
            return;
        }
        self.conn(conn).connack_waits = 0;
        if !has_failed {
            io.release_output(conn);
            return;
        }
        let client_id = &self.deliveries.sessions.at(key.slot).client_id;
        log::warn!("client {client_id:?} is refused: its session cannot be kept on disk");
        io.discard_output(conn);
        self.turn_away(io, conn, version, Some(packet_max), ReasonCode::ServerUnavailable);
        self.vacate(conn);
        io.close(conn);
        self.detach(io, key.slot);
    }
}

impl Shard {
    /// A new session is to outlive the process, if any do.
    fn begin_to_last(&mut self, slot: u32) {
        if let Some(journal) = self.deliveries.journals.first_mut() {
            let session = self.deliveries.sessions.at(slot);
            (session.number, session.journal) = (journal.number_session(), 0);
            self.shared.note_lasting(self.me);
        }
    }

    /// Brings messages in from disk that were in flight when the process ended, to be sent again.
    fn bring_in_window(&mut self, slot: u32) {
        let session = self.deliveries.sessions.at(slot);
        if !session.lasts() {
            return;
        }
        let journal = &mut self.deliveries.journals[usize::from(session.journal)];
        for (delivery, pending) in session.window.messages_mut() {
            if delivery.message.is_none() && pending != Pending::PubComp {
                delivery.message = journal.message(delivery.offset);
            }
        }
    }
}

fn keep_will(will: &mainstem_mqtt::Will<'_>, publisher: SessionKey) -> Will {
    let content = Content {
        qos: will.qos,
        retain: will.retain,
        publisher: Some(publisher),
        topic: will.topic,
        payload: will.payload,
        properties: will.properties,
    };
    Will {
        message: Message::new(&content, 0),
        expiry_s: will.properties.message_expiry,
        delay_s: will.delay_interval.unwrap_or(0),
    }
}
