//! The start of a shard with journals: they are read, and their sessions restored.
//!
//! Sessions stay in the journal that they were created in. After a change of the number of shards, a shard reads
//! several journals, and appends to each for the sessions that it holds. If a client identifier occurs twice, the first
//! session that is read stays, and the end of the other is appended.
//!
//! Time goes on while the broker is down: expiry and will delays count from the end of the connection as the journal
//! has it, or from the start for clients that were connected. Publishes at QoS 2 that reached some journals only are
//! found when all shards are restored, by [`settle_origins`]; their clients send them again.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_log::{Durability as LogDurability, Error, Stores};
use mainstem_runtime::{Clock, ConnId, Io, MemoryMeter};
use mainstem_security::{Identity, Principal};
use mainstem_topic::parse_subscription;

use super::SessionHost;
use crate::access::Access;
use crate::broker_state::Mail;
use crate::config::{Durability, MqttConfig};
use crate::journal::client_origin::ClientOrigin;
use crate::journal::entry::{Entry, Origin, ReachedTargets};
use crate::journal::replay::Replayed;
use crate::journal::stored::{StoredReceived, StoredSession, StoredWill};
use crate::journal::{Journal, decode_message};
use crate::qos2_recovery::{PartialPublish, UndecidedPublishes};
use crate::queue_consumers::is_of_queue;
use crate::retained_log::RetainedLog;
use crate::timers::Timer;
use crate::wills::Will;

/// What a shard has read from its stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Sessions.
    pub sessions: u64,
    /// Messages queued for them.
    pub messages: u64,
    /// Retained messages, which the first shard reads.
    pub retained: u64,
    /// Entries read.
    pub entries: u64,
}

impl SessionHost {
    /// Restores the sessions of `stores`. The first store is the shard's own; others may be those of former shards.
    ///
    /// # Errors
    /// Errors of a store, and [`Error::Corrupt`] if something cannot be read.
    pub(crate) fn restore(
        &mut self,
        stores: Stores,
        clock: Clock,
        meter: &MemoryMeter,
    ) -> Result<Restored, Error> {
        let mut restored = Restored::default();
        *self.persistence.stores_mut() = stores;
        let durability = match self.config().durability {
            Durability::Fsync => LogDurability::Fsync,
            Durability::Os => LogDurability::Os,
            Durability::None => return Ok(restored),
        };
        let MqttConfig { segment_bytes, snapshot_bytes, .. } = *self.config();
        for index in 0..self.persistence.stores_mut().len() as u16 {
            let at = &mut self.persistence.stores_mut()[usize::from(index)];
            self.shared.note_journal(at.store_id);
            let mut journal =
                Journal::open(at, durability, segment_bytes, snapshot_bytes, clock, meter.clone())?;
            let replayed = journal.at(at).replay()?;
            if self.me == 0 && index == 0 {
                let log = RetainedLog::open(at, durability, segment_bytes)?;
                log.load(&mut *at.store, clock, &self.shared.retained)?;
                self.persistence.set_retained_log(log);
                self.shared.set_retained_durable();
                restored.retained = self.shared.retained.size().messages;
            }
            self.persistence.add_journal(journal);
            restored.entries += replayed.entries;
            self.restore_sessions(index, replayed, clock, meter);
        }
        restored.sessions = self.deliveries.counters().sessions;
        restored.messages = self.deliveries.counters().queued_messages;
        if restored.sessions > 0 {
            self.shared.note_persistent(self.me);
        }
        self.shared.counters[usize::from(self.me)].update(self.deliveries.counters());
        Ok(restored)
    }

    fn restore_sessions(&mut self, journal: u16, replayed: Replayed, clock: Clock, meter: &MemoryMeter) {
        let mut sessions: Vec<_> = replayed.sessions.into_iter().collect();
        // In the order of their creation, so that the same journal gives the same shard.
        sessions.sort_unstable_by_key(|(number, _)| *number);
        for (number, session) in sessions {
            self.restore_session(journal, number, session, clock, meter);
        }
    }

    fn restore_session(
        &mut self,
        journal: u16,
        number: u32,
        stored: StoredSession,
        clock: Clock,
        meter: &MemoryMeter,
    ) {
        let client_id: Arc<str> = (&*stored.client_id).into();
        let key = self.sessions.insert(Arc::clone(&client_id), ConnId::from_parts(0, 0));
        if self.shared.registry.claim(&client_id, key).is_err() {
            log::warn!("client {client_id:?} has two sessions on disk; one of them goes");
            self.sessions.remove(key.slot);
            // Otherwise it would be back when the other has ended, or is read later.
            self.persistence.journal(journal).push(&Entry::End { session: number });
            return;
        }
        self.shared.count_session();
        self.deliveries.counters_mut().sessions += 1;
        let age_ms = stored.gone_unix_ms.map_or(0, |gone| clock.unix_ms.saturating_sub(gone));
        let session = self.sessions.at(key.slot);
        session.make_durable(journal, number);
        session.restore(&stored, age_ms, clock);
        if stored.user.is_some() || stored.origin.is_some() {
            let ClientOrigin { listener, address, proof } = stored.origin.clone().unwrap_or_default();
            let user = stored.user.as_deref().map(Arc::from);
            let identity = Identity { principal: user.map_or(Principal::Anonymous, Principal::User), proof };
            let access = Access::new(&self.shared.security, identity, &client_id, (listener, address));
            session.set_access(access);
        }
        if let Some(will) = &stored.will {
            self.restore_will(key.slot, will, age_ms, clock, meter);
        }
        for (filter, subscription) in &stored.subscriptions {
            let Ok(parsed) = parse_subscription(filter) else { continue };
            let (options, id) = (subscription.options, subscription.id);
            let is_added = if is_of_queue(parsed.filter) {
                let name = (parsed.filter, parsed.group);
                self.restore_queue_subscription(key.slot, filter, name, options, id)
            } else if let Some(group) = parsed.group {
                self.join_group(key.slot, parsed.filter, group, options, id)
            } else {
                self.add_subscriber(key.slot, parsed.filter, options, id)
            };
            if is_added.is_none() {
                log::warn!("client {client_id:?}: subscription {filter:?} is beyond the limit and goes");
            }
            if let Some(last) = &subscription.replay_position {
                let newest = self.shared.retained.changes();
                let retained = &mut self.sessions.at(key.slot).ext().retained;
                retained.restore(parsed.filter, last, options, id, newest);
            }
        }
        self.sessions.at(key.slot).set_online(false);
        let session = self.sessions.at(key.slot);
        for run in stored.unsettled {
            let queued = session.restore_run(run, stored.sent, &stored.released);
            self.deliveries.counters_mut().queued_messages += u64::from(queued);
        }
        let mut received = Vec::new();
        for (packet_id, known) in stored.received {
            if session.receive(packet_id, u16::MAX).is_ok() && !known.is_complete {
                received.push((packet_id, known));
            }
        }
        self.persistence.add_undecided(UndecidedPublishes { slot: key.slot, received });
    }

    fn restore_will(&mut self, slot: u32, will: &StoredWill, age_ms: u64, clock: Clock, meter: &MemoryMeter) {
        let key = self.sessions.key(slot);
        let Ok(mut message) = decode_message(&will.publish, clock.unix_ms, clock, meter) else {
            log::error!("a will on disk cannot be read and goes");
            return;
        };
        message.publisher = Some(key);
        message.expires_at_ms = None;
        let delay_ms = u64::from(will.delay_s) * 1000;
        let due_at_ms = clock.now_ms + delay_ms.saturating_sub(age_ms);
        let will = Will { message, expiry_s: will.expiry_s, delay_s: will.delay_s };
        self.sessions.at(slot).ext().will.restore(will, due_at_ms);
    }

    /// Finds the partial publishes of a restored session: of those that its journal has, and of those that only others
    /// have. What others say is appended to its own journal, because they forget it after a while.
    fn settle_session(&mut self, undecided: UndecidedPublishes, arrived: &BTreeMap<Origin, ReachedTargets>) {
        let UndecidedPublishes { slot, received } = undecided;
        let session = self.sessions.at(slot);
        let number = session.number();
        let mut journal = self.persistence.journal(session.journal());
        let journal_id = journal.id();
        let origin = |packet_id, sequence| Origin { journal_id, session: number, packet_id, sequence };
        let last = session.ext_ref().map_or(0, |ext| ext.qos2.sequence());
        let all = arrived.range(origin(0, 0)..=origin(u16::MAX, u64::MAX)).map(|(origin, _)| *origin);
        let elsewhere = all.filter(|origin| origin.sequence > last).map(|origin| {
            (origin.packet_id, StoredReceived { sequence: origin.sequence, ..StoredReceived::default() })
        });
        for (packet_id, known) in received.into_iter().chain(elsewhere) {
            let StoredReceived { sequence, mut reached, .. } = known;
            let origin = origin(packet_id, sequence);
            if let Some(there) = arrived.get(&origin) {
                reached.extend(there);
                // It must come before anything newer: a higher number would mean that this one has been released.
                let taken = Some((sequence, reached.clone()));
                journal.push(&Entry::Received { session: number, packet_id, taken });
            }
            let qos2 = &mut session.ext().qos2;
            qos2.set_sequence(qos2.sequence().max(sequence));
            qos2.add_partial(PartialPublish { origin, reached, in_flight: None });
        }
    }

    /// Sets the timers of restored sessions. Returns those that have expired.
    pub(crate) fn start_session_timers(&mut self, io: &mut Io<'_, Mail>) -> Vec<u32> {
        let mut expired = Vec::new();
        for slot in self.sessions.slots() {
            let session = self.sessions.at(slot);
            let key = session.key();
            if session.is_connected() {
                continue;
            }
            let expiry_s = session.expiry_s();
            if session.gone_at_ms() >= 0 {
                // Its connection was lost with the broker. Without an entry, its time would begin again with the next
                // start, even if it has expired meanwhile.
                session.set_gone(io.clock.now_ms.cast_signed());
                let has_will = session.ext_ref().is_some_and(|ext| ext.will.is_pending());
                if expiry_s != u32::MAX || has_will {
                    self.append_session(io.clock, slot);
                }
            }
            let session = self.sessions.at(slot);
            let ends_at_ms = session.gone_at_ms() + i64::from(expiry_s) * 1000;
            let will = session.ext_ref().and_then(|ext| ext.will.schedule());
            if let Some((_, at_ms)) = will.filter(|(delay_s, _)| *delay_s < expiry_s) {
                io.set_timer(at_ms, Timer::Will(key).token());
            }
            if expiry_s == u32::MAX {
                continue;
            }
            // A client that comes at once must not find what has expired.
            match ends_at_ms.try_into() {
                Ok(at_ms) if at_ms > io.clock.now_ms => io.set_timer(at_ms, Timer::Expiry(key).token()),
                _ => expired.push(slot),
            }
        }
        expired
    }
}

/// Finds the QoS 2 publishes that had reached only some of their targets when the process ended. When their clients
/// send them again, as they must, the others get them.
pub(crate) fn settle_origins(hosts: &mut [&mut SessionHost]) {
    let mut arrived: BTreeMap<Origin, ReachedTargets> = BTreeMap::new();
    for journal in hosts.iter().flat_map(|host| host.persistence.journals()) {
        for arrival in journal.origins() {
            arrived.entry(arrival.origin).or_default().extend(&arrival.reached);
        }
    }
    for host in hosts {
        for undecided in host.persistence.take_undecided() {
            host.settle_session(undecided, &arrived);
        }
    }
}
