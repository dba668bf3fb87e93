//! A correct MQTT client: it keeps its half of the session, sends again after a reconnect what was not acknowledged,
//! and remembers what it has begun to receive.
//!
//! After a crash or a lost connection a client cannot know what has taken effect. The `is_` flags record what may have
//! happened to the session, so that only certain knowledge counts as a promise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mainstem_mqtt::{ConnAck, Packet, Publish, QoS, ReasonCode, SubAck, Version, decode};

use super::frames;
use super::oracle::{Arrival, MessageId, Moment, Oracle, SessionId, Sub};
use super::plan::{Profile, SHARED_TOPICS, filter_text};
use crate::Violation;
use crate::engine::LinkId;

/// Publishes in flight.
const OUTGOING_MAX: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Away,
    /// CONNECT is sent.
    Connecting {
        clean: bool,
    },
    Online,
}

/// A publish in flight.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    packet_id: u16,
    message: MessageId,
    qos: QoS,
    /// PUBREC has come.
    is_received: bool,
}

/// A request without a response.
#[derive(Clone, Debug)]
enum Request {
    Subscribe(usize),
    Unsubscribe { filter: Arc<str>, group: Option<&'static str>, sent_at: Moment },
}

/// What was received under a packet identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Incoming {
    /// None for a message without a payload, which has no number.
    message: Option<MessageId>,
    retain: bool,
}

/// An acknowledgement that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "acknowledgements have the protocol's names")]
enum DueAck {
    PubAck(u16),
    PubRec(u16),
    PubComp(u16),
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a session, independent of each other")]
pub(crate) struct Client {
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) profile: Profile,
    pub(crate) link: Option<LinkId>,
    pub(crate) stage: Stage,
    /// The session, as far as the client knows.
    pub(crate) session: Option<SessionId>,
    /// The session before, until the client has another one.
    former: Option<SessionId>,
    /// The session outlives its connection.
    pub(crate) is_persistent: bool,
    /// A CONNACK has confirmed the session, and nothing may have ended it since.
    pub(crate) is_confirmed: bool,
    /// Published if the connection is lost.
    will: Option<MessageId>,
    /// Earliest time at which the connection was lost.
    pub(crate) disconnected_ms: u64,
    /// A CONNECT or DISCONNECT without a response may have ended the session.
    pub(crate) is_unsure: bool,
    /// A CONNECT without clean start has no response.
    is_unanswered: bool,
    /// A CONNECT with clean start may be in flight, and end the session when it arrives.
    has_late_clean_start: bool,
    /// It cannot know which session it has, and disconnects to start again.
    pub(crate) is_leaving: bool,
    /// It acknowledges nothing on this connection.
    pub(crate) is_silent: bool,
    partial: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    next_id: u16,
    requests: BTreeMap<u16, Request>,
    due_acks: VecDeque<DueAck>,
    /// QoS 2 messages that are received and not released.
    held: BTreeMap<u16, Incoming>,
    /// QoS 1 messages that it has not acknowledged.
    unacknowledged: BTreeMap<u16, Incoming>,
    /// Packet identifiers received on this connection and not completed.
    in_flight: BTreeSet<u16>,
    /// Packets to be sent.
    pub(crate) sends: Vec<Vec<u8>>,
}

impl Client {
    pub(crate) fn new(index: usize, profile: Profile) -> Self {
        Self {
            index,
            id: format!("client-{index}"),
            profile,
            link: None,
            stage: Stage::Away,
            session: None,
            former: None,
            is_persistent: false,
            is_confirmed: false,
            will: None,
            disconnected_ms: 0,
            is_unsure: false,
            is_unanswered: false,
            has_late_clean_start: false,
            is_leaving: false,
            is_silent: false,
            partial: Vec::new(),
            outgoing: VecDeque::new(),
            next_id: 1,
            requests: BTreeMap::new(),
            due_acks: VecDeque::new(),
            held: BTreeMap::new(),
            unacknowledged: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            sends: Vec::new(),
        }
    }

    pub(crate) fn is_online(&self) -> bool {
        self.stage == Stage::Online
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || !self.requests.is_empty()
    }

    pub(crate) fn has_due_acks(&self) -> bool {
        !self.due_acks.is_empty()
    }

    /// Whether the session must exist.
    fn must_be_there(&self, now_ms: u64) -> bool {
        let expiry_s = self.profile.expiry_s;
        let is_in_time = expiry_s == u32::MAX
            || now_ms < self.disconnected_ms + u64::from(expiry_s).saturating_sub(1) * 1000;
        self.session.is_some() && self.is_confirmed && is_in_time
    }

    /// Connects. A clean start drops the session, with or without a response. With `has_strays`, bytes of earlier
    /// connections are in flight.
    pub(crate) fn connect(
        &mut self,
        oracle: &mut Oracle,
        link: LinkId,
        clean: bool,
        will: Option<MessageId>,
        has_strays: bool,
        now_ms: u64,
    ) {
        if self.has_late_clean_start {
            (self.is_confirmed, self.is_unanswered) = (false, true);
        }
        self.has_late_clean_start = has_strays && (self.is_unsure || self.has_late_clean_start);
        // If the session had expired by then, another one has begun.
        self.is_unsure |= self.is_unanswered && !self.must_be_there(now_ms);
        let clean = clean || self.is_unsure || self.profile.expiry_s == 0;
        if clean {
            self.forget_session();
        }
        // Before MQTT 5, a session with a clean start ends with its connection.
        self.is_persistent = self.profile.expiry_s > 0 && (self.profile.version == Version::V5 || !clean);
        self.will = will;
        let will = will.map(|id| (id, &oracle.messages[id]));
        self.sends.push(frames::connect(&self.profile, &self.id, clean, will));
        self.link = Some(link);
        self.stage = Stage::Connecting { clean };
    }

    fn forget_session(&mut self) {
        self.former = self.session.take().or(self.former);
        self.is_confirmed = false;
        self.outgoing.clear();
        self.held.clear();
        self.unacknowledged.clear();
    }

    /// The connection is lost.
    pub(crate) fn disconnected(&mut self, oracle: &mut Oracle, now_ms: u64) {
        if let Some(session) = self.session {
            oracle.session_disconnected(session);
        }
        match self.stage {
            // It may have taken effect without a response.
            Stage::Connecting { clean: true } => self.is_unsure = true,
            Stage::Connecting { clean: false } => self.is_unanswered = true,
            Stage::Away => {}
            Stage::Online => {
                self.disconnected_ms = now_ms;
                self.leave_will(oracle);
            }
        }
        self.stage = Stage::Away;
        self.is_leaving = false;
        self.link = None;
        self.partial.clear();
        self.requests.clear();
        self.due_acks.clear();
        self.in_flight.clear();
        if !self.is_persistent {
            self.forget_session();
        }
    }

    /// The will is due, unless it may be canceled: by a reconnect before its delay is over, or by a crash if the
    /// session is not persistent.
    fn leave_will(&mut self, oracle: &mut Oracle) {
        let is_at_once = self.profile.version == Version::V4 || self.profile.will_delay_s == 0;
        if let Some(will) = self.will.take().filter(|_| self.is_persistent && is_at_once) {
            oracle.messages[will].is_due = true;
        }
    }

    /// The broker has crashed. What it had not acknowledged may be gone, packet identifiers included.
    pub(crate) fn broker_crashed(&mut self, oracle: &Oracle) {
        let is_safe = |incoming: &Incoming| {
            !incoming.retain
                && incoming.message.is_some_and(|message| {
                    let message = &oracle.messages[message];
                    // A message of a group may have been acknowledged by another member.
                    let is_shared = SHARED_TOPICS.contains(&&*message.topic);
                    message.acked.is_some() && message.expiry_s.is_none() && !is_shared
                })
        };
        self.unacknowledged.retain(|_, incoming| is_safe(incoming));
    }

    pub(crate) fn can_publish(&self) -> bool {
        self.is_online() && self.outgoing.len() < OUTGOING_MAX
    }

    pub(crate) fn publish(&mut self, oracle: &Oracle, message: MessageId) {
        let known = &oracle.messages[message];
        let packet_id = if known.qos == QoS::AtMostOnce { 0 } else { self.packet_id() };
        self.sends.push(frames::publish(self.profile.version, message, known, packet_id, false));
        if packet_id != 0 {
            self.outgoing.push_back(Outgoing { packet_id, message, qos: known.qos, is_received: false });
        }
    }

    fn packet_id(&mut self) -> u16 {
        loop {
            let id = self.next_id;
            self.next_id = id % 300 + 1;
            let is_taken = self.outgoing.iter().any(|known| known.packet_id == id);
            if !is_taken && !self.requests.contains_key(&id) {
                return id;
            }
        }
    }

    pub(crate) fn subscribe(
        &mut self,
        oracle: &mut Oracle,
        filter: &Arc<str>,
        group: Option<&'static str>,
        qos: QoS,
    ) {
        let Some(session) = self.session else { return };
        let (since, sent_at) = (oracle.since(), oracle.tick());
        oracle.leave(session, filter, group, self.leaving(since, sent_at));
        let filter = Arc::clone(filter);
        let text = filter_text(&filter, group);
        let sub = Sub { filter, group, qos, sent_at, since, granted: None, leaving: None, left: None };
        let index = oracle.subscribe(session, sub);
        let packet_id = self.packet_id();
        self.requests.insert(packet_id, Request::Subscribe(index));
        self.sends.push(frames::subscribe(self.profile.version, packet_id, &text, qos));
    }

    /// Since when messages may bypass a subscription that is replaced or removed at `sent_at`. Messages to a session
    /// that is not persistent may be in flight between shards.
    fn leaving(&self, since: Moment, sent_at: Moment) -> Moment {
        if self.is_persistent { sent_at } else { since }
    }

    pub(crate) fn unsubscribe(
        &mut self,
        oracle: &mut Oracle,
        filter: &Arc<str>,
        group: Option<&'static str>,
    ) {
        let Some(session) = self.session else { return };
        let (since, sent_at) = (oracle.since(), oracle.tick());
        oracle.leave(session, filter, group, self.leaving(since, sent_at));
        let packet_id = self.packet_id();
        let text = filter_text(filter, group);
        self.requests.insert(packet_id, Request::Unsubscribe { filter: Arc::clone(filter), group, sent_at });
        self.sends.push(frames::unsubscribe(self.profile.version, packet_id, &text));
    }

    /// Sends DISCONNECT, which may end the session.
    pub(crate) fn disconnect(&mut self, ends_session: bool) {
        let ends_session = ends_session && self.profile.version == Version::V5 && self.is_persistent;
        self.sends.push(frames::disconnect(self.profile.version, ends_session));
        self.will = None;
        if ends_session {
            // Only the broker knows whether it has.
            self.is_unsure = true;
        }
    }

    /// Sends acknowledgements that are due, oldest first.
    pub(crate) fn acknowledge(&mut self, most: usize) {
        let version = self.profile.version;
        for _ in 0..most {
            let Some(ack) = self.due_acks.pop_front() else { return };
            if let DueAck::PubAck(id) | DueAck::PubComp(id) = ack {
                self.in_flight.remove(&id);
            }
            self.sends.push(match ack {
                DueAck::PubAck(id) => {
                    self.unacknowledged.remove(&id);
                    frames::ack(Packet::PubAck, version, id)
                }
                DueAck::PubRec(id) => frames::ack(Packet::PubRec, version, id),
                DueAck::PubComp(id) => frames::ack(Packet::PubComp, version, id),
            });
        }
    }

    /// The broker has sent a packet, which may never arrive. Records whether it refuses a message.
    pub(crate) fn note_refusal(&self, oracle: &mut Oracle, frame: &[u8]) {
        let Ok(Packet::PubAck(ack) | Packet::PubRec(ack)) = decode(self.profile.version, frame) else {
            return;
        };
        let known = self.outgoing.iter().find(|known| known.packet_id == ack.packet_id);
        if let Some(known) = known.filter(|_| ack.reason.is_error()) {
            oracle.messages[known.message].was_refused = true;
        }
    }

    /// Takes bytes from the broker.
    pub(crate) fn receive(
        &mut self,
        oracle: &mut Oracle,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<(), Violation> {
        self.partial.extend_from_slice(bytes);
        while let Some(len) = frames::whole(&self.partial) {
            let rest = self.partial.split_off(len);
            let frame = std::mem::replace(&mut self.partial, rest);
            if self.is_leaving {
                return Ok(());
            }
            let packet = decode(self.profile.version, &frame)
                .map_err(|error| self.broken(format!("cannot read what came: {error:?}")))?;
            self.take(oracle, &packet, now_ms)?;
        }
        Ok(())
    }

    fn broken(&self, what: impl std::fmt::Display) -> Violation {
        Violation(format!("client {}: {what}", self.index))
    }

    fn take(&mut self, oracle: &mut Oracle, packet: &Packet<'_>, now_ms: u64) -> Result<(), Violation> {
        match packet {
            Packet::ConnAck(connack) => self.connack(oracle, connack, now_ms),
            Packet::Publish(publish) => self.incoming(oracle, publish),
            Packet::PubAck(ack) => self.acked(oracle, QoS::AtLeastOnce, ack.packet_id, ack.reason),
            Packet::PubRec(ack) => self.acked(oracle, QoS::ExactlyOnce, ack.packet_id, ack.reason),
            Packet::PubRel(ack) => {
                self.held.remove(&ack.packet_id);
                self.due_acks.push_back(DueAck::PubComp(ack.packet_id));
                Ok(())
            }
            Packet::PubComp(ack) => {
                self.outgoing.retain(|known| known.packet_id != ack.packet_id || !known.is_received);
                Ok(())
            }
            Packet::SubAck(list) | Packet::UnsubAck(list) => self.answered(oracle, list),
            Packet::PingResp | Packet::Disconnect(_) => Ok(()),
            _ => Err(self.broken(format!("a packet for servers: {packet:?}"))),
        }
    }

    fn connack(&mut self, oracle: &mut Oracle, connack: &ConnAck<'_>, now_ms: u64) -> Result<(), Violation> {
        let Stage::Connecting { clean } = self.stage else { return Err(self.broken("CONNACK unasked")) };
        if connack.reason.is_error() {
            // The broker closes the connection, and nothing has changed.
            return Ok(());
        }
        if connack.session_present && clean {
            return Err(self.broken("a session is present after a clean start"));
        }
        if !connack.session_present && self.must_be_there(now_ms) {
            return Err(self.broken("its session is gone"));
        }
        if connack.session_present && self.is_unanswered && !self.must_be_there(now_ms) {
            // An earlier CONNECT may have begun a session after this one expired.
            self.is_unsure = true;
            self.is_leaving = true;
            return Ok(());
        }
        self.stage = Stage::Online;
        (self.is_unsure, self.is_unanswered) = (false, false);
        if !connack.session_present {
            self.forget_session();
        }
        self.is_confirmed = self.is_persistent;
        match self.session {
            Some(session) => oracle.session_resumed(session),
            None => self.session = Some(oracle.begin_session(self.index)),
        }
        if let Some(former) = self.former.take() {
            oracle.session_ended(former);
        }
        let version = self.profile.version;
        for known in &self.outgoing {
            self.sends.push(if known.is_received {
                frames::ack(Packet::PubRel, version, known.packet_id)
            } else {
                let message = &mut oracle.messages[known.message];
                message.sent_ms = now_ms;
                frames::publish(version, known.message, message, known.packet_id, true)
            });
        }
        Ok(())
    }

    fn acked(
        &mut self,
        oracle: &mut Oracle,
        qos: QoS,
        packet_id: u16,
        reason: ReasonCode,
    ) -> Result<(), Violation> {
        let known = self.outgoing.iter().position(|known| known.packet_id == packet_id && known.qos == qos);
        let Some(index) = known else {
            return Err(self.broken(format!("an acknowledgement of {packet_id}, which it did not send")));
        };
        let message = self.outgoing[index].message;
        if reason.is_error() {
            self.outgoing.remove(index);
            return Ok(());
        }
        oracle.acknowledged(message);
        if qos == QoS::AtLeastOnce {
            self.outgoing.remove(index);
        } else {
            self.outgoing[index].is_received = true;
            self.sends.push(frames::ack(Packet::PubRel, self.profile.version, packet_id));
        }
        Ok(())
    }

    fn answered(&mut self, oracle: &mut Oracle, list: &SubAck<'_>) -> Result<(), Violation> {
        let (Some(request), Some(session)) = (self.requests.remove(&list.packet_id), self.session) else {
            return Err(self.broken(format!("an answer to {}, which it did not send", list.packet_id)));
        };
        match request {
            Request::Subscribe(index) => {
                if list.reasons.first().is_some_and(|reason| *reason < 0x80) {
                    oracle.grant(session, index);
                }
            }
            Request::Unsubscribe { filter, group, sent_at } => oracle.left(session, &filter, group, sent_at),
        }
        Ok(())
    }

    fn incoming(&mut self, oracle: &mut Oracle, publish: &Publish<'_>) -> Result<(), Violation> {
        let Some(session) = self.session else { return Err(self.broken("a message before CONNACK")) };
        let message = if publish.payload.is_empty() {
            None
        } else {
            let id = frames::message_of(publish.payload, publish.topic).map_err(|what| self.broken(what))?;
            if oracle.messages.get(id).is_none_or(|known| &*known.topic != publish.topic) {
                return Err(self.broken(format!("message {id} on {}", publish.topic)));
            }
            Some(id)
        };
        let incoming = Incoming { message, retain: publish.retain };
        let id = publish.packet_id;
        if publish.qos > QoS::AtMostOnce {
            self.in_flight.insert(id);
            let most = match self.profile.version {
                Version::V5 => usize::from(self.profile.receive_maximum),
                _ => usize::MAX,
            };
            if self.in_flight.len() > most {
                return Err(self.broken("more in flight than its Receive Maximum"));
            }
        }
        if publish.qos == QoS::ExactlyOnce {
            self.due_acks.push_back(DueAck::PubRec(id));
            if let Some(before) = self.held.insert(id, incoming) {
                if before != incoming {
                    return Err(self.broken(format!("{id} is {before:?}, and comes as {incoming:?}")));
                }
                return Ok(());
            }
        } else if publish.qos == QoS::AtLeastOnce {
            self.due_acks.push_back(DueAck::PubAck(id));
            let before = self.unacknowledged.insert(id, incoming);
            if before.is_some_and(|before| before != incoming) {
                return Err(self.broken(format!("{id} is {before:?}, and comes as {incoming:?}")));
            }
        }
        let Some(message) = message else { return Ok(()) };
        oracle.arrive(Arrival { session, message, qos: publish.qos, retain: publish.retain })
    }
}
