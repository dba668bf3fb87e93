//! The end of sessions: their subscriptions, and when their journals may record it.
//!
//! A session that ends stops receiving at once, but two things take longer. It may have very many subscriptions, which
//! are removed over several turns. And what it passes on at its end, its will and the messages of its groups, must be
//! durable elsewhere before its journal says that it has ended: until then it is an ending, which a snapshot still
//! writes as a session.
//!
//! Its client identifier is free again after what it has published has left for other shards, so that it arrives there
//! before anything that a new session with this identifier publishes.

use std::sync::Arc;

use mainstem_runtime::Io;

use super::SessionHost;
use crate::broker_state::Mail;
use crate::ending::Ending;
use crate::journal::entry::Entry;
use crate::journal::stored::StoredSession;
use crate::message::SessionKey;
use crate::pending_acks::{AckCondition, AckToken};

/// Cost of the end of a session, and of removing one of its subscriptions, units.
const END_UNITS: u32 = 20;
const REMOVAL_UNITS: u32 = 10;
/// Bytes of a removed filter that cost one more.
const REMOVED_BYTES_PER_UNIT: usize = 512;
/// Queued messages that are freed for one unit.
const FREED_PER_UNIT: usize = 4;
/// Subscriptions that are removed at once.
const REMOVED_AT_ONCE: usize = 64;

impl SessionHost {
    /// Begins to end a session that has no connection: its subscriptions go. Returns it as its journal contains it
    /// until others have what it leaves to them.
    pub(crate) fn begin_end(&mut self, io: &mut Io<'_, Mail>, slot: u32) -> Option<Box<StoredSession>> {
        let stored = self.stored_before_end(io.clock, slot);
        let session = self.sessions.at(slot);
        debug_assert!(!session.is_connected());
        session.end();
        io.charge(END_UNITS + (session.queue_len() / FREED_PER_UNIT) as u32);
        let key = session.key();
        self.remove_subscriptions(io, slot, key);
        self.end_queue_subscriptions(slot);
        stored
    }

    /// Ends a session whose will and whose messages others have, or will have when `condition` is met.
    pub(crate) fn finish_end(
        &mut self,
        slot: u32,
        stored: Option<Box<StoredSession>>,
        token: AckToken,
        condition: AckCondition,
    ) {
        let session = self.sessions.retire(slot);
        let (key, journal) = (session.key(), session.journal());
        if self.sessions.at(slot).subscription_count() == 0 {
            self.sessions.remove(slot);
        } else {
            self.endings.add_subscribed(slot, key);
        }
        self.shared.close_session();
        self.deliveries.counters_mut().sessions -= 1;
        if !session.is_durable() {
            self.endings.close(Arc::clone(session.client_id()), key);
            return;
        }
        let end = (token.number, condition);
        let client_id = Arc::clone(session.client_id());
        let mut ending = Ending::new((journal, session.number()), key, client_id, stored, end);
        // What it has passed on before and is not known to be durable.
        for ack in session.ext_ref().into_iter().flat_map(|ext| ext.acks.of_journal()) {
            ending.wait_for(ack);
        }
        self.endings.add(ending);
        self.append_session_ends();
    }

    /// Whether the end of a session, by the number of its journal and its own, is not on disk yet.
    pub(crate) fn is_ending(&self, journal: u16, session: u32) -> bool {
        self.endings.contains(journal, session)
    }

    /// The journal of a session that has ended, and its number there, if its end is not on disk yet.
    pub(crate) fn find_ending(&self, key: SessionKey) -> Option<(u16, u32)> {
        self.endings.find(key)
    }

    /// Another shard reports its part in what an ended session leaves to others. False if no such session waits for it.
    pub(crate) fn on_ending_receipt(&mut self, number: u64, is_durable: bool) -> bool {
        let is_known = self.endings.on_receipt(number, is_durable);
        if is_known {
            self.append_session_ends();
        }
        is_known
    }

    /// Records the end of sessions whose messages are durable elsewhere. True if there were any.
    pub(super) fn append_session_ends(&mut self) -> bool {
        let (commit, durable) = (self.persistence.current_commit(), self.persistence.durable_commit());
        let ready = self.endings.take_ready(commit, durable, self.shared.is_failing());
        for (journal, session) in &ready {
            self.persistence.journal(*journal).push(&Entry::End { session: *session });
        }
        !ready.is_empty()
    }

    /// Frees the client identifiers of sessions that were closed before this turn: what they have published is on its
    /// way to other shards, and arrives there before what another session with that identifier publishes.
    pub(crate) fn release_closed_sessions(&mut self) {
        for (client_id, key) in self.endings.drain_closed() {
            self.shared.registry.release(&client_id, key);
        }
    }

    /// Continues to remove the subscriptions of ended sessions, at least some in each turn.
    pub(crate) fn remove_ended_subscriptions(&mut self, io: &mut Io<'_, Mail>) {
        while let Some((slot, key)) = self.endings.first_subscribed() {
            if self.remove_subscriptions(io, slot, key) {
                self.sessions.remove(slot);
                self.endings.remove_first_subscribed();
            }
            if io.is_exhausted() {
                return;
            }
        }
    }

    /// Removes some subscriptions of an ended session. Returns whether there are none left.
    fn remove_subscriptions(&mut self, io: &mut Io<'_, Mail>, slot: u32, key: SessionKey) -> bool {
        let session = self.sessions.at(slot);
        let groups = session.take_groups(REMOVED_AT_ONCE);
        let subscriptions = session.take_subscriptions(REMOVED_AT_ONCE - groups.len());
        let is_over = session.subscription_count() == 0;
        for group in &groups {
            self.shared.routes.leave(group, key);
        }
        let removed = groups.len() + subscriptions.len();
        let counters = self.deliveries.counters_mut();
        counters.shared_subscriptions -= groups.len() as u64;
        counters.subscriptions -= removed as u64;
        let of_groups: usize = groups.iter().map(|group| group.filter.len()).sum();
        let bytes = of_groups + self.router.remove(&self.shared.routes, &mut self.sessions, subscriptions);
        io.charge(removed as u32 * REMOVAL_UNITS + (bytes / REMOVED_BYTES_PER_UNIT) as u32);
        is_over
    }

    /// Whether a session of this shard is closed, and only its client identifier is not free yet.
    pub(crate) fn is_closing_session(&mut self, key: SessionKey) -> bool {
        key.shard == self.me && self.sessions.get(key).is_none() && self.endings.find(key).is_none()
    }
}
