//! SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a subscription brings (3.8 to 3.11).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use mainstem_mqtt::{
    QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilter, SubscribeOptions, Unsubscribe,
};
use mainstem_runtime::Io;
use mainstem_topic::{has_wildcard, level_count, parse_subscription};

use crate::answers::What;
use crate::groups::{Load, Member};
use crate::journal::entry::Entry;
use crate::message::Message;
use crate::offer::Offer;
use crate::retained::Cursor;
use crate::session::{Rare, RetainedWalk, Subscription};
use crate::shard::{Handled, Next, Refusal, Shard, Subscriber};
use crate::shared::Mail;
use crate::work::is_of_queue;

/// Retained messages handed to one new subscription at a time.
const WALK_PIECE: usize = 64;
/// Pieces of one session's walks in one turn.
const WALK_PIECES_PER_TURN: u32 = 16;

impl Shard {
    pub(crate) fn on_subscribe(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        subscribe: &Subscribe<'_>,
    ) -> Handled {
        let id = subscribe.subscription_id.unwrap_or(0);
        let mut reasons = Vec::new();
        let mut walks = Vec::new();
        let mut consumers = Vec::new();
        let (outcome, mut wait) = self.entering(|shard| {
            for asked in &subscribe.filters {
                match shard.subscribe_one(slot, &asked, id)? {
                    Ok(granted) => {
                        shard.enter_subscription(slot, asked.filter, &granted, id);
                        consumers.extend(granted.consumer.map(|consumer| (consumer, reasons.len())));
                        reasons.push(granted.qos as u8);
                        walks.extend(granted.walk);
                    }
                    Err(reason) => reasons.push(reason as u8),
                }
            }
            Ok::<(), Refusal>(())
        });
        outcome?;
        self.work += reasons.len() as u32;
        let packet_id = subscribe.packet_id;
        let what = What::List { is_subscribe: true, packet_id, reasons: reasons.into() };
        let receipt = (!consumers.is_empty()).then(|| self.receipt_for(slot));
        for (consumer, index) in consumers {
            let number = receipt.map_or(0, |receipt| receipt.number);
            wait.receipts += u32::from(self.hold_suback(slot, consumer, (number, index)));
        }
        self.answer(io, slot, wait, receipt, what);
        if !walks.is_empty() {
            // Subscribing again begins again; it does not add a second walk.
            let begun = walks.into_iter().map(|walk: RetainedWalk| (walk.cursor.filter().into(), walk));
            self.deliveries.sessions.at(slot).rare().walks.extend(begun);
        }
        Ok(Next::Packet)
    }

    /// Outer error: the connection must end. Inner error: only this filter is refused.
    fn subscribe_one(
        &mut self,
        slot: u32,
        asked: &SubscribeFilter<'_>,
        id: u32,
    ) -> Result<Result<Granted, ReasonCode>, Refusal> {
        let Ok(parsed) = parse_subscription(asked.filter) else {
            return Ok(Err(ReasonCode::TopicFilterInvalid));
        };
        if parsed.group.is_some() && asked.options.no_local {
            let what = "No Local on a shared subscription [MQTT-3.8.3-4]";
            return Err(Refusal::new(ReasonCode::ProtocolError, what));
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
                walk: None,
                consumer: Some(consumer),
            }));
        }
        let qos = asked.options.qos.min(config.qos_max());
        let options = SubscribeOptions { qos, ..asked.options };
        let added = match parsed.group {
            Some(group) => self.join(slot, parsed.filter, group, options, id),
            None => self.add_subscriber(slot, parsed.filter, Subscriber { session: slot, options, id }),
        };
        let Some(is_new) = added else { return Ok(Err(ReasonCode::QuotaExceeded)) };
        let wants_retained = parsed.group.is_none()
            && match options.retain_handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => is_new,
                RetainHandling::DoNotSend => false,
            };
        let walk = wants_retained.then(|| RetainedWalk { cursor: Cursor::new(parsed.filter), options, id });
        Ok(Ok(Granted { qos, options, walk, consumer: None }))
    }

    /// Lets the session's journal know of a subscription.
    fn enter_subscription(&mut self, slot: u32, filter: &str, granted: &Granted, id: u32) {
        if let Some((journal, session)) = self.journal(slot) {
            let options = granted.options;
            let walks = granted.walk.is_some() && options.qos > QoS::AtMostOnce;
            journal.push(&Entry::Subscribe { session, filter, options, id, walks });
        }
    }

    pub(crate) fn has_room_for_subscription(&mut self, slot: u32) -> bool {
        let most = self.config().max_subscriptions_per_session as usize;
        let session = self.deliveries.sessions.at(slot);
        let elsewhere = session.rare.as_ref().map_or(0, |rare| {
            rare.groups.len() + rare.worker.as_ref().map_or(0, |worker| worker.subscriptions.len())
        });
        session.subscriptions.len() + elsewhere < most
    }

    /// Adds or replaces a subscription. True if it is new; nothing if there is no room for it.
    pub(crate) fn add_subscriber(&mut self, slot: u32, filter: &str, subscriber: Subscriber) -> Option<bool> {
        let known = self.shared.routes.find(filter).filter(|filter| self.local.contains_key(filter));
        let session = self.deliveries.sessions.at(slot);
        if let Some(filter) = known
            && let Ok(index) = session.find(filter)
        {
            let position = session.subscriptions[index].position as usize;
            if let Some(list) = self.local.get_mut(&filter) {
                list[position] = subscriber;
            }
            return Some(false);
        }
        if !self.has_room_for_subscription(slot) {
            return None;
        }
        let filter = known.unwrap_or_else(|| self.shared.routes.add_shard(filter, self.me));
        let list = self.local.entry(filter).or_default();
        let subscription = Subscription { filter, position: list.len() as u32 };
        list.push(subscriber);
        let session = self.deliveries.sessions.at(slot);
        if let Err(index) = session.find(filter) {
            session.subscriptions.insert(index, subscription);
        }
        self.deliveries.counters.subscriptions += 1;
        Some(true)
    }

    /// Takes a subscriber out of its filter's list. The session's own note of it is the caller's.
    pub(crate) fn remove_subscriber(&mut self, Subscription { filter, position }: Subscription) {
        let Some(list) = self.local.get_mut(&filter) else { return };
        list.swap_remove(position as usize);
        if let Some(moved) = list.get(position as usize) {
            let session = self.deliveries.sessions.at(moved.session);
            if let Ok(index) = session.find(filter) {
                session.subscriptions[index].position = position;
            }
        }
        if list.is_empty() {
            self.local.remove(&filter);
            self.shared.routes.remove_shard(filter, self.me);
        }
    }

    pub(crate) fn join(
        &mut self,
        slot: u32,
        filter: &str,
        name: &str,
        options: SubscribeOptions,
        id: u32,
    ) -> Option<bool> {
        let key = self.deliveries.sessions.key(self.me, slot);
        let rare = self.deliveries.sessions.at(slot).rare();
        let is_new = !rare.groups.iter().any(|group| *group.name == *name && *group.filter == *filter);
        if is_new && !self.has_room_for_subscription(slot) {
            return None;
        }
        let rare = self.deliveries.sessions.at(slot).rare();
        let load = rare.load.get_or_insert_with(|| {
            let load = Load::default();
            load.online.store(true, Ordering::Relaxed);
            Arc::new(load)
        });
        let member = Member { key, options, id, load: Arc::clone(load) };
        let group = self.shared.routes.join(filter, name, member);
        if is_new {
            self.deliveries.sessions.at(slot).rare().groups.push(group);
            self.deliveries.counters.subscriptions += 1;
            self.deliveries.counters.shared_subscriptions += 1;
        }
        Some(is_new)
    }

    pub(crate) fn on_unsubscribe(&mut self, io: &mut Io<'_, Mail>, slot: u32, unsubscribe: &Unsubscribe<'_>) {
        let mut reasons = Vec::new();
        let ((), wait) = self.entering(|shard| {
            for filter in &unsubscribe.filters {
                let reason = match parse_subscription(filter) {
                    Err(_) => ReasonCode::TopicFilterInvalid,
                    Ok(parsed) if is_of_queue(parsed.filter) => {
                        shard.unsubscribe_from_queue(io, slot, filter)
                    }
                    Ok(parsed) => match parsed.group {
                        Some(group) => shard.leave(slot, parsed.filter, group),
                        None => shard.unsubscribe_one(slot, parsed.filter),
                    },
                };
                if reason == ReasonCode::Success
                    && let Some((journal, session)) = shard.journal(slot)
                {
                    journal.push(&Entry::Unsubscribe { session, filter });
                }
                reasons.push(reason as u8);
            }
        });
        let packet_id = unsubscribe.packet_id;
        let what = What::List { is_subscribe: false, packet_id, reasons: reasons.into() };
        self.answer(io, slot, wait, None, what);
    }

    fn unsubscribe_one(&mut self, slot: u32, name: &str) -> ReasonCode {
        let Some(filter) = self.shared.routes.find(name) else { return ReasonCode::NoSubscriptionExisted };
        let session = self.deliveries.sessions.at(slot);
        let Ok(index) = session.find(filter) else { return ReasonCode::NoSubscriptionExisted };
        let subscription = session.subscriptions.remove(index);
        if let Some(rare) = &mut session.rare {
            // Nothing new is sent for a subscription that has gone [MQTT-3.10.4-2].
            rare.walks.remove(name);
            if rare.walks.is_empty() {
                rare.early = HashSet::default();
            }
        }
        self.remove_subscriber(subscription);
        self.deliveries.counters.subscriptions -= 1;
        ReasonCode::Success
    }

    fn leave(&mut self, slot: u32, filter: &str, name: &str) -> ReasonCode {
        let key = self.deliveries.sessions.key(self.me, slot);
        let groups = &mut self.deliveries.sessions.at(slot).rare().groups;
        let Some(index) = groups.iter().position(|group| *group.name == *name && *group.filter == *filter)
        else {
            return ReasonCode::NoSubscriptionExisted;
        };
        let group = groups.swap_remove(index);
        self.shared.routes.leave(&group, key);
        self.deliveries.counters.subscriptions -= 1;
        self.deliveries.counters.shared_subscriptions -= 1;
        ReasonCode::Success
    }

    /// Sends a session what waits for it: what must be sent again, retained messages, then its queue.
    pub(crate) fn pump(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        if !self.deliveries.resend(io, slot) {
            return;
        }
        let is_over = self.walk_retained(io, slot);
        let session = self.deliveries.sessions.at(slot);
        if is_over || session.lasts() {
            let waited = session.queue.len();
            self.deliveries.drain_queue(io, slot);
            let session = self.deliveries.sessions.at(slot);
            if !is_over && session.queue.len() < waited && session.walk_room() > 0 {
                // What has left is in nobody's hands, whose acknowledgement would let the walk go on.
                self.walk_soon(slot);
            }
        }
        self.pump_queues(io, slot);
    }

    /// The session's walk goes on in the next turn.
    fn walk_soon(&mut self, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let rare = self.deliveries.sessions.at(slot).rare();
        if !std::mem::replace(&mut rare.walk_is_due, true) {
            self.walking.push(key);
        }
    }

    /// A retained message has been given to a session that walks: its journal is told how far it has come.
    fn enter_walked(&mut self, slot: u32, message: &Arc<Message>, filter: &str) {
        for journal in &mut self.deliveries.journals {
            if journal.has_receivers() {
                journal.push_message(message, None, Some(filter));
            }
        }
        let (me, commit) = (self.me, self.commits.current());
        if self.deliveries.committing.pop().is_some() {
            let key = self.deliveries.sessions.key(me, slot);
            self.commits.wake_with(commit, key);
        }
    }

    /// Goes on with a session's walks through the retained messages. True if there are none left.
    fn walk_retained(&mut self, io: &mut Io<'_, Mail>, slot: u32) -> bool {
        let has_walks = |rare: &Rare| !rare.walks.is_empty();
        if !self.deliveries.sessions.at(slot).rare.as_deref().is_some_and(has_walks) {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let mut found = Vec::new();
        for _ in 0..WALK_PIECES_PER_TURN {
            let session = self.deliveries.sessions.at(slot);
            let window_room = session.walk_room();
            let has_room = if session.lasts() { window_room > 0 } else { session.has_window_room() };
            let conn = session.conn;
            let Some(rare) = session.rare.as_mut().filter(|rare| !rare.walks.is_empty()) else { return true };
            let may_go_on = |walk: &RetainedWalk| has_room || walk.options.qos == QoS::AtMostOnce;
            let Some((filter, walk)) = rare.walks.iter_mut().find(|(_, walk)| may_go_on(walk)) else {
                return false;
            };
            if !io.has_ample_room(conn) {
                return false;
            }
            let RetainedWalk { options, id, .. } = *walk;
            let limit = match options.qos {
                QoS::AtMostOnce => WALK_PIECE,
                _ => WALK_PIECE.min(usize::from(window_room)),
            };
            let filter = filter.clone();
            let is_over = shared.retained.walk(&mut walk.cursor, limit, io.clock.now_ms, &mut found);
            if is_over {
                rare.walks.remove(&filter);
            }
            found.retain(|message| !rare.early.contains(message.topic()));
            if rare.walks.is_empty() {
                rare.early = HashSet::default();
            }
            for message in found.drain(..) {
                if shared.routes.is_write_only(message.topic()) {
                    continue;
                }
                let offer = Offer {
                    message: &message,
                    qos: message.qos.min(options.qos),
                    retain: true,
                    ids: if id == 0 { &[] } else { std::slice::from_ref(&id) },
                    group: None,
                    walked: true,
                };
                self.deliveries.offer(io, slot, &offer);
                self.enter_walked(slot, &message, &filter);
            }
            if is_over
                && options.qos > QoS::AtMostOnce
                && let Some((journal, session)) = self.journal(slot)
            {
                journal.push(&Entry::WalkEnds { session, filter: &filter });
            }
            // Retained messages say nothing about who keeps up with publishers.
            self.deliveries.take_tally();
        }
        if self.deliveries.sessions.at(slot).rare().walks.is_empty() {
            return true;
        }
        self.walk_soon(slot);
        false
    }
}

/// A subscription that was made.
struct Granted {
    qos: QoS,
    options: SubscribeOptions,
    walk: Option<RetainedWalk>,
    /// Of a queue.
    consumer: Option<u64>,
}
