//! From a message to the bytes of one subscriber: windows, queues, and templates shared by a whole fan-out.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_mqtt::alias::{OutboundAliases, TopicRef};
use mainstem_mqtt::session::{Acked, Pending, Resend};
use mainstem_mqtt::{Publish, PublishTemplate, QoS, SubscriptionIds, Version};
use mainstem_runtime::{Io, Output};

use crate::config::{MqttConfig, QueueOverflow};
use crate::counters::Counters;
use crate::groups::Group;
use crate::message::Message;
use crate::pressure::{Level, Tally};
use crate::session::{Delivery, Extra, Rare, Session, Sessions};

/// First byte of a PUBREL: its type and the flags it must have [MQTT-3.6.1-1].
const PUBREL: u8 = 0x62;

/// A message for one subscriber, before it is known whether it can be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    pub(crate) message: &'a Arc<Message>,
    /// The lower of the message's QoS and the subscription's.
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) ids: &'a [u32],
    pub(crate) group: Option<&'a Arc<Group>>,
    /// It was met on a walk through the retained messages.
    pub(crate) walked: bool,
}

impl Offer<'_> {
    fn into_delivery(self) -> Delivery {
        let plain = self.ids.is_empty() && self.group.is_none();
        let extra = || Box::new(Extra { ids: self.ids.to_vec(), group: self.group.cloned() });
        Delivery {
            message: Arc::clone(self.message),
            qos: self.qos,
            retain: self.retain,
            extra: (!plain).then(extra),
        }
    }
}

/// The sessions of a shard and all that it takes to send them messages.
#[derive(Debug)]
pub(crate) struct Deliveries {
    pub(crate) sessions: Sessions,
    pub(crate) counters: Counters,
    templates: Templates,
    queued_messages_max: usize,
    queued_bytes_max: u64,
    overflow: QueueOverflow,
    queue_qos0: bool,
    /// Messages queued for sessions that are connected.
    pub(crate) backlog: u64,
    /// How receivers were found since [`Deliveries::take_tally`].
    tally: Tally,
}

/// Places that a queue keeps when it runs empty.
const QUEUE_KEPT: usize = 64;
/// Output pending on a connection from which on its client counts as behind, bytes.
const BEHIND_BYTES: usize = 32 * 1024;
/// The same for half of what may wait there.
const URGENT_BYTES: usize = 128 * 1024;
/// A client that has acknowledged nothing for this long has stalled and is waited for no longer, ms.
const STALLED_MS: u64 = 500;

impl Deliveries {
    pub(crate) fn new(config: &MqttConfig) -> Self {
        Self {
            sessions: Sessions::default(),
            counters: Counters::default(),
            templates: Templates::default(),
            queued_messages_max: config.max_queued_messages as usize,
            queued_bytes_max: config.max_queued_bytes,
            overflow: config.queue_overflow,
            queue_qos0: config.queue_qos0,
            backlog: 0,
            tally: Tally::default(),
        }
    }

    /// How receivers were found since this was last asked.
    pub(crate) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Sends a message to a session, or queues it, or drops and counts it, in that order of preference.
    #[inline]
    pub(crate) fn offer<M>(&mut self, io: &mut Io<'_, M>, slot: u32, offer: &Offer<'_>) {
        let now_ms = io.clock.now_ms;
        let session = self.sessions.at(slot);
        if !session.connected {
            self.keep_for_later(slot, offer);
            return;
        }
        let (conn, qos0) = (session.conn, offer.qos == QoS::AtMostOnce);
        let is_clear = session.queue.is_empty();
        let waits = if qos0 {
            // Queued QoS 0 messages are not to be overtaken [MQTT-4.6.0-5].
            session.queued_qos0 > 0
        } else {
            !is_clear || !session.window.has_room(session.inflight_max)
        };
        let topic = offer.message.topic();
        let waits = !offer.walked
            && (waits || session.rare.as_ref().is_some_and(|rare| rare.holds_back(topic, is_clear)));
        if waits {
            self.tally_queue(slot, now_ms);
            self.enqueue(slot, offer);
            return;
        }
        let reads = !io.is_stalled(conn);
        let Some(output) = io.output_if_room(conn) else {
            if reads {
                self.tally.count(Level::Urgent);
            }
            if qos0 {
                self.drop_offer(slot, offer, "it reads too slowly");
            } else {
                self.enqueue(slot, offer);
            }
            return;
        };
        let pending = output.pending();
        if pending > BEHIND_BYTES && reads {
            self.tally.count(if pending > URGENT_BYTES { Level::Urgent } else { Level::Behind });
        }
        self.templates.begin(offer.message, now_ms);
        let aliases = session.rare.as_ref().and_then(|rare| rare.aliases.as_ref());
        let (template, naming) =
            self.templates.get(session.version, !qos0, offer.message, offer.ids, aliases);
        if template.packet_len() > session.packet_max as usize {
            self.drop_offer(slot, offer, "it takes no packets that large");
            return;
        }
        let packet_id = if qos0 {
            0
        } else {
            if session.window.in_flight() == 0 {
                session.progress_ms = now_ms;
            }
            let keep = session.is_persistent() || offer.group.is_some();
            session.window.send(awaited(offer.qos), keep.then(|| offer.into_delivery()))
        };
        append(
            output,
            template,
            naming,
            offer.message,
            offer.qos,
            Flags { dup: false, retain: offer.retain },
            packet_id,
        );
        learn(&mut session.rare, naming, offer.message.topic());
        self.counters.messages_sent += 1;
        self.counters.publish_sent += 1;
        self.counters.publish_bytes_sent += offer.message.payload().len() as u64;
        if qos0 && offer.group.is_some() {
            self.settle_offer(slot);
        }
    }

    /// The session's window is full: notes how far behind its client is, unless it has stalled.
    fn tally_queue(&mut self, slot: u32, now_ms: u64) {
        let session = self.sessions.at(slot);
        if now_ms >= session.progress_ms + STALLED_MS {
            return;
        }
        let is_urgent = session.queue.len() * 2 >= self.queued_messages_max
            || session.queue_bytes * 2 >= self.queued_bytes_max;
        self.tally.count(if is_urgent { Level::Urgent } else { Level::Behind });
    }

    /// The session is offline: QoS 1 and 2 wait for it, if it will come back.
    fn keep_for_later(&mut self, slot: u32, offer: &Offer<'_>) {
        let session = self.sessions.at(slot);
        if session.is_persistent() && (offer.qos != QoS::AtMostOnce || self.queue_qos0) {
            self.enqueue(slot, offer);
        } else if offer.group.is_some() {
            self.counters.publish_dropped += 1;
            self.settle_offer(slot);
        }
    }

    fn drop_offer(&mut self, slot: u32, offer: &Offer<'_>, why: &str) {
        if offer.group.is_some() {
            self.settle_offer(slot);
        }
        self.count_drop(slot, why);
    }

    fn settle_offer(&mut self, slot: u32) {
        if let Some(load) = self.sessions.at(slot).rare.as_ref().and_then(|rare| rare.load.as_ref()) {
            load.settle();
        }
    }

    fn enqueue(&mut self, slot: u32, offer: &Offer<'_>) {
        let size = offer.message.size() as u64;
        loop {
            let session = self.sessions.at(slot);
            let full = session.queue.len() >= self.queued_messages_max
                || session.queue_bytes + size > self.queued_bytes_max;
            if !full {
                break;
            }
            let oldest = match self.overflow {
                QueueOverflow::DropOldest => session.queue.pop_front(),
                QueueOverflow::DropNewest => None,
            };
            if let Some(oldest) = oldest {
                session.queue_bytes -= oldest.message.size() as u64;
                self.backlog -= u64::from(session.connected);
                session.settle(&oldest);
                self.counters.queued_messages -= 1;
                self.count_drop(slot, "its queue is full, the oldest message goes");
                continue;
            }
            self.drop_offer(slot, offer, "its queue is full");
            return;
        }
        let session = self.sessions.at(slot);
        session.queue_bytes += size;
        self.backlog += u64::from(session.connected);
        session.queued_qos0 += u32::from(offer.qos == QoS::AtMostOnce);
        session.queue.push_back(offer.into_delivery());
        self.counters.queued_messages += 1;
    }

    /// The session is offline: QoS 0 messages that were held back for it go, unless they are kept for the
    /// offline anyway.
    pub(crate) fn forget_qos0(&mut self, slot: u32) {
        if self.queue_qos0 {
            return;
        }
        let session = self.sessions.at(slot);
        let (gone, kept): (VecDeque<_>, _) = std::mem::take(&mut session.queue)
            .into_iter()
            .partition(|delivery| delivery.qos == QoS::AtMostOnce);
        session.queue = kept;
        session.queued_qos0 = 0;
        for delivery in &gone {
            session.queue_bytes -= delivery.message.size() as u64;
            session.settle(delivery);
        }
        self.counters.queued_messages -= gone.len() as u64;
    }

    /// Counts a message that a client will not get, and says so once per spell.
    fn count_drop(&mut self, slot: u32, why: &str) {
        self.counters.publish_dropped += 1;
        let session = self.sessions.at(slot);
        if !session.drop_logged {
            session.drop_logged = true;
            log::warn!("client {:?} loses messages: {why}", session.client_id);
        }
    }

    /// Sends again what was in flight when the last connection was lost, as far as window and output allow.
    /// False if the session has no connection, or no room in its output for anything.
    pub(crate) fn resend<M>(&mut self, io: &mut Io<'_, M>, slot: u32) -> bool {
        let now_ms = io.clock.now_ms;
        loop {
            let session = self.sessions.at(slot);
            if !session.connected {
                return false;
            }
            if session.window.is_empty() {
                return true;
            }
            let Session { conn, window, rare, version, packet_max, inflight_max, .. } = session;
            let Some(output) = io.output_if_room(*conn) else { return false };
            let too_large = match window.next_resend(*inflight_max) {
                None => return true,
                Some(Resend::Release(packet_id)) => {
                    put_ack(output.buffer(), PUBREL, packet_id);
                    None
                }
                Some(Resend::Publish(packet_id, delivery)) => {
                    self.templates.begin(&delivery.message, now_ms);
                    let aliases = rare.as_ref().and_then(|rare| rare.aliases.as_ref());
                    let (template, naming) =
                        self.templates.get(*version, true, &delivery.message, delivery.ids(), aliases);
                    let flags = Flags { dup: true, retain: delivery.retain };
                    let fits = template.packet_len() <= *packet_max as usize;
                    if fits {
                        append(output, template, naming, &delivery.message, delivery.qos, flags, packet_id);
                        learn(rare, naming, delivery.message.topic());
                        self.counters.publish_sent += 1;
                        self.counters.publish_bytes_sent += delivery.message.payload().len() as u64;
                    }
                    (!fits).then_some((packet_id, delivery.qos))
                }
            };
            self.counters.messages_sent += 1;
            // A packet that the client takes no more counts as delivered [MQTT-3.1.2-25]. With QoS 2 it may have
            // been received before: its identifier is free only when the client has released it.
            if let Some((packet_id, qos)) = too_large {
                let ended = if qos == QoS::AtLeastOnce {
                    window.puback(packet_id)
                } else {
                    put_ack(output.buffer(), PUBREL, packet_id);
                    window.pubrec(packet_id, false)
                };
                if let Acked::Done(Some(delivery)) | Acked::Release(Some(delivery)) = ended {
                    session.settle(&delivery);
                }
                self.count_drop(slot, "it takes no packets that large");
            }
        }
    }

    /// Sends what is queued, as far as window and output allow.
    pub(crate) fn drain_queue<M>(&mut self, io: &mut Io<'_, M>, slot: u32) {
        let now_ms = io.clock.now_ms;
        loop {
            let session = self.sessions.at(slot);
            let Some(front) = session.queue.front() else {
                session.drop_logged = false;
                session.queued_qos0 = 0;
                if session.queue.capacity() > QUEUE_KEPT {
                    session.queue = VecDeque::new();
                }
                return;
            };
            let qos = front.qos;
            if qos != QoS::AtMostOnce && !session.window.has_room(session.inflight_max) {
                return;
            }
            let Some(output) = io.output_if_room(session.conn) else { return };
            let Some(delivery) = session.queue.pop_front() else { return };
            session.queue_bytes -= delivery.message.size() as u64;
            self.backlog -= 1;
            self.counters.queued_messages -= 1;
            let expired = delivery.message.is_expired(now_ms);
            self.templates.begin(&delivery.message, now_ms);
            let aliases = session.rare.as_ref().and_then(|rare| rare.aliases.as_ref());
            if expired {
                session.settle(&delivery);
                self.counters.publish_dropped += 1;
                continue;
            }
            let (template, naming) = self.templates.get(
                session.version,
                qos != QoS::AtMostOnce,
                &delivery.message,
                delivery.ids(),
                aliases,
            );
            if template.packet_len() > session.packet_max as usize {
                session.settle(&delivery);
                self.count_drop(slot, "it takes no packets that large");
                continue;
            }
            let message = Arc::clone(&delivery.message);
            let flags = Flags { dup: false, retain: delivery.retain };
            let packet_id = if qos == QoS::AtMostOnce {
                session.settle(&delivery);
                0
            } else {
                let keep = session.is_persistent() || delivery.group().is_some();
                session.window.send(awaited(qos), keep.then_some(delivery))
            };
            append(output, template, naming, &message, qos, flags, packet_id);
            learn(&mut session.rare, naming, message.topic());
            self.counters.messages_sent += 1;
            self.counters.publish_sent += 1;
            self.counters.publish_bytes_sent += message.payload().len() as u64;
        }
    }
}

fn awaited(qos: QoS) -> Pending {
    if qos == QoS::AtLeastOnce { Pending::PubAck } else { Pending::PubRec }
}

/// Appends an acknowledgement that says success: four bytes, the same in every version.
#[inline]
pub(crate) fn put_ack(out: &mut Vec<u8>, first: u8, packet_id: u16) {
    let [high, low] = packet_id.to_be_bytes();
    out.extend_from_slice(&[first, 2, high, low]);
}

/// The flags of a PUBLISH that differ from one receiver to the next.
#[derive(Clone, Copy)]
struct Flags {
    dup: bool,
    retain: bool,
}

/// A PUBLISH has been sent: if it introduced an alias, the client knows it from here on.
fn learn(rare: &mut Option<Box<Rare>>, naming: TopicRef, topic: &str) {
    if matches!(naming, TopicRef::NameAndAlias(_))
        && let Some(aliases) = rare.as_mut().and_then(|rare| rare.aliases.as_mut())
    {
        aliases.introduced(topic);
    }
}

/// Puts one PUBLISH on its way.
#[inline]
fn append(
    output: &mut Output,
    template: &PublishTemplate,
    naming: TopicRef,
    message: &Message,
    qos: QoS,
    Flags { dup, retain }: Flags,
    packet_id: u16,
) {
    let buffer = output.buffer();
    let start = buffer.len();
    let shared = message.shared_payload();
    if shared.is_some() {
        template.append_head(buffer, qos, dup, retain, packet_id);
    } else {
        template.append(buffer, qos, dup, retain, packet_id);
    }
    if let TopicRef::NameAndAlias(alias) | TopicRef::Alias(alias) = naming {
        template.patch_alias(&mut buffer[start..], alias);
    }
    if let Some(payload) = shared {
        output.push_shared(Arc::clone(payload));
    }
}

/// How the topic stands in a variant, as a part of its number.
fn part(naming: TopicRef) -> usize {
    match naming {
        TopicRef::Name => NAME,
        TopicRef::NameAndAlias(_) => NAME_AND_ALIAS,
        TopicRef::Alias(_) => ALIAS,
    }
}

const NAME: usize = 0;
const NAME_AND_ALIAS: usize = 1;
const ALIAS: usize = 2;
/// Version 5 or not, QoS above 0 or not, four ways (three used) to name the topic.
const VARIANTS: usize = 16;

/// The variants of the message being delivered, each encoded when the first receiver needs it.
#[derive(Debug, Default)]
struct Templates {
    of: Option<Arc<Message>>,
    at_ms: u64,
    variants: [PublishTemplate; VARIANTS],
    /// One bit per variant that has been encoded for this message.
    encoded: u16,
    /// The variant for the last combination of subscription identifiers.
    with_ids: PublishTemplate,
    /// Which one that is; no variant if none.
    with_ids_of: Option<usize>,
    ids: Vec<u32>,
}

impl Templates {
    /// What follows is about `message`.
    #[inline]
    fn begin(&mut self, message: &Arc<Message>, now_ms: u64) {
        if let Some(of) = &self.of
            && Arc::ptr_eq(of, message)
            && (message.expires_at_ms.is_none() || now_ms == self.at_ms)
        {
            return;
        }
        self.of = Some(Arc::clone(message));
        self.at_ms = now_ms;
        self.encoded = 0;
        self.with_ids_of = None;
    }

    /// Lets go of the message, so that its memory can be used again.
    fn end(&mut self) {
        self.of = None;
    }

    /// The template for one receiver, and how it names the topic.
    #[inline]
    fn get(
        &mut self,
        version: Version,
        acknowledged: bool,
        message: &Message,
        ids: &[u32],
        aliases: Option<&OutboundAliases>,
    ) -> (&PublishTemplate, TopicRef) {
        let five = version == Version::V5;
        let naming = aliases.map_or(TopicRef::Name, |aliases| aliases.refer(message.topic()));
        let variant = usize::from(five) | usize::from(acknowledged) << 1 | part(naming) << 2;
        if five && !ids.is_empty() {
            if self.with_ids_of != Some(variant) || self.ids != ids {
                encode(variant, message, ids, self.at_ms, &mut self.with_ids);
                self.with_ids_of = Some(variant);
                self.ids.clear();
                self.ids.extend_from_slice(ids);
            }
            return (&self.with_ids, naming);
        }
        let template = &mut self.variants[variant];
        if self.encoded & (1 << variant) == 0 {
            encode(variant, message, &[], self.at_ms, template);
            self.encoded |= 1 << variant;
        }
        (template, naming)
    }
}

#[cold]
fn encode(variant: usize, message: &Message, ids: &[u32], now_ms: u64, template: &mut PublishTemplate) {
    let acknowledged = variant & 2 != 0;
    let naming = variant >> 2;
    let publish = Publish {
        qos: if acknowledged { QoS::AtLeastOnce } else { QoS::AtMostOnce },
        topic: if naming == ALIAS { "" } else { message.topic() },
        packet_id: u16::from(acknowledged),
        topic_alias: (naming != NAME).then_some(1),
        subscription_ids: SubscriptionIds::List(ids),
        properties: message.properties(now_ms),
        payload: message.payload(),
        ..Publish::default()
    };
    let version = if variant & 1 != 0 { Version::V5 } else { Version::V4 };
    let encoded = if message.shared_payload().is_some() {
        PublishTemplate::encode_head(version, &publish, template)
    } else {
        PublishTemplate::encode(version, &publish, template)
    };
    // What was decoded can be encoded, but for a packet at the protocol's limit that grows by an identifier.
    if let Err(error) = encoded {
        log::error!("a message on {:?} cannot be encoded: {error}", message.topic());
        *template = PublishTemplate::unsendable();
    }
}

impl Deliveries {
    /// The fan-out is over: nothing of its message is needed any more.
    pub(crate) fn end_of_message(&mut self) {
        self.templates.end();
    }
}
