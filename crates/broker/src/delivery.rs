//! From a message to the bytes of one subscriber: windows, queues, and what the journal has to know of it.

use std::sync::Arc;

use mainstem_mqtt::alias::TopicRef;
use mainstem_mqtt::session::{Acked, Pending, Resend};
use mainstem_mqtt::{PublishTemplate, QoS};
use mainstem_runtime::{Io, Output};

use crate::config::{MqttConfig, QueueOverflow};
use crate::counters::Counters;
use crate::journal::Journal;
use crate::journal::entry::Mark;
use crate::message::Message;
use crate::offer::{Deferred, Offer, Place};
use crate::pressure::{Level, Tally};
use crate::queue::Run;
use crate::session::{Delivery, Lacking, Rare, Session, Sessions, packet_id_of};
use crate::templates::Templates;

/// First byte of a PUBREL: its type and the flags it must have [MQTT-3.6.1-1].
const PUBREL: u8 = 0x62;

/// The sessions of a shard and all that it takes to send them messages.
#[derive(Debug)]
pub(crate) struct Deliveries {
    pub(crate) sessions: Sessions,
    pub(crate) counters: Counters,
    /// The journals of the sessions that last; the first is for new ones.
    pub(crate) journals: Vec<Journal>,
    /// Who lacks the message that is being given out, if others have it from before it was cut short.
    pub(crate) only: Option<Lacking>,
    /// See [`Deferred`].
    pub(crate) deferred: Vec<Deferred>,
    /// Sessions that got something which leaves when this turn is on disk.
    pub(crate) committing: Vec<u32>,
    templates: Templates,
    queued_messages_max: usize,
    queued_bytes_max: u64,
    queued_total_max: u64,
    /// Messages queued on other shards, as of the beginning of the turn.
    pub(crate) queued_elsewhere: u64,
    overflow: QueueOverflow,
    queue_qos0: bool,
    /// Messages queued for sessions that are connected.
    pub(crate) backlog: u64,
    /// How receivers were found since [`Deliveries::take_tally`].
    tally: Tally,
}

/// Places that a queue keeps when it runs empty.
const QUEUE_KEPT: usize = 64;
/// Messages that wait in memory for a session that lasts; the others wait on disk. Fewer while it is offline.
const NEAR_MESSAGES: usize = 1024;
const NEAR_BYTES: u64 = 1024 * 1024;
const NEAR_MESSAGES_OFFLINE: usize = 64;
const NEAR_BYTES_OFFLINE: u64 = 64 * 1024;
/// Messages brought in from disk at a time.
const REFILL_MESSAGES: usize = 64;
/// Messages that may wait for the disk before their session counts as behind.
const COMMITTING_MESSAGES: usize = 256;
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
            journals: Vec::new(),
            only: None,
            deferred: Vec::new(),
            committing: Vec::new(),
            templates: Templates::default(),
            queued_messages_max: config.max_queued_messages as usize,
            queued_bytes_max: config.max_queued_bytes,
            queued_total_max: config.max_queued_messages_total,
            queued_elsewhere: 0,
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
        if self.only.is_some() && self.has_it_already(slot) {
            return;
        }
        let session = self.sessions.at(slot);
        if !session.connected {
            self.keep_for_later(slot, offer);
            return;
        }
        let (conn, qos0) = (session.conn, offer.qos == QoS::AtMostOnce);
        let topic = offer.message.topic();
        if session.lasts() && !offer.walked && session.is_walked_later(topic) {
            if session.is_walk_crowded() {
                self.drop_offer(slot, offer, "it does not get on with the retained messages");
            } else {
                self.deferred.push(offer.deferred(slot));
            }
            return;
        }
        let is_clear = session.queue.is_empty();
        // What the client is to get exactly once must be on disk before it may have heard of it.
        let waits_for_disk = session.lasts() && offer.qos == QoS::ExactlyOnce;
        let waits = if qos0 {
            // Queued QoS 0 messages are not to be overtaken [MQTT-4.6.0-5].
            session.queued_qos0 > 0
        } else {
            !is_clear || !session.has_window_room()
        };
        let waits = match (session.lasts(), offer.walked) {
            // Its deliveries leave in the order in which the journal has them.
            (true, _) => waits,
            (false, true) => false,
            (false, false) => {
                waits || session.rare.as_ref().is_some_and(|rare| rare.holds_back(topic, is_clear))
            }
        };
        if waits || waits_for_disk {
            if !waits_for_disk || session.queue.len() > COMMITTING_MESSAGES {
                self.tally_queue(slot, now_ms);
            }
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
            let pending = awaited(offer.qos);
            if session.lasts() {
                let place = enter(session, &mut self.journals, offer);
                let id = packet_id_of(place.sequence);
                session.window.send_as(id, pending, Some(offer.into_delivery(place)));
                self.journals[usize::from(session.journal)]
                    .mark(Mark::Sent { session: session.number, sequence: place.sequence });
                id
            } else {
                let keep = session.is_persistent() || offer.group.is_some();
                session.window.send(pending, keep.then(|| offer.into_delivery(Place::default())))
            }
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
            || session.queue.bytes() * 2 >= self.queued_bytes_max;
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
        if self.queued_elsewhere + self.counters.queued_messages >= self.queued_total_max {
            self.drop_offer(slot, offer, "all queues together are full");
            return;
        }
        loop {
            let session = self.sessions.at(slot);
            let full = session.queue.len() >= self.queued_messages_max
                || session.queue.bytes() + size > self.queued_bytes_max;
            if !full {
                break;
            }
            let oldest = match self.overflow {
                QueueOverflow::DropOldest => session.queue.drop_oldest(),
                QueueOverflow::DropNewest => None,
            };
            if let Some(oldest) = oldest {
                self.backlog -= u64::from(session.connected);
                session.settle(&oldest);
                self.counters.queued_messages -= 1;
                self.forget(slot, &oldest);
                self.count_drop(slot, "its queue is full, the oldest message goes");
                continue;
            }
            self.drop_offer(slot, offer, "its queue is full");
            return;
        }
        let session = self.sessions.at(slot);
        self.backlog += u64::from(session.connected);
        session.queued_qos0 += u32::from(offer.qos == QoS::AtMostOnce);
        self.counters.queued_messages += 1;
        let qos0 = offer.qos == QoS::AtMostOnce;
        if !session.lasts() || (qos0 && session.connected && !session.queue.has_far()) {
            session.queue.push(offer.into_delivery(Place::default()));
            return;
        }
        let place = enter(session, &mut self.journals, offer);
        if session.connected {
            self.committing.push(slot);
        }
        let session = self.sessions.at(slot);
        let (messages, bytes) = if session.connected {
            (NEAR_MESSAGES, NEAR_BYTES)
        } else {
            (NEAR_MESSAGES_OFFLINE, NEAR_BYTES_OFFLINE)
        };
        let is_near = !session.queue.has_far()
            && session.queue.near_len() < messages
            && session.queue.bytes() + size <= bytes;
        // What the journal cannot keep cannot be read back from it.
        if is_near || (!session.queue.has_far() && self.journals[usize::from(session.journal)].is_failing()) {
            session.queue.push(offer.into_delivery(place));
        } else {
            session.queue.push_far(Run {
                sequence: place.sequence,
                offset: place.offset,
                count: 1,
                bytes: size,
                qos: offer.qos,
                retain: offer.retain,
                extra: offer.extra(),
            });
        }
    }

    /// A delivery is over without having been acknowledged: the journal need not keep it.
    pub(crate) fn forget(&mut self, slot: u32, delivery: &Delivery) {
        if delivery.sequence == 0 {
            return;
        }
        let session = self.sessions.at(slot);
        self.journals[usize::from(session.journal)]
            .mark(Mark::Settled { session: session.number, sequence: delivery.sequence });
    }

    /// The session is offline: QoS 0 messages that were held back for it go, unless they are kept for the
    /// offline anyway.
    pub(crate) fn forget_qos0(&mut self, slot: u32) {
        if self.queue_qos0 {
            return;
        }
        let session = self.sessions.at(slot);
        if session.queued_qos0 == 0 {
            return;
        }
        session.queued_qos0 = 0;
        let gone = session.queue.take_if(|qos, _| qos == QoS::AtMostOnce);
        for delivery in &gone {
            session.settle(delivery);
        }
        self.counters.queued_messages -= gone.len() as u64;
        for delivery in &gone {
            self.forget(slot, delivery);
        }
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
                    // Whoever resumes the session has brought its messages in; what is missing is unreadable.
                    let fits = delivery.message.as_ref().is_some_and(|message| {
                        self.templates.begin(message, now_ms);
                        let aliases = rare.as_ref().and_then(|rare| rare.aliases.as_ref());
                        let (template, naming) =
                            self.templates.get(*version, true, message, delivery.ids(), aliases);
                        let flags = Flags { dup: true, retain: delivery.retain };
                        let fits = template.packet_len() <= *packet_max as usize;
                        if fits {
                            append(output, template, naming, message, delivery.qos, flags, packet_id);
                            learn(rare, naming, message.topic());
                            self.counters.publish_sent += 1;
                            self.counters.publish_bytes_sent += message.payload().len() as u64;
                        }
                        fits
                    });
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
                let is_released = matches!(ended, Acked::Release(_));
                if let Acked::Done(Some(delivery)) | Acked::Release(Some(delivery)) = ended {
                    session.settle(&delivery);
                    if is_released {
                        self.note_release(slot, packet_id, &delivery);
                    } else {
                        self.forget(slot, &delivery);
                    }
                }
                self.count_drop(slot, "it takes no packets that large");
            }
        }
    }

    /// PUBREC has come, or counts as come: only the exchange is left, and the journal is told.
    pub(crate) fn note_release(&mut self, slot: u32, packet_id: u16, delivery: &Delivery) {
        let session = self.sessions.at(slot);
        if delivery.sequence == 0 {
            return;
        }
        if delivery.message.is_some() {
            self.journals[usize::from(session.journal)]
                .mark(Mark::Released { session: session.number, sequence: delivery.sequence });
        }
        let Delivery { sequence, offset, qos, retain, .. } = *delivery;
        session
            .window
            .keep(packet_id, Delivery { message: None, sequence, offset, qos, retain, extra: None });
    }

    /// Brings messages in from disk that a session's client is to get next.
    fn refill(&mut self, slot: u32) {
        let session = self.sessions.at(slot);
        let journal = &mut self.journals[usize::from(session.journal)];
        let lost = session.queue.refill(REFILL_MESSAGES, |offset| journal.message(offset));
        if let Some(delivery) = lost {
            session.settle(&delivery);
            self.backlog -= 1;
            self.counters.queued_messages -= 1;
            self.forget(slot, &delivery);
            self.count_drop(slot, "a message of its queue cannot be read");
        }
    }

    /// Sends what is queued, as far as window, output and disk allow.
    pub(crate) fn drain_queue<M>(&mut self, io: &mut Io<'_, M>, slot: u32) {
        let now_ms = io.clock.now_ms;
        loop {
            let session = self.sessions.at(slot);
            let Some(front) = session.queue.front() else {
                session.drop_logged = false;
                session.queued_qos0 = 0;
                session.queue.shrink(QUEUE_KEPT);
                return;
            };
            if front.qos != QoS::AtMostOnce {
                let is_known = front.sequence > 0;
                let has_room = if is_known {
                    session.window.has_room_for(packet_id_of(front.sequence), session.inflight_max)
                } else {
                    session.window.has_room(session.inflight_max)
                };
                let is_early = is_known
                    && front.qos == QoS::ExactlyOnce
                    && !self.journals[usize::from(session.journal)].is_durable(front.offset);
                if !has_room || is_early {
                    return;
                }
            }
            if !front.is_near {
                self.refill(slot);
                continue;
            }
            let session = self.sessions.at(slot);
            let Some(output) = io.output_if_room(session.conn) else { return };
            let Some(delivery) = session.queue.pop() else { return };
            self.backlog -= 1;
            self.counters.queued_messages -= 1;
            let Some(message) = delivery.message.clone() else { continue };
            self.templates.begin(&message, now_ms);
            let aliases = session.rare.as_ref().and_then(|rare| rare.aliases.as_ref());
            if message.is_expired(now_ms) {
                session.settle(&delivery);
                self.counters.publish_dropped += 1;
                self.forget(slot, &delivery);
                continue;
            }
            let acknowledged = delivery.qos != QoS::AtMostOnce;
            let (template, naming) =
                self.templates.get(session.version, acknowledged, &message, delivery.ids(), aliases);
            if template.packet_len() > session.packet_max as usize {
                session.settle(&delivery);
                self.forget(slot, &delivery);
                self.count_drop(slot, "it takes no packets that large");
                continue;
            }
            let (qos, flags) = (delivery.qos, Flags { dup: false, retain: delivery.retain });
            let packet_id = take_into_window(session, &mut self.journals, delivery);
            append(output, template, naming, &message, qos, flags, packet_id);
            learn(&mut session.rare, naming, message.topic());
            self.counters.messages_sent += 1;
            self.counters.publish_sent += 1;
            self.counters.publish_bytes_sent += message.payload().len() as u64;
        }
    }
}

/// Enters a receiver of the message that is being given out in its journal.
fn enter(session: &mut Session, journals: &mut [Journal], offer: &Offer<'_>) -> Place {
    let journal = &mut journals[usize::from(session.journal)];
    let group = offer.group.map(|group| &**group);
    journal.add_receiver(session.number, offer.qos, offer.retain, offer.ids, group);
    session.sequence += 1;
    Place { sequence: session.sequence, offset: journal.next_offset() }
}

/// A delivery leaves the queue for the client. Returns its packet identifier; 0 for QoS 0.
fn take_into_window(session: &mut Session, journals: &mut [Journal], delivery: Delivery) -> u16 {
    let mut mark = |mark: fn(u32, u64) -> Mark| {
        if delivery.sequence > 0 {
            journals[usize::from(session.journal)].mark(mark(session.number, delivery.sequence));
        }
    };
    if delivery.qos == QoS::AtMostOnce {
        mark(|session, sequence| Mark::Settled { session, sequence });
        session.settle(&delivery);
        return 0;
    }
    mark(|session, sequence| Mark::Sent { session, sequence });
    let pending = awaited(delivery.qos);
    if delivery.sequence > 0 {
        let packet_id = packet_id_of(delivery.sequence);
        session.window.send_as(packet_id, pending, Some(delivery));
        return packet_id;
    }
    let keep = session.is_persistent() || delivery.group().is_some();
    session.window.send(pending, keep.then_some(delivery))
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

impl Deliveries {
    /// The fan-out is over: nothing of its message is needed any more.
    pub(crate) fn end_of_message(&mut self) {
        self.templates.end();
    }
}
