//! The subscribers of one shard by filter, and the fan-out of a message to them.
//!
//! A filter's list holds one entry per session; the session notes the entry's position, so that a subscription ends
//! without a search. A client that matches a message by several subscriptions gets one copy at the highest QoS, with
//! all Subscription Identifiers [MQTT-3.3.4-2, MQTT-3.3.4-3]: sessions are marked with the number of the fan-out to
//! find such duplicates without a set.

mod divided;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use mainstem_mqtt::{QoS, SubscribeOptions};
use mainstem_topic::FilterId;

use crate::message::Message;
use crate::routes::{Cache, Matched, Routes, new_cache};
use crate::session::offer::Offer;
use crate::session::{Session, Sessions, Subscription};
use divided::{LONG_MIN, ListCursor, move_hole, note_visited};

/// A subscriber of a filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscriber {
    /// Slot of the session.
    pub(crate) session: u32,
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
}

/// A client and everything by which it matches a message.
#[derive(Debug)]
struct Hit {
    session: u32,
    qos: QoS,
    retain: bool,
    ids: Vec<u32>,
}

/// Number of subscriptions of a shard from which the output of a message may wait for more: its writes take about
/// a millisecond.
const FAN_OUT_MIN: usize = 128;

/// Room for fewer lists is kept.
const SPARSE_MIN: usize = 1024;
/// The lists are sparse if there is room for more than this many times their number. Fewer moves would not pay.
const SPARSE: usize = 8;

/// What a fan-out has come to on one shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FanOut {
    pub(crate) receivers: u32,
    /// Number of subscriptions visited: more than receivers if those of a client overlap.
    pub(crate) visited: u32,
    /// There are so many receivers that they got it as [`Offer::is_fan_out`].
    pub(crate) is_large: bool,
}

pub(crate) struct Router {
    /// Number of the shard.
    shard: u16,
    one_copy_per_client: bool,
    subscribers: HashMap<FilterId, Vec<Subscriber>, foldhash::fast::RandomState>,
    cache: Cache,
    /// Number of the last fan-out that marked sessions.
    fan_out: u64,
    hits: Vec<Hit>,
    /// Number of lists with at least `LONG_MIN` subscribers.
    long_lists: usize,
    /// Those of divided fan-outs that have begun, each in the order of its lists.
    cursors: Vec<ListCursor>,
    /// Slots of sessions that have left a list which a divided fan-out had visited, with the number of the fan-out:
    /// they may be in others of its lists.
    visited_before: HashSet<(u64, u32), foldhash::fast::RandomState>,
}

impl Router {
    pub(crate) fn new(shard: u16, one_copy_per_client: bool) -> Self {
        Self {
            shard,
            one_copy_per_client,
            subscribers: HashMap::default(),
            cache: new_cache(),
            fan_out: 0,
            hits: Vec::new(),
            long_lists: 0,
            cursors: Vec::new(),
            visited_before: HashSet::default(),
        }
    }

    /// Everything that matches `topic`, on all shards. Also returns the cost, units.
    pub(crate) fn matched(&mut self, routes: &Routes, topic: &str) -> (Arc<Matched>, u32) {
        routes.matched(&mut self.cache, topic)
    }

    /// The subscriber that a session's subscription refers to.
    pub(crate) fn subscriber(&self, subscription: Subscription) -> Option<Subscriber> {
        self.subscribers.get(&subscription.filter)?.get(subscription.position as usize).copied()
    }

    /// Replaces the subscription of a session to `filter`. False if there is none.
    pub(crate) fn replace(
        &mut self,
        routes: &Routes,
        filter: &str,
        session: &Session,
        subscriber: Subscriber,
    ) -> bool {
        let Some(filter) = routes.find(filter) else { return false };
        let Some(list) = self.subscribers.get_mut(&filter) else { return false };
        let Some(subscription) = session.subscription(filter) else { return false };
        list[subscription.position as usize] = subscriber;
        true
    }

    /// Adds a subscriber that has no subscription to `filter`.
    pub(crate) fn add(
        &mut self,
        routes: &Routes,
        filter: &str,
        session: &mut Session,
        subscriber: Subscriber,
    ) {
        let known = routes.find(filter).filter(|filter| self.subscribers.contains_key(filter));
        let filter = known.unwrap_or_else(|| routes.add_shard(filter, self.shard));
        let list = self.subscribers.entry(filter).or_default();
        let subscription = Subscription { filter, position: list.len() as u32 };
        list.push(subscriber);
        self.long_lists += usize::from(list.len() == LONG_MIN);
        session.add_subscription(subscription);
    }

    /// Removes subscribers from their filters' lists. The caller has removed them from their session. Those of one call
    /// change the index at once. Returns the length of the filters that are gone, bytes.
    pub(crate) fn remove(
        &mut self,
        routes: &Routes,
        sessions: &mut Sessions,
        subscriptions: impl IntoIterator<Item = Subscription>,
    ) -> usize {
        let mut vacant = Vec::new();
        for Subscription { filter, position } in subscriptions {
            let Some(list) = self.subscribers.get_mut(&filter) else { continue };
            self.long_lists -= usize::from(list.len() == LONG_MIN);
            let position = if self.cursors.is_empty() {
                position
            } else {
                let leaving = list[position as usize];
                note_visited(&mut self.visited_before, &self.cursors, filter, position, leaving);
                move_hole(&mut self.cursors, sessions, filter, list, position)
            };
            list.swap_remove(position as usize);
            if let Some(moved) = list.get(position as usize) {
                sessions.at(moved.session).set_position(filter, position);
            }
            if list.is_empty() {
                self.subscribers.remove(&filter);
                vacant.push(filter);
            }
        }
        self.give_back_memory();
        routes.remove_shard(&vacant, self.shard)
    }

    /// Gives back memory of lists that are gone, if it was room for many more than are left.
    fn give_back_memory(&mut self) {
        let room = self.subscribers.allocation_size() / (size_of::<(FilterId, Vec<Subscriber>)>() + 1);
        if room >= SPARSE_MIN && self.subscribers.len() * SPARSE < room {
            self.subscribers.shrink_to(2 * self.subscribers.len());
        }
    }

    /// Calls `offer` for every subscriber of this shard that gets the message.
    #[inline]
    pub(crate) fn offer_to_all(
        &mut self,
        sessions: &mut Sessions,
        message: &Arc<Message>,
        matched: &Matched,
        mut offer: impl FnMut(&mut Session, &Offer<'_>),
    ) -> FanOut {
        let me = self.shard;
        let mine = 1 << me;
        let mut lists = matched
            .filters
            .iter()
            .filter(|(_, shards)| shards & mine != 0)
            .filter_map(|(filter, _)| self.subscribers.get(filter));
        let (Some(first), second) = (lists.next(), lists.next()) else { return FanOut::default() };
        let Some(second) = second.filter(|_| self.one_copy_per_client) else {
            let mut receivers = 0;
            let is_large = first.len() + second.map_or(0, Vec::len) >= FAN_OUT_MIN;
            for subscriber in first.iter().chain(second.into_iter().chain(lists).flatten()) {
                receivers += 1;
                if is_own(me, sessions, message, subscriber) {
                    continue;
                }
                let each = Offer {
                    message,
                    qos: message.qos.min(subscriber.options.qos),
                    retain: message.retain && subscriber.options.retain_as_published,
                    ids: if subscriber.id == 0 { &[] } else { std::slice::from_ref(&subscriber.id) },
                    group: None,
                    is_replayed: false,
                    is_fan_out: is_large,
                };
                offer(sessions.at(subscriber.session), &each);
            }
            return FanOut { receivers, visited: receivers, is_large };
        };
        self.fan_out += 1;
        self.hits.clear();
        let mut visited = 0;
        for subscriber in [first, second].into_iter().chain(lists).flatten() {
            visited += 1;
            if !is_own(me, sessions, message, subscriber) {
                add_hit(&mut self.hits, self.fan_out, sessions.at(subscriber.session), message, subscriber);
            }
        }
        let is_fan_out = self.hits.len() >= FAN_OUT_MIN;
        for Hit { session, qos, retain, ids } in &self.hits {
            let (qos, retain) = (*qos, *retain);
            let each = Offer { message, qos, retain, ids, group: None, is_replayed: false, is_fan_out };
            offer(sessions.at(*session), &each);
        }
        FanOut { receivers: self.hits.len() as u32, visited, is_large: is_fan_out }
    }
}

fn add_hit(
    hits: &mut Vec<Hit>,
    fan_out: u64,
    session: &mut Session,
    message: &Message,
    subscriber: &Subscriber,
) {
    let index = session.mark(fan_out, hits.len() as u32) as usize;
    if index == hits.len() {
        let session = subscriber.session;
        hits.push(Hit { session, qos: QoS::AtMostOnce, retain: false, ids: Vec::new() });
    }
    let hit = &mut hits[index];
    hit.qos = hit.qos.max(message.qos.min(subscriber.options.qos));
    hit.retain |= message.retain && subscriber.options.retain_as_published;
    if subscriber.id != 0 {
        hit.ids.push(subscriber.id);
    }
}

/// Whether the subscriber published the message itself and does not want it back [MQTT-3.8.3-3].
#[inline]
fn is_own(me: u16, sessions: &mut Sessions, message: &Message, subscriber: &Subscriber) -> bool {
    subscriber.options.no_local
        && message.publisher.is_some_and(|publisher| {
            publisher.shard == me && publisher.slot == subscriber.session && sessions.get(publisher).is_some()
        })
}
