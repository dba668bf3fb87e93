//! Fan-outs to very many subscribers, a part at a time.
//!
//! A message for a hundred thousand subscribers takes tens of milliseconds, and nobody else is served meanwhile unless
//! it is divided over several turns. Lists of subscribers change in between. A [`ListCursor`] divides a list into the
//! subscribers that were visited, those that are still to be, and those that have come since the fan-out began. Entries
//! that a removal moves stay in their part, so each subscriber is visited once, whoever subscribes or leaves meanwhile.
//! A copy of the list would do too, but it could not tell who has left, and costs memory for each fan-out.
//!
//! Sessions cannot be marked to find those with overlapping subscriptions, because other fan-outs come in between. A
//! session gets the message when the first of its lists is visited, by a search for its other subscriptions.

use std::sync::Arc;

use hashbrown::HashSet;
use mainstem_topic::FilterId;

use super::{FanOut, Router, Subscriber, is_own};
use crate::message::Message;
use crate::routes::Matched;
use crate::session::offer::Offer;
use crate::session::{Session, Sessions};

/// Fan-outs that visit as many subscriptions, or more, are divided: they take about half a millisecond.
const DIVIDED_MIN: usize = 4096;
/// Lists of this length are counted. Without any, no fan-out to [`DIVIDED_LISTS_MAX`] lists takes long.
pub(super) const LONG_MIN: usize = 1024;
/// Fan-outs to more lists are not divided: finding what a client matches by takes a search in each.
const DIVIDED_LISTS_MAX: usize = 16;

/// How far a divided fan-out has come in one list of subscribers: `next` is visited next, and those from `end` on have
/// come since it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListCursor {
    fan_out: u64,
    filter: FilterId,
    next: u32,
    end: u32,
}

impl Router {
    /// Whether a message has so many subscribers on this shard that its fan-out is divided.
    #[inline]
    pub(crate) fn must_divide(&self, matched: &Matched) -> bool {
        self.long_lists > 0 && self.visits_many(matched)
    }

    fn visits_many(&self, matched: &Matched) -> bool {
        if matched.filters.len() > DIVIDED_LISTS_MAX {
            return false;
        }
        let lists = matched.filters.iter().filter_map(|(filter, _)| self.subscribers.get(filter));
        lists.map(Vec::len).sum::<usize>() >= DIVIDED_MIN
    }

    /// Begins the divided fan-out `number`. Its receivers are the subscribers of now.
    pub(crate) fn begin_divided(&mut self, number: u64, matched: &Matched) {
        for (filter, _) in &matched.filters {
            if let Some(list) = self.subscribers.get(filter) {
                let end = list.len() as u32;
                self.cursors.push(ListCursor { fan_out: number, filter: *filter, next: 0, end });
            }
        }
    }

    /// Calls `offer` for the next subscribers of the divided fan-out `number`, after visiting `count` subscriptions at
    /// most. Visits none when all have been.
    pub(crate) fn offer_to_next(
        &mut self,
        sessions: &mut Sessions,
        message: &Arc<Message>,
        number: u64,
        count: u32,
        mut offer: impl FnMut(&mut Session, &Offer<'_>),
    ) -> FanOut {
        let mine = |cursor: &&mut ListCursor| cursor.fan_out == number;
        let unfinished = self.cursors.iter_mut().filter(mine).find(|cursor| cursor.next < cursor.end);
        let Some(cursor) = unfinished else { return FanOut { is_large: true, ..FanOut::default() } };
        let ListCursor { filter, next, end, .. } = *cursor;
        cursor.next = end.min(next + count);
        let (range, mut receivers) = (next as usize..cursor.next as usize, 0);
        let visited = range.len() as u32;
        let others: Vec<ListCursor> = if self.one_copy_per_client {
            self.cursors.iter().filter(|other| other.fan_out == number).copied().collect()
        } else {
            Vec::new()
        };
        let is_only = others.len() < 2;
        let mut ids = Vec::new();
        let list = self.subscribers.get(&filter).map_or(&[][..], |list| &list[range]);
        for subscriber in list {
            let is_own = is_own(self.shard, sessions, message, subscriber);
            if is_own || self.visited_before.contains(&(number, subscriber.session)) {
                continue;
            }
            let mut each = Offer {
                message,
                qos: message.qos.min(subscriber.options.qos),
                retain: message.retain && subscriber.options.retain_as_published,
                ids: if subscriber.id == 0 { &[] } else { std::slice::from_ref(&subscriber.id) },
                group: None,
                is_replayed: false,
                is_fan_out: true,
            };
            if !is_only {
                ids.clear();
                let matches = self.matches_of(&others, sessions, message, subscriber.session);
                let mut is_first = None;
                for (of_filter, other) in matches.iter().flatten() {
                    is_first.get_or_insert(*of_filter == filter);
                    each.qos = each.qos.max(message.qos.min(other.options.qos));
                    each.retain |= message.retain && other.options.retain_as_published;
                    ids.extend((other.id != 0).then_some(other.id));
                }
                if is_first != Some(true) {
                    // It got the message when an earlier list was visited.
                    continue;
                }
                each.ids = &ids;
            }
            receivers += 1;
            offer(sessions.at(subscriber.session), &each);
        }
        FanOut { receivers, visited, is_large: true }
    }

    /// By which of the lists of a divided fan-out a session gets the message, in their order.
    fn matches_of(
        &self,
        cursors: &[ListCursor],
        sessions: &mut Sessions,
        message: &Message,
        slot: u32,
    ) -> [Option<(FilterId, Subscriber)>; DIVIDED_LISTS_MAX] {
        let mut found = [None; DIVIDED_LISTS_MAX];
        for (cursor, place) in cursors.iter().zip(&mut found) {
            let subscription = sessions.at(slot).subscription(cursor.filter);
            let subscription = subscription.filter(|known| known.position < cursor.end);
            let subscriber = subscription.and_then(|known| self.subscriber(known));
            *place = subscriber
                .filter(|subscriber| !is_own(self.shard, sessions, message, subscriber))
                .map(|subscriber| (cursor.filter, subscriber));
        }
        found
    }

    /// Forgets the divided fan-out `number`.
    pub(crate) fn end_divided(&mut self, number: u64) {
        self.cursors.retain(|cursor| cursor.fan_out != number);
        self.visited_before.retain(|(fan_out, _)| *fan_out != number);
    }
}

/// Notes which divided fan-outs have offered their message to a subscriber that is about to leave a list. One that does
/// not want its own messages may have been passed over, and gets a second copy rather than none.
pub(super) fn note_visited(
    visited: &mut HashSet<(u64, u32), foldhash::fast::RandomState>,
    cursors: &[ListCursor],
    filter: FilterId,
    position: u32,
    leaving: Subscriber,
) {
    if leaving.options.no_local {
        return;
    }
    let has_visited = |cursor: &&ListCursor| cursor.filter == filter && position < cursor.next;
    for fan_out in cursors.iter().filter(has_visited).map(|cursor| cursor.fan_out) {
        let lists = cursors.iter().filter(|cursor| cursor.fan_out == fan_out);
        if lists.filter(|cursor| cursor.next < cursor.end).count() > 0 {
            visited.insert((fan_out, leaving.session));
        }
    }
}

/// A subscriber is about to be removed from its list: moves entries, so that it can be replaced by the last one and all
/// others stay in their parts of the list for each cursor. Returns where it is then.
pub(super) fn move_hole(
    cursors: &mut [ListCursor],
    sessions: &mut Sessions,
    filter: FilterId,
    list: &mut [Subscriber],
    mut hole: u32,
) -> u32 {
    while let Some(bound) = next_bound(cursors, filter, hole) {
        let end = bound - 1;
        list.swap(hole as usize, end as usize);
        if hole != end {
            sessions.at(list[hole as usize].session).set_position(filter, hole);
        }
        hole = end;
        for cursor in cursors.iter_mut().filter(|cursor| cursor.filter == filter) {
            cursor.next -= u32::from(cursor.next == bound);
            cursor.end -= u32::from(cursor.end == bound);
        }
    }
    hole
}

/// The end of the part of a list that `hole` is in.
fn next_bound(cursors: &[ListCursor], filter: FilterId, hole: u32) -> Option<u32> {
    let of_list = cursors.iter().filter(|cursor| cursor.filter == filter);
    of_list.flat_map(|cursor| [cursor.next, cursor.end]).filter(|bound| *bound > hole).min()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mainstem_mqtt::{MessageProperties, QoS, SubscribeOptions};
    use mainstem_runtime::{ConnId, MemoryMeter};

    use super::*;
    use crate::message::Content;
    use crate::routes::Routes;

    const FILTERS: [&str; 3] = ["a/b", "a/#", "#"];

    struct World {
        routes: Routes,
        router: Router,
        sessions: Sessions,
        slots: Vec<u32>,
        random: u64,
    }

    impl World {
        fn new(seed: u64) -> Self {
            Self {
                routes: Routes::new(seed, Vec::new()),
                router: Router::new(0, true),
                sessions: Sessions::new(0, MemoryMeter::default()),
                slots: Vec::new(),
                random: seed * 2 + 1,
            }
        }

        fn below(&mut self, end: usize) -> usize {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) as usize % end
        }

        fn add_session(&mut self) -> u32 {
            let key = self.sessions.insert("client".into(), ConnId::from_parts(0, 1));
            self.slots.push(key.slot);
            key.slot
        }

        fn subscribe(&mut self, slot: u32, filter: &str) {
            let session = self.sessions.at(slot);
            let is_known = self.routes.find(filter).is_some_and(|id| session.subscription(id).is_some());
            if !is_known {
                let options = SubscribeOptions::qos(QoS::AtLeastOnce);
                let id = filter.len() as u32;
                self.router.add(&self.routes, filter, session, Subscriber { session: slot, options, id });
            }
        }

        /// Returns whether it was subscribed.
        fn unsubscribe(&mut self, slot: u32, filter: &str) -> bool {
            let Some(id) = self.routes.find(filter) else { return false };
            let Some(gone) = self.sessions.at(slot).remove_subscription(id) else { return false };
            self.router.remove(&self.routes, &mut self.sessions, [gone]);
            true
        }

        fn matched(&mut self) -> Arc<Matched> {
            self.router.matched(&self.routes, "a/b").0
        }

        /// Each entry of each list is where its session says.
        fn check_positions(&mut self) {
            for filter in FILTERS {
                let Some(list) = self.routes.find(filter).and_then(|id| self.router.subscribers.get(&id))
                else {
                    continue;
                };
                let id = self.routes.find(filter).unwrap();
                for (position, subscriber) in list.iter().enumerate() {
                    let known = self.sessions.at(subscriber.session).subscription(id).unwrap();
                    assert_eq!(known.position as usize, position);
                }
            }
        }
    }

    fn message() -> Arc<Message> {
        let (payload, properties) = (&b""[..], MessageProperties::default());
        let content = Content {
            qos: QoS::AtLeastOnce,
            retain: false,
            publisher: None,
            topic: "a/b",
            payload,
            properties,
        };
        Arc::new(Message::new(&content, 0, &MemoryMeter::default()))
    }

    /// Subscribers come and leave while three fan-outs are under way. Those that keep a subscription get each message
    /// once, those without any when it begins get none, and nobody gets it twice by one subscription.
    #[test]
    fn each_subscriber_that_stays_is_visited_once() {
        for seed in 0..200 {
            let mut world = World::new(seed);
            for _ in 0..60 {
                let slot = world.add_session();
                for filter in FILTERS {
                    if world.below(3) > 0 {
                        world.subscribe(slot, filter);
                    }
                }
            }
            let message = message();
            // Per fan-out: how often each session got it, who had a subscription, who has kept all of them.
            let mut got: [BTreeMap<u32, u32>; 3] = Default::default();
            let mut kept: [BTreeMap<u32, bool>; 3] = Default::default();
            for number in 0..3 {
                let matched = world.matched();
                world.router.begin_divided(number as u64, &matched);
                for slot in world.slots.clone() {
                    if world.sessions.at(slot).subscription_count() > 0 {
                        kept[number].insert(slot, true);
                    }
                }
                let mut is_over = [false; 3];
                while !is_over[number] {
                    for _ in 0..world.below(6) {
                        let (slot, filter) = (world.below(world.slots.len()) as u32, FILTERS[world.below(3)]);
                        match world.below(3) {
                            0 => world.subscribe(slot, filter),
                            1 => {
                                let slot = world.add_session();
                                world.subscribe(slot, filter);
                            }
                            _ if world.unsubscribe(slot, filter) => {
                                kept.iter_mut()
                                    .filter_map(|kept| kept.get_mut(&slot))
                                    .for_each(|kept| *kept = false);
                            }
                            _ => {}
                        }
                        world.check_positions();
                    }
                    // The others go on at their own pace, or begin to lag behind.
                    for other in 0..=number {
                        let count = 1 + world.below(9) as u32;
                        let World { router, sessions, .. } = &mut world;
                        let part =
                            router.offer_to_next(sessions, &message, other as u64, count, |session, _| {
                                *got[other].entry(session.key().slot).or_default() += 1;
                            });
                        is_over[other] = part.visited == 0;
                    }
                }
            }
            for number in 0..3 {
                world.router.end_divided(number as u64);
                for (slot, kept) in &kept[number] {
                    let copies = got[number].get(slot).copied().unwrap_or(0);
                    assert!(
                        !kept || copies == 1,
                        "seed {seed}, fan-out {number}, session {slot}: {copies} copies"
                    );
                    assert!(copies <= 1, "seed {seed}, fan-out {number}, session {slot}: {copies} copies");
                }
                let strangers: Vec<_> =
                    got[number].keys().filter(|slot| !kept[number].contains_key(slot)).collect();
                assert!(strangers.is_empty(), "seed {seed}: {strangers:?} came later");
            }
            assert!(world.router.cursors.is_empty());
        }
    }

    #[test]
    fn a_client_gets_one_copy_with_the_best_of_its_subscriptions() {
        let mut world = World::new(1);
        let slot = world.add_session();
        for filter in FILTERS {
            world.subscribe(slot, filter);
        }
        let (matched, message) = (world.matched(), message());
        world.router.begin_divided(7, &matched);
        let mut copies = Vec::new();
        let World { router, sessions, .. } = &mut world;
        while router
            .offer_to_next(sessions, &message, 7, 1, |_, offer| copies.push((offer.qos, offer.ids.to_vec())))
            .visited
            > 0
        {}
        assert_eq!(copies.len(), 1, "{copies:?}");
        let (qos, mut ids) = copies.remove(0);
        ids.sort_unstable();
        assert_eq!((qos, ids), (QoS::AtLeastOnce, vec![1, 3, 3]));
    }
}
