//! PUBLISH, the single entry for messages from anywhere, and the fan-out on each shard.

use std::sync::Arc;

use mainstem_mqtt::{Publish, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io, MemoryPressure, SHARED_MIN_BYTES};
use mainstem_topic::{check_name, level_count};

use super::publication::{GroupContext, PUBACK, PUBREC, PublishContext, Published};
use super::{Handled, Next, ProtocolError, Shard};
use crate::broker_state::{Mail, PublishMail, ReceiptMail};
use crate::message::{Content, Message};
use crate::pending_acks::{AckCondition, AckKind, AckToken};
use crate::pressure::Level;
use crate::qos2_recovery::PartialPublish;
use crate::queue_consumers::{is_of_queue, queue_of};
use crate::router::FanOut;
use crate::routes::Matched;

/// Cost of a publish without its match and its receivers, units.
const PUBLISH_UNITS: u32 = 3;
/// Cost of a message from another shard without its receivers, units.
const MAIL_UNITS: u32 = 2;
/// Bytes that are copied for one unit.
const BYTES_PER_UNIT: usize = 1024;

/// What became of a message that is to be retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retained {
    /// It has to be made durable.
    Changed,
    /// Nothing has to be made durable.
    Unchanged,
    /// There is no room for it, in memory or on disk.
    Refused,
}

impl Shard {
    /// PUBLISH from a client (3.3).
    pub(super) fn on_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Handled {
        let config = &self.shared.config;
        let aliases_max = config.topic_alias_maximum;
        let counters = self.deliveries.counters_mut();
        counters.publish_received += 1;
        counters.publish_bytes_received += publish.payload.len() as u64;
        if publish.qos > config.qos_max() {
            return Err(ProtocolError::new(
                ReasonCode::QoSNotSupported,
                "QoS above the maximum [MQTT-3.2.2-11]",
            ));
        }
        if publish.retain && !config.retain_available {
            return Err(ProtocolError::new(
                ReasonCode::RetainNotSupported,
                "retained messages are off [MQTT-3.2.2-14]",
            ));
        }
        if !publish.subscription_ids.is_empty() {
            return Err(ProtocolError::new(
                ReasonCode::ProtocolError,
                "Subscription Identifier from a client [MQTT-3.3.4-6]",
            ));
        }
        if publish.properties.response_topic.is_some_and(|topic| check_name(topic).is_err()) {
            return Err(ProtocolError::new(
                ReasonCode::ProtocolError,
                "Response Topic with wildcards [MQTT-3.3.2-14]",
            ));
        }
        // The topic may be borrowed from the table.
        let mut aliases = self.connections.take_aliases(conn);
        let outcome = if publish.topic_alias.is_some() || publish.topic.is_empty() {
            aliases
                .get_or_insert_default()
                .resolve(publish.topic, publish.topic_alias, aliases_max)
                .map_err(|reason| {
                    ProtocolError::new(reason, "no topic, or a topic alias that stands for none")
                })
                .and_then(|topic| self.accept_publish(io, slot, publish, topic))
        } else {
            self.accept_publish(io, slot, publish, publish.topic)
        };
        if let Some(aliases) = aliases {
            self.connections.put_aliases(conn, aliases);
        }
        outcome
    }

    fn accept_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        topic: &str,
    ) -> Handled {
        if check_name(topic).is_err() {
            let what = "topic name with wildcards or empty [MQTT-3.3.2-2]";
            return Err(ProtocolError::new(ReasonCode::TopicNameInvalid, what));
        }
        if level_count(topic) > usize::from(self.config().max_topic_levels) {
            return Err(ProtocolError::new(ReasonCode::TopicNameInvalid, "topic name with too many levels"));
        }
        if let Some(what) = self.shortage(io, slot, publish) {
            return self.refuse_publish(io, slot, publish, what);
        }
        let receive_maximum = self.config().receive_maximum;
        let session = self.sessions.at(slot);
        let (id, is_v5) = (publish.packet_id, session.version() == Version::V5);
        if publish.qos == QoS::ExactlyOnce {
            let most = if is_v5 { receive_maximum } else { u16::MAX };
            match session.receive(id, most) {
                Ok(false) if !session.is_partial_publish(id) => {
                    self.repeat_pubrec(io, slot, id);
                    return Ok(Next::Packet);
                }
                Ok(_) => {}
                Err(_) => {
                    let what = "more publishes in flight than Receive Maximum [MQTT-3.3.4-7]";
                    return Err(ProtocolError::new(ReasonCode::ReceiveMaximumExceeded, what));
                }
            }
        }
        // A client of 3.x cannot be told: its message is acknowledged and dropped, as by mosquitto.
        if topic.starts_with("$SYS/") || !self.may_publish(slot, topic) {
            self.deliveries.counters_mut().publish_dropped += 1;
            self.answer_publish(io, slot, publish, ReasonCode::NotAuthorized);
            return Ok(Next::Packet);
        }
        let is_of_queue = is_of_queue(topic);
        if is_of_queue && queue_of(topic).is_none() {
            self.deliveries.counters_mut().publish_dropped += 1;
            if !is_v5 && publish.qos > QoS::AtMostOnce {
                return Err(ProtocolError::new(
                    ReasonCode::TopicNameInvalid,
                    "topic name that names no queue",
                ));
            }
            self.answer_publish(io, slot, publish, ReasonCode::TopicNameInvalid);
            return Ok(Next::Packet);
        }
        let content = Content {
            qos: publish.qos,
            retain: publish.retain && !is_of_queue,
            publisher: Some(self.sessions.key(slot)),
            topic,
            payload: publish.payload,
            properties: publish.properties,
        };
        // A client that can be told gets the error before anybody gets a message that it may send again.
        if is_v5 && publish.qos > QoS::AtMostOnce && !self.can_retain(&content) {
            self.deliveries.counters_mut().publish_dropped += 1;
            self.answer_publish(io, slot, publish, ReasonCode::QuotaExceeded);
            return Ok(Next::Packet);
        }
        self.publish_for(io, slot, publish, &content);
        Ok(Next::Packet)
    }

    /// What is missing to take responsibility for a publish: a quota, or at QoS 1 and 2 disk or memory. Memory does not
    /// matter to a QoS 2 exchange that has begun: it has its message.
    fn shortage(&mut self, io: &Io<'_, Mail>, slot: u32, publish: &Publish<'_>) -> Option<&'static str> {
        if self.is_over_quota {
            return Some("a quota is exceeded (mqtt.quota_policy)");
        }
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        if self.shared.is_failing() {
            return Some("nothing can be kept on disk now");
        }
        let is_short = io.memory().pressure() >= MemoryPressure::High
            && !self.sessions.at(slot).has_received(publish.packet_id);
        is_short.then_some("the memory budget is exhausted (memory.max_bytes)")
    }

    /// Whether there is room for a message that is to be retained.
    fn can_retain(&self, content: &Content<'_>) -> bool {
        !content.retain
            || content.payload.is_empty()
            || self.shared.retained.has_room(content.topic, content.size(), self.shared.memory().pressure())
    }

    /// Publishes what a client has sent, and acknowledges it when everything that promises is durable.
    fn publish_for(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        content: &Content<'_>,
    ) {
        let has_sinks = self.shared.routes.has_sinks() || is_of_queue(content.topic);
        if !content.retain && self.shared.persistent_shards() == 0 && !has_sinks {
            // Nothing has to be durable. A durable session that begins now on another shard has no SUBACK yet.
            let (published, _) = self.publish(io, content, &PublishContext::default());
            self.answer_publish(io, slot, publish, published.reason());
            return;
        }
        let has_answer = publish.qos > QoS::AtMostOnce;
        let token = has_answer.then(|| self.next_ack_token(slot));
        let session = self.sessions.at(slot);
        let partial = session.ext_mut().and_then(|ext| ext.qos2.take_partial(publish.packet_id, publish.qos));
        let origin = match &partial {
            // Journals that have it know it by its sequence number.
            Some(partial) => Some(partial.origin),
            None if publish.qos == QoS::ExactlyOnce => self.new_origin(slot, publish.packet_id),
            None => None,
        };
        let partial = partial.map(Arc::new);
        let ack_context = PublishContext { token, origin, partial };
        let before = self.persistence.position();
        let end_before = self.journal_end(slot);
        let (published, receipts) = self.publish(io, content, &ack_context);
        if let Some(origin) = origin {
            let has_entry = self.journal_end(slot) != end_before;
            self.track_in_flight_publish(slot, origin, &ack_context, has_entry, (receipts, has_sinks));
        }
        let condition = AckCondition { receipts, ..self.persistence.condition_since(before) };
        if has_answer {
            self.ack_when_durable(io, slot, publish, published.reason(), condition, token);
        }
    }

    /// Offset behind the last entry of a session's journal.
    fn journal_end(&mut self, slot: u32) -> u64 {
        self.journal(slot).map_or(0, |(journal, _)| journal.next_offset())
    }

    /// A QoS 2 PUBLISH is repeated: its PUBREC waits for everything that the first one waited for.
    fn repeat_pubrec(&mut self, io: &mut Io<'_, Mail>, slot: u32, packet_id: u16) {
        let kind = AckKind::Ack { first: PUBREC, packet_id, reason: ReasonCode::Success };
        if self.sessions.at(slot).is_durable() || self.shared.persistent_shards() != 0 {
            let token = self.next_ack_token(slot);
            let condition = self.fence(io, token);
            self.ack_publish(io, slot, (condition, Some(token)), kind, true);
        } else {
            self.ack(io, slot, AckCondition::default(), None, kind);
        }
    }

    /// Disk or memory cannot take a message, or a quota is exceeded: QoS 1 and 2 are refused, rather than accepted and
    /// lost.
    fn refuse_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        what: &'static str,
    ) -> Handled {
        self.deliveries.counters_mut().publish_dropped += 1;
        if publish.qos == QoS::AtMostOnce {
            return Ok(Next::Packet);
        }
        let session = self.sessions.at(slot);
        // An exchange that has begun must not end with an error: the journal has it, and would take the next publish
        // with this identifier for the same one.
        let goes_on = publish.qos == QoS::ExactlyOnce && session.has_received(publish.packet_id);
        if session.version() < Version::V5 || goes_on {
            return Err(ProtocolError::new(ReasonCode::QuotaExceeded, what));
        }
        let first = if publish.qos == QoS::AtLeastOnce { PUBACK } else { PUBREC };
        let ack = AckKind::Ack { first, packet_id: publish.packet_id, reason: ReasonCode::QuotaExceeded };
        self.ack(io, slot, AckCondition::default(), None, ack);
        Ok(Next::Packet)
    }

    /// Acknowledges a PUBLISH when `condition` is met.
    fn ack_when_durable(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        reason: ReasonCode,
        mut condition: AckCondition,
        token: Option<AckToken>,
    ) {
        let (is_qos2, packet_id) = (publish.qos == QoS::ExactlyOnce, publish.packet_id);
        let session = self.sessions.at(slot);
        let completes = is_qos2 && session.is_durable();
        if is_qos2 && session.version() == Version::V5 && reason.is_error() {
            // The exchange is over, and the identifier free again [MQTT-4.3.3-9].
            session.release(packet_id);
            if completes {
                let before = self.persistence.position();
                self.append_release(slot, packet_id);
                condition.commit = condition.commit.max(self.persistence.condition_since(before).commit);
            }
        }
        let first = if is_qos2 { PUBREC } else { PUBACK };
        if !completes && condition == AckCondition::default() {
            self.ack_now(io, slot, first, packet_id, reason);
            return;
        }
        let kind = AckKind::Ack { first, packet_id, reason };
        self.ack_publish(io, slot, (condition, token), kind, completes);
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
            self.ack_when_durable(io, slot, publish, reason, AckCondition::default(), None);
        }
    }

    /// Publishes a message: retains it if it is to be retained, and routes it to all its subscribers. Also returns how
    /// many other shards will report that their part is durable.
    pub(super) fn publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        content: &Content<'_>,
        ack_context: &PublishContext,
    ) -> (Published, u32) {
        let message = self.pool.make(content, io.clock.now_ms);
        io.charge(PUBLISH_UNITS + (message.size() / BYTES_PER_UNIT) as u32);
        if is_of_queue(content.topic) {
            return (Published::Routed, self.send_to_queue(message, ack_context.token));
        }
        let mut is_retained = true;
        let mut receipts = 0;
        let PublishContext { token, origin, ref partial } = *ack_context;
        if content.retain {
            // A repeated message that is in memory already must not replace what was retained after it.
            let is_in_memory = partial.as_ref().is_some_and(|partial| partial.was_delivered());
            match if is_in_memory { Retained::Changed } else { self.retain(&message, token.is_some()) } {
                Retained::Changed => receipts += self.persist_retained(io, content.topic, token),
                Retained::Unchanged => {}
                Retained::Refused => is_retained = false,
            }
        }
        let (matched, match_units) = self.router.matched(&self.shared.routes, content.topic);
        io.charge(match_units);
        receipts += self.send_to_sinks(&message, &matched, token);
        self.fan_out(io, &message, &matched, partial.as_ref());
        for group in &matched.groups {
            if !partial.as_ref().is_some_and(|partial| partial.has_reached(group)) {
                let ack_context = GroupContext { tried: 0, token, origin };
                receipts += self.send_to_group(io, &message, group, None, &ack_context);
            }
        }
        self.append_message(io, &message, origin);
        let mut others = matched.shards & !(1 << self.me);
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            let token = token.filter(|_| self.shared.persistent_shards() & (1 << other) != 0);
            receipts += u32::from(token.is_some());
            let (message, matched, partial) = (Arc::clone(&message), Arc::clone(&matched), partial.clone());
            io.send(other, Mail::Publish(PublishMail { message, matched, token, origin, partial }));
        }
        let level = matched.level(io.clock.now_ms);
        if level > Level::None {
            self.connections.set_pressure(level, &matched);
        }
        let published = match (is_retained, matched.is_empty()) {
            (false, _) => Published::NotRetained,
            (true, true) => Published::NoSubscribers,
            (true, false) => Published::Routed,
        };
        (published, receipts)
    }

    /// Makes a message its topic's retained one, or with an empty payload clears it.
    ///
    /// A clear is appended again if there is nothing to clear and the publisher gets an answer: an earlier clear may
    /// not be on disk yet.
    fn retain(&mut self, message: &Message, has_answer: bool) -> Retained {
        let store = &self.shared.retained;
        let is_durable = self.shared.is_retained_durable() && !message.topic().starts_with("$SYS/");
        let is_refused = if is_durable && self.shared.is_failing() {
            // Otherwise it would be forgotten, or come back, with the next start.
            true
        } else if message.payload().is_empty() {
            if !store.clear(message.topic()) && !has_answer {
                return Retained::Unchanged;
            }
            false
        } else {
            store.set(message, self.shared.memory().pressure()).is_err()
        };
        match (is_refused, is_durable) {
            (true, _) => {
                self.deliveries.counters_mut().publish_dropped += 1;
                Retained::Refused
            }
            (false, true) => Retained::Changed,
            (false, false) => Retained::Unchanged,
        }
    }

    pub(super) fn on_mail(&mut self, io: &mut Io<'_, Mail>, mail: Mail) {
        io.charge(MAIL_UNITS);
        match mail {
            Mail::Publish(PublishMail { message, matched, token, origin, partial }) => {
                let before = self.persistence.position();
                self.fan_out(io, &message, &matched, partial.as_ref());
                self.append_message(io, &message, origin);
                let condition = self.persistence.condition_since(before);
                self.send_receipt_when_durable(io, condition, token, None);
            }
            Mail::Group(mail) => self.on_group_message(io, &mail),
            Mail::Retain(mail) => self.on_retain(io, &mail),
            Mail::Fence(ReceiptMail(token)) => self.on_fence(io, token),
            Mail::Receipt(ReceiptMail(token), result) => self.on_receipt(io, token, &result),
        }
    }

    /// Offers a message to every subscriber on this shard, and notes if most of them are behind.
    fn fan_out(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        matched: &Matched,
        partial: Option<&Arc<PartialPublish>>,
    ) {
        let Self { router, sessions, deliveries, persistence, .. } = self;
        deliveries.limit_to(partial.cloned());
        let fan_out = router.offer_to_all(sessions, message, matched, |session, offer| {
            deliveries.offer(io, persistence, session, offer);
        });
        deliveries.limit_to(None);
        let level = deliveries.take_tally().majority(fan_out.receivers);
        if fan_out.is_large {
            io.note_fan_out(message.size(), message.copied_bytes());
        }
        io.charge(fan_out_units(fan_out, matched, message));
        matched.pressure.note(level, self.me, io.clock.now_ms);
    }
}

/// Cost of a fan-out, units. Small messages that several lists of subscribers lead to cost more than copies of them.
fn fan_out_units(fan_out: FanOut, matched: &Matched, message: &Message) -> u32 {
    let copied = if message.size() < SHARED_MIN_BYTES { (message.size() / BYTES_PER_UNIT) as u32 } else { 0 };
    let visited = matched.filters.len() as u32 + fan_out.visited;
    visited / 2 + fan_out.receivers / 2 + fan_out.receivers * copied
}
