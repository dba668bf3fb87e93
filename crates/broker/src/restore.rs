//! The start of a shard that keeps sessions: its journals are read, and everybody is put back in their place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_log::{Durability as LogDurability, Error, Store};
use mainstem_mqtt::Version;
use mainstem_mqtt::session::Pending;
use mainstem_runtime::{Clock, ConnId, Io};
use mainstem_topic::parse_subscription;

use crate::config::{Durability, MqttConfig};
use crate::groups::Group;
use crate::journal::entry::{Entry, Origin};
use crate::journal::replay::{Arrival, Replayed, StoredExtra, StoredReceived, StoredSession, StoredWill};
use crate::journal::{Journal, decode_message};
use crate::queue::Run;
use crate::retained::Cursor;
use crate::retained_log::RetainedLog;
use crate::session::{CutShort, Delivery, Extra, RetainedWalk, Will, packet_id_of};
use crate::shard::{Shard, Subscriber};
use crate::shared::{Mail, Shared};
use crate::timers::Timer;
use crate::work::is_of_queue;

/// A store and the number of the shard that it belongs to, or belonged to.
pub struct StoreAt {
    /// The shard's number.
    pub home: u16,
    /// Its logs.
    pub store: Box<dyn Store>,
}

/// What a shard has read from its stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Sessions.
    pub sessions: u64,
    /// Messages that wait for them.
    pub messages: u64,
    /// Retained messages; the first shard reads them for all.
    pub retained: u64,
    /// Entries read.
    pub entries: u64,
}

/// A session of a journal with QoS 2 publishes of which it is to be found out where they have arrived.
#[derive(Debug)]
pub(crate) struct Unsure {
    slot: u32,
    received: Vec<(u16, StoredReceived)>,
}

impl Shard {
    /// The shard number `me` with the sessions that `stores` have. The first store is the shard's own; others
    /// may be of shards that are no more. Behind it all shards go through [`settle_origins`].
    ///
    /// # Errors
    /// What a store says: above all [`Error::Corrupt`], where something cannot be read.
    pub fn restore(
        me: usize,
        shared: Arc<Shared>,
        stores: Vec<StoreAt>,
        clock: Clock,
    ) -> Result<(Self, Restored), Error> {
        let mut made = Self::new(me, shared);
        let mut restored = Restored::default();
        let durability = match made.config().durability {
            Durability::Fsync => LogDurability::Fsync,
            Durability::Os => LogDurability::Os,
            Durability::None => return Ok((made, restored)),
        };
        let MqttConfig { segment_bytes, snapshot_bytes, .. } = *made.config();
        for StoreAt { home, store } in stores {
            let index = made.deliveries.journals.len();
            made.shared.note_home(home);
            let mut journal = Journal::open(home, store, durability, segment_bytes, snapshot_bytes, clock)?;
            let replayed = journal.replay()?;
            if me == 0 && index == 0 {
                let log = RetainedLog::open(journal.store(), durability, segment_bytes)?;
                log.load(journal.store(), clock, &made.shared.retained)?;
                made.retained_log = Some(log);
                made.shared.keep_retained();
                restored.retained = made.shared.retained.size().messages;
            }
            made.deliveries.journals.push(journal);
            restored.entries += replayed.entries;
            made.seat_all(index, replayed, clock);
        }
        restored.sessions = made.deliveries.counters.sessions;
        restored.messages = made.deliveries.counters.queued_messages;
        if restored.sessions > 0 {
            made.shared.note_lasting(made.me);
        }
        made.shared.counters[me].store(&made.deliveries.counters);
        Ok((made, restored))
    }

    fn seat_all(&mut self, journal: usize, replayed: Replayed, clock: Clock) {
        let mut sessions: Vec<_> = replayed.sessions.into_iter().collect();
        // In the order in which they were made, so that the same journal gives the same shard.
        sessions.sort_unstable_by_key(|(number, _)| *number);
        for (number, session) in sessions {
            self.seat_restored(journal, number, session, clock);
        }
    }

    fn seat_restored(&mut self, journal: usize, number: u32, stored: StoredSession, clock: Clock) {
        let client_id: Arc<str> = stored.client_id.into();
        let key = self.deliveries.sessions.insert(self.me, Arc::clone(&client_id), ConnId::from_parts(0, 0));
        if self.shared.registry.claim(&client_id, key).is_err() {
            log::warn!("client {client_id:?} has two sessions on disk; one of them goes");
            self.deliveries.sessions.remove(key.slot);
            // Or it would be back when the other has ended, or is read later.
            self.deliveries.journals[journal].push(&Entry::End { session: number });
            return;
        }
        self.shared.count_session();
        self.deliveries.counters.sessions += 1;
        let session = self.deliveries.sessions.at(key.slot);
        (session.number, session.journal) = (number, journal as u16);
        session.version = Version::try_from(stored.version).unwrap_or(Version::V5);
        session.expiry_s = stored.expiry_s;
        session.sequence = stored.sequence;
        let age_ms = stored.gone_unix_ms.map_or(0, |gone| clock.unix_ms.saturating_sub(gone));
        session.gone_at_ms = clock.now_ms.cast_signed() - age_ms.cast_signed();
        if stored.received_sequence > 0 {
            session.rare().received_sequence = stored.received_sequence;
        }
        if let Some(will) = &stored.will {
            self.restore_will(key.slot, will, age_ms, clock);
        }
        for (filter, subscription) in &stored.subscriptions {
            let Ok(parsed) = parse_subscription(filter) else { continue };
            let (options, id) = (subscription.options, subscription.id);
            let is_added = if is_of_queue(parsed.filter) {
                let name = (parsed.filter, parsed.group);
                self.restore_queue_subscription(key.slot, filter, name, options, id)
            } else if let Some(group) = parsed.group {
                self.join(key.slot, parsed.filter, group, options, id)
            } else {
                let subscriber = Subscriber { session: key.slot, options, id };
                self.add_subscriber(key.slot, parsed.filter, subscriber)
            };
            if is_added.is_none() {
                log::warn!("client {client_id:?}: subscription {filter:?} is beyond the limit and goes");
            }
            if let Some(last) = &subscription.walk {
                let walk = RetainedWalk { cursor: Cursor::after(parsed.filter, last), options, id };
                self.deliveries.sessions.at(key.slot).rare().walks.insert(parsed.filter.into(), walk);
            }
        }
        self.deliveries.sessions.at(key.slot).set_online(false);
        for run in stored.unsettled {
            self.restore_run(key.slot, run, stored.sent, &stored.released);
        }
        let session = self.deliveries.sessions.at(key.slot);
        let mut received = Vec::new();
        for (packet_id, known) in stored.received {
            if session.received.publish(packet_id, u16::MAX).is_ok() && known.reach != 0 {
                received.push((packet_id, known));
            }
        }
        self.unsure.push(Unsure { slot: key.slot, received });
    }

    fn restore_will(&mut self, slot: u32, will: &StoredWill, age_ms: u64, clock: Clock) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let Ok(mut message) = decode_message(&will.publish, clock.unix_ms, clock) else {
            log::error!("a will on disk cannot be read and goes");
            return;
        };
        message.publisher = Some(key);
        message.expires_at_ms = None;
        let delay_ms = u64::from(will.delay_s) * 1000;
        let rare = self.deliveries.sessions.at(slot).rare();
        rare.will = Some(Will { message, expiry_s: will.expiry_s, delay_s: will.delay_s });
        rare.will_at_ms = Some(clock.now_ms + delay_ms.saturating_sub(age_ms));
    }

    fn restore_run(&mut self, slot: u32, mut run: Run<StoredExtra>, sent: u64, released: &BTreeSet<u64>) {
        let extra = run.extra.take().map(|stored| Box::new(self.restore_extra(slot, *stored)));
        let counters = &mut self.deliveries.counters;
        let session = self.deliveries.sessions.at(slot);
        if let Some(load) = session.rare.as_ref().and_then(|rare| rare.load.as_ref())
            && extra.as_ref().is_some_and(|extra| extra.group.is_some())
        {
            (0..run.count).for_each(|_| load.take_up());
        }
        while run.count > 0 && (run.sequence <= sent || released.contains(&run.sequence)) {
            let pending = match (released.contains(&run.sequence), run.qos) {
                (true, _) => Pending::PubComp,
                (false, mainstem_mqtt::QoS::ExactlyOnce) => Pending::PubRec,
                (false, _) => Pending::PubAck,
            };
            let delivery = Delivery {
                message: None,
                sequence: run.sequence,
                offset: run.offset,
                qos: run.qos,
                retain: run.retain,
                extra: extra.clone(),
            };
            if run.qos != mainstem_mqtt::QoS::AtMostOnce {
                session.window.restore(packet_id_of(run.sequence), pending, Some(delivery));
            }
            run.shorten(None);
        }
        if run.count == 0 {
            return;
        }
        counters.queued_messages += u64::from(run.count);
        if run.qos == mainstem_mqtt::QoS::AtMostOnce {
            session.queued_qos0 += run.count;
        }
        session.queue.push_far(Run {
            sequence: run.sequence,
            offset: run.offset,
            count: run.count,
            bytes: run.bytes,
            qos: run.qos,
            retain: run.retain,
            extra,
        });
    }

    fn restore_extra(&mut self, slot: u32, stored: StoredExtra) -> Extra {
        let groups = self.deliveries.sessions.at(slot).rare.as_ref().map(|rare| &rare.groups);
        let is_of = |group: &&Arc<Group>| {
            let name = stored.group.as_deref().and_then(|name| parse_subscription(name).ok());
            name.is_some_and(|name| name.group == Some(&*group.name) && name.filter == &*group.filter)
        };
        // Of a group that the session has left since, the message stays its own.
        Extra { group: groups.and_then(|groups| groups.iter().find(is_of).cloned()), ids: stored.ids }
    }

    /// Sets the timers of sessions that were there before the first turn.
    pub(crate) fn start_session_timers(&mut self, io: &mut Io<'_, Mail>) {
        let slots: Vec<u32> = self.deliveries.sessions.slots_from(0).collect();
        for slot in slots {
            let key = self.deliveries.sessions.key(self.me, slot);
            let session = self.deliveries.sessions.at(slot);
            if session.connected {
                continue;
            }
            let expiry_s = session.expiry_s;
            if session.gone_at_ms >= 0 {
                // Its connection was lost with the broker. Or its time would begin anew if that ended once more, for
                // a session that has expired meanwhile, too.
                session.gone_at_ms = io.clock.now_ms.cast_signed();
                let is_awaited = session.rare.as_ref().is_some_and(|rare| rare.will.is_some());
                if expiry_s != u32::MAX || is_awaited {
                    self.enter_session(io, slot);
                }
            }
            let session = self.deliveries.sessions.at(slot);
            let ends_at_ms = session.gone_at_ms + i64::from(expiry_s) * 1000;
            let will =
                session.rare.as_ref().and_then(|rare| Some((rare.will.as_ref()?.delay_s, rare.will_at_ms?)));
            if let Some((_, at_ms)) = will.filter(|(delay_s, _)| *delay_s < expiry_s) {
                io.set_timer(at_ms, Timer::Will(key).token());
            }
            if expiry_s == u32::MAX {
                continue;
            }
            // A client that comes at once must not find what has expired.
            match ends_at_ms.try_into() {
                Ok(at_ms) if at_ms > io.clock.now_ms => io.set_timer(at_ms, Timer::Expiry(key).token()),
                _ => self.end_session(io, slot),
            }
        }
    }
}

impl Shared {
    /// Counts a session that was there before, whatever the limit is now.
    fn count_session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }
}

/// A QoS 2 publish: home of the journal that has the session, session, packet identifier, sequence number.
type PublishKey = (u16, u32, u16, u64);

/// What is known of a QoS 2 publish in other journals than its session's.
#[derive(Default)]
struct Arrived {
    journals: u64,
    groups: Vec<Box<str>>,
}

/// Finds out which QoS 2 publishes may have reached only some of the journals when the process ended: when
/// their client sends them again, as it must, the others get them.
pub fn settle_origins(shards: &mut [Shard]) {
    let mut arrived: BTreeMap<PublishKey, Arrived> = BTreeMap::new();
    for journal in shards.iter().flat_map(|shard| &shard.deliveries.journals) {
        for Arrival { origin, groups } in journal.origins() {
            let Origin { home, session, packet_id, sequence, .. } = *origin;
            let known = arrived.entry((home, session, packet_id, sequence)).or_default();
            known.journals |= 1 << journal.home;
            known.groups.extend(groups.iter().cloned());
        }
    }
    for shard in shards {
        let mut slots = BTreeMap::new();
        for Unsure { slot, received } in std::mem::take(&mut shard.unsure) {
            let session = shard.deliveries.sessions.at(slot);
            let home = shard.deliveries.journals[usize::from(session.journal)].home;
            let number = session.number;
            slots.insert((home, number), slot);
            for (packet_id, known) in received {
                let there = arrived.get(&(home, number, packet_id, known.sequence));
                let mut groups = known.groups;
                groups.extend(there.iter().flat_map(|there| there.groups.iter().cloned()));
                let lacking = known.reach & !there.map_or(0, |there| there.journals);
                let sequence = known.sequence;
                let cut_short = CutShort { sequence, lacking, groups, under_way: None };
                session.rare().cut_short.push((packet_id, cut_short));
            }
        }
        let mut latest: BTreeMap<u32, u64> = BTreeMap::new();
        for ((home, number, packet_id, sequence), there) in &arrived {
            let Some(slot) = slots.get(&(*home, *number)) else { continue };
            let rare = shard.deliveries.sessions.at(*slot).rare();
            if *sequence > rare.received_sequence {
                // Its own journal had not noted it yet.
                let last = latest.entry(*slot).or_default();
                *last = (*last).max(*sequence);
                let (lacking, groups) = (!there.journals, there.groups.clone());
                rare.cut_short.retain(|(known, _)| known != packet_id);
                let cut_short = CutShort { sequence: *sequence, lacking, groups, under_way: None };
                rare.cut_short.push((*packet_id, cut_short));
                // It notes it before anything newer: a later number would say that this one has been released.
                let taken = Some((*sequence, lacking));
                let entry = Entry::Received { session: *number, packet_id: *packet_id, taken };
                if let Some((journal, _)) = shard.journal(*slot) {
                    journal.push(&entry);
                }
            }
        }
        for (slot, sequence) in latest {
            shard.deliveries.sessions.at(slot).rare().received_sequence = sequence;
        }
    }
}
