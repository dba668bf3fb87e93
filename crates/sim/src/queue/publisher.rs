//! Those who send by MQTT, to topics that a binding feeds into a queue and to those of queues themselves. They keep their
//! half of the session, and send again what was not acknowledged.

use std::collections::VecDeque;

use mainstem_mqtt::{
    ConnAck, Connect, MessageProperties, Packet, Publish, QoS, ReasonCode, UserProperties, Version, decode,
};

use super::ledger::{Ledger, Message, MessageId, Moment, Way};
use super::plan::QueuePlan;
use super::producer::asked_for;
use crate::frames;
use crate::ledger::Violation;
use crate::machine::LinkId;

/// Publishes that are under way at most: fewer than brokers take at once.
const OUTGOING_MAX: usize = 10;

/// What a publisher is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) version: Version,
    /// Its session outlives its connections.
    pub(crate) keeps_session: bool,
    /// Chance in 100 that it publishes at QoS 2, or at QoS 0; else it does so at QoS 1.
    pub(crate) exactly: u64,
    pub(crate) carelessly: u64,
    pub(crate) vanishes: u64,
}

/// A publish that is not over.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    packet_id: u16,
    message: MessageId,
    qos: QoS,
    /// When it was sent last, in which life of the broker.
    asked: Moment,
    life: u32,
    /// PUBREC has come.
    is_received: bool,
}

#[derive(Debug)]
pub(crate) struct Publisher {
    id: String,
    pub(crate) manner: Manner,
    pub(crate) link: Option<LinkId>,
    /// The connection before, which must not arrive behind the next.
    pub(crate) former: Option<LinkId>,
    /// CONNACK has come.
    pub(crate) is_online: bool,
    /// It has forgotten its session, and the broker may not have.
    begins_anew: bool,
    /// The session outlives the connection.
    lasts: bool,
    partial: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    last_id: u16,
    /// What it has to say.
    pub(crate) sends: Vec<Vec<u8>>,
}

impl Publisher {
    pub(crate) fn new(number: usize, manner: Manner) -> Self {
        Self {
            id: format!("publisher-{number}"),
            manner,
            link: None,
            former: None,
            is_online: false,
            begins_anew: true,
            lasts: false,
            partial: Vec::new(),
            outgoing: VecDeque::new(),
            last_id: 0,
            sends: Vec::new(),
        }
    }

    /// Whether nothing is left to be done.
    pub(crate) fn is_done(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub(crate) fn can_publish(&self) -> bool {
        self.is_online && self.outgoing.len() < OUTGOING_MAX
    }

    /// What it has published and nobody has acknowledged.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = MessageId> {
        self.outgoing.iter().filter(|known| !known.is_received).map(|known| known.message)
    }

    pub(crate) fn connect(&mut self, link: LinkId) {
        let Manner { version, keeps_session, .. } = self.manner;
        let clean_start = self.begins_anew || !keeps_session;
        // Before MQTT 5, who begins anew ends with the connection.
        self.lasts = keeps_session && (version == Version::V5 || !clean_start);
        let connect = Connect {
            clean_start,
            session_expiry: (version == Version::V5 && keeps_session).then_some(u32::MAX),
            ..Connect::new(version, &self.id)
        };
        let frame = encode(&Packet::Connect(connect), version);
        self.sends.push(frame);
        self.link = Some(link);
    }

    /// Its connection is lost.
    pub(crate) fn gone(&mut self) {
        self.former = self.link.take().or(self.former);
        self.is_online = false;
        self.partial.clear();
        self.sends.clear();
        if !self.lasts {
            self.outgoing.retain(|known| known.qos == QoS::AtLeastOnce);
        }
    }

    /// It gives up what it has under way, and its session.
    pub(crate) fn give_up(&mut self) {
        self.outgoing.clear();
        self.begins_anew = true;
    }

    /// Publishes a message for the first time.
    pub(crate) fn publish(&mut self, ledger: &mut Ledger, queues: &[QueuePlan], message: MessageId) {
        let Way::Published { qos, .. } = ledger.messages[message].way else { return };
        let asked = ledger.publishing(message, true);
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { self.packet_id() };
        if packet_id != 0 {
            let life = ledger.life;
            self.outgoing.push_back(Outgoing { packet_id, message, qos, asked, life, is_received: false });
        }
        self.say_publish(ledger, queues, (message, packet_id), false);
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
        ledger: &Ledger,
        queues: &[QueuePlan],
        (id, packet_id): (MessageId, u16),
        dup: bool,
    ) {
        let message = &ledger.messages[id];
        let Way::Published { qos, is_bound } = message.way else { return };
        let topic = topic(message, &queues[message.queue].name, is_bound);
        let asked = asked_for(id, message);
        let asked: Vec<(&str, &str)> = asked.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let properties = MessageProperties {
            user_properties: UserProperties::Pairs(&asked),
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
        self.sends.push(encode(&Packet::Publish(publish), self.manner.version));
    }

    /// Bytes come: the packets that are whole.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.partial.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some(len) = frames::whole(&self.partial) {
            let rest = self.partial.split_off(len);
            frames.push(std::mem::replace(&mut self.partial, rest));
        }
        frames
    }

    /// Hears a packet.
    pub(crate) fn hear(
        &mut self,
        ledger: &mut Ledger,
        queues: &[QueuePlan],
        frame: &[u8],
        is_troubled: bool,
    ) -> Result<(), Violation> {
        let packet = decode(self.manner.version, frame)
            .map_err(|error| Violation(format!("{} cannot read what came: {error:?}", self.id)))?;
        match packet {
            Packet::ConnAck(connack) => self.connected(ledger, queues, &connack, is_troubled),
            Packet::PubAck(ack) => {
                self.acknowledged(ledger, (ack.packet_id, QoS::AtLeastOnce), ack.reason, is_troubled)?;
            }
            Packet::PubRec(ack) => {
                self.acknowledged(ledger, (ack.packet_id, QoS::ExactlyOnce), ack.reason, is_troubled)?;
            }
            Packet::PubComp(ack) => {
                self.outgoing.retain(|known| known.packet_id != ack.packet_id || !known.is_received);
            }
            _ => {}
        }
        Ok(())
    }

    /// What was not acknowledged is sent again: in the session that was, or as something new.
    fn connected(
        &mut self,
        ledger: &mut Ledger,
        queues: &[QueuePlan],
        connack: &ConnAck<'_>,
        is_troubled: bool,
    ) {
        if connack.reason.is_error() {
            return;
        }
        (self.is_online, self.begins_anew) = (true, false);
        let is_kept = connack.session_present;
        self.outgoing.retain(|known| is_kept || known.qos == QoS::AtLeastOnce);
        let life = ledger.life;
        for mut known in std::mem::take(&mut self.outgoing) {
            let (message, packet_id) = (known.message, known.packet_id);
            if known.is_received {
                self.sends.push(frames::ack(Packet::PubRel, self.manner.version, packet_id));
            } else {
                // Under the identifier of a QoS 2 publish that the broker has, it takes nothing else. What it had and has
                // not acknowledged may end with it, and what of that it cannot keep is to be sent again.
                let is_copy = known.qos == QoS::AtLeastOnce || known.life != life || is_troubled;
                known.asked = ledger.publishing(message, is_copy);
                known.life = life;
                self.say_publish(ledger, queues, (message, packet_id), is_kept);
            }
            self.outgoing.push_back(known);
        }
    }

    fn acknowledged(
        &mut self,
        ledger: &mut Ledger,
        (packet_id, qos): (u16, QoS),
        reason: ReasonCode,
        is_troubled: bool,
    ) -> Result<(), Violation> {
        let is_it = |known: &Outgoing| known.packet_id == packet_id && known.qos == qos;
        let Some(at) = self.outgoing.iter().position(is_it) else {
            return Err(Violation(format!("{}: {packet_id} is acknowledged, and is not under way", self.id)));
        };
        let Outgoing { message, asked, .. } = self.outgoing[at];
        if reason.is_error() {
            self.outgoing.remove(at);
            return ledger.turned_away(message, asked, is_troubled);
        }
        ledger.acknowledged(message, asked);
        if qos == QoS::AtLeastOnce {
            self.outgoing.remove(at);
        } else {
            self.outgoing[at].is_received = true;
            self.sends.push(frames::ack(Packet::PubRel, self.manner.version, packet_id));
        }
        Ok(())
    }
}

fn encode(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut frame = Vec::new();
    packet.encode(version, &mut frame).expect("what a client says can be said");
    frame
}

/// The filter of the binding that feeds a queue. Its topics have the key of a message as their third level, if it has one.
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
