//! SUBSCRIBE and UNSUBSCRIBE, and replays of retained messages to new subscriptions (3.8 to 3.11).

use std::sync::Arc;

use mainstem_mqtt::{
    QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilter, SubscribeOptions, Unsubscribe,
};
use mainstem_runtime::{Io, MemoryPressure};
use mainstem_topic::{has_wildcard, level_count, parse_subscription};

use super::{Handled, Next, ProtocolError, Shard};
use crate::broker_state::Mail;
use crate::journal::entry::Entry;
use crate::message::Message;
use crate::pending_acks::AckKind;
use crate::queue_consumers::is_of_queue;
use crate::retained_replay::{ReplayRoom, RetainedReplay};
use crate::router::Subscriber;
use crate::session::offer::Offer;

/// Batches of retained messages for one session in one turn.
const REPLAY_BATCHES_PER_TURN: u32 = 16;

/// A granted subscription.
struct Granted {
    qos: QoS,
    options: SubscribeOptions,
    replay: Option<RetainedReplay>,
    /// Consumer of a queue.
    consumer: Option<u64>,
}

impl Shard {
    pub(super) fn on_subscribe(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        subscribe: &Subscribe<'_>,
    ) -> Handled {
        let id = subscribe.subscription_id.unwrap_or(0);
        let mut reasons = Vec::new();
        let mut replays = Vec::new();
        let mut consumers = Vec::new();
        let before = self.persistence.position();
        for asked in &subscribe.filters {
            match self.subscribe_one(slot, &asked, id)? {
                Ok(granted) => {
                    self.append_subscription(slot, asked.filter, &granted, id);
                    consumers.extend(granted.consumer.map(|consumer| (consumer, reasons.len())));
                    reasons.push(granted.qos as u8);
                    replays.extend(granted.replay);
                }
                Err(reason) => reasons.push(reason as u8),
            }
        }
        let mut condition = self.persistence.condition_since(before);
        self.connections.add_deliveries(reasons.len() as u32);
        let packet_id = subscribe.packet_id;
        let kind = AckKind::List { is_subscribe: true, packet_id, reasons: reasons.into() };
        let token = (!consumers.is_empty()).then(|| self.next_ack_token(slot));
        for (consumer, index) in consumers {
            let number = token.map_or(0, |token| token.number);
            condition.receipts += u32::from(self.hold_suback(slot, consumer, (number, index)));
        }
        self.ack(io, slot, condition, token, kind);
        if !replays.is_empty() {
            let retained = &mut self.sessions.at(slot).ext().retained;
            for replay in replays {
                retained.start(replay);
            }
        }
        Ok(Next::Packet)
    }

    /// Outer error: the connection must end. Inner error: only this filter is refused.
    fn subscribe_one(
        &mut self,
        slot: u32,
        asked: &SubscribeFilter<'_>,
        id: u32,
    ) -> Result<Result<Granted, ReasonCode>, ProtocolError> {
        let Ok(parsed) = parse_subscription(asked.filter) else {
            return Ok(Err(ReasonCode::TopicFilterInvalid));
        };
        if parsed.group.is_some() && asked.options.no_local {
            let what = "No Local on a shared subscription [MQTT-3.8.3-4]";
            return Err(ProtocolError::new(ReasonCode::ProtocolError, what));
        }
        let config = &self.shared.config;
        let refused = if level_count(parsed.filter) > usize::from(config.max_topic_levels) {
            Some(ReasonCode::TopicFilterInvalid)
        } else if self.shared.routes.is_write_only(parsed.filter) {
            Some(ReasonCode::NotAuthorized)
        } else if parsed.group.is_some() && !config.shared_subscription_available {
            Some(ReasonCode::SharedSubscriptionsNotSupported)
        } else if id != 0 && !config.subscription_ids_available {
            Some(ReasonCode::SubscriptionIdentifiersNotSupported)
        } else if !config.wildcard_subscription_available && has_wildcard(parsed.filter) {
            Some(ReasonCode::WildcardSubscriptionsNotSupported)
        } else {
            None
        };
        if let Some(reason) = refused {
            return Ok(Err(reason));
        }
        if is_of_queue(parsed.filter) {
            let granted = self.subscribe_to_queue(slot, asked, (parsed.filter, parsed.group), id);
            return Ok(granted.map(|(options, consumer)| Granted {
                qos: options.qos,
                options,
                replay: None,
                consumer: Some(consumer),
            }));
        }
        let qos = asked.options.qos.min(config.qos_max());
        let options = SubscribeOptions { qos, ..asked.options };
        let added = match parsed.group {
            Some(group) => self.join_group(slot, parsed.filter, group, options, id),
            None => self.add_subscriber(slot, parsed.filter, options, id),
        };
        let Some(is_new) = added else { return Ok(Err(ReasonCode::QuotaExceeded)) };
        let wants_retained = parsed.group.is_none()
            && match options.retain_handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => is_new,
                RetainHandling::DoNotSend => false,
            };
        let replay = wants_retained.then(|| RetainedReplay::new(parsed.filter, options, id));
        Ok(Ok(Granted { qos, options, replay, consumer: None }))
    }

    /// Appends a subscription to the session's journal.
    fn append_subscription(&mut self, slot: u32, filter: &str, granted: &Granted, id: u32) {
        if let Some((mut journal, session)) = self.journal(slot) {
            let options = granted.options;
            let replays = granted.replay.is_some() && options.qos > QoS::AtMostOnce;
            journal.push(&Entry::Subscribe { session, filter, options, id, replays });
        }
    }

    pub(super) fn has_room_for_subscription(&mut self, slot: u32) -> bool {
        let most = self.config().max_subscriptions_per_session as usize;
        self.deliveries.pressure() < MemoryPressure::Critical
            && self.sessions.at(slot).subscription_count() < most
    }

    /// Adds or replaces a subscription. True if it is new; `None` if the session has too many.
    pub(super) fn add_subscriber(
        &mut self,
        slot: u32,
        filter: &str,
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        let subscriber = Subscriber { session: slot, options, id };
        let routes = &self.shared.routes;
        if self.router.replace(routes, filter, self.sessions.at(slot), subscriber) {
            return Some(false);
        }
        if !self.has_room_for_subscription(slot) {
            return None;
        }
        self.router.add(&self.shared.routes, filter, self.sessions.at(slot), subscriber);
        self.deliveries.counters_mut().subscriptions += 1;
        Some(true)
    }

    /// Adds a session to a shared subscription, or replaces its membership. True if it is new; `None` if the session
    /// has too many subscriptions.
    pub(super) fn join_group(
        &mut self,
        slot: u32,
        filter: &str,
        name: &str,
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        let is_new = !self.sessions.at(slot).is_in_group(name, filter);
        if is_new && !self.has_room_for_subscription(slot) {
            return None;
        }
        let session = self.sessions.at(slot);
        let member = session.member(options, id);
        let group = self.shared.routes.join(filter, name, member);
        if is_new {
            session.add_group(group);
            let counters = self.deliveries.counters_mut();
            counters.subscriptions += 1;
            counters.shared_subscriptions += 1;
        }
        Some(is_new)
    }

    pub(super) fn on_unsubscribe(&mut self, io: &mut Io<'_, Mail>, slot: u32, unsubscribe: &Unsubscribe<'_>) {
        let mut reasons = Vec::new();
        let before = self.persistence.position();
        for filter in &unsubscribe.filters {
            let reason = match parse_subscription(filter) {
                Err(_) => ReasonCode::TopicFilterInvalid,
                Ok(parsed) if is_of_queue(parsed.filter) => self.unsubscribe_from_queue(io, slot, filter),
                Ok(parsed) => match parsed.group {
                    Some(group) => self.leave_group(slot, parsed.filter, group),
                    None => self.unsubscribe_one(slot, parsed.filter),
                },
            };
            if reason == ReasonCode::Success
                && let Some((mut journal, session)) = self.journal(slot)
            {
                journal.push(&Entry::Unsubscribe { session, filter });
            }
            reasons.push(reason as u8);
        }
        let condition = self.persistence.condition_since(before);
        let packet_id = unsubscribe.packet_id;
        let kind = AckKind::List { is_subscribe: false, packet_id, reasons: reasons.into() };
        self.ack(io, slot, condition, None, kind);
    }

    fn unsubscribe_one(&mut self, slot: u32, name: &str) -> ReasonCode {
        let Some(filter) = self.shared.routes.find(name) else { return ReasonCode::NoSubscriptionExisted };
        let session = self.sessions.at(slot);
        let Some(subscription) = session.remove_subscription(filter) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        if let Some(ext) = session.ext_mut() {
            ext.retained.remove(name);
        }
        self.router.remove(&self.shared.routes, &mut self.sessions, subscription);
        self.deliveries.counters_mut().subscriptions -= 1;
        ReasonCode::Success
    }

    fn leave_group(&mut self, slot: u32, filter: &str, name: &str) -> ReasonCode {
        let session = self.sessions.at(slot);
        let key = session.key();
        let Some(group) = session.remove_group(name, filter) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        self.shared.routes.leave(&group, key);
        let counters = self.deliveries.counters_mut();
        counters.subscriptions -= 1;
        counters.shared_subscriptions -= 1;
        ReasonCode::Success
    }

    /// Sends a session what waits for it: what must be sent again, retained messages, then its queue.
    pub(super) fn pump(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        if !self.deliveries.resend(io, &mut self.persistence, self.sessions.at(slot)) {
            return;
        }
        let is_over = self.replay_retained(io, slot);
        let session = self.sessions.at(slot);
        if is_over || session.is_durable() {
            let waited = session.queue_len();
            self.deliveries.drain_queue(io, &mut self.persistence, session);
            if !is_over && session.queue_len() < waited && session.retained_replay_room() > 0 {
                // What has left may be QoS 0, and no acknowledgement would continue the replay.
                self.schedule_retained_replay(slot);
            }
        }
        self.pump_queues(io, slot);
    }

    /// Continues the replays of a session in the next turn.
    fn schedule_retained_replay(&mut self, slot: u32) {
        let session = self.sessions.at(slot);
        if session.ext().retained.schedule() {
            self.retained_replays.push(session.key());
        }
    }

    /// Appends a replayed message for its receiver, with the filter whose replay has come this far.
    fn append_replayed(&mut self, message: &Arc<Message>, filter: &str) {
        for mut journal in self.persistence.open_journals() {
            if journal.has_receivers() {
                journal.push_message(message, None, Some(filter));
            }
        }
        for slot in self.deliveries.drain_committing() {
            self.persistence.wake_with_current(self.sessions.key(slot));
        }
    }

    /// Continues the replays of retained messages to a session. True if there are none left.
    fn replay_retained(&mut self, io: &mut Io<'_, Mail>, slot: u32) -> bool {
        if self.sessions.at(slot).ext_ref().is_none_or(|ext| ext.retained.is_empty()) {
            return true;
        }
        let mut found = Vec::new();
        for _ in 0..REPLAY_BATCHES_PER_TURN {
            let session = self.sessions.at(slot);
            let window = session.retained_replay_room();
            let has_window = if session.is_durable() { window > 0 } else { session.has_window_room() };
            let room = ReplayRoom { has_window, window, has_output: io.has_ample_room(session.conn()) };
            let replays = &mut session.ext().retained;
            if replays.is_empty() {
                return true;
            }
            let Some(batch) = replays.read(&self.shared.retained, room, io.clock.now_ms, &mut found) else {
                return false;
            };
            for message in found.drain(..) {
                if self.shared.routes.is_write_only(message.topic()) {
                    continue;
                }
                let offer = Offer {
                    message: &message,
                    qos: message.qos.min(batch.options.qos),
                    retain: true,
                    ids: if batch.id == 0 { &[] } else { std::slice::from_ref(&batch.id) },
                    group: None,
                    is_replayed: true,
                };
                self.deliveries.offer(io, &mut self.persistence, self.sessions.at(slot), &offer);
                self.append_replayed(&message, &batch.filter);
            }
            if batch.is_last
                && batch.options.qos > QoS::AtMostOnce
                && let Some((mut journal, session)) = self.journal(slot)
            {
                journal.push(&Entry::ReplayEnds { session, filter: &batch.filter });
            }
            // Retained messages do not count for the pressure on publishers.
            self.deliveries.take_tally();
        }
        if self.sessions.at(slot).ext().retained.is_empty() {
            return true;
        }
        self.schedule_retained_replay(slot);
        false
    }
}
