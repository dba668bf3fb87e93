//! Subscriptions of sessions: limits, changes, and memberships in groups.
//!
//! Every subscription costs memory, and wildcards cost time with each publish, so a session has limits: number, memory,
//! and levels of distinct wildcard shapes. What exceeds one is refused with a reason code of its own filter; the other
//! filters of the packet are not affected. Replacing a subscription is not a new one, and is never refused for lack of
//! room.
//!
//! The router has the subscribers of this shard, the routes those of all shards; both change here, and the journal
//! records it.

use mainstem_mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter, SubscribeOptions};
use mainstem_runtime::MemoryPressure;
use mainstem_security::SubscribeDecision;
use mainstem_topic::{has_wildcard, level_count, parse_subscription};

use super::SessionHost;
use crate::config::MqttConfig;
use crate::filter_list::{FILTERS_MAX, FilterList};
use crate::handled::ProtocolError;
use crate::journal::entry::Entry;
use crate::queue_consumers::is_of_queue;
use crate::retained_replay::RetainedReplay;
use crate::router::Subscriber;
use crate::session::account::subscription_cost;

/// Characters of a refused filter that are logged.
pub(super) const LOGGED_CHARS: usize = 128;

/// A granted subscription.
struct Granted {
    qos: QoS,
    options: SubscribeOptions,
    replay: Option<RetainedReplay>,
    /// Consumer of a queue.
    consumer: Option<u64>,
}

impl SessionHost {
    /// Refuses a SUBSCRIBE or UNSUBSCRIBE with more filters than any client needs, before anything is changed.
    pub(crate) fn check_filter_count(&mut self, slot: u32, filters: usize) -> Result<(), ProtocolError> {
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
    pub(crate) fn check_room_for_codes(
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
    pub(crate) fn subscribe(
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

    pub(crate) fn unsubscribe_one(&mut self, slot: u32, name: &str) -> ReasonCode {
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

    pub(crate) fn leave_group(&mut self, slot: u32, filter: &str, name: &str) -> ReasonCode {
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

    /// Appends a subscription to the session's journal.
    fn append_subscription(&mut self, slot: u32, filter: &str, granted: &Granted, id: u32) {
        if let Some((mut journal, session)) = self.journal(slot) {
            let options = granted.options;
            let replays = granted.replay.is_some() && options.qos > QoS::AtMostOnce;
            journal.push(&Entry::Subscribe { session, filter, options, id, replays });
        }
    }
}
