//! What goes over the connections of a run: packets that the broker has dealt with are told to the oracle,
//! packets that it has sent are held against what is due.

use mainstem_mqtt::{
    Ack, Header, Packet, Publish, QoS, ReasonCode, SubscriptionIds, UserProperties, Version, decode,
};

use crate::frames::{USER_PROPERTIES, message_of};
use crate::kit::{LinkId, Output, State};
use crate::plan::{MessageId, Op, PROBE_TOPIC};
use crate::run::Run;
use crate::session::{Awaits, Copy, Serial, Shape};
use crate::wire::{Reply, Wire};

impl Run {
    /// Tells the oracle what the broker has taken from a connection since it was last asked.
    pub(crate) fn take_in(&mut self, link: LinkId) {
        let consumed = self.world.consumed(link);
        let state = self.world.state(link);
        while let Some((end, op)) = self.wires[link].ops.front() {
            // DISCONNECT ends the connection and is never counted as consumed.
            let is_last = matches!(op, Op::Disconnect { .. }) && state == State::Closed;
            if !(*end <= consumed || is_last) || self.wires[link].has_ended {
                break;
            }
            let Some((_, op)) = self.wires[link].ops.pop_front() else { break };
            self.wires[link].last_packet_ms = self.world.now_ms;
            self.log(|| format!("broker takes {op:?} from link {link}"));
            self.apply(link, op);
            self.close_links();
        }
        if state == State::Closed {
            assert!(self.wires[link].has_ended, "the broker closed link {link} and should not have");
        }
    }

    /// Connections that the oracle has closed.
    pub(crate) fn close_links(&mut self) {
        for (link, reason) in std::mem::take(&mut self.oracle.closing) {
            let wire = &mut self.wires[link];
            wire.has_ended = true;
            if wire.version == Version::V5 {
                wire.replies.push_back(Reply::Disconnect(reason));
            }
        }
    }

    fn apply(&mut self, link: LinkId, op: Op) {
        let client = self.wires[link].client;
        if let Op::Connect(connecting) = &op {
            let State::Open(shard) = self.world.state(link) else { panic!("CONNECT was taken, and refused") };
            let is_present = self.oracle.connect(link, shard, connecting);
            self.wires[link].serial = Some(self.oracle.by_client[&client]);
            self.connects += 1;
            self.wires[link].order = self.connects;
            self.wires[link].inflight_max = self.oracle.session(client).expect("a session").inflight_max;
            // MQTT 3.1 has no Session Present.
            let is_present = is_present && connecting.version > Version::V3;
            self.wires[link].replies.push_back(Reply::ConnAck { is_present });
            return;
        }
        let serial = self.wires[link].serial.expect("CONNECT comes first");
        let five = self.wires[link].version == Version::V5;
        let session = self.oracle.sessions.get_mut(&serial).expect("a session");
        let unknown = if five { ReasonCode::PacketIdentifierNotFound } else { ReasonCode::Success };
        let reply = match op {
            Op::Connect(_) => unreachable!("dealt with above"),
            Op::PubAck(packet_id) => {
                session.finish(packet_id, Awaits::PubAck);
                None
            }
            Op::PubRec { packet_id, is_error: true } => {
                (!session.finish(packet_id, Awaits::PubRec)).then_some(Reply::PubRel(packet_id, unknown))
            }
            Op::PubRec { packet_id, is_error: false } => {
                let is_known = session.release(packet_id);
                Some(Reply::PubRel(packet_id, if is_known { ReasonCode::Success } else { unknown }))
            }
            Op::PubRel(packet_id) => {
                let is_known = session.received.remove(&packet_id);
                Some(Reply::PubComp(packet_id, if is_known { ReasonCode::Success } else { unknown }))
            }
            Op::PubComp(packet_id) => {
                session.finish(packet_id, Awaits::PubComp);
                None
            }
            Op::Publish { packet_id, message, qos, retain } => {
                self.apply_publish(serial, packet_id, message, qos, retain, five)
            }
            Op::Subscribe { packet_id, id, filters } => {
                let mut reasons = self.oracle.subscribe(serial, id, &filters);
                if !five {
                    reasons.iter_mut().filter(|reason| **reason >= 0x80).for_each(|reason| *reason = 0x80);
                }
                Some(Reply::SubAck { packet_id, reasons })
            }
            Op::Unsubscribe { packet_id, filters } => {
                let (reasons, number) = self.oracle.unsubscribe(serial, &filters);
                self.wires[link].unsubscribing.push_back(number);
                Some(Reply::UnsubAck { packet_id, reasons: if five { reasons } else { Vec::new() } })
            }
            Op::Ping => Some(Reply::Pong),
            Op::Disconnect { with_will, expiry_s } => {
                if !with_will || !five {
                    session.will = None;
                }
                if let Some(expiry_s) = expiry_s {
                    session.expiry_s = expiry_s.min(self.oracle.config.session_expiry_s_max);
                }
                self.wires[link].has_ended = true;
                self.oracle.detach(serial);
                None
            }
        };
        self.wires[link].replies.extend(reply);
    }

    fn apply_publish(
        &mut self,
        serial: Serial,
        packet_id: u16,
        message: MessageId,
        qos: QoS,
        retain: bool,
        five: bool,
    ) -> Option<Reply> {
        let session = self.oracle.sessions.get_mut(&serial).expect("a session");
        let shard = session.shard;
        if qos == QoS::ExactlyOnce && !session.received.insert(packet_id) {
            return Some(Reply::PubRec(packet_id, ReasonCode::Success));
        }
        let met = self.oracle.publish_reason(self.oracle.messages[message].topic);
        let reason = if five { met } else { ReasonCode::Success };
        if !five {
            // The client has come back with an older version since it made the message.
            self.oracle.messages[message].expiry_s = None;
            self.oracle.messages[message].has_properties = false;
        }
        self.oracle.publish(shard, Some(serial), message, qos, retain);
        match qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce => Some(Reply::PubAck(packet_id, reason)),
            QoS::ExactlyOnce => Some(Reply::PubRec(packet_id, reason)),
        }
    }

    /// Takes in what a shard has sent in one turn.
    pub(crate) fn take_out(&mut self, shard: usize, outputs: Vec<Output>) {
        // The last words on connections that have ended were said before anything on those that followed.
        let (mut ended, open): (Vec<_>, Vec<_>) =
            outputs.into_iter().partition(|output| self.wires[output.link].has_ended);
        ended.extend(self.unheard.extract_if(.., |output| self.wires[output.link].shard == shard));
        ended.sort_by_key(|output| self.wires[output.link].order);
        for output in &ended {
            self.hand_back(output);
        }
        for output in &ended {
            self.on_output(output);
        }
        let here = self.oracle.sessions.values().filter(|session| session.shard == shard);
        for serial in here.map(|session| session.serial).collect::<Vec<_>>() {
            self.oracle.reset(serial);
        }
        for output in &open {
            self.on_output(output);
        }
    }

    /// What was sent on a connection that has ended since may have gone to another member of a group at once.
    fn hand_back(&mut self, output: &Output) {
        let Wire { partial, version, .. } = &self.wires[output.link];
        let bytes = [&partial[..], &output.bytes].concat();
        for frame in Frames(&bytes) {
            if let Ok(Packet::Publish(Publish { qos: QoS::AtLeastOnce, payload, .. })) =
                decode(*version, frame)
                && let Some(message) = message_of(payload)
            {
                self.oracle.groups.hand_back(message);
            }
        }
    }

    pub(crate) fn on_output(&mut self, output: &Output) {
        let Output { link, ref bytes, seen } = *output;
        if let Some(serial) = self.wires[link].serial {
            self.oracle.hear(serial, link);
        }
        let mut buffer = std::mem::take(&mut self.wires[link].partial);
        buffer.extend_from_slice(bytes);
        let mut frames = Frames(&buffer);
        for frame in &mut frames {
            let wire = &self.wires[link];
            assert!(frame.len() <= wire.packet_max, "a packet of {} bytes [MQTT-3.1.2-24]", frame.len());
            let packet = decode(wire.version, frame).expect("the broker sends packets");
            self.log(|| format!("link {link} gets {}{}", Brief(&packet), if seen { "" } else { ", unseen" }));
            self.on_packet(link, &packet, seen);
        }
        self.wires[link].partial = frames.0.to_vec();
    }

    fn on_packet(&mut self, link: LinkId, packet: &Packet<'_>, seen: bool) {
        let client = self.wires[link].client;
        let serial = self.wires[link].serial.expect("nobody is spoken to before CONNECT");
        let to_client = seen && !self.wires[link].has_ended && self.clients[client].link == Some(link);
        let reply = match packet {
            Packet::Publish(publish) => return self.on_publish(link, serial, publish, to_client),
            Packet::PubRel(ack) => {
                if to_client {
                    self.clients[client].held.remove(&ack.packet_id);
                    self.clients[client].owed.push(Op::PubComp(ack.packet_id));
                }
                // Sent again after a reconnect, or the answer to PUBREC.
                if self.is_resent_release(link, serial, ack) {
                    return;
                }
                Reply::PubRel(ack.packet_id, ack.reason)
            }
            Packet::ConnAck(connack) => {
                assert_eq!(connack.reason, ReasonCode::Success, "CONNECT is refused");
                Reply::ConnAck { is_present: connack.session_present }
            }
            Packet::SubAck(ack) => Reply::SubAck { packet_id: ack.packet_id, reasons: ack.reasons.to_vec() },
            Packet::UnsubAck(ack) => {
                let number = self.wires[link].unsubscribing.pop_front().expect("UNSUBSCRIBE comes first");
                self.oracle.unsubscribed(serial, number);
                Reply::UnsubAck { packet_id: ack.packet_id, reasons: ack.reasons.to_vec() }
            }
            Packet::PubAck(ack) => Reply::PubAck(ack.packet_id, ack.reason),
            Packet::PubRec(ack) => Reply::PubRec(ack.packet_id, ack.reason),
            Packet::PubComp(ack) => Reply::PubComp(ack.packet_id, ack.reason),
            Packet::PingResp => Reply::Pong,
            Packet::Disconnect(disconnect) => Reply::Disconnect(disconnect.reason),
            other => panic!("a server does not send {other:?}"),
        };
        let due = self.wires[link].replies.pop_front();
        assert_eq!(Some(&reply), due.as_ref(), "link {link} is answered out of turn");
        if to_client {
            self.on_reply(link, &reply);
        }
    }

    fn on_reply(&mut self, link: LinkId, reply: &Reply) {
        let client = self.wires[link].client;
        let known = &mut self.clients[client];
        match reply {
            Reply::ConnAck { .. } => {
                let serial = self.wires[link].serial.expect("CONNECT comes first");
                let again = known.welcome(serial);
                self.send_again(client, &again);
            }
            Reply::PubAck(packet_id, _) | Reply::PubComp(packet_id, _) => known.on_puback(*packet_id),
            Reply::PubRec(packet_id, _) => known.on_pubrec(*packet_id),
            _ => {}
        }
    }

    fn is_resent_release(&mut self, link: LinkId, serial: Serial, ack: &Ack<'_>) -> bool {
        let Some(session) = self.oracle.sessions.get_mut(&serial) else {
            // Of a session that has ended nobody knows what was in flight.
            let due = Reply::PubRel(ack.packet_id, ack.reason);
            return self.wires[link].replies.front() != Some(&due);
        };
        session.release_again(ack.packet_id)
    }

    fn on_publish(&mut self, link: LinkId, serial: Serial, publish: &Publish<'_>, to_client: bool) {
        let topic = self.topic_of(link, publish);
        let message = self.message_of(&topic, publish);
        self.check_content(link, message, &topic, publish);
        if let Some(probe) = self.probe.as_mut().filter(|_| topic == PROBE_TOPIC) {
            *probe.entry(serial).or_default() += 1;
        }
        let client = self.wires[link].client;
        if to_client && publish.qos != QoS::AtMostOnce {
            let packet_id = publish.packet_id;
            if publish.qos == QoS::ExactlyOnce {
                self.clients[client].on_publish(packet_id, publish.dup);
            }
            self.clients[client].owed.push(match publish.qos {
                QoS::ExactlyOnce => {
                    let is_error = self.wires[link].version == Version::V5 && self.random.one_in(20);
                    Op::PubRec { packet_id, is_error }
                }
                _ => Op::PubAck(packet_id),
            });
        }
        let may_be_dealt = self.oracle.groups.may_bring(message, serial);
        let Some(session) = self.oracle.sessions.get_mut(&serial) else {
            // The last words to a session that has ended; others may get its share of the messages.
            if may_be_dealt {
                self.oracle.groups.take_perhaps(message);
            }
            return;
        };
        let copy = session.take(publish, message, self.wires[link].inflight_max);
        let name = self.name(message);
        match copy {
            Copy::Again => return,
            Copy::Extra => {
                let is_anonymous = publish.payload.is_empty();
                self.oracle.groups.take_sure(message, is_anonymous, serial, &name);
            }
            Copy::Own if may_be_dealt => self.oracle.groups.take_perhaps(message),
            Copy::Own => {}
        }
        if !may_be_dealt {
            self.check_copy(link, serial, message, publish);
        }
        self.check_expiry(link, message);
    }

    fn check_expiry(&self, link: LinkId, message: MessageId) {
        let is_prompt = !self.wires[link].was_stalled;
        let is_current = self.oracle.messages[message].is_current(self.oracle.now_ms);
        assert!(is_current || !is_prompt, "{} has expired [MQTT-3.3.2-5]", self.name(message));
    }

    /// What holds for a copy that only a plain subscription can have brought.
    fn check_copy(&mut self, link: LinkId, serial: Serial, message: MessageId, publish: &Publish<'_>) {
        let known = &self.oracle.messages[message];
        let (publisher, number, topic, is_single) =
            (known.publisher, known.number, known.topic, known.count == 1);
        let five = self.wires[link].version == Version::V5;
        let name = self.name(message);
        let session = self.oracle.sessions.get_mut(&serial).expect("a session");
        let expected = session.expect(message);
        let mut ids: Vec<u32> = publish.subscription_ids.iter().collect();
        ids.sort_unstable();
        let shape = Shape { qos: publish.qos, retain: publish.retain, ids };
        let fits = |known: &Shape| {
            known.qos == shape.qos && known.retain == shape.retain && (!five || known.ids == shape.ids)
        };
        assert!(
            expected.is_vague || expected.shapes.iter().any(fits),
            "{name} looks like {shape:?} and not like any of {:?}",
            expected.shapes
        );
        if expected.walks > 0 {
            return;
        }
        if publish.qos != QoS::AtMostOnce {
            session.waiting_max = session.waiting_max.saturating_sub(1);
        }
        if is_single {
            session.check_order(publisher, topic, publish.qos, number);
        }
    }

    /// The topic of a PUBLISH, by name or alias.
    fn topic_of(&mut self, link: LinkId, publish: &Publish<'_>) -> String {
        let wire = &mut self.wires[link];
        let Some(alias) = publish.topic_alias else {
            assert!(!publish.topic.is_empty(), "a PUBLISH without a topic [MQTT-3.3.2-1]");
            return publish.topic.to_owned();
        };
        assert!(alias <= wire.alias_max, "alias {alias} of {} [MQTT-3.3.2-9]", wire.alias_max);
        if publish.topic.is_empty() {
            return wire.aliases_in.get(&alias).expect("an alias that was set").clone();
        }
        wire.aliases_in.insert(alias, publish.topic.to_owned());
        publish.topic.to_owned()
    }

    fn message_of(&self, topic: &str, publish: &Publish<'_>) -> MessageId {
        if publish.payload.is_empty() {
            return self.empties[topic];
        }
        message_of(publish.payload).expect("a payload of this run")
    }

    /// Topic, payload and properties arrive as they were sent.
    fn check_content(&self, link: LinkId, message: MessageId, topic: &str, publish: &Publish<'_>) {
        let known = &self.oracle.messages[message];
        assert_eq!((topic, publish.payload.len()), (known.topic, known.bytes), "{}", self.name(message));
        let wire = &self.wires[link];
        let properties = &publish.properties;
        if wire.version != Version::V5 || known.count > 1 {
            return;
        }
        if !wire.was_stalled {
            let left = |at_ms: u64| at_ms.saturating_sub(self.oracle.now_ms).div_ceil(1000) as u32;
            assert_eq!(properties.message_expiry, known.expires_at_ms.map(left), "expiry [MQTT-3.3.2-6]");
        }
        let content_type = known.has_properties.then(|| message.to_string());
        assert_eq!(properties.content_type, content_type.as_deref(), "content type [MQTT-3.3.2-20]");
        let user: &[(&str, &str)] = if known.has_properties { &USER_PROPERTIES } else { &[] };
        assert_eq!(
            properties.user_properties,
            UserProperties::Pairs(user),
            "user properties [MQTT-3.3.2-17]"
        );
    }
}

/// The whole packets at the front of some bytes; keeps what is left.
struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let header = Header::parse(self.0).expect("the broker sends packets")?;
        let (frame, rest) = self.0.split_at_checked(header.packet_len())?;
        self.0 = rest;
        Some(frame)
    }
}

/// A packet in few words, for the log.
pub(crate) struct Brief<'a>(&'a Packet<'a>);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Packet::Publish(publish) => {
                let Publish {
                    dup,
                    qos,
                    retain,
                    topic,
                    packet_id,
                    topic_alias,
                    subscription_ids,
                    payload,
                    ..
                } = publish;
                let ids: Vec<u32> = SubscriptionIds::iter(subscription_ids).collect();
                let message = message_of(payload);
                write!(
                    f,
                    "PUBLISH {message:?} to {topic:?} ({topic_alias:?}) {qos:?} id {packet_id} dup {dup} retain {retain} ids {ids:?}"
                )
            }
            Packet::PubRel(Ack { packet_id, reason, .. }) => write!(f, "PUBREL {packet_id} {reason:?}"),
            Packet::PubAck(Ack { packet_id, reason, .. }) => write!(f, "PUBACK {packet_id} {reason:?}"),
            Packet::PubRec(Ack { packet_id, reason, .. }) => write!(f, "PUBREC {packet_id} {reason:?}"),
            Packet::PubComp(Ack { packet_id, reason, .. }) => write!(f, "PUBCOMP {packet_id} {reason:?}"),
            Packet::ConnAck(connack) => write!(f, "CONNACK, session present {}", connack.session_present),
            other => write!(f, "{other:?}"),
        }
    }
}
