//! Publishing: the single entry for messages from anywhere, with what the publisher waits for.
//!
//! A [`Publisher`] makes one shared message of the content that it is given, has it routed by the [`SessionHost`], and
//! gives it to sinks of other protocols. Clients, wills and bindings all publish by [`Publisher::publish`], so that a
//! message is copied once, matched once, and reaches subscribers, groups, journals and other shards in the same order.
//! What one shard sends to another arrives in order too, which keeps the order of one publisher's messages for every
//! subscriber [MQTT-4.6.0-6].
//!
//! It decides whether a client may publish, and acknowledges what it has published when everything is durable that had
//! to be: it counts the other shards and sinks that will report, and compares the position of the journals before and
//! after. Without either, the acknowledgement leaves at once. A message that cannot be kept (quota, memory, disk) is
//! refused before anybody gets it, since its client may send it again.

use std::sync::Arc;

use mainstem_mqtt::{Publish, QoS, ReasonCode, Version};
use mainstem_runtime::{Io, MemoryMeter, MemoryPressure};
use mainstem_topic::{check_name, level_count};

use crate::bridge::{Bridge, Sink};
use crate::broker_state::{Mail, Shared};
use crate::counters::DropReason;
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::{Content, Message, MessagePool, SessionKey};
use crate::pending_acks::{AckCondition, AckKind, AckToken};
use crate::pressure::Level;
use crate::publication::{PublishContext, Published};
use crate::queue_consumers::{is_of_queue, queue_of};
use crate::routes::Matched;
use crate::session_host::{BYTES_PER_UNIT, Routed, SessionHost};
use crate::wills::Will;

/// Cost of a publish without its match and its receivers, units.
const PUBLISH_UNITS: u32 = 3;

/// What the receivers of a publish have said of themselves: most of them are behind.
pub(crate) type ReceiverPressure = (Level, Arc<Matched>);

/// Publishes the messages of one shard.
pub(crate) struct Publisher {
    me: u16,
    shared: Arc<Shared>,
    pool: MessagePool,
    bridge: Bridge,
    /// Set if most receivers of the current publish are behind.
    pressure: Option<ReceiverPressure>,
    /// The current publish exceeds a quota, and is refused.
    is_over_quota: bool,
}

impl Publisher {
    pub(crate) fn new(me: u16, shared: Arc<Shared>) -> Self {
        let pool = MessagePool::new(shared.message_meter(me));
        Self { me, shared, pool, bridge: Bridge::default(), pressure: None, is_over_quota: false }
    }

    /// Counts the memory of messages.
    pub(crate) fn meter(&self) -> &MemoryMeter {
        self.pool.meter()
    }

    /// Sink messages and fences.
    pub(crate) fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    pub(crate) fn bridge_mut(&mut self) -> &mut Bridge {
        &mut self.bridge
    }

    /// The next publish exceeds a quota: [`Publisher::accept_publish`] refuses it.
    pub(crate) fn note_over_quota(&mut self) {
        self.is_over_quota = true;
    }

    /// Begins to handle a PUBLISH of a client.
    pub(crate) fn begin_publish(&mut self) {
        self.pressure = None;
    }

    /// The PUBLISH has been handled. Returns the pressure on its client if most of the receivers are behind.
    pub(crate) fn end_publish(&mut self) -> Option<ReceiverPressure> {
        self.is_over_quota = false;
        self.pressure.take()
    }

    /// Publishes and acknowledges a PUBLISH to `topic` whose other parts were checked (3.3), or refuses it.
    pub(crate) fn accept_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        host: &mut SessionHost,
        slot: u32,
        publish: &Publish<'_>,
        topic: &str,
    ) -> Handled {
        if check_name(topic).is_err() {
            let what = "topic name with wildcards or empty [MQTT-3.3.2-2]";
            return Err(ProtocolError::new(ReasonCode::TopicNameInvalid, what));
        }
        if level_count(topic) > usize::from(self.shared.config.max_topic_levels) {
            return Err(ProtocolError::new(ReasonCode::TopicNameInvalid, "topic name with too many levels"));
        }
        if let Some(what) = self.shortage(io, host, slot, publish) {
            return host.refuse_publish(io, slot, publish, what);
        }
        let receive_maximum = self.shared.config.receive_maximum;
        let session = host.session(slot);
        let (id, is_v5) = (publish.packet_id, session.version() == Version::V5);
        if publish.qos == QoS::ExactlyOnce {
            let most = if is_v5 { receive_maximum } else { u16::MAX };
            match session.receive(id, most) {
                Ok(false) if !session.is_partial_publish(id) => {
                    host.repeat_pubrec(io, slot, id);
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
        if topic.starts_with("$SYS/") || !host.may_publish(slot, topic) {
            host.counters_mut().count_dropped(DropReason::NotAllowed);
            host.answer_publish(io, slot, publish, ReasonCode::NotAuthorized);
            return Ok(Next::Packet);
        }
        let is_of_queue = is_of_queue(topic);
        if is_of_queue && queue_of(topic).is_none() {
            host.counters_mut().count_dropped(DropReason::Refused);
            if !is_v5 && publish.qos > QoS::AtMostOnce {
                return Err(ProtocolError::new(
                    ReasonCode::TopicNameInvalid,
                    "topic name that names no queue",
                ));
            }
            host.answer_publish(io, slot, publish, ReasonCode::TopicNameInvalid);
            return Ok(Next::Packet);
        }
        let content = Content {
            qos: publish.qos,
            retain: publish.retain && !is_of_queue,
            publisher: Some(host.session(slot).key()),
            topic,
            payload: publish.payload,
            properties: publish.properties,
        };
        // A client that can be told gets the error before anybody gets a message that it may send again.
        if is_v5 && publish.qos > QoS::AtMostOnce && !self.can_retain(&content) {
            host.counters_mut().count_dropped(DropReason::Refused);
            host.answer_publish(io, slot, publish, ReasonCode::QuotaExceeded);
            return Ok(Next::Packet);
        }
        self.publish_for(io, host, slot, publish, &content);
        Ok(Next::Packet)
    }

    /// What is missing to take responsibility for a publish: a quota, or at QoS 1 and 2 disk or memory. Memory does not
    /// matter to a QoS 2 exchange that has begun: it has its message.
    fn shortage(
        &mut self,
        io: &Io<'_, Mail>,
        host: &mut SessionHost,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Option<&'static str> {
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
            && !host.session(slot).has_received(publish.packet_id);
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
        host: &mut SessionHost,
        slot: u32,
        publish: &Publish<'_>,
        content: &Content<'_>,
    ) {
        let has_sinks = self.shared.routes.has_sinks() || is_of_queue(content.topic);
        if !content.retain && self.shared.persistent_shards() == 0 && !has_sinks {
            // Nothing has to be durable. A durable session that begins now on another shard has no SUBACK yet. But the
            // fan-out may take several turns.
            let token = (publish.qos > QoS::AtMostOnce).then(|| host.next_ack_token(slot));
            let ack_context = PublishContext { token, ..PublishContext::default() };
            let (published, receipts) = self.publish(io, host, content, &ack_context);
            let condition = AckCondition { receipts, ..AckCondition::default() };
            if token.is_some() {
                host.ack_when_durable(io, slot, publish, published.reason(), condition, token);
            }
            return;
        }
        let has_answer = publish.qos > QoS::AtMostOnce;
        let token = has_answer.then(|| host.next_ack_token(slot));
        let session = host.session(slot);
        let partial = session.ext_mut().and_then(|ext| ext.qos2.take_partial(publish.packet_id, publish.qos));
        let origin = match &partial {
            // Journals that have it know it by its sequence number.
            Some(partial) => Some(partial.origin),
            None if publish.qos == QoS::ExactlyOnce => host.new_origin(slot, publish.packet_id),
            None => None,
        };
        let partial = partial.map(Arc::new);
        let ack_context = PublishContext { token, origin, partial };
        let before = host.persistence().position();
        let end_before = host.journal_end(slot);
        let (published, receipts) = self.publish(io, host, content, &ack_context);
        if let Some(origin) = origin {
            let has_entry = host.journal_end(slot) != end_before;
            host.track_in_flight_publish(slot, origin, &ack_context, has_entry, (receipts, has_sinks));
        }
        let condition = AckCondition { receipts, ..host.persistence().condition_since(before) };
        if has_answer {
            host.ack_when_durable(io, slot, publish, published.reason(), condition, token);
        }
    }

    /// Publishes a message: retains it if it is to be retained, and routes it to all its subscribers. Also returns how
    /// many other shards will report that their part is durable.
    pub(crate) fn publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        host: &mut SessionHost,
        content: &Content<'_>,
        ack_context: &PublishContext,
    ) -> (Published, u32) {
        let message = self.pool.make(content, io.clock.now_ms);
        io.charge(PUBLISH_UNITS + (message.size() / BYTES_PER_UNIT) as u32);
        if is_of_queue(content.topic) {
            return (Published::Routed, self.send_to_queue(host, message, ack_context.token));
        }
        let Routed { matched, is_retained, receipts } = host.route(io, &message, content.retain, ack_context);
        let receipts = receipts + self.send_to_sinks(host, &message, &matched, ack_context.token);
        let level = matched.level(io.clock.now_ms);
        if level > Level::None {
            self.pressure = Some((level, Arc::clone(&matched)));
        }
        let published = match (is_retained, matched.is_empty()) {
            (false, _) => Published::NotRetained,
            (true, true) => Published::NoSubscribers,
            (true, false) => Published::Routed,
        };
        (published, receipts)
    }

    /// Publishes the will of a session, if it has one. Returns it, and how many other shards will report that their
    /// part is durable.
    pub(crate) fn publish_will(
        &mut self,
        io: &mut Io<'_, Mail>,
        host: &mut SessionHost,
        slot: u32,
        token: AckToken,
    ) -> (Option<Will>, u32) {
        let session = host.session(slot);
        let will = session.ext_mut().and_then(|ext| ext.will.take());
        let Some(will) = will else { return (None, 0) };
        if !host.may_publish_will(slot, will.message.topic()) {
            // Users or rules have changed since CONNECT.
            host.counters_mut().count_dropped(DropReason::NotAllowed);
            return (Some(will), 0);
        }
        let mut properties = will.message.properties(0);
        properties.message_expiry = will.expiry_s;
        let content = Content {
            qos: will.message.qos,
            retain: will.message.retain,
            publisher: will.message.publisher,
            topic: will.message.topic(),
            payload: will.message.payload(),
            properties,
        };
        let ack_context = PublishContext { token: Some(token), ..PublishContext::default() };
        let (_, receipts) = self.publish(io, host, &content, &ack_context);
        (Some(will), receipts)
    }

    /// Publishes the will of a session that continues. Its journal keeps the will until the message is durable: a crash
    /// may publish it twice, but not lose it.
    pub(crate) fn send_will(&mut self, io: &mut Io<'_, Mail>, host: &mut SessionHost, slot: u32) {
        let journal = host.session(slot).journal();
        let token = host.next_ack_token(slot);
        let before = host.persistence().position_elsewhere(journal);
        let (will, receipts) = self.publish_will(io, host, slot, token);
        let mut condition = host.persistence().condition_elsewhere_since(journal, before);
        condition.receipts = receipts;
        let Some(will) = will else { return };
        host.session(slot).ext().will.set_leaving(will);
        host.ack(io, slot, condition, Some(token), AckKind::WillSent);
    }

    /// Publishes the will of a session whose delay is over.
    pub(crate) fn check_will(&mut self, io: &mut Io<'_, Mail>, host: &mut SessionHost, key: SessionKey) {
        let due = host.find_session(key).is_some_and(|session| {
            !session.is_connected() && session.ext_ref().is_some_and(|ext| ext.will.is_due(io.clock.now_ms))
        });
        if due {
            self.send_will(io, host, key.slot);
        }
    }

    /// Gives a message to the sinks it matches. Returns how many receipts the publisher has to wait for.
    fn send_to_sinks(
        &mut self,
        host: &mut SessionHost,
        message: &Arc<Message>,
        matched: &Matched,
        token: Option<AckToken>,
    ) -> u32 {
        if matched.sinks.is_empty() {
            return 0;
        }
        let client_id = self.publisher_of(host, message);
        for sink in &matched.sinks {
            self.bridge.push(Sink::Filter(*sink), Arc::clone(message), client_id.clone(), token);
        }
        if token.is_some() { matched.sinks.len() as u32 } else { 0 }
    }

    /// Gives a message to the queue that its topic names, and to nobody else. Returns how many receipts the publisher
    /// has to wait for.
    fn send_to_queue(
        &mut self,
        host: &mut SessionHost,
        message: Arc<Message>,
        token: Option<AckToken>,
    ) -> u32 {
        let client_id = self.publisher_of(host, &message);
        self.bridge.push(Sink::Queue, message, client_id, token);
        u32::from(token.is_some())
    }

    /// Client identifier of the publisher of a message, if it has a session on this shard.
    fn publisher_of(&self, host: &mut SessionHost, message: &Message) -> Option<Arc<str>> {
        let publisher = message.publisher.filter(|publisher| publisher.shard == self.me)?;
        Some(Arc::clone(host.find_session(publisher)?.client_id()))
    }
}
