//! Writing snapshots: the sessions of a shard as their journal is to know them, a few per turn.

use std::sync::Arc;

use mainstem_mqtt::QoS;
use mainstem_mqtt::session::Pending;
use mainstem_runtime::{Clock, Io};
use mainstem_topic::FilterId;

use crate::journal::replay::{StoredExtra, StoredReceived, StoredSession, StoredSubscription, StoredWill};
use crate::journal::{Journal, encode_message};
use crate::message::Message;
use crate::queue::Run;
use crate::session::{CutShort, Delivery, Extra, Session, UnderWay};
use crate::shard::Shard;
use crate::shared::Mail;

/// Sessions written in one turn.
const SESSIONS_PER_TURN: usize = 256;
/// Deliveries written in one turn, after which it ends early.
const DELIVERIES_PER_TURN: usize = 8 * 1024;
/// Messages of one session that are moved out of the way at most; more than that are left where they are.
const MOVED_MAX: usize = 1024;

impl Shard {
    /// Writes a piece of the snapshots that are due.
    pub(crate) fn go_on_with_snapshots(&mut self, io: &mut Io<'_, Mail>) {
        if self.deliveries.journals.iter().any(Journal::could_heal) {
            self.deliveries
                .journals
                .iter_mut()
                .filter(|journal| journal.could_heal())
                .for_each(Journal::give_up_turn);
            self.give_up_lost();
        }
        for journal in 0..self.deliveries.journals.len() {
            let due = &mut self.deliveries.journals[journal];
            let begins = due.begin_snapshot_if_due();
            due.finish_snapshot();
            let (is_healing, from) = (due.snapshots.is_healing(), due.snapshots.slot());
            if begins && is_healing {
                self.find_lost(journal);
            }
            if let Some(from) = from {
                self.write_sessions(io.clock, journal, from);
                io.again_soon();
            }
        }
    }

    /// What was given to sessions since the journal failed stands nowhere: their references say so from now on.
    fn find_lost(&mut self, journal: usize) {
        let slots: Vec<u32> = self.deliveries.sessions.slots_from(0).collect();
        for slot in slots {
            let session = self.deliveries.sessions.at(slot);
            let known = &self.deliveries.journals[journal];
            if !session.lasts() || usize::from(session.journal) != journal {
                continue;
            }
            let to = |offset: u64| known.place_after_loss(offset);
            for (delivery, _) in session.window.messages_mut().filter(|(delivery, _)| delivery.sequence > 0) {
                delivery.offset = to(delivery.offset).unwrap_or(delivery.offset);
            }
            session.queue.replace_each(to);
            for given in session.rare.iter_mut().flat_map(|rare| &mut rare.given) {
                given.delivery.offset = to(given.delivery.offset).unwrap_or(given.delivery.offset);
            }
        }
        let known = &mut self.deliveries.journals[journal];
        for ending in self.ending.iter_mut().filter(|ending| usize::from(ending.journal) == journal) {
            let to = |offset| Some(known.place_after_loss(offset).unwrap_or(offset));
            ending.stored.iter_mut().for_each(|stored| stored.place_each(to));
        }
        known.has_told_places();
    }

    fn write_sessions(&mut self, clock: Clock, journal: usize, from: usize) {
        let slots: Vec<u32> = self.deliveries.sessions.slots_from(from).take(SESSIONS_PER_TURN).collect();
        let mut deliveries = 0;
        for slot in &slots {
            let session = self.deliveries.sessions.at(*slot);
            if session.lasts() && usize::from(session.journal) == journal {
                self.move_messages(journal, *slot);
                deliveries += self.write_session(clock, journal, *slot);
            }
            self.deliveries.journals[journal].snapshots.reached(*slot as usize + 1);
            if deliveries > DELIVERIES_PER_TURN {
                return;
            }
        }
        if slots.len() < SESSIONS_PER_TURN {
            self.write_ending(journal);
            self.deliveries.journals[journal].end_snapshot();
        }
    }

    /// Moves what a session has long waited for to the end of the journal, so that the beginning can go; and
    /// what never reached the disk.
    fn move_messages(&mut self, journal: usize, slot: u32) {
        let session = self.deliveries.sessions.at(slot);
        let journal = &mut self.deliveries.journals[journal];
        let mut horizon = journal.horizon();
        let old = session.queue.far().take_while(|run| run.offset < horizon);
        if old.map(|run| run.count as usize).sum::<usize>() > MOVED_MAX {
            horizon = 0;
        }
        let mut to = |offset: u64, message: Option<&Arc<Message>>| {
            (offset < horizon || Journal::is_lost(offset))
                .then(|| journal.move_message(offset, message))
                .flatten()
        };
        for (delivery, pending) in session.window.messages_mut() {
            if delivery.sequence > 0
                && pending != Pending::PubComp
                && let Some(offset) = to(delivery.offset, delivery.message.as_ref())
            {
                delivery.offset = offset;
            }
        }
        for given in session.rare.iter_mut().flat_map(|rare| &mut rare.given) {
            let delivery = &mut given.delivery;
            if let Some(offset) = to(delivery.offset, delivery.message.as_ref()) {
                delivery.offset = offset;
            }
        }
        session.queue.relocate(to);
        // What was on disk before, and could be sent, is there again with this turn.
        if session.connected && !session.queue.is_empty() {
            let key = self.deliveries.sessions.key(self.me, slot);
            self.commits.wake_with(self.commits.current(), key);
        }
    }

    /// Returns how many runs of deliveries it has.
    fn write_session(&mut self, clock: Clock, journal: usize, slot: u32) -> usize {
        let stored = self.stored_session(clock, slot);
        let number = self.deliveries.sessions.at(slot).number;
        let journal = &mut self.deliveries.journals[journal];
        if let Some(oldest) = stored.unsettled.iter().map(|run| run.offset).min() {
            journal.snapshots.refers_to(oldest);
        }
        journal.push_snapshot(number, &stored);
        stored.unsettled.len()
    }

    pub(crate) fn stored_session(&mut self, clock: Clock, slot: u32) -> StoredSession {
        let session = self.deliveries.sessions.at(slot);
        let gone_unix_ms = session.gone_unix_ms(clock);
        let mut stored = StoredSession {
            client_id: (&*session.client_id).into(),
            version: session.version as u8,
            expiry_s: session.expiry_s,
            gone_unix_ms,
            sequence: session.sequence,
            received_sequence: session.rare.as_ref().map_or(0, |rare| rare.received_sequence),
            ..StoredSession::default()
        };
        store_deliveries(session, &mut stored);
        for packet_id in session.received.iter() {
            let sequence = stored.received_sequence;
            stored.received.insert(packet_id, StoredReceived { sequence, reach: 0, groups: Vec::new() });
        }
        if let Some(rare) = &session.rare {
            for UnderWay { packet_id, sequence, reach, groups, kept, .. } in &rare.under_way {
                let (sequence, reach, groups) = (*sequence, *reach, [&groups[..], &kept[..]].concat());
                stored.received.insert(*packet_id, StoredReceived { sequence, reach, groups });
            }
            for (packet_id, CutShort { sequence, lacking, groups, .. }) in &rare.cut_short {
                let (sequence, reach, groups) = (*sequence, *lacking, groups.clone());
                stored.received.insert(*packet_id, StoredReceived { sequence, reach, groups });
            }
            stored.will = rare.will.as_ref().or(rare.will_leaving.as_ref()).map(|will| {
                let mut publish = Vec::new();
                encode_message(&will.message, clock, &mut publish);
                StoredWill { delay_s: will.delay_s, expiry_s: will.expiry_s, publish: publish.into() }
            });
            for known in rare.worker.iter().flat_map(|worker| &worker.subscriptions) {
                let subscription = StoredSubscription { options: known.options, id: known.id, walk: None };
                stored.subscriptions.insert(known.filter.clone(), subscription);
            }
            let key = self.deliveries.sessions.key(self.me, slot);
            let session = self.deliveries.sessions.at(slot);
            for group in session.rare.iter().flat_map(|rare| &rare.groups) {
                if let Some(member) = group.member(key) {
                    let filter = format!("$share/{}/{}", group.name, group.filter);
                    let subscription =
                        StoredSubscription { options: member.options, id: member.id, walk: None };
                    stored.subscriptions.insert(filter.into(), subscription);
                }
            }
        }
        self.store_subscriptions(slot, &mut stored);
        stored
    }

    fn store_subscriptions(&mut self, slot: u32, stored: &mut StoredSession) {
        let session = self.deliveries.sessions.at(slot);
        let places: Vec<(FilterId, u32)> =
            session.subscriptions.iter().map(|known| (known.filter, known.position)).collect();
        for (filter, position) in places {
            let (Some(list), Some(name)) = (self.local.get(&filter), self.shared.routes.name(filter)) else {
                continue;
            };
            let subscriber = list[position as usize];
            let session = self.deliveries.sessions.at(slot);
            let walk = session.rare.as_ref().and_then(|rare| rare.walks.get(&*name));
            // What comes at QoS 0 may be lost, and is not begun again.
            let walk = walk.filter(|walk| walk.options.qos > QoS::AtMostOnce);
            let walk = walk.map(|walk| walk.cursor.last().into());
            let subscription = StoredSubscription { options: subscriber.options, id: subscriber.id, walk };
            stored.subscriptions.insert(name, subscription);
        }
    }
}

/// What is in flight, what waits, and what others have been given and may not have on disk; in their order.
fn store_deliveries(session: &Session, stored: &mut StoredSession) {
    let mut runs: Vec<Run<StoredExtra>> = Vec::new();
    for (delivery, pending) in session.window.messages().filter(|(delivery, _)| delivery.sequence > 0) {
        stored.sent = stored.sent.max(delivery.sequence);
        if pending == Pending::PubComp {
            stored.released.insert(delivery.sequence);
        }
        runs.push(run_of(delivery));
    }
    runs.extend(session.queue.near().filter(|delivery| delivery.sequence > 0).map(run_of));
    runs.extend(session.queue.far().map(|run| Run {
        sequence: run.sequence,
        offset: run.offset,
        count: run.count,
        bytes: run.bytes,
        qos: run.qos,
        retain: run.retain,
        extra: run.extra.as_deref().map(stored_extra).map(Box::new),
    }));
    for given in session.rare.iter().flat_map(|rare| &rare.given) {
        if given.was_sent {
            stored.sent = stored.sent.max(given.delivery.sequence);
        }
        runs.push(run_of(&given.delivery));
    }
    runs.sort_by_key(|run| run.sequence);
    for run in runs {
        if !stored.unsettled.back_mut().is_some_and(|last| last.join(&run)) {
            stored.unsettled.push_back(run);
        }
    }
}

fn run_of(delivery: &Delivery) -> Run<StoredExtra> {
    Run {
        sequence: delivery.sequence,
        offset: delivery.offset,
        count: 1,
        bytes: delivery.size(),
        qos: delivery.qos,
        retain: delivery.retain,
        extra: delivery.extra.as_deref().map(stored_extra).map(Box::new),
    }
}

fn stored_extra(extra: &Extra) -> StoredExtra {
    let group = extra.group.as_ref().map(|group| format!("$share/{}/{}", group.name, group.filter).into());
    StoredExtra { ids: extra.ids.clone(), group }
}
