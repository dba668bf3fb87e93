//! Queue subscriptions of sessions: their consumers, deliveries, and the requests of each turn.
//!
//! A session with a queue subscription is a consumer: it asks for as many messages as its window, its output and
//! `mqtt.queue_prefetch` have room for. A leased message that finds no room any more is held until there is, or until
//! its lease ends. Queue deliveries have packet identifiers of a range of their own, so a PUBACK tells whether it
//! settles a delivery of a queue or of the session.

use std::sync::Arc;

use mainstem_mqtt::{Ack, QoS, ReasonCode, SubscribeFilter, SubscribeOptions, Version};
use mainstem_runtime::Io;

use super::SessionHost;
use super::subscriptions::LOGGED_CHARS;
use crate::broker_state::Mail;
use crate::message::SessionKey;
use crate::pending_acks::AckCondition;
use crate::queue_consumers::{
    Capacity, Encoded, QueueGroup, QueueRequest, QueueSubscription, RETRY_REFUSED_MS, SessionConsumers,
    disposition,
};
use crate::session::account::subscription_cost;
use crate::timers::Timer;

impl SessionHost {
    /// Whether consumers have requests to their queues.
    pub(crate) fn has_queue_requests(&self) -> bool {
        self.queues.has_requests()
    }

    /// Takes the requests of consumers to their queues, in the order in which queues have to see them: settlements come
    /// before requests for messages.
    pub(crate) fn take_queue_requests(&mut self, io: &mut Io<'_, Mail>) -> Vec<QueueRequest> {
        for key in self.queues.take_due() {
            self.collect_queue_requests(io, key);
        }
        self.queues.take_requests()
    }

    fn collect_queue_requests(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let prefetch = usize::from(self.shared.config.queue_prefetch);
        let Some(session) = self.sessions.get(key) else { return };
        let capacity = session.is_connected().then(|| Capacity {
            now_ms: io.clock.now_ms,
            window: usize::from(session.window_room()),
            prefetch,
            has_output_room: io.has_ample_room(session.conn()),
        });
        if let Some(consumers) = session.consumers_mut() {
            self.queues.collect(consumers, capacity);
        }
    }

    /// Collects the requests of a session at the end of the turn.
    pub(crate) fn schedule_consumers(&mut self, slot: u32) {
        let key = self.sessions.key(slot);
        if let Some(consumers) = self.sessions.at(slot).consumers_mut() {
            self.queues.schedule(key, consumers);
        }
    }

    /// Subscribes to a queue or replaces the subscription. Returns the granted options and the consumer, for
    /// [`SessionHost::hold_suback`].
    ///
    /// # Errors
    /// The reason code of the SUBACK.
    pub(super) fn subscribe_to_queue(
        &mut self,
        slot: u32,
        asked: &SubscribeFilter<'_>,
        (filter, group): (&str, Option<&str>),
        id: u32,
    ) -> Result<(SubscribeOptions, u64), ReasonCode> {
        let group = QueueGroup::of(filter, group).ok_or(ReasonCode::TopicFilterInvalid)?;
        if asked.options.qos.min(self.config().qos_max()) == QoS::AtMostOnce {
            let client_id = self.sessions.at(slot).client_id();
            let filter: String = asked.filter.chars().take(LOGGED_CHARS).collect();
            log::debug!("client {client_id:?} is refused {filter:?} at QoS 0, which settles nothing");
            return Err(ReasonCode::ImplementationSpecificError);
        }
        let options = SubscribeOptions { qos: QoS::AtLeastOnce, ..asked.options };
        let is_new = self.add_queue_subscription(slot, asked.filter, group, options, id);
        let is_new = is_new.ok_or(ReasonCode::QuotaExceeded)?;
        if is_new {
            self.start_consumers(slot);
        } else {
            self.schedule_consumers(slot);
        }
        let consumers = self.sessions.at(slot).consumers_mut();
        Ok((options, consumers.map_or(0, |known| known.consumer_of(asked.filter))))
    }

    /// Adds or replaces a queue subscription. True if it is new; `None` if the session has too many subscriptions.
    fn add_queue_subscription(
        &mut self,
        slot: u32,
        filter: &str,
        group: Arc<QueueGroup>,
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        let session = self.sessions.at(slot);
        if session.consumers_mut().is_some_and(|known| known.replace(filter, options, id)) {
            return Some(false);
        }
        let cost = subscription_cost(filter, "");
        if !self.has_room_for_subscription(slot, filter, cost) {
            return None;
        }
        self.deliveries.counters_mut().subscriptions += 1;
        let session = self.sessions.at(slot);
        session.count_subscription(cost);
        session.add_consumers().add(filter, group, options, id);
        Some(true)
    }

    /// Restores a queue subscription. `None` if the session has too many subscriptions.
    pub(super) fn restore_queue_subscription(
        &mut self,
        slot: u32,
        filter: &str,
        (name, group): (&str, Option<&str>),
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        self.add_queue_subscription(slot, filter, QueueGroup::of(name, group)?, options, id)
    }

    /// Lets a SUBACK wait for the first answer of its consumer's queue. False if it need not wait.
    pub(crate) fn hold_suback(&mut self, slot: u32, consumer: u64, suback: (u64, usize)) -> bool {
        let consumers = self.sessions.at(slot).consumers_mut();
        consumers.is_some_and(|consumers| consumers.hold_suback(consumer, suback))
    }

    pub(crate) fn remove_queue_subscription(&mut self, slot: u32, filter: &str) -> Option<QueueSubscription> {
        let session = self.sessions.at(slot);
        let mut removed = session.consumers_mut()?.remove(filter)?;
        session.discount_subscription(subscription_cost(filter, ""));
        self.deliveries.counters_mut().subscriptions -= 1;
        self.queues.retire(&mut removed);
        Some(removed)
    }

    /// Starts the consumers of a session that has a connection.
    pub(crate) fn start_consumers(&mut self, slot: u32) {
        let key = self.sessions.key(slot);
        if let Some(consumers) = self.sessions.at(slot).consumers_mut() {
            self.queues.start(key, consumers);
        }
    }

    /// Stops the consumers of a session that has lost its connection, and releases what they have.
    pub(super) fn stop_consumers(&mut self, slot: u32) {
        if let Some(consumers) = self.sessions.at(slot).consumers_mut() {
            self.queues.stop(consumers);
        }
    }

    /// Removes the queue subscriptions of a session that ends and has no connection.
    pub(super) fn end_queue_subscriptions(&mut self, slot: u32) {
        if let Some(consumers) = self.sessions.at(slot).take_consumers() {
            self.deliveries.counters_mut().subscriptions -= consumers.len() as u64;
        }
    }

    /// Lets consumers that were refused ask again.
    pub(crate) fn retry_refused_consumers(&mut self, now_ms: u64) {
        for key in self.queues.take_refused() {
            let Some(session) = self.sessions.get(key) else { continue };
            if session.consumers_mut().is_some_and(|consumers| consumers.has_early_retry(now_ms)) {
                self.queues.retry_later(key);
            }
            self.schedule_consumers(key.slot);
        }
    }

    /// The session of a consumer, and its consumers.
    pub(crate) fn find_consumers(&mut self, consumer: u64) -> Option<(SessionKey, &mut SessionConsumers)> {
        let key = self.queues.owner(consumer)?;
        Some((key, self.sessions.get(key)?.consumers_mut()?))
    }

    /// Sends queue deliveries of a session that found no room before, and lets its consumers ask for more.
    pub(super) fn pump_queues(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let clock = io.clock;
        let Some(consumers) = self.sessions.at(slot).consumers_mut() else { return };
        for consumer in consumers.holding() {
            loop {
                let consumers = self.sessions.at(slot).consumers_mut();
                let has_held =
                    consumers.is_some_and(|consumers| consumers.drop_expired(consumer, clock.unix_ms));
                let is_sent = has_held
                    && self.encode_from_queue(io, slot, |consumers, client, output| {
                        consumers.encode_held(consumer, client, clock.now_ms, output)
                    });
                if !is_sent {
                    break;
                }
            }
        }
        self.schedule_consumers(slot);
    }

    /// Appends one delivery to a client's output, if window and output have room. False if there is no room. `encode`
    /// gets version and largest packet of the client, and also returns the size of the payload.
    pub(crate) fn encode_from_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        encode: impl FnOnce(&mut SessionConsumers, (Version, u32), &mut Vec<u8>) -> (Encoded, usize),
    ) -> bool {
        let session = self.sessions.at(slot);
        if session.window_room() == 0 {
            return false;
        }
        let client = (session.version(), session.packet_max());
        let Some(output) = io.output_if_room(session.conn()) else { return false };
        let Some(consumers) = session.consumers_mut() else { return false };
        match encode(consumers, client, output.buffer()) {
            (Encoded::NoRoom, _) => return false,
            (Encoded::TooLarge { log_filter }, _) => {
                if let Some(filter) = log_filter {
                    let client_id = session.client_id();
                    log::warn!(
                        "client {client_id:?} leaves messages of {filter:?}: it takes none that large"
                    );
                }
                self.schedule_consumers(slot);
            }
            (Encoded::Sent, bytes) => {
                session.reserve_place(io.clock.now_ms);
                self.deliveries.counters_mut().count_publish_sent(bytes);
            }
        }
        true
    }

    /// PUBACK of a message of a queue.
    pub(super) fn on_queue_ack(&mut self, slot: u32, ack: &Ack<'_>) {
        let session = self.sessions.at(slot);
        let Some(consumers) = session.consumers_mut() else { return };
        if consumers.settle(ack.packet_id, disposition(ack.reason, &ack.user_properties)) {
            session.free_place();
            self.schedule_consumers(slot);
        }
    }

    /// Whether a consumer exists.
    pub(crate) fn has_consumer(&self, consumer: u64) -> bool {
        self.queues.owner(consumer).is_some()
    }

    /// Lets the refused consumers of a session ask again after a while.
    pub(crate) fn retry_consumers_later(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        self.queues.retry_later(key);
        io.set_timer(io.clock.now_ms + RETRY_REFUSED_MS, Timer::Queues.token());
    }

    /// Grants or refuses the filters of SUBACKs that waited for a queue. They are sent with the pending acks.
    pub(crate) fn release_subacks(
        &mut self,
        slot: u32,
        subacks: Vec<(u64, usize)>,
        refused: Option<(ReasonCode, AckCondition)>,
    ) {
        let key = self.sessions.key(slot);
        let ext = self.sessions.at(slot).ext();
        for (number, index) in subacks {
            if let Some((reason, wait)) = refused {
                ext.acks.refuse(number, index, reason, wait.commit);
            }
            ext.acks.on_receipt(number, None);
        }
        if let Some((_, wait)) = refused.filter(|(_, wait)| wait.commit > 0) {
            self.persistence.commits_mut().wake_with(wait.commit, key);
        }
    }
}
