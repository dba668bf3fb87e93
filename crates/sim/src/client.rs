//! A client, as a careful one behaves: it keeps its half of the session, sends again after a reconnect what was
//! not acknowledged, and remembers what it has begun to receive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mainstem_mqtt::{ConnAck, Packet, Publish, QoS, ReasonCode, SubAck, Version, decode};

use crate::frames;
use crate::ledger::{Arrival, Ledger, MessageId, Moment, SessionId, Sub, Violation};
use crate::machine::LinkId;
use crate::plan::{Profile, SHARED_TOPICS, filter_text};

/// Publishes that a client has under way at most.
const OUTGOING_MAX: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Away,
    /// CONNECT is on its way.
    Connecting {
        clean: bool,
    },
    Online,
}

/// A publish that is not over.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    packet_id: u16,
    message: MessageId,
    qos: QoS,
    /// PUBREC has come.
    is_received: bool,
}

/// A request that waits for its answer.
#[derive(Clone, Debug)]
enum Request {
    Subscribe(usize),
    Unsubscribe { filter: Arc<str>, group: Option<&'static str>, asked: Moment },
}

/// What a client has begun to receive under a packet identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Incoming {
    /// Nothing for a message without payload, which does not say which one it is.
    message: Option<MessageId>,
    retain: bool,
}

/// An acknowledgement that a client owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "acknowledgements have the protocol's names")]
enum Owed {
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
    /// The session as the client knows it.
    pub(crate) session: Option<SessionId>,
    /// One that it has given up, until it is given another.
    former: Option<SessionId>,
    /// It outlives its connection.
    pub(crate) lasts: bool,
    /// Its client has been told of it, and nothing may have ended it since.
    pub(crate) is_anchored: bool,
    /// What is to be published if the connection is lost.
    will: Option<MessageId>,
    /// When the connection was lost, at the earliest.
    pub(crate) gone_ms: u64,
    /// A CONNECT or DISCONNECT that nobody answered may have ended the session.
    pub(crate) is_unsure: bool,
    /// Another CONNECT was not answered.
    is_unanswered: bool,
    /// A clean start that nobody answered may still be on its way, and end the session when it arrives.
    is_haunted: bool,
    /// It does not know which session it was given: it leaves, to begin anew.
    pub(crate) quits: bool,
    /// On this connection it acknowledges nothing.
    pub(crate) is_silent: bool,
    partial: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    next_id: u16,
    requests: BTreeMap<u16, Request>,
    owed: VecDeque<Owed>,
    /// QoS 2 messages that have begun to come and are not released.
    held: BTreeMap<u16, Incoming>,
    /// QoS 1 messages that it has not acknowledged.
    unacknowledged: BTreeMap<u16, Incoming>,
    /// Identifiers that have come on this connection and that it has not acknowledged to the end.
    in_flight: BTreeSet<u16>,
    /// Packets to be put on their way.
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
            lasts: false,
            is_anchored: false,
            will: None,
            gone_ms: 0,
            is_unsure: false,
            is_unanswered: false,
            is_haunted: false,
            quits: false,
            is_silent: false,
            partial: Vec::new(),
            outgoing: VecDeque::new(),
            next_id: 1,
            requests: BTreeMap::new(),
            owed: VecDeque::new(),
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

    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whether the broker must still have the session.
    fn must_be_there(&self, now_ms: u64) -> bool {
        let expiry_s = self.profile.expiry_s;
        let is_in_time =
            expiry_s == u32::MAX || now_ms < self.gone_ms + u64::from(expiry_s).saturating_sub(1) * 1000;
        self.session.is_some() && self.is_anchored && is_in_time
    }

    /// Opens a connection with CONNECT. A clean start forgets the session, whether it is answered or not. With
    /// `has_strays` something of earlier connections is still on its way.
    pub(crate) fn connect(
        &mut self,
        ledger: &mut Ledger,
        link: LinkId,
        clean: bool,
        will: Option<MessageId>,
        has_strays: bool,
        now_ms: u64,
    ) {
        if self.is_haunted {
            (self.is_anchored, self.is_unanswered) = (false, true);
        }
        self.is_haunted = has_strays && (self.is_unsure || self.is_haunted);
        // If the session had expired by then, another one has begun.
        self.is_unsure |= self.is_unanswered && !self.must_be_there(now_ms);
        let clean = clean || self.is_unsure || self.profile.expiry_s == 0;
        if clean {
            self.forget_session();
        }
        // Before MQTT 5, who begins anew ends with the connection.
        self.lasts = self.profile.expiry_s > 0 && (self.profile.version == Version::V5 || !clean);
        self.will = will;
        let will = will.map(|id| (id, &ledger.messages[id]));
        self.sends.push(frames::connect(&self.profile, &self.id, clean, will));
        self.link = Some(link);
        self.stage = Stage::Connecting { clean };
    }

    fn forget_session(&mut self) {
        self.former = self.session.take().or(self.former);
        self.is_anchored = false;
        self.outgoing.clear();
        self.held.clear();
        self.unacknowledged.clear();
    }

    /// The connection is lost.
    pub(crate) fn disconnected(&mut self, ledger: &mut Ledger, now_ms: u64) {
        if let Some(session) = self.session {
            ledger.gone(session);
        }
        match self.stage {
            // It may have taken effect without an answer.
            Stage::Connecting { clean: true } => self.is_unsure = true,
            Stage::Connecting { clean: false } => self.is_unanswered = true,
            Stage::Away => {}
            Stage::Online => {
                self.gone_ms = now_ms;
                self.leave_will(ledger);
            }
        }
        self.stage = Stage::Away;
        self.quits = false;
        self.link = None;
        self.partial.clear();
        self.requests.clear();
        self.owed.clear();
        self.in_flight.clear();
        if !self.lasts {
            self.forget_session();
        }
    }

    /// The will is due, unless it may be taken back: by a client that returns before its delay is over, or by an end of
    /// the process if the session is not kept.
    fn leave_will(&mut self, ledger: &mut Ledger) {
        let is_at_once = self.profile.version == Version::V4 || self.profile.will_delay_s == 0;
        if let Some(will) = self.will.take().filter(|_| self.lasts && is_at_once) {
            ledger.messages[will].is_due = true;
        }
    }

    /// The broker has ended without a word: what it had not acknowledged may be gone, identifiers included.
    pub(crate) fn broker_crashed(&mut self, ledger: &Ledger) {
        let is_safe = |incoming: &Incoming| {
            !incoming.retain
                && incoming.message.is_some_and(|message| {
                    let message = &ledger.messages[message];
                    // What others had before was acknowledged when they had it.
                    let is_shared = SHARED_TOPICS.contains(&&*message.topic);
                    message.acked.is_some() && message.expiry_s.is_none() && !is_shared
                })
        };
        self.unacknowledged.retain(|_, incoming| is_safe(incoming));
    }

    /// Whether it can begin another publish.
    pub(crate) fn can_publish(&self) -> bool {
        self.is_online() && self.outgoing.len() < OUTGOING_MAX
    }

    pub(crate) fn publish(&mut self, ledger: &Ledger, message: MessageId) {
        let known = &ledger.messages[message];
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
        ledger: &mut Ledger,
        filter: &Arc<str>,
        group: Option<&'static str>,
        qos: QoS,
    ) {
        let Some(session) = self.session else { return };
        let (since, asked) = (ledger.since(), ledger.tick());
        ledger.leave(session, filter, group, self.leaving(since, asked));
        let filter = Arc::clone(filter);
        let text = filter_text(&filter, group);
        let sub = Sub { filter, group, qos, asked, since, granted: None, leaving: None, left: None };
        let index = ledger.subscribe(session, sub);
        let packet_id = self.packet_id();
        self.requests.insert(packet_id, Request::Subscribe(index));
        self.sends.push(frames::subscribe(self.profile.version, packet_id, &text, qos));
    }

    /// From when on messages may pass a subscription by that is given up at `asked`. What is acknowledged is on its way
    /// to sessions that end with their connection, and may come behind what they send.
    fn leaving(&self, since: Moment, asked: Moment) -> Moment {
        if self.lasts { asked } else { since }
    }

    pub(crate) fn unsubscribe(
        &mut self,
        ledger: &mut Ledger,
        filter: &Arc<str>,
        group: Option<&'static str>,
    ) {
        let Some(session) = self.session else { return };
        let (since, asked) = (ledger.since(), ledger.tick());
        ledger.leave(session, filter, group, self.leaving(since, asked));
        let packet_id = self.packet_id();
        let text = filter_text(filter, group);
        self.requests.insert(packet_id, Request::Unsubscribe { filter: Arc::clone(filter), group, asked });
        self.sends.push(frames::unsubscribe(self.profile.version, packet_id, &text));
    }

    /// Says goodbye; the session may end with that.
    pub(crate) fn disconnect(&mut self, ends_session: bool) {
        let ends_session = ends_session && self.profile.version == Version::V5 && self.lasts;
        self.sends.push(frames::disconnect(self.profile.version, ends_session));
        self.will = None;
        if ends_session {
            // Whether it has ended is known only to the broker.
            self.is_unsure = true;
        }
    }

    /// Sends acknowledgements that it owes, the oldest first.
    pub(crate) fn acknowledge(&mut self, most: usize) {
        let version = self.profile.version;
        for _ in 0..most {
            let Some(owed) = self.owed.pop_front() else { return };
            if let Owed::PubAck(id) | Owed::PubComp(id) = owed {
                self.in_flight.remove(&id);
            }
            self.sends.push(match owed {
                Owed::PubAck(id) => {
                    self.unacknowledged.remove(&id);
                    frames::ack(Packet::PubAck, version, id)
                }
                Owed::PubRec(id) => frames::ack(Packet::PubRec, version, id),
                Owed::PubComp(id) => frames::ack(Packet::PubComp, version, id),
            });
        }
    }

    /// The broker has sent a packet, which may never arrive: takes note of it if it refuses a message.
    pub(crate) fn note_refusal(&self, ledger: &mut Ledger, frame: &[u8]) {
        let Ok(Packet::PubAck(ack) | Packet::PubRec(ack)) = decode(self.profile.version, frame) else {
            return;
        };
        let known = self.outgoing.iter().find(|known| known.packet_id == ack.packet_id);
        if let Some(known) = known.filter(|_| ack.reason.is_error()) {
            ledger.messages[known.message].was_refused = true;
        }
    }

    /// Takes in bytes from the broker.
    pub(crate) fn receive(
        &mut self,
        ledger: &mut Ledger,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<(), Violation> {
        self.partial.extend_from_slice(bytes);
        while let Some(len) = frames::whole(&self.partial) {
            let rest = self.partial.split_off(len);
            let frame = std::mem::replace(&mut self.partial, rest);
            if self.quits {
                return Ok(());
            }
            let packet = decode(self.profile.version, &frame)
                .map_err(|error| self.broken(format!("cannot read what came: {error:?}")))?;
            self.take(ledger, &packet, now_ms)?;
        }
        Ok(())
    }

    fn broken(&self, what: impl std::fmt::Display) -> Violation {
        Violation(format!("client {}: {what}", self.index))
    }

    fn take(&mut self, ledger: &mut Ledger, packet: &Packet<'_>, now_ms: u64) -> Result<(), Violation> {
        match packet {
            Packet::ConnAck(connack) => self.connack(ledger, connack, now_ms),
            Packet::Publish(publish) => self.incoming(ledger, publish),
            Packet::PubAck(ack) => self.acked(ledger, QoS::AtLeastOnce, ack.packet_id, ack.reason),
            Packet::PubRec(ack) => self.acked(ledger, QoS::ExactlyOnce, ack.packet_id, ack.reason),
            Packet::PubRel(ack) => {
                self.held.remove(&ack.packet_id);
                self.owed.push_back(Owed::PubComp(ack.packet_id));
                Ok(())
            }
            Packet::PubComp(ack) => {
                self.outgoing.retain(|known| known.packet_id != ack.packet_id || !known.is_received);
                Ok(())
            }
            Packet::SubAck(list) | Packet::UnsubAck(list) => self.answered(ledger, list),
            Packet::PingResp | Packet::Disconnect(_) => Ok(()),
            _ => Err(self.broken(format!("a packet for servers: {packet:?}"))),
        }
    }

    fn connack(&mut self, ledger: &mut Ledger, connack: &ConnAck<'_>, now_ms: u64) -> Result<(), Violation> {
        let Stage::Connecting { clean } = self.stage else { return Err(self.broken("CONNACK unasked")) };
        if connack.reason.is_error() {
            // It closes the connection; nothing has changed.
            return Ok(());
        }
        if connack.session_present && clean {
            return Err(self.broken("a session is present after a clean start"));
        }
        if !connack.session_present && self.must_be_there(now_ms) {
            return Err(self.broken("its session is gone"));
        }
        if connack.session_present && self.is_unanswered && !self.must_be_there(now_ms) {
            // An earlier CONNECT may have found the session expired, and this one what that had begun.
            self.is_unsure = true;
            self.quits = true;
            return Ok(());
        }
        self.stage = Stage::Online;
        (self.is_unsure, self.is_unanswered) = (false, false);
        if !connack.session_present {
            self.forget_session();
        }
        self.is_anchored = self.lasts;
        match self.session {
            Some(session) => ledger.returned(session),
            None => self.session = Some(ledger.begin_session(self.index)),
        }
        if let Some(former) = self.former.take() {
            ledger.ended(former);
        }
        let version = self.profile.version;
        for known in &self.outgoing {
            self.sends.push(if known.is_received {
                frames::ack(Packet::PubRel, version, known.packet_id)
            } else {
                let message = &mut ledger.messages[known.message];
                message.sent_ms = now_ms;
                frames::publish(version, known.message, message, known.packet_id, true)
            });
        }
        Ok(())
    }

    fn acked(
        &mut self,
        ledger: &mut Ledger,
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
        let now = ledger.tick();
        ledger.messages[message].acked.get_or_insert(now);
        if qos == QoS::AtLeastOnce {
            self.outgoing.remove(index);
        } else {
            self.outgoing[index].is_received = true;
            self.sends.push(frames::ack(Packet::PubRel, self.profile.version, packet_id));
        }
        Ok(())
    }

    fn answered(&mut self, ledger: &mut Ledger, list: &SubAck<'_>) -> Result<(), Violation> {
        let (Some(request), Some(session)) = (self.requests.remove(&list.packet_id), self.session) else {
            return Err(self.broken(format!("an answer to {}, which it did not send", list.packet_id)));
        };
        match request {
            Request::Subscribe(index) => {
                if list.reasons.first().is_some_and(|reason| *reason < 0x80) {
                    ledger.grant(session, index);
                }
            }
            Request::Unsubscribe { filter, group, asked } => ledger.left(session, &filter, group, asked),
        }
        Ok(())
    }

    fn incoming(&mut self, ledger: &mut Ledger, publish: &Publish<'_>) -> Result<(), Violation> {
        let Some(session) = self.session else { return Err(self.broken("a message before CONNACK")) };
        let message = if publish.payload.is_empty() {
            None
        } else {
            let id = frames::message_of(publish.payload, publish.topic).map_err(|what| self.broken(what))?;
            if ledger.messages.get(id).is_none_or(|known| &*known.topic != publish.topic) {
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
            self.owed.push_back(Owed::PubRec(id));
            if let Some(before) = self.held.insert(id, incoming) {
                if before != incoming {
                    return Err(self.broken(format!("{id} is {before:?}, and comes as {incoming:?}")));
                }
                return Ok(());
            }
        } else if publish.qos == QoS::AtLeastOnce {
            self.owed.push_back(Owed::PubAck(id));
            let before = self.unacknowledged.insert(id, incoming);
            if before.is_some_and(|before| before != incoming) {
                return Err(self.broken(format!("{id} is {before:?}, and comes as {incoming:?}")));
            }
        }
        let Some(message) = message else { return Ok(()) };
        ledger.arrive(Arrival { session, message, qos: publish.qos, retain: publish.retain })
    }
}
