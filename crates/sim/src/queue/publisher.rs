//! MQTT publishers to queues: to the topics of a binding, and to those of the queues themselves. They keep their half
//! of the session, and send again what was not acknowledged.

use std::collections::VecDeque;

use mainstem_mqtt::{
    ConnAck, Connect, MessageProperties, Packet, Publish, QoS, ReasonCode, UserProperties, Version, decode,
};

use super::oracle::{Message, MessageId, Moment, Oracle, Route};
use super::plan::QueuePlan;
use super::producer::properties;
use crate::Violation;
use crate::engine::LinkId;
use crate::mqtt::frames;

/// Publishes in flight: fewer than a broker accepts at once.
const OUTGOING_MAX: usize = 10;

/// Behavior of a publisher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublisherProfile {
    pub(crate) version: Version,
    /// Its session outlives its connections.
    pub(crate) keeps_session: bool,
    /// Chances in 100 that it publishes at QoS 2, and at QoS 0. Otherwise it publishes at QoS 1.
    pub(crate) qos2_percent: u64,
    pub(crate) qos0_percent: u64,
    pub(crate) vanishes: u64,
}

/// A publish in flight.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    packet_id: u16,
    message: MessageId,
    qos: QoS,
    /// When it was last sent, and the incarnation of the broker at that time.
    sent_at: Moment,
    incarnation: u32,
    /// PUBREC has come.
    is_received: bool,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a session, independent of each other")]
pub(crate) struct Publisher {
    id: String,
    pub(crate) profile: PublisherProfile,
    pub(crate) link: Option<LinkId>,
    /// The previous connection, which must not reach the broker after the next.
    pub(crate) former: Option<LinkId>,
    /// CONNACK has come.
    pub(crate) is_online: bool,
    /// It has dropped its session, and the broker may not have.
    is_new: bool,
    /// The broker may hold publishes of a session that the publisher has abandoned, until it connects again.
    has_abandoned_session: bool,
    /// The session outlives the connection.
    is_persistent: bool,
    partial: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    last_id: u16,
    /// Packets to be sent.
    pub(crate) sends: Vec<Vec<u8>>,
}

impl Publisher {
    pub(crate) fn new(number: usize, profile: PublisherProfile) -> Self {
        Self {
            id: format!("publisher-{number}"),
            profile,
            link: None,
            former: None,
            is_online: false,
            is_new: true,
            has_abandoned_session: false,
            is_persistent: false,
            partial: Vec::new(),
            outgoing: VecDeque::new(),
            last_id: 0,
            sends: Vec::new(),
        }
    }

    /// Whether everything it published is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.outgoing.is_empty() && !self.has_abandoned_session
    }

    pub(crate) fn can_publish(&self) -> bool {
        self.is_online && self.outgoing.len() < OUTGOING_MAX
    }

    /// Messages that are published and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = MessageId> {
        self.outgoing.iter().filter(|known| !known.is_received).map(|known| known.message)
    }

    pub(crate) fn connect(&mut self, link: LinkId) {
        let PublisherProfile { version, keeps_session, .. } = self.profile;
        let clean_start = self.is_new || !keeps_session;
        // Before MQTT 5, a session with a clean start ends with its connection.
        self.is_persistent = keeps_session && (version == Version::V5 || !clean_start);
        let connect = Connect {
            clean_start,
            session_expiry: (version == Version::V5 && keeps_session).then_some(u32::MAX),
            ..Connect::new(version, &self.id)
        };
        let frame = frames::encode(&Packet::Connect(connect), version);
        self.sends.push(frame);
        self.link = Some(link);
    }

    /// The connection is lost.
    pub(crate) fn disconnected(&mut self) {
        self.former = self.link.take().or(self.former);
        self.is_online = false;
        self.partial.clear();
        self.sends.clear();
        if !self.is_persistent {
            self.outgoing.retain(|known| known.qos == QoS::AtLeastOnce);
        }
    }

    /// Abandons its publishes and its session.
    pub(crate) fn give_up(&mut self) {
        self.outgoing.clear();
        (self.is_new, self.has_abandoned_session) = (true, true);
    }

    /// Publishes a message for the first time.
    pub(crate) fn publish(&mut self, oracle: &mut Oracle, queues: &[QueuePlan], message: MessageId) {
        let Route::Published { qos, .. } = oracle.message(message).route else { return };
        let sent_at = oracle.publishing(message, true);
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { self.packet_id() };
        if packet_id != 0 {
            let incarnation = oracle.incarnation();
            self.outgoing.push_back(Outgoing {
                packet_id,
                message,
                qos,
                sent_at,
                incarnation,
                is_received: false,
            });
        }
        self.say_publish(oracle, queues, (message, packet_id), false);
    }

    fn packet_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id % 50 + 1;
            let id = self.last_id;
            if self.outgoing.iter().all(|known| known.packet_id != id) {
                return id;
            }
        }
    }

    fn say_publish(
        &mut self,
        oracle: &Oracle,
        queues: &[QueuePlan],
        (id, packet_id): (MessageId, u16),
        dup: bool,
    ) {
        let message = oracle.message(id);
        let Route::Published { qos, is_bound } = message.route else { return };
        let topic = topic(message, &queues[message.queue].name, is_bound);
        let pairs = properties(id, message);
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let properties = MessageProperties {
            user_properties: UserProperties::Pairs(&pairs),
            ..MessageProperties::default()
        };
        let payload = message.value(id);
        let publish = Publish {
            dup,
            qos,
            topic: &topic,
            packet_id,
            properties,
            payload: &payload,
            ..Publish::default()
        };
        self.sends.push(frames::encode(&Packet::Publish(publish), self.profile.version));
    }

    /// Takes bytes. Returns complete packets.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.partial.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some(len) = frames::whole(&self.partial) {
            let rest = self.partial.split_off(len);
            frames.push(std::mem::replace(&mut self.partial, rest));
        }
        frames
    }

    /// Takes a packet.
    pub(crate) fn handle_packet(
        &mut self,
        oracle: &mut Oracle,
        queues: &[QueuePlan],
        frame: &[u8],
        is_troubled: bool,
    ) -> Result<(), Violation> {
        let packet = decode(self.profile.version, frame)
            .map_err(|error| Violation(format!("{} cannot read what came: {error:?}", self.id)))?;
        match packet {
            Packet::ConnAck(connack) => self.connected(oracle, queues, &connack, is_troubled),
            Packet::PubAck(ack) => {
                self.acknowledged(oracle, (ack.packet_id, QoS::AtLeastOnce), ack.reason, is_troubled)?;
            }
            Packet::PubRec(ack) => {
                self.acknowledged(oracle, (ack.packet_id, QoS::ExactlyOnce), ack.reason, is_troubled)?;
            }
            Packet::PubComp(ack) => {
                self.outgoing.retain(|known| known.packet_id != ack.packet_id || !known.is_received);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends again what was not acknowledged: in the resumed session, or as new publishes.
    fn connected(
        &mut self,
        oracle: &mut Oracle,
        queues: &[QueuePlan],
        connack: &ConnAck<'_>,
        is_troubled: bool,
    ) {
        if connack.reason.is_error() {
            return;
        }
        (self.is_online, self.is_new, self.has_abandoned_session) = (true, false, false);
        let is_kept = connack.session_present;
        self.outgoing.retain(|known| is_kept || known.qos == QoS::AtLeastOnce);
        let incarnation = oracle.incarnation();
        for mut known in std::mem::take(&mut self.outgoing) {
            let (message, packet_id) = (known.message, known.packet_id);
            if known.is_received {
                self.sends.push(frames::ack(Packet::PubRel, self.profile.version, packet_id));
            } else {
                // The broker recognizes a repeated QoS 2 publish by its packet identifier. It may still have lost it
                // with a crash, or have refused it after a disk fault; then this is a new attempt.
                let is_copy =
                    known.qos == QoS::AtLeastOnce || known.incarnation != incarnation || is_troubled;
                known.sent_at = oracle.publishing(message, is_copy);
                known.incarnation = incarnation;
                self.say_publish(oracle, queues, (message, packet_id), is_kept);
            }
            self.outgoing.push_back(known);
        }
    }

    fn acknowledged(
        &mut self,
        oracle: &mut Oracle,
        (packet_id, qos): (u16, QoS),
        reason: ReasonCode,
        is_troubled: bool,
    ) -> Result<(), Violation> {
        let is_it = |known: &Outgoing| known.packet_id == packet_id && known.qos == qos;
        let Some(at) = self.outgoing.iter().position(is_it) else {
            return Err(Violation(format!("{}: {packet_id} is acknowledged, and is not under way", self.id)));
        };
        let Outgoing { message, sent_at, .. } = self.outgoing[at];
        if reason.is_error() {
            self.outgoing.remove(at);
            return oracle.refused(message, sent_at, is_troubled);
        }
        oracle.acknowledged(message, sent_at);
        if qos == QoS::AtLeastOnce {
            self.outgoing.remove(at);
        } else {
            self.outgoing[at].is_received = true;
            self.sends.push(frames::ack(Packet::PubRel, self.profile.version, packet_id));
        }
        Ok(())
    }
}

/// The filter of the binding that feeds a queue. The third level of a topic is the message's key.
pub(super) fn filter(queue: &str) -> String {
    format!("in/{queue}/#")
}

fn topic(message: &Message, queue: &str, is_bound: bool) -> String {
    let root = if is_bound { "in" } else { "$queue" };
    match message.key {
        Some(key) => format!("{root}/{queue}/k{key}"),
        None => format!("{root}/{queue}"),
    }
}
