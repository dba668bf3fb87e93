//! SUBSCRIBE and UNSUBSCRIBE, and replays of retained messages to new subscriptions (3.8 to 3.11).

use std::sync::Arc;

use mainstem_mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter, SubscribeOptions};
use mainstem_runtime::{ConnId, Io, MemoryPressure};
use mainstem_security::SubscribeDecision;
use mainstem_topic::{has_wildcard, level_count, parse_subscription};

use super::{Handled, Next, ProtocolError, Shard};
use crate::broker_state::Mail;
use crate::config::MqttConfig;
use crate::filter_list::{FILTERS_MAX, FilterList, HandledFilters};
use crate::journal::entry::Entry;
use crate::message::Message;
use crate::pending_acks::AckKind;
use crate::queue_consumers::is_of_queue;
use crate::retained_replay::{ReplayRoom, RetainedReplay};
use crate::router::Subscriber;
use crate::session::account::subscription_cost;
use crate::session::delivery::SENT_AT_ONCE;
use crate::session::offer::Offer;

/// Batches of retained messages for one session in one turn.
const REPLAY_BATCHES_PER_TURN: u32 = 16;
/// Cost of sending a message from a queue or again, units.
const QUEUED_UNITS: u32 = 3;
/// Cost of reading a batch and of visiting a retained message, in units, visits for one unit, and bytes of the filter
/// for one unit.
const REPLAY_BATCH_UNITS: u32 = 5;
const VISITS_PER_UNIT: u32 = 2;
const REPLAY_BYTES_PER_UNIT: usize = 256;
/// Cost of a filter of a SUBSCRIBE or UNSUBSCRIBE, units, and the bytes of it that cost one more.
const FILTER_UNITS: u32 = 8;
const FILTER_BYTES_PER_UNIT: usize = 16;

/// Characters of a refused filter that are logged.
const LOGGED_CHARS: usize = 128;

/// A granted subscription.
struct Granted {
    qos: QoS,
    options: SubscribeOptions,
    replay: Option<RetainedReplay>,
    /// Consumer of a queue.
    consumer: Option<u64>,
}

impl Shard {
    /// SUBSCRIBE or UNSUBSCRIBE, from its beginning or from where an earlier turn has left it. Filters are handled as
    /// long as the share of the connection lasts; the acknowledgement follows the last one.
    pub(super) fn on_filters(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        is_subscribe: bool,
        frame: &[u8],
    ) -> Handled {
        if self.sessions.at(slot).ext_ref().is_some_and(|ext| ext.acks.is_full()) {
            return Ok(Next::Hold);
        }
        let mut list = match self.connections.take_filter_list(conn) {
            // Nobody waits for the acknowledgement of the rest.
            Some(_) if io.peer_has_closed(conn) => return Ok(Next::Packet),
            Some(list) => list,
            None => Box::new(FilterList::new(self.connections.version(conn), frame)?),
        };
        let before = self.persistence.position();
        let is_complete = self.handle_filters(io, slot, is_subscribe, frame, &mut list)?;
        list.wait_for(self.persistence.condition_since(before));
        if !is_complete {
            self.connections.put_filter_list(conn, list);
            return Ok(Next::Hold);
        }
        let HandledFilters { packet_id, reasons, mut condition, consumers } = list.finish();
        let kind = AckKind::List { is_subscribe, packet_id, reasons };
        let token = (!consumers.is_empty()).then(|| self.next_ack_token(slot));
        for (consumer, index) in consumers {
            let number = token.map_or(0, |token| token.number);
            condition.receipts += u32::from(self.hold_suback(slot, consumer, (number, index)));
        }
        self.ack(io, slot, condition, token, kind);
        Ok(Next::Packet)
    }

    /// Checks all filters, then handles them, as long as the share of the connection lasts. Returns whether all were
    /// handled.
    fn handle_filters(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        is_subscribe: bool,
        frame: &[u8],
        list: &mut FilterList,
    ) -> Result<bool, ProtocolError> {
        loop {
            let checked = list.check(frame)?;
            io.charge(checked.units);
            self.check_filter_count(slot, list.count())?;
            if checked.is_complete {
                break;
            }
            if io.is_exhausted() {
                return Ok(false);
            }
        }
        self.check_room_for_codes(slot, frame.len(), list.count())?;
        let id = list.subscription_id();
        while let Some(asked) = list.next(frame)? {
            io.charge(FILTER_UNITS + (asked.filter.len() / FILTER_BYTES_PER_UNIT) as u32);
            let reason = if is_subscribe {
                self.subscribe(slot, &asked, id, list)?
            } else {
                self.unsubscribe(io, slot, asked.filter)
            };
            list.push(reason);
            if io.is_exhausted() {
                // The next turn finds out whether this was the last one.
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses a SUBSCRIBE or UNSUBSCRIBE with more filters than any client needs, before anything is changed.
    fn check_filter_count(&mut self, slot: u32, filters: usize) -> Result<(), ProtocolError> {
        let filters_max = FILTERS_MAX.max(self.config().max_subscriptions_per_session as usize);
        if filters <= filters_max {
            return Ok(());
        }
        let client_id = self.sessions.at(slot).client_id();
        log::info!(
            "client {client_id:?}: a SUBSCRIBE or UNSUBSCRIBE has more than {filters_max} filters, the larger of {FILTERS_MAX} and mqtt.max_subscriptions_per_session"
        );
        let what = "more filters in one packet than the server handles";
        Err(ProtocolError::new(ReasonCode::QuotaExceeded, what))
    }

    /// Refuses a SUBSCRIBE or UNSUBSCRIBE whose acknowledgement would be too large for the client, before anything is
    /// changed: the client would wait for it forever.
    fn check_room_for_codes(
        &mut self,
        slot: u32,
        request_len: usize,
        filters: usize,
    ) -> Result<(), ProtocolError> {
        let room = self.sessions.at(slot).packet_max() as usize;
        // A code is shorter than its filter.
        if request_len <= room {
            return Ok(());
        }
        // Packet identifier, no properties, and a code per filter.
        let remaining = 2 + 1 + filters;
        let remaining_length_bytes = 1 + remaining.checked_ilog2().unwrap_or(0) as usize / 7;
        if 1 + remaining_length_bytes + remaining <= room {
            return Ok(());
        }
        let what = "the SUBACK or UNSUBACK would exceed the client's Maximum Packet Size [MQTT-3.1.2-24]";
        Err(ProtocolError::new(ReasonCode::PacketTooLarge, what))
    }

    /// Handles one filter of a SUBSCRIBE. Returns its reason code.
    fn subscribe(
        &mut self,
        slot: u32,
        asked: &SubscribeFilter<'_>,
        id: u32,
        list: &mut FilterList,
    ) -> Result<u8, ProtocolError> {
        let granted = match self.subscribe_one(slot, asked, id)? {
            Ok(granted) => granted,
            Err(reason) => return Ok(reason as u8),
        };
        self.append_subscription(slot, asked.filter, &granted, id);
        if let Some(consumer) = granted.consumer {
            list.add_consumer(consumer);
        }
        if let Some(replay) = granted.replay {
            self.sessions.at(slot).ext().retained.start(replay);
        }
        Ok(granted.qos as u8)
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
        let decision = self.may_subscribe(slot, parsed.filter);
        // A group gives a message to one member, which must be allowed to get it.
        if decision == SubscribeDecision::Refused
            || (decision == SubscribeDecision::Narrowed && parsed.group.is_some())
        {
            return Ok(Err(ReasonCode::NotAuthorized));
        }
        if decision == SubscribeDecision::Narrowed {
            self.sessions.at(slot).set_narrowed(true);
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
        let qos = asked.options.qos.min(self.config().qos_max());
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
        let replay = wants_retained.then(|| {
            // Whatever is retained from now on finds the subscription.
            RetainedReplay::new(parsed.filter, options, id, self.shared.retained.changes())
        });
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

    /// Whether a session may have another subscription, to `filter`, of this [cost](subscription_cost). If its account
    /// is full, the first refusal is logged.
    pub(super) fn has_room_for_subscription(&mut self, slot: u32, filter: &str, cost: usize) -> bool {
        let MqttConfig { max_subscriptions_per_session, max_session_bytes, .. } = *self.config();
        let session = self.sessions.at(slot);
        if self.deliveries.pressure() >= MemoryPressure::Critical
            || session.subscription_count() >= max_subscriptions_per_session as usize
        {
            return false;
        }
        let has_room = session.has_room_for(cost as u64, max_session_bytes);
        if !has_room && session.refuses_first() {
            let client_id = session.client_id();
            let filter: String = filter.chars().take(LOGGED_CHARS).collect();
            log::warn!(
                "client {client_id:?}: subscription {filter:?} is refused: its session would have more than {max_session_bytes} bytes (mqtt.max_session_bytes)"
            );
        }
        has_room
    }

    /// Counts the shape of a new filter. False, with one log line per session, if the session has too many.
    fn has_room_for_shape(&mut self, slot: u32, filter: &str) -> bool {
        let config = &self.shared.config;
        let levels_max = config.max_wildcard_levels_per_session;
        let session = self.sessions.at(slot);
        if session.shapes_mut().is_none() {
            let filters = session.subscription_count() as u64 + 1;
            if filters * u64::from(config.max_topic_levels) <= u64::from(levels_max) {
                // Whatever their shapes are.
                return true;
            }
            session.count_shapes(|filter| self.shared.routes.wildcard_name(filter));
        }
        let Some(shapes) = session.shapes_mut() else { return true };
        let has_room = shapes.add(filter, levels_max);
        if !has_room && shapes.refuses_first() {
            let client_id = session.client_id();
            log::warn!(
                "client {client_id:?}: subscription {filter:?} is refused: its wildcard filters have too many different shapes, more than {levels_max} levels of them (mqtt.max_wildcard_levels_per_session)"
            );
        }
        has_room
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
        let cost = subscription_cost(filter, "");
        if !self.has_room_for_subscription(slot, filter, cost) || !self.has_room_for_shape(slot, filter) {
            return None;
        }
        self.sessions.at(slot).count_subscription(cost);
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
        let cost = subscription_cost(filter, name);
        if is_new
            && !(self.has_room_for_subscription(slot, filter, cost) && self.has_room_for_shape(slot, filter))
        {
            return None;
        }
        let session = self.sessions.at(slot);
        let member = session.member(options, id);
        let group = self.shared.routes.join(filter, name, member);
        if is_new {
            session.add_group(group);
            session.count_subscription(cost);
            let counters = self.deliveries.counters_mut();
            counters.subscriptions += 1;
            counters.shared_subscriptions += 1;
        }
        Some(is_new)
    }

    /// Handles one filter of an UNSUBSCRIBE. Returns its reason code.
    fn unsubscribe(&mut self, io: &mut Io<'_, Mail>, slot: u32, filter: &str) -> u8 {
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
        reason as u8
    }

    fn unsubscribe_one(&mut self, slot: u32, name: &str) -> ReasonCode {
        let Some(filter) = self.shared.routes.find(name) else { return ReasonCode::NoSubscriptionExisted };
        let session = self.sessions.at(slot);
        let Some(subscription) = session.remove_subscription(filter) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        if let Some(shapes) = session.shapes_mut() {
            shapes.remove(name);
        }
        if let Some(ext) = session.ext_mut() {
            ext.retained.remove(name);
        }
        session.discount_subscription(subscription_cost(name, ""));
        self.router.remove(&self.shared.routes, &mut self.sessions, [subscription]);
        self.deliveries.counters_mut().subscriptions -= 1;
        ReasonCode::Success
    }

    pub(super) fn leave_group(&mut self, slot: u32, filter: &str, name: &str) -> ReasonCode {
        let session = self.sessions.at(slot);
        let key = session.key();
        let Some(group) = session.remove_group(name, filter) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        if let Some(shapes) = session.shapes_mut() {
            shapes.remove(filter);
        }
        session.discount_subscription(subscription_cost(filter, name));
        self.shared.routes.leave(&group, key);
        let counters = self.deliveries.counters_mut();
        counters.subscriptions -= 1;
        counters.shared_subscriptions -= 1;
        ReasonCode::Success
    }

    /// Sends a session what waits for it: what must be sent again, retained messages, then its queue.
    #[inline]
    pub(super) fn pump(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        if self.sessions.at(slot).has_waiting() {
            self.pump_waiting(io, slot);
        }
    }

    fn pump_waiting(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let sent_before = self.deliveries.counters().publish_sent;
        self.send_waiting(io, slot);
        io.charge((self.deliveries.counters().publish_sent - sent_before) as u32 * QUEUED_UNITS);
    }

    fn send_waiting(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let mut room = SENT_AT_ONCE;
        if self.deliveries.resend(io, &mut self.persistence, self.sessions.at(slot), &mut room) {
            self.send_queued(io, slot, &mut room);
        }
        if room == 0 {
            self.continue_in_next_turn(slot);
        }
    }

    fn send_queued(&mut self, io: &mut Io<'_, Mail>, slot: u32, room: &mut usize) {
        let is_over = self.replay_retained(io, slot);
        let session = self.sessions.at(slot);
        if is_over || session.is_durable() {
            let waited = session.queue_len();
            self.deliveries.drain_queue(io, &mut self.persistence, session, room);
            if !is_over && session.queue_len() < waited && session.retained_replay_room() > 0 {
                // What has left may be QoS 0, and no acknowledgement would continue the replay.
                self.continue_in_next_turn(slot);
            }
        }
        self.pump_queues(io, slot);
    }

    /// Continues what a session is sent in the next turn.
    fn continue_in_next_turn(&mut self, slot: u32) {
        let session = self.sessions.at(slot);
        if session.ext().retained.schedule() {
            self.continuing.add(session.key());
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
        let session_bytes_max = self.config().max_session_bytes;
        let mut found = Vec::new();
        for _ in 0..REPLAY_BATCHES_PER_TURN {
            let session = self.sessions.at(slot);
            let window = session.retained_replay_room();
            let has_window = if session.is_durable() { window > 0 } else { session.has_window_room() }
                && session.has_room_in_flight(1, session_bytes_max);
            let room = ReplayRoom { has_window, window, has_output: io.has_ample_room(session.conn()) };
            let replays = &mut session.ext().retained;
            if replays.is_empty() {
                return true;
            }
            let read = replays.read(&self.shared.retained, room, io.clock.now_ms, &mut found);
            session.update_charge();
            let Some(batch) = read else { return false };
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
                    is_fan_out: false,
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
            let filter_units = (batch.filter.len() / REPLAY_BYTES_PER_UNIT) as u32;
            io.charge(REPLAY_BATCH_UNITS + batch.visited / VISITS_PER_UNIT + filter_units);
            if io.is_exhausted() {
                break;
            }
        }
        if self.sessions.at(slot).ext().retained.is_empty() {
            return true;
        }
        self.continue_in_next_turn(slot);
        false
    }
}
