//! Sessions that have ended, but of which something is left: their subscriptions, or an end that is not on disk yet.
//!
//! The subscriptions of a large session are removed in several turns; its slot is taken until the last one is.
//!
//! The journal records the end of a session only when the messages that it passed on to others are durable with them.
//! Until that entry is on disk too, the client identifier stays taken: a crash could bring the session back beside a
//! new one.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::commits::CompletedCommit;
use crate::journal::stored::StoredSession;
use crate::message::SessionKey;
use crate::pending_acks::{AckCondition, PendingAck};

/// An ended session.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Numbers by which other shards refer to it: its own, and those of what it had passed on before.
    numbers: Vec<u64>,
    /// What has to be durable before the end is recorded.
    condition: AckCondition,
    /// Part of that, or the end itself, could not be made durable.
    has_failed: bool,
    journal: u16,
    session: u32,
    client_id: Arc<str>,
    key: SessionKey,
    /// The commit that the recorded end is part of.
    commit: Option<u64>,
    /// The session as snapshots contain it until its end is recorded. `None` if it leaves nothing to others.
    stored: Option<Box<StoredSession>>,
}

impl Ending {
    /// The end of session `session` of a journal, for which other shards send receipts with `number`.
    pub(crate) fn new(
        (journal, session): (u16, u32),
        key: SessionKey,
        client_id: Arc<str>,
        stored: Option<Box<StoredSession>>,
        (number, condition): (u64, AckCondition),
    ) -> Self {
        let numbers = vec![number];
        Self { numbers, condition, has_failed: false, journal, session, client_id, key, commit: None, stored }
    }

    /// The end also waits for what a pending ack waits for.
    pub(crate) fn wait_for(&mut self, ack: &PendingAck) {
        self.numbers.push(ack.number);
        self.condition.commit = self.condition.commit.max(ack.condition.commit);
        self.condition.receipts += ack.condition.receipts;
        self.has_failed |= ack.failure.is_some();
    }
}

#[derive(Debug, Default)]
pub(crate) struct EndingSessions {
    endings: Vec<Ending>,
    /// Sessions whose client identifiers are free when this turn's mail is on its way.
    closed: Vec<(Arc<str>, SessionKey)>,
    /// Slots of sessions whose subscriptions are not all removed, with their former keys.
    subscribed: VecDeque<(u32, SessionKey)>,
}

impl EndingSessions {
    pub(crate) fn is_empty(&self) -> bool {
        self.endings.is_empty()
    }

    /// Number of sessions that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.endings.len() + self.closed.len()
    }

    pub(crate) fn add(&mut self, ending: Ending) {
        self.endings.push(ending);
    }

    /// A session without a journal has ended.
    pub(crate) fn close(&mut self, client_id: Arc<str>, key: SessionKey) {
        self.closed.push((client_id, key));
    }

    /// Another shard reports what has become of its part. False if the number belongs to no ended session.
    pub(crate) fn on_receipt(&mut self, number: u64, is_durable: bool) -> bool {
        let ending = self.endings.iter_mut().find(|ending| ending.numbers.contains(&number));
        ending.is_some_and(|ending| {
            ending.condition.receipts = ending.condition.receipts.saturating_sub(1);
            ending.has_failed |= !is_durable;
            true
        })
    }

    pub(crate) fn contains(&self, journal: u16, session: u32) -> bool {
        self.endings.iter().any(|ending| ending.journal == journal && ending.session == session)
    }

    /// Journal and number of the session with this key.
    pub(crate) fn find(&self, key: SessionKey) -> Option<(u16, u32)> {
        let ending = self.endings.iter().find(|ending| ending.key == key)?;
        Some((ending.journal, ending.session))
    }

    /// Journal and number of each session whose end can be recorded now, as part of `commit`. What failed before can be
    /// recorded when no disk fails any more.
    pub(crate) fn take_ready(
        &mut self,
        commit: u64,
        durable_commit: u64,
        is_failing: bool,
    ) -> Vec<(u16, u32)> {
        let is_ready = |known: &&mut Ending| {
            known.commit.is_none()
                && known.condition.is_met(durable_commit)
                && !(known.has_failed && is_failing)
        };
        let ready = self.endings.iter_mut().filter(is_ready);
        ready
            .map(|ending| {
                ending.commit = Some(commit);
                (ending.journal, ending.session)
            })
            .collect()
    }

    /// A commit has come to its end. Ends that were part of a failed one are recorded again later; sessions whose end
    /// is on disk are closed.
    pub(crate) fn on_commit(&mut self, completed: CompletedCommit) {
        if !completed.has_failed {
            return;
        }
        for ending in &mut self.endings {
            if ending.commit == Some(completed.commit) || ending.condition.commit == completed.commit {
                ending.has_failed = true;
                ending.commit = None;
            }
        }
    }

    /// Closes the sessions whose end is on disk.
    pub(crate) fn close_durable(&mut self, durable_commit: u64) {
        let is_durable = |ending: &mut Ending| ending.commit.is_some_and(|commit| commit <= durable_commit);
        let durable = self.endings.extract_if(.., is_durable);
        self.closed.extend(durable.map(|ending| (ending.client_id, ending.key)));
    }

    /// The session that was in this slot has subscriptions that are not removed yet.
    pub(crate) fn add_subscribed(&mut self, slot: u32, key: SessionKey) {
        self.subscribed.push_back((slot, key));
    }

    /// Slot and former key of the session whose subscriptions are removed next.
    pub(crate) fn first_subscribed(&self) -> Option<(u32, SessionKey)> {
        self.subscribed.front().copied()
    }

    /// The last subscription of that session has been removed.
    pub(crate) fn remove_first_subscribed(&mut self) {
        self.subscribed.pop_front();
    }

    pub(crate) fn drain_closed(&mut self) -> impl Iterator<Item = (Arc<str>, SessionKey)> {
        self.closed.drain(..)
    }

    /// The ended sessions of a journal as snapshots contain them, with their numbers.
    pub(crate) fn stored(&mut self, journal: usize) -> impl Iterator<Item = (u32, &mut StoredSession)> {
        let of_journal = move |ending: &&mut Ending| usize::from(ending.journal) == journal;
        let of_journal = self.endings.iter_mut().filter(of_journal);
        of_journal.filter_map(|ending| Some((ending.session, ending.stored.as_deref_mut()?)))
    }

    /// Those of them whose end is not recorded.
    pub(crate) fn unrecorded(&mut self, journal: usize) -> impl Iterator<Item = (u32, &mut StoredSession)> {
        let is_unrecorded =
            move |ending: &&mut Ending| usize::from(ending.journal) == journal && ending.commit.is_none();
        let unrecorded = self.endings.iter_mut().filter(is_unrecorded);
        unrecorded.filter_map(|ending| Some((ending.session, ending.stored.as_deref_mut()?)))
    }
}
