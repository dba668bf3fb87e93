//! From a message to the bytes of one subscriber: windows, queues, and what the journal records of it.
//!
//! A message on offer is sent, queued or dropped, in that order of preference. A durable session's deliveries leave in
//! the order in which its journal has them, and a QoS 2 message leaves only when its entry is on disk: a client must
//! not have seen what a crash takes back. Queued messages of durable sessions wait on disk beyond a few in memory.

use std::sync::Arc;

use mainstem_mqtt::alias::TopicRef;
use mainstem_mqtt::session::{Acked, Resend};
use mainstem_mqtt::{PublishTemplate, QoS};
use mainstem_runtime::{ConnId, Io, MemoryPressure, Output};

use crate::config::{MqttConfig, QueueOverflow};
use crate::counters::{Counters, DropReason};
use crate::message::Message;
use crate::persistence::Persistence;
use crate::pressure::{Level, Tally};
use crate::qos2_recovery::PartialPublish;
use crate::session::offer::{Deferred, Offer, Place};
use crate::session::queue::Run;
use crate::session::templates::Templates;
use crate::session::window::{
    append_delivery, put_into_window, release_delivery, settle_in_journal, take_into_window,
};
use crate::session::{Session, SessionExt, packet_id_of};

/// First byte of a PUBREL: its type and the flags it must have [MQTT-3.6.1-1].
const PUBREL: u8 = 0x62;

/// Why a client does not get a message: as counted, and as logged.
type Why = (DropReason, &'static str);

/// The message is larger than the client's Maximum Packet Size.
const TOO_LARGE: Why = (DropReason::TooLarge, "it takes no packets that large");
const READS_SLOWLY: Why = (DropReason::SlowReader, "it reads too slowly");
const REPLAY_FULL: Why = (DropReason::QueueFull, "it does not get on with the retained messages");
const QUEUE_FULL: Why = (DropReason::QueueFull, "its queue is full");
const SESSION_FULL: Why = (DropReason::QueueFull, "its session is full (mqtt.max_session_bytes)");
const ALL_QUEUES_FULL: Why = (DropReason::QueueFull, "all queues together are full");
const NO_MEMORY: Why = (DropReason::Memory, "memory is short (memory.max_bytes)");
const UNREADABLE: Why = (DropReason::Unreadable, "a message of its queue cannot be read");

/// What a shard needs to deliver messages to its sessions.
#[derive(Debug)]
pub(crate) struct Deliveries {
    counters: Counters,
    /// The targets of the current message, if others have it from before it was interrupted.
    partial: Option<Arc<PartialPublish>>,
    deferred: Vec<Deferred>,
    /// Slots of sessions that got something which leaves when this turn is on disk.
    committing: Vec<u32>,
    templates: Templates,
    limits: QueueLimits,
    /// Messages queued on other shards, as of the beginning of the turn.
    queued_elsewhere: u64,
    /// Messages queued for sessions that are connected.
    backlog: u64,
    /// How short memory is, as of the beginning of the turn.
    pressure: MemoryPressure,
    /// How receivers were found since [`Deliveries::take_tally`].
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct QueueLimits {
    messages_max: usize,
    bytes_max: u64,
    /// Everything that a session keeps.
    session_bytes_max: u64,
    /// Over all sessions of all shards.
    total_max: u64,
    overflow: QueueOverflow,
    queue_qos0: bool,
}

/// Queued messages of a durable session that stay in memory; the others wait on disk. Fewer while it is offline.
const NEAR_MESSAGES: usize = 1024;
const NEAR_BYTES: u64 = 1024 * 1024;
const NEAR_MESSAGES_OFFLINE: usize = 64;
const NEAR_BYTES_OFFLINE: u64 = 64 * 1024;
/// Messages read from disk at a time.
const REFILL_MESSAGES: usize = 64;
/// Messages that wait for one session and are sent at once, about 0.3 ms of a core. The next turn continues.
pub(crate) const SENT_AT_ONCE: usize = 2048;
/// Messages that may wait for the disk before their session counts as behind.
const COMMITTING_MESSAGES: usize = 256;
/// Output pending on a connection from which on its client counts as behind, bytes.
const BEHIND_BYTES: usize = 32 * 1024;
/// The same for half of what may wait there.
const URGENT_BYTES: usize = 128 * 1024;
/// A client that has acknowledged nothing for this long has stalled, and publishers no longer wait for it, ms.
const STALLED_MS: u64 = 500;

impl Deliveries {
    pub(crate) fn new(config: &MqttConfig) -> Self {
        Self {
            counters: Counters::default(),
            partial: None,
            deferred: Vec::new(),
            committing: Vec::new(),
            templates: Templates::default(),
            limits: QueueLimits {
                messages_max: config.max_queued_messages as usize,
                bytes_max: config.max_queued_bytes,
                session_bytes_max: config.max_session_bytes,
                total_max: config.max_queued_messages_total,
                overflow: config.queue_overflow,
                queue_qos0: config.queue_qos0,
            },
            queued_elsewhere: 0,
            backlog: 0,
            pressure: MemoryPressure::None,
            tally: Tally::default(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// How receivers were found since the last call.
    pub(crate) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Limits the next offers to the targets that miss a message.
    pub(crate) fn limit_to(&mut self, partial: Option<Arc<PartialPublish>>) {
        self.partial = partial;
    }

    /// Offers to sessions that get another message first, see [`Deferred`].
    pub(crate) fn take_deferred(&mut self) -> Vec<Deferred> {
        std::mem::take(&mut self.deferred)
    }

    /// Slots of sessions with deliveries that leave when this turn is on disk.
    pub(crate) fn drain_committing(&mut self) -> impl Iterator<Item = u32> {
        self.committing.drain(..)
    }

    /// Messages queued for sessions that are connected.
    pub(crate) fn backlog(&self) -> u64 {
        self.backlog
    }

    pub(crate) fn set_queued_elsewhere(&mut self, messages: u64) {
        self.queued_elsewhere = messages;
    }

    /// How short memory is, as of the beginning of the turn.
    pub(crate) fn pressure(&self) -> MemoryPressure {
        self.pressure
    }

    pub(crate) fn set_pressure(&mut self, pressure: MemoryPressure) {
        self.pressure = pressure;
    }

    /// The queue of a session that gets a connection counts as backlog.
    pub(crate) fn on_connect(&mut self, session: &Session) {
        self.backlog += session.queue.len() as u64;
    }

    pub(crate) fn on_disconnect(&mut self, session: &Session) {
        self.backlog -= session.queue.len() as u64;
    }

    /// Deliveries were taken out of the queue of a session without being sent.
    pub(crate) fn on_dequeued(&mut self, messages: usize, is_connected: bool) {
        self.counters.queued_messages -= messages as u64;
        self.backlog -= if is_connected { messages as u64 } else { 0 };
    }

    /// Forgets the current message, so that its memory can be used again.
    pub(crate) fn end_of_message(&mut self) {
        self.templates.end();
    }

    /// Whether a session got the current message before it was interrupted: its journal has it, or it has no journal
    /// and the message was delivered since the process began.
    #[cold]
    fn has_already(&self, session: &Session, persistence: &Persistence) -> bool {
        let Some(partial) = &self.partial else { return false };
        if !session.is_durable() {
            return partial.was_delivered();
        }
        partial.reached.journals.contains(&persistence.journals()[usize::from(session.journal)].id())
    }

    /// Sends a message to a session, or queues it, or drops and counts it, in that order of preference.
    #[inline]
    pub(crate) fn offer<M>(
        &mut self,
        io: &mut Io<'_, M>,
        persistence: &mut Persistence,
        session: &mut Session,
        offer: &Offer<'_>,
    ) {
        let now_ms = io.clock.now_ms;
        if session.is_kept_from(offer.message.topic()) {
            return session.settle_kept(offer);
        }
        if self.partial.is_some() && self.has_already(session, persistence) {
            return;
        }
        if !session.connected {
            self.queue_offline(persistence, session, offer);
            return;
        }
        let (conn, qos0, topic) = (session.conn, offer.qos == QoS::AtMostOnce, offer.message.topic());
        if session.is_durable() && !offer.is_replayed && session.is_replayed_later(topic) {
            if session.is_retained_replay_full() {
                self.drop_offer(session, offer, REPLAY_FULL);
            } else {
                self.deferred.push(offer.deferred(session.key.slot));
            }
            return;
        }
        // What the client is to get exactly once must be on disk before it is sent.
        let waits_for_disk = session.is_durable() && offer.qos == QoS::ExactlyOnce;
        let session_bytes_max = self.limits.session_bytes_max;
        if waits_for_disk || session.must_queue(offer) || !session.takes_in_flight(offer, session_bytes_max) {
            if !waits_for_disk || session.queue.len() > COMMITTING_MESSAGES {
                self.tally_queue(session, now_ms);
            }
            self.enqueue(persistence, session, offer);
            return;
        }
        let reads = !io.is_stalled(conn);
        let Some(output) = output_for(io, conn, offer) else {
            if reads {
                self.tally.count(Level::Urgent);
            }
            if qos0 {
                self.drop_offer(session, offer, READS_SLOWLY);
            } else {
                self.enqueue(persistence, session, offer);
            }
            return;
        };
        let pending = output.pending();
        if pending > BEHIND_BYTES && reads {
            self.tally.count(if pending > URGENT_BYTES { Level::Urgent } else { Level::Behind });
        }
        self.templates.begin(offer.message, now_ms);
        let aliases = session.ext.as_ref().and_then(|ext| ext.aliases.as_ref());
        let (template, naming) =
            self.templates.get(session.version, !qos0, offer.message, offer.ids, aliases);
        if template.packet_len() > session.packet_max as usize {
            self.drop_offer(session, offer, TOO_LARGE);
            return;
        }
        let packet_id = if qos0 { 0 } else { put_into_window(session, persistence, offer, now_ms) };
        let flags = Flags { dup: false, retain: offer.retain };
        append(output, template, naming, offer.message, offer.qos, flags, packet_id);
        learn(&mut session.ext, naming, topic);
        self.counters.count_publish_sent(offer.message.payload().len());
        if qos0 && offer.group.is_some() {
            session.settle_group_message();
        }
    }

    /// The session's window is full: notes how far behind its client is, unless it has stalled.
    fn tally_queue(&mut self, session: &Session, now_ms: u64) {
        if now_ms >= session.progress_ms + STALLED_MS {
            return;
        }
        let is_urgent = session.queue.len() * 2 >= self.limits.messages_max
            || session.queue.bytes() * 2 >= self.limits.bytes_max;
        self.tally.count(if is_urgent { Level::Urgent } else { Level::Behind });
    }

    /// The session is offline: QoS 1 and 2 wait for it, if it will come back.
    fn queue_offline(&mut self, persistence: &mut Persistence, session: &mut Session, offer: &Offer<'_>) {
        if session.ended {
            return;
        }
        if session.is_persistent() && (offer.qos != QoS::AtMostOnce || self.limits.queue_qos0) {
            self.enqueue(persistence, session, offer);
        } else if offer.group.is_some() {
            self.counters.count_dropped(DropReason::NoReceiver);
            session.settle_group_message();
        }
    }

    fn drop_offer(&mut self, session: &mut Session, offer: &Offer<'_>, why: Why) {
        if offer.group.is_some() {
            session.settle_group_message();
        }
        self.count_drop(session, why);
    }

    fn enqueue(&mut self, persistence: &mut Persistence, session: &mut Session, offer: &Offer<'_>) {
        let size = offer.message.size() as u64;
        if self.queued_elsewhere + self.counters.queued_messages >= self.limits.total_max {
            self.drop_offer(session, offer, ALL_QUEUES_FULL);
            return;
        }
        if offer.qos == QoS::AtMostOnce && self.pressure >= MemoryPressure::Moderate {
            self.drop_offer(session, offer, NO_MEMORY);
            return;
        }
        loop {
            let is_full = session.queue.len() >= self.limits.messages_max
                || session.queue.bytes() + size > self.limits.bytes_max;
            let why = match (is_full, session.has_room_in_queue(size, self.limits.session_bytes_max)) {
                (false, true) => break,
                (true, _) => QUEUE_FULL,
                (false, false) => SESSION_FULL,
            };
            let oldest = match self.limits.overflow {
                QueueOverflow::DropOldest => session.queue.drop_oldest(),
                QueueOverflow::DropNewest => None,
            };
            if let Some(oldest) = oldest {
                self.backlog -= u64::from(session.connected);
                session.settle(&oldest);
                self.counters.queued_messages -= 1;
                settle_in_journal(persistence, session, &oldest);
                self.count_drop(session, why);
                continue;
            }
            self.drop_offer(session, offer, why);
            return;
        }
        self.backlog += u64::from(session.connected);
        session.queued_qos0 += u32::from(offer.qos == QoS::AtMostOnce);
        self.counters.queued_messages += 1;
        let qos0 = offer.qos == QoS::AtMostOnce;
        if !session.is_durable() || (qos0 && session.connected && !session.queue.has_far()) {
            session.queue.push(offer.into_delivery(Place::default()));
            return;
        }
        let place = append_delivery(session, persistence, offer);
        if session.connected {
            self.committing.push(session.key.slot);
        }
        let (messages, bytes) = if session.connected {
            (NEAR_MESSAGES, NEAR_BYTES)
        } else {
            (NEAR_MESSAGES_OFFLINE, NEAR_BYTES_OFFLINE)
        };
        let is_near = !session.queue.has_far()
            && session.has_room_for(size, self.limits.session_bytes_max)
            && session.queue.near_len() < messages
            && session.queue.bytes() + size <= bytes;
        // What the journal cannot keep cannot be read back from it.
        if is_near || (!session.queue.has_far() && persistence.journal(session.journal).is_failing()) {
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

    /// The session is offline: drops QoS 0 messages that waited for its output, unless QoS 0 is queued offline anyway.
    pub(crate) fn drop_qos0(&mut self, persistence: &mut Persistence, session: &mut Session) {
        if self.limits.queue_qos0 || session.queued_qos0 == 0 {
            return;
        }
        session.queued_qos0 = 0;
        let dropped = session.queue.take_if(|qos, _| qos == QoS::AtMostOnce);
        self.counters.queued_messages -= dropped.len() as u64;
        for delivery in &dropped {
            session.settle(delivery);
            settle_in_journal(persistence, session, delivery);
        }
    }

    /// Counts a message that a client will not get, and says so once per spell.
    fn count_drop(&mut self, session: &mut Session, (reason, why): Why) {
        self.counters.count_dropped(reason);
        if !session.drop_logged {
            session.drop_logged = true;
            log::warn!("client {:?} loses messages: {why}", session.client_id);
        }
    }

    /// Sends again what was in flight when the last connection was lost, as far as window, output and `room`, a number
    /// of messages, allow. False if the session has no connection, or no room for anything.
    pub(crate) fn resend<M>(
        &mut self,
        io: &mut Io<'_, M>,
        persistence: &mut Persistence,
        session: &mut Session,
        room: &mut usize,
    ) -> bool {
        let now_ms = io.clock.now_ms;
        loop {
            if !session.connected {
                return false;
            }
            if session.window.is_empty() {
                return true;
            }
            let Session { conn, window, ext, version, packet_max, inflight_max, .. } = session;
            let Some(output) = io.output_if_room(*conn).filter(|_| *room > 0) else { return false };
            *room -= 1;
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
                        let aliases = ext.as_ref().and_then(|ext| ext.aliases.as_ref());
                        let (template, naming) =
                            self.templates.get(*version, true, message, delivery.ids(), aliases);
                        let flags = Flags { dup: true, retain: delivery.retain };
                        let fits = template.packet_len() <= *packet_max as usize;
                        if fits {
                            append(output, template, naming, message, delivery.qos, flags, packet_id);
                            learn(ext, naming, message.topic());
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
                session.discount_acked(&ended);
                if let Acked::Done(Some(delivery)) | Acked::Release(Some(delivery)) = ended {
                    session.settle(&delivery);
                    if is_released {
                        release_delivery(persistence, session, packet_id, &delivery);
                    } else {
                        settle_in_journal(persistence, session, &delivery);
                    }
                }
                self.count_drop(session, TOO_LARGE);
            }
        }
    }

    /// Brings messages in from disk that a session's client is to get next.
    fn refill(&mut self, persistence: &mut Persistence, session: &mut Session) {
        let mut journal = persistence.journal(session.journal);
        let room = self.limits.session_bytes_max.saturating_sub(session.memory());
        let lost = session.queue.refill(REFILL_MESSAGES, room, |offset| journal.message(offset));
        if let Some(delivery) = lost {
            session.settle(&delivery);
            self.backlog -= 1;
            self.counters.queued_messages -= 1;
            settle_in_journal(persistence, session, &delivery);
            self.count_drop(session, UNREADABLE);
        }
    }

    /// Sends what is queued, as far as window, output, disk and `room`, a number of messages, allow.
    pub(crate) fn drain_queue<M>(
        &mut self,
        io: &mut Io<'_, M>,
        persistence: &mut Persistence,
        session: &mut Session,
        room: &mut usize,
    ) {
        let now_ms = io.clock.now_ms;
        loop {
            let Some(front) = session.queue.front() else {
                session.drop_logged = false;
                session.queued_qos0 = 0;
                session.queue.shrink();
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
                    && !persistence.journal(session.journal).is_durable(front.offset);
                if !has_room || is_early {
                    return;
                }
            }
            if !front.is_near {
                // What acknowledgements free is filled again; the first message always has room.
                if !session.has_room_in_flight(1, self.limits.session_bytes_max) {
                    return;
                }
                self.refill(persistence, session);
                continue;
            }
            let Some(output) = io.output_if_room(session.conn).filter(|_| *room > 0) else { return };
            *room -= 1;
            let Some(delivery) = session.queue.pop() else { return };
            self.backlog -= 1;
            self.counters.queued_messages -= 1;
            let Some(message) = delivery.message.clone() else { continue };
            self.templates.begin(&message, now_ms);
            let aliases = session.ext.as_ref().and_then(|ext| ext.aliases.as_ref());
            // The rules may have changed since it was queued.
            let is_kept = || session.may_no_longer_receive(message.topic()).then_some(DropReason::NotAllowed);
            let reason = message.is_expired(now_ms).then_some(DropReason::Expired).or_else(is_kept);
            if let Some(reason) = reason {
                session.settle(&delivery);
                self.counters.count_dropped(reason);
                settle_in_journal(persistence, session, &delivery);
                continue;
            }
            let acknowledged = delivery.qos != QoS::AtMostOnce;
            let (template, naming) =
                self.templates.get(session.version, acknowledged, &message, delivery.ids(), aliases);
            if template.packet_len() > session.packet_max as usize {
                session.settle(&delivery);
                settle_in_journal(persistence, session, &delivery);
                self.count_drop(session, TOO_LARGE);
                continue;
            }
            let (qos, flags) = (delivery.qos, Flags { dup: false, retain: delivery.retain });
            let packet_id = take_into_window(session, persistence, delivery);
            append(output, template, naming, &message, qos, flags, packet_id);
            learn(&mut session.ext, naming, message.topic());
            self.counters.count_publish_sent(message.payload().len());
        }
    }
}

impl Session {
    /// The rules keep a message from the session. A group gives it none as soon as the session has left it.
    #[cold]
    fn settle_kept(&mut self, offer: &Offer<'_>) {
        if offer.group.is_some() {
            self.settle_group_message();
        }
    }

    /// Whether a message must not overtake others that are queued or to be replayed, or finds no room in the window.
    #[inline]
    fn must_queue(&self, offer: &Offer<'_>) -> bool {
        let is_clear = self.queue.is_empty();
        let waits = if offer.qos == QoS::AtMostOnce {
            // Queued QoS 0 messages are not to be overtaken [MQTT-4.6.0-5].
            self.queued_qos0 > 0
        } else {
            !is_clear || !self.has_window_room()
        };
        match (self.is_durable(), offer.is_replayed) {
            // Deliveries leave in the order of the journal.
            (true, _) => waits,
            (false, true) => false,
            (false, false) => {
                let topic = offer.message.topic();
                waits || self.ext.as_ref().is_some_and(|ext| ext.retained.holds_back(topic, is_clear))
            }
        }
    }
}

/// The output that takes a message, if there is room.
#[inline]
fn output_for<'a, M>(io: &'a mut Io<'_, M>, conn: ConnId, offer: &Offer<'_>) -> Option<&'a mut Output> {
    if offer.is_fan_out { io.fan_out_output_if_room(conn) } else { io.output_if_room(conn) }
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
fn learn(ext: &mut Option<Box<SessionExt>>, naming: TopicRef, topic: &str) {
    if matches!(naming, TopicRef::NameAndAlias(_))
        && let Some(aliases) = ext.as_mut().and_then(|ext| ext.aliases.as_mut())
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
    let payload = message.shared_payload();
    let is_whole = payload.is_none() && template.omitted_len() == 0;
    if is_whole {
        template.append(buffer, qos, dup, retain, packet_id);
    } else {
        template.append_head(buffer, qos, dup, retain, packet_id);
    }
    if let TopicRef::NameAndAlias(alias) | TopicRef::Alias(alias) = naming {
        template.patch_alias(&mut buffer[start..], alias);
    }
    if !is_whole {
        append_tail(output, template, message);
    }
}

/// Appends what a template leaves to its caller: shared user properties and the payload.
fn append_tail(output: &mut Output, template: &PublishTemplate, message: &Message) {
    if let Some(user) = message.shared_user_properties().filter(|_| template.omitted_len() > 0) {
        output.push_shared(user.clone());
    }
    match message.shared_payload() {
        Some(payload) => output.push_shared(payload.clone()),
        None => output.buffer().extend_from_slice(message.payload()),
    }
}
