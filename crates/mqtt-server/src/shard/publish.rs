//! PUBLISH, the single entry for messages from anywhere, and the fan-out on each shard.
//!
//! Clients, wills and bindings all publish by [`Shard::publish`], so that a message is copied once, matched once, and
//! reaches subscribers, groups, sinks, journals and other shards in the same order. What one shard sends to another
//! arrives in order too, which keeps the order of one publisher's messages for every subscriber [MQTT-4.6.0-6].
//!
//! A publisher is acknowledged when everything that its message had to be made durable for is durable: this file counts
//! the other shards and sinks that will report, and compares the position of the journals before and after. Without
//! either, the acknowledgement leaves at once. A message that cannot be kept (quota, memory, disk) is refused before
//! anybody gets it, since its client may send it again.

use std::sync::Arc;

use mainstem_mqtt::{Publish, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io, MemoryPressure};
use mainstem_topic::{check_name, level_count};

use super::Shard;
use crate::broker_state::{Mail, PublishMail, ReceiptMail};
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::Content;
use crate::pending_acks::AckCondition;
use crate::pressure::Level;
use crate::publication::{PublishContext, Published};
use crate::queue_consumers::{is_of_queue, queue_of};
use crate::session_host::{BYTES_PER_UNIT, Routed};

/// Cost of a publish without its match and its receivers, units.
const PUBLISH_UNITS: u32 = 3;
/// Cost of a message from another shard without its receivers, units.
const MAIL_UNITS: u32 = 2;

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
        let counters = self.host.deliveries.counters_mut();
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
            return self.host.refuse_publish(io, slot, publish, what);
        }
        let receive_maximum = self.config().receive_maximum;
        let session = self.host.sessions.at(slot);
        let (id, is_v5) = (publish.packet_id, session.version() == Version::V5);
        if publish.qos == QoS::ExactlyOnce {
            let most = if is_v5 { receive_maximum } else { u16::MAX };
            match session.receive(id, most) {
                Ok(false) if !session.is_partial_publish(id) => {
                    self.host.repeat_pubrec(io, slot, id);
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
        if topic.starts_with("$SYS/") || !self.host.may_publish(slot, topic) {
            self.host.deliveries.counters_mut().publish_dropped += 1;
            self.host.answer_publish(io, slot, publish, ReasonCode::NotAuthorized);
            return Ok(Next::Packet);
        }
        let is_of_queue = is_of_queue(topic);
        if is_of_queue && queue_of(topic).is_none() {
            self.host.deliveries.counters_mut().publish_dropped += 1;
            if !is_v5 && publish.qos > QoS::AtMostOnce {
                return Err(ProtocolError::new(
                    ReasonCode::TopicNameInvalid,
                    "topic name that names no queue",
                ));
            }
            self.host.answer_publish(io, slot, publish, ReasonCode::TopicNameInvalid);
            return Ok(Next::Packet);
        }
        let content = Content {
            qos: publish.qos,
            retain: publish.retain && !is_of_queue,
            publisher: Some(self.host.sessions.key(slot)),
            topic,
            payload: publish.payload,
            properties: publish.properties,
        };
        // A client that can be told gets the error before anybody gets a message that it may send again.
        if is_v5 && publish.qos > QoS::AtMostOnce && !self.can_retain(&content) {
            self.host.deliveries.counters_mut().publish_dropped += 1;
            self.host.answer_publish(io, slot, publish, ReasonCode::QuotaExceeded);
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
            && !self.host.sessions.at(slot).has_received(publish.packet_id);
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
            self.host.answer_publish(io, slot, publish, published.reason());
            return;
        }
        let has_answer = publish.qos > QoS::AtMostOnce;
        let token = has_answer.then(|| self.host.next_ack_token(slot));
        let session = self.host.sessions.at(slot);
        let partial = session.ext_mut().and_then(|ext| ext.qos2.take_partial(publish.packet_id, publish.qos));
        let origin = match &partial {
            // Journals that have it know it by its sequence number.
            Some(partial) => Some(partial.origin),
            None if publish.qos == QoS::ExactlyOnce => self.host.new_origin(slot, publish.packet_id),
            None => None,
        };
        let partial = partial.map(Arc::new);
        let ack_context = PublishContext { token, origin, partial };
        let before = self.host.persistence.position();
        let end_before = self.host.journal_end(slot);
        let (published, receipts) = self.publish(io, content, &ack_context);
        if let Some(origin) = origin {
            let has_entry = self.host.journal_end(slot) != end_before;
            self.host.track_in_flight_publish(slot, origin, &ack_context, has_entry, (receipts, has_sinks));
        }
        let condition = AckCondition { receipts, ..self.host.persistence.condition_since(before) };
        if has_answer {
            self.host.ack_when_durable(io, slot, publish, published.reason(), condition, token);
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
        let Routed { matched, is_retained, receipts } =
            self.host.route(io, &message, content.retain, ack_context);
        let receipts = receipts + self.send_to_sinks(&message, &matched, ack_context.token);
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

    pub(super) fn on_mail(&mut self, io: &mut Io<'_, Mail>, mail: Mail) {
        io.charge(MAIL_UNITS);
        match mail {
            Mail::Publish(PublishMail { message, matched, token, origin, partial }) => {
                let before = self.host.persistence.position();
                self.host.deliver(io, &message, &matched, partial.as_ref(), origin);
                let condition = self.host.persistence.condition_since(before);
                self.send_receipt_when_durable(io, condition, token, None);
            }
            Mail::Group(mail) => self.on_group_message(io, &mail),
            Mail::Retain(mail) => self.on_retain(io, &mail),
            Mail::Fence(ReceiptMail(token)) => self.on_fence(io, token),
            Mail::Receipt(ReceiptMail(token), result) => self.on_receipt(io, token, &result),
        }
    }
}
