//! The single entry for messages, from whichever client or part of the broker, and the fan-out on each shard.

use std::sync::Arc;

use mainstem_mqtt::session::Acked;
use mainstem_mqtt::{Ack, Publish, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};
use mainstem_topic::{check_name, level_count};

use crate::delivery::Offer;
use crate::message::{Content, Message};
use crate::pressure::Level;
use crate::routes::Matched;
use crate::session::{Delivery, Sessions};
use crate::shard::{Handled, Next, Refusal, Shard, Subscriber};
use crate::shared::{Mail, PublishMail};

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;

/// Size up to which a message costs no more to deliver than an empty one, bytes.
const SMALL_BYTES: usize = 1024;

/// What became of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// Somebody gets it.
    Routed,
    /// Nobody subscribes to its topic.
    NoSubscribers,
    /// It was routed, but could not be retained.
    NotRetained,
}

/// Memory for fan-outs in which clients meet a publish by several subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Number of the fan-out, to tell marks of earlier ones.
    fan_out: u64,
    hits: Vec<Hit>,
}

/// A client and everything by which it meets a publish.
#[derive(Debug)]
struct Hit {
    session: u32,
    qos: QoS,
    retain: bool,
    ids: Vec<u32>,
}

impl Shard {
    /// PUBLISH from a client (3.3).
    pub(crate) fn on_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Handled {
        let config = &self.shared.config;
        let aliases_max = config.topic_alias_maximum;
        let counters = &mut self.deliveries.counters;
        counters.publish_received += 1;
        counters.publish_bytes_received += publish.payload.len() as u64;
        if publish.qos > config.qos_max() {
            return Err(Refusal::new(ReasonCode::QoSNotSupported, "QoS above the maximum [MQTT-3.2.2-11]"));
        }
        if publish.retain && !config.retain_available {
            return Err(Refusal::new(
                ReasonCode::RetainNotSupported,
                "retained messages are off [MQTT-3.2.2-14]",
            ));
        }
        if !publish.subscription_ids.is_empty() {
            return Err(Refusal::new(
                ReasonCode::ProtocolError,
                "Subscription Identifier from a client [MQTT-3.3.4-6]",
            ));
        }
        if publish.properties.response_topic.is_some_and(|topic| check_name(topic).is_err()) {
            return Err(Refusal::new(
                ReasonCode::ProtocolError,
                "Response Topic with wildcards [MQTT-3.3.2-14]",
            ));
        }
        // The table leaves its place for a moment, since the topic may be borrowed from it.
        let mut aliases = self.conn(conn).aliases.take();
        let outcome = if publish.topic_alias.is_some() || publish.topic.is_empty() {
            aliases
                .get_or_insert_default()
                .resolve(publish.topic, publish.topic_alias, aliases_max)
                .map_err(|reason| Refusal::new(reason, "no topic, or a topic alias that stands for none"))
                .and_then(|topic| self.take_in(io, slot, publish, topic))
        } else {
            self.take_in(io, slot, publish, publish.topic)
        };
        if aliases.is_some() {
            self.conn(conn).aliases = aliases;
        }
        outcome
    }

    fn take_in(&mut self, io: &mut Io<'_, Mail>, slot: u32, publish: &Publish<'_>, topic: &str) -> Handled {
        if check_name(topic).is_err() {
            return Err(Refusal::new(
                ReasonCode::TopicNameInvalid,
                "topic name with wildcards or empty [MQTT-3.3.2-2]",
            ));
        }
        if level_count(topic) > usize::from(self.config().max_topic_levels) {
            return Err(Refusal::new(ReasonCode::TopicNameInvalid, "topic name with too many levels"));
        }
        let receive_maximum = self.config().receive_maximum;
        let session = self.deliveries.sessions.at(slot);
        let five = session.version == Version::V5;
        let id = publish.packet_id;
        if publish.qos == QoS::ExactlyOnce {
            let most = if five { receive_maximum } else { u16::MAX };
            match session.received.publish(id, most) {
                Ok(true) => {}
                Ok(false) => {
                    self.acknowledge(io, slot, PUBREC, id, ReasonCode::Success);
                    return Ok(Next::Packet);
                }
                Err(_) => {
                    let what = "more publishes in flight than Receive Maximum [MQTT-3.3.4-7]";
                    return Err(Refusal::new(ReasonCode::ReceiveMaximumExceeded, what));
                }
            }
        }
        let reason = if topic.starts_with("$SYS/") {
            self.deliveries.counters.publish_dropped += 1;
            ReasonCode::NotAuthorized
        } else {
            let content = Content {
                qos: publish.qos,
                retain: publish.retain,
                publisher: Some(self.deliveries.sessions.key(self.me, slot)),
                topic,
                payload: publish.payload,
                properties: publish.properties,
            };
            // A client that can be told is told before anybody gets a message that it may send again.
            let can_be_told = five && publish.qos > QoS::AtMostOnce;
            if publish.retain
                && can_be_told
                && !publish.payload.is_empty()
                && !self.shared.retained.has_room(topic, topic.len() + publish.payload.len())
            {
                self.deliveries.counters.publish_dropped += 1;
                self.answer_publish(io, slot, publish, ReasonCode::QuotaExceeded);
                return Ok(Next::Packet);
            }
            match self.publish(io, &content) {
                Published::Routed => ReasonCode::Success,
                Published::NoSubscribers => ReasonCode::NoMatchingSubscribers,
                Published::NotRetained => ReasonCode::QuotaExceeded,
            }
        };
        self.answer_publish(io, slot, publish, reason);
        Ok(Next::Packet)
    }

    /// Acknowledges a PUBLISH as its QoS asks for.
    fn answer_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        reason: ReasonCode,
    ) {
        let id = publish.packet_id;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.acknowledge(io, slot, PUBACK, id, reason),
            QoS::ExactlyOnce => {
                let session = self.deliveries.sessions.at(slot);
                if session.version == Version::V5 && reason.is_error() {
                    // The exchange is over, the identifier free again [MQTT-4.3.3-9].
                    session.received.release(id);
                }
                self.acknowledge(io, slot, PUBREC, id, reason);
            }
        }
    }

    /// Publishes a message: retains it if it asks for that, and routes it to every subscriber there is.
    pub(crate) fn publish(&mut self, io: &mut Io<'_, Mail>, content: &Content<'_>) -> Published {
        let message = self.pool.make(content, io.clock.now_ms);
        let mut retained = true;
        if content.retain {
            if content.payload.is_empty() {
                self.shared.retained.clear(content.topic);
            } else if self.shared.retained.set(&message).is_err() {
                self.deliveries.counters.publish_dropped += 1;
                retained = false;
            }
        }
        let matched = self.shared.routes.matched(&mut self.cache, content.topic);
        self.work += 1;
        self.fan_out(io, &message, &matched);
        for group in &matched.groups {
            self.deal(io, &message, group, None, 0);
        }
        let mut others = matched.shards & !(1 << self.me);
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            let mail = PublishMail { message: Arc::clone(&message), matched: Arc::clone(&matched) };
            io.send(other, Mail::Publish(mail));
        }
        let level = matched.level(io.clock.now_ms);
        if level > Level::None {
            self.pressed = Some((level, Arc::clone(&matched)));
        }
        match (retained, matched.is_empty()) {
            (false, _) => Published::NotRetained,
            (true, true) => Published::NoSubscribers,
            (true, false) => Published::Routed,
        }
    }

    pub(crate) fn on_mail(&mut self, io: &mut Io<'_, Mail>, mail: Mail) {
        match mail {
            Mail::Publish(PublishMail { message, matched }) => self.fan_out(io, &message, &matched),
            Mail::Dealt(dealt) => self.on_dealt(io, &dealt),
        }
    }

    /// Offers a message to every subscriber on this shard, and notes if most of them are behind.
    fn fan_out(&mut self, io: &mut Io<'_, Mail>, message: &Arc<Message>, matched: &Matched) {
        let receivers = self.offer_to_all(io, message, matched);
        self.work += receivers * cost(message);
        let level = self.deliveries.take_tally().majority(receivers);
        matched.pressure.note(level, self.me, io.clock.now_ms);
    }

    /// Offers a message to every subscriber on this shard. Returns how many there are.
    fn offer_to_all(&mut self, io: &mut Io<'_, Mail>, message: &Arc<Message>, matched: &Matched) -> u32 {
        let mine = 1 << self.me;
        let mut lists = matched
            .filters
            .iter()
            .filter(|(_, shards)| shards & mine != 0)
            .filter_map(|(filter, _)| self.local.get(filter));
        let (Some(first), second) = (lists.next(), lists.next()) else { return 0 };
        let one_copy = self.shared.config.one_copy_per_client;
        let Some(second) = second.filter(|_| one_copy) else {
            let mut receivers = 0;
            for subscriber in first.iter().chain(second.into_iter().chain(lists).flatten()) {
                receivers += 1;
                if is_own(self.me, &mut self.deliveries.sessions, message, subscriber) {
                    continue;
                }
                let offer = Offer {
                    message,
                    qos: message.qos.min(subscriber.options.qos),
                    retain: message.retain && subscriber.options.retain_as_published,
                    ids: if subscriber.id == 0 { &[] } else { std::slice::from_ref(&subscriber.id) },
                    group: None,
                    walked: false,
                };
                self.deliveries.offer(io, subscriber.session, &offer);
            }
            return receivers;
        };
        // One copy per client, at its highest QoS, with all identifiers [MQTT-3.3.4-2, MQTT-3.3.4-3].
        let Scratch { fan_out, hits } = &mut self.scratch;
        *fan_out += 1;
        hits.clear();
        for subscriber in [first, second].into_iter().chain(lists).flatten() {
            if is_own(self.me, &mut self.deliveries.sessions, message, subscriber) {
                continue;
            }
            let session = self.deliveries.sessions.at(subscriber.session);
            if session.mark.0 != *fan_out {
                session.mark = (*fan_out, hits.len() as u32);
                hits.push(Hit {
                    session: subscriber.session,
                    qos: QoS::AtMostOnce,
                    retain: false,
                    ids: Vec::new(),
                });
            }
            let hit = &mut hits[session.mark.1 as usize];
            hit.qos = hit.qos.max(message.qos.min(subscriber.options.qos));
            hit.retain |= message.retain && subscriber.options.retain_as_published;
            if subscriber.id != 0 {
                hit.ids.push(subscriber.id);
            }
        }
        for Hit { session, qos, retain, ids } in hits.iter() {
            let offer = Offer { message, qos: *qos, retain: *retain, ids, group: None, walked: false };
            self.deliveries.offer(io, *session, &offer);
        }
        hits.len() as u32
    }

    pub(crate) fn on_puback(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        session.progress_ms = io.clock.now_ms;
        let acked = session.window.puback(ack.packet_id);
        settle(self, slot, acked);
    }

    pub(crate) fn on_pubrec(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        session.progress_ms = io.clock.now_ms;
        match session.window.pubrec(ack.packet_id, ack.reason.is_error()) {
            Acked::Release(message) => {
                settle(self, slot, Acked::Done(message));
                self.acknowledge(io, slot, PUBREL, ack.packet_id, ReasonCode::Success);
            }
            acked @ Acked::Done(_) => settle(self, slot, acked),
            // It may belong to a session that this client has forgotten we ended: let it finish.
            Acked::Unknown => {
                self.acknowledge(io, slot, PUBREL, ack.packet_id, ReasonCode::PacketIdentifierNotFound);
            }
        }
    }

    pub(crate) fn on_pubrel(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let known = self.deliveries.sessions.at(slot).received.release(ack.packet_id);
        let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
        self.acknowledge(io, slot, PUBCOMP, ack.packet_id, reason);
    }

    pub(crate) fn on_pubcomp(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: &Ack<'_>) {
        let session = self.deliveries.sessions.at(slot);
        session.progress_ms = io.clock.now_ms;
        let acked = session.window.pubcomp(ack.packet_id);
        settle(self, slot, acked);
    }
}

/// What one delivery of a message costs, in deliveries of a small one.
fn cost(message: &Message) -> u32 {
    1 + (message.size() / SMALL_BYTES) as u32
}

/// An exchange is over: whoever deals out shared subscriptions is to know.
fn settle(shard: &mut Shard, slot: u32, acked: Acked<Delivery>) {
    if let Acked::Done(Some(delivery)) = acked {
        shard.deliveries.sessions.at(slot).settle(&delivery);
    }
}

/// Whether the subscriber published the message itself and does not want it back [MQTT-3.8.3-3].
#[inline]
fn is_own(me: u16, sessions: &mut Sessions, message: &Message, subscriber: &Subscriber) -> bool {
    subscriber.options.no_local
        && message.publisher.is_some_and(|publisher| {
            publisher.shard == me && publisher.slot == subscriber.session && sessions.get(publisher).is_some()
        })
}
