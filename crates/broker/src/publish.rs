//! The single entry for messages, from whichever client or part of the broker, and the fan-out on each shard.

use std::sync::Arc;

use mainstem_mqtt::{Publish, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};
use mainstem_topic::{check_name, level_count};

use crate::answers::{Receipt, Wait, What};
use crate::durable::Due;
use crate::journal::entry::Origin;
use crate::lifecycle::Dealing;
use crate::message::{Content, Message};
use crate::offer::Offer;
use crate::outside::SINKS;
use crate::pressure::Level;
use crate::routes::Matched;
use crate::session::{CutShort, Lacking, Sessions};
use crate::shard::{Handled, Next, Refusal, Shard, Subscriber};
use crate::shared::{Mail, PublishMail, ReceiptMail};
use crate::work::{is_of_queue, queue_of};

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
pub(crate) const PUBREL: u8 = 0x62;
pub(crate) const PUBCOMP: u8 = 0x70;

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

impl Published {
    /// What its publisher is told.
    fn reason(self) -> ReasonCode {
        match self {
            Self::Routed => ReasonCode::Success,
            Self::NoSubscribers => ReasonCode::NoMatchingSubscribers,
            Self::NotRetained => ReasonCode::QuotaExceeded,
        }
    }
}

/// Stands for the log of retained messages among the journals that a publish is to reach.
pub(crate) const RETAINED_LOG: u64 = 1 << 63;

/// What became of a message that asks to be retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retained {
    /// The disk is to hear of it.
    Changed,
    /// The disk need not.
    Unchanged,
    /// There is no room for it, in memory or on disk.
    Refused,
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
        if publish.qos > QoS::AtMostOnce && !self.can_keep() {
            return self.refuse_publish(io, slot, publish);
        }
        let receive_maximum = self.config().receive_maximum;
        let session = self.deliveries.sessions.at(slot);
        let five = session.version == Version::V5;
        let id = publish.packet_id;
        if publish.qos == QoS::ExactlyOnce {
            let most = if five { receive_maximum } else { u16::MAX };
            match session.received.publish(id, most) {
                Ok(false) if !session.is_cut_short(id) => {
                    self.repeat_pubrec(io, slot, id);
                    return Ok(Next::Packet);
                }
                Ok(_) => {}
                Err(_) => {
                    let what = "more publishes in flight than Receive Maximum [MQTT-3.3.4-7]";
                    return Err(Refusal::new(ReasonCode::ReceiveMaximumExceeded, what));
                }
            }
        }
        let is_of_queue = is_of_queue(topic);
        let reason = if topic.starts_with("$SYS/") {
            self.deliveries.counters.publish_dropped += 1;
            ReasonCode::NotAuthorized
        } else if is_of_queue && queue_of(topic).is_none() {
            self.deliveries.counters.publish_dropped += 1;
            if !five && publish.qos > QoS::AtMostOnce {
                return Err(Refusal::new(ReasonCode::TopicNameInvalid, "topic name that names no queue"));
            }
            ReasonCode::TopicNameInvalid
        } else {
            let content = Content {
                qos: publish.qos,
                retain: publish.retain && !is_of_queue,
                publisher: Some(self.deliveries.sessions.key(self.me, slot)),
                topic,
                payload: publish.payload,
                properties: publish.properties,
            };
            // A client that can be told is told before anybody gets a message that it may send again.
            let can_be_told = five && publish.qos > QoS::AtMostOnce;
            if content.retain
                && can_be_told
                && !publish.payload.is_empty()
                && !self.shared.retained.has_room(topic, topic.len() + publish.payload.len())
            {
                self.deliveries.counters.publish_dropped += 1;
                self.answer_publish(io, slot, publish, ReasonCode::QuotaExceeded);
                return Ok(Next::Packet);
            }
            self.publish_for(io, slot, publish, &content);
            return Ok(Next::Packet);
        };
        self.answer_publish(io, slot, publish, reason);
        Ok(Next::Packet)
    }

    /// Publishes what a client has sent, and answers it when all that it is promised has been kept.
    fn publish_for(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        content: &Content<'_>,
    ) {
        let has_sinks = self.shared.routes.has_sinks() || is_of_queue(content.topic);
        if !content.retain && self.shared.lasting() == 0 && !has_sinks {
            // Nothing has to last. Who begins a session that does, on another shard and now, has no SUBACK yet.
            let (published, _) = self.publish(io, content, &Due::default());
            self.answer_publish(io, slot, publish, published.reason());
            return;
        }
        let has_answer = publish.qos > QoS::AtMostOnce;
        let receipt = has_answer.then(|| self.receipt_for(slot));
        let cut_short = self.deliveries.sessions.at(slot).take_cut_short(publish.packet_id, publish.qos);
        let is_once = publish.qos == QoS::ExactlyOnce;
        let again = cut_short.as_ref().map(|cut_short| cut_short.sequence);
        let origin = if is_once { self.origin_of(slot, publish.packet_id, again) } else { None };
        // The retained message is in a log of its own, which a crash may leave behind.
        let reach = if content.retain { RETAINED_LOG } else { 0 };
        let reach = if has_sinks { reach | SINKS } else { reach };
        let origin = origin.map(|origin| Origin { reach: origin.reach | reach, ..origin });
        let due = Due { receipt, origin, cut_short };
        let ((published, receipts), mut wait) = self.entering(|shard| {
            let before = shard.home_end(slot);
            let published = shard.publish(io, content, &due);
            if let Some(origin) = origin {
                let has_entry = shard.home_end(slot) != before;
                shard.enter_received(slot, origin, has_entry);
                shard.note_under_way(slot, origin, &due, published.1);
            }
            published
        });
        wait.receipts = receipts;
        if has_answer {
            self.answer_when_kept(io, slot, publish, published.reason(), wait, receipt);
        }
    }

    /// Offset behind the last entry of a session's journal.
    fn home_end(&mut self, slot: u32) -> u64 {
        self.journal(slot).map_or(0, |(journal, _)| journal.next_offset())
    }

    /// A QoS 2 PUBLISH that was taken in before and is sent again: its PUBREC waits for what the first one did.
    fn repeat_pubrec(&mut self, io: &mut Io<'_, Mail>, slot: u32, packet_id: u16) {
        let what = What::Ack { first: PUBREC, packet_id, reason: ReasonCode::Success };
        if self.deliveries.sessions.at(slot).lasts() || self.shared.lasting() != 0 {
            let receipt = self.receipt_for(slot);
            let wait = self.fence(io, receipt);
            self.answer_with(io, slot, wait, Some(receipt), what, true);
        } else {
            self.answer(io, slot, Wait::default(), None, what);
        }
    }

    /// Nothing can be kept on disk now: QoS 1 and 2 are not taken, rather than taken and lost.
    fn refuse_publish(&mut self, io: &mut Io<'_, Mail>, slot: u32, publish: &Publish<'_>) -> Handled {
        self.deliveries.counters.publish_dropped += 1;
        let session = self.deliveries.sessions.at(slot);
        // An exchange that has begun must not end with an error: the disk knows of it, and would take the next
        // publish under this identifier for the same one.
        let goes_on = publish.qos == QoS::ExactlyOnce
            && session.received.iter().any(|known| known == publish.packet_id);
        if session.version < Version::V5 || goes_on {
            return Err(Refusal::new(ReasonCode::QuotaExceeded, "nothing can be kept on disk now"));
        }
        let first = if publish.qos == QoS::AtLeastOnce { PUBACK } else { PUBREC };
        let what = What::Ack { first, packet_id: publish.packet_id, reason: ReasonCode::QuotaExceeded };
        self.answer(io, slot, Wait::default(), None, what);
        Ok(Next::Packet)
    }

    /// Whether one before it has been refused and its client has not been told: if the connection is lost now, it
    /// sends that one again, which must not come behind this one [MQTT-4.6.0-6].
    pub(crate) fn is_behind_refusal(&mut self, slot: u32, publish: &Publish<'_>) -> bool {
        let rare = &self.deliveries.sessions.at(slot).rare;
        publish.qos > QoS::AtMostOnce && rare.as_ref().is_some_and(|rare| rare.answers.has_refusal())
    }

    /// Acknowledges a PUBLISH when `wait` is over.
    fn answer_when_kept(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        reason: ReasonCode,
        mut wait: Wait,
        receipt: Option<Receipt>,
    ) {
        let (is_once, packet_id) = (publish.qos == QoS::ExactlyOnce, publish.packet_id);
        let session = self.deliveries.sessions.at(slot);
        let completes = is_once && session.lasts();
        if is_once && session.version == Version::V5 && reason.is_error() {
            // The exchange is over, the identifier free again [MQTT-4.3.3-9].
            session.received.release(packet_id);
            if completes {
                let ((), end) = self.entering(|shard| shard.enter_release(slot, packet_id));
                wait.commit = wait.commit.max(end.commit);
            }
        }
        let first = if is_once { PUBREC } else { PUBACK };
        if !completes && wait == Wait::default() {
            self.answer_at_once(io, slot, first, packet_id, reason);
            return;
        }
        let what = What::Ack { first, packet_id, reason };
        self.answer_with(io, slot, wait, receipt, what, completes);
    }

    /// Acknowledges a PUBLISH as its QoS asks for, without waiting for anything.
    fn answer_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        reason: ReasonCode,
    ) {
        if publish.qos > QoS::AtMostOnce {
            self.answer_when_kept(io, slot, publish, reason, Wait::default(), None);
        }
    }

    /// Publishes a message: retains it if it asks for that, and routes it to every subscriber there is. Also
    /// returns how many other shards will tell when their part is on disk.
    pub(crate) fn publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        content: &Content<'_>,
        due: &Due,
    ) -> (Published, u32) {
        let message = self.pool.make(content, io.clock.now_ms);
        if is_of_queue(content.topic) {
            return (Published::Routed, self.sink_into_queue(message, due));
        }
        let mut retained = true;
        let mut receipts = 0;
        let Due { receipt, origin, ref cut_short } = *due;
        let only = cut_short.as_ref().map(CutShort::lacking);
        if content.retain && only.is_none_or(|only| only.journals & RETAINED_LOG != 0) {
            // What is retained already, and was not kept, must not take the place of what came behind it.
            let is_out = only.is_some_and(|only| only.is_out);
            match if is_out { Retained::Changed } else { self.retain(&message, receipt.is_some()) } {
                Retained::Changed => receipts += self.keep_retained(io, content.topic, receipt),
                Retained::Unchanged => {}
                Retained::Refused => retained = false,
            }
        }
        let matched = self.shared.routes.matched(&mut self.cache, content.topic);
        self.work += 1;
        receipts += self.sink(&message, &matched, receipt, only.map(|only| only.journals));
        self.fan_out(io, &message, &matched, only);
        for group in &matched.groups {
            let has_it = |cut_short: &CutShort| cut_short.groups.iter().any(|known| group.is_called(known));
            if !cut_short.as_ref().is_some_and(has_it) {
                receipts += self.deal(io, &message, group, None, &Dealing { tried: 0, receipt, origin });
            }
        }
        self.enter_message(io, &message, origin);
        let mut others = matched.shards & !(1 << self.me);
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            let receipt = receipt.filter(|_| self.shared.lasting() & (1 << other) != 0);
            receipts += u32::from(receipt.is_some());
            let (message, matched) = (Arc::clone(&message), Arc::clone(&matched));
            io.send(other, Mail::Publish(PublishMail { message, matched, receipt, origin, only }));
        }
        let level = matched.level(io.clock.now_ms);
        if level > Level::None {
            self.pressed = Some((level, Arc::clone(&matched)));
        }
        let published = match (retained, matched.is_empty()) {
            (false, _) => Published::NotRetained,
            (true, true) => Published::NoSubscribers,
            (true, false) => Published::Routed,
        };
        (published, receipts)
    }

    /// Makes a message its topic's retained one, or with an empty payload clears it.
    ///
    /// Where there is nothing to clear, whoever is answered waits all the same: the clear that came before may
    /// still be on its way to the disk.
    fn retain(&mut self, message: &Message, has_answer: bool) -> Retained {
        let store = &self.shared.retained;
        let is_kept = self.shared.keeps_retained() && !message.topic().starts_with("$SYS/");
        let is_refused = if is_kept && !self.can_keep() {
            // What cannot be kept on disk now would be forgotten, or come back, with the next start.
            true
        } else if message.payload().is_empty() {
            if !store.clear(message.topic()) && !has_answer {
                return Retained::Unchanged;
            }
            false
        } else {
            store.set(message).is_err()
        };
        match (is_refused, is_kept) {
            (true, _) => {
                self.deliveries.counters.publish_dropped += 1;
                Retained::Refused
            }
            (false, true) => Retained::Changed,
            (false, false) => Retained::Unchanged,
        }
    }

    pub(crate) fn on_mail(&mut self, io: &mut Io<'_, Mail>, mail: Mail) {
        match mail {
            Mail::Publish(PublishMail { message, matched, receipt, origin, only }) => {
                let ((), wait) = self.entering(|shard| {
                    shard.fan_out(io, &message, &matched, only);
                    shard.enter_message(io, &message, origin);
                });
                self.owe(io, wait, receipt, None);
            }
            Mail::Dealt(dealt) => self.on_dealt(io, &dealt),
            Mail::Retain(retain) => self.on_retain(io, &retain),
            Mail::Fence(ReceiptMail(receipt)) => self.on_fence(io, receipt),
            Mail::Receipt(ReceiptMail(receipt), part) => self.on_receipt(io, receipt, &part),
        }
    }

    /// Offers a message to every subscriber on this shard, and notes if most of them are behind.
    fn fan_out(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        matched: &Matched,
        only: Option<Lacking>,
    ) {
        self.deliveries.only = only;
        let receivers = self.offer_to_all(io, message, matched);
        self.deliveries.only = None;
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
}

/// What one delivery of a message costs, in deliveries of a small one.
fn cost(message: &Message) -> u32 {
    1 + (message.size() / SMALL_BYTES) as u32
}

/// Whether the subscriber published the message itself and does not want it back [MQTT-3.8.3-3].
#[inline]
fn is_own(me: u16, sessions: &mut Sessions, message: &Message, subscriber: &Subscriber) -> bool {
    subscriber.options.no_local
        && message.publisher.is_some_and(|publisher| {
            publisher.shard == me && publisher.slot == subscriber.session && sessions.get(publisher).is_some()
        })
}
