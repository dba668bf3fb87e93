//! What sessions append to their journals, and messages for the durable sessions among their receivers.
//!
//! The offers of a message collect its durable receivers; one entry then has the message once and all of them. It is
//! appended after the last offer and before other shards get the message, so the order of entries is that of the
//! publishes. A session whose replay of retained messages has not reached the topic gets the retained message first,
//! then this one, as entries of their own.
//!
//! Appending waits for nothing. An [`AckCondition`] says what has to be durable; [`SessionHost::fence`] gives the one
//! for everything appended so far, on all shards.

use std::sync::Arc;

use mainstem_runtime::{Clock, Io};

use super::SessionHost;
use crate::broker_state::{Mail, ReceiptMail, RetainMail};
use crate::journal::entry::{Entry, Origin};
use crate::journal::{Journal, OpenJournal};
use crate::message::Message;
use crate::pending_acks::{AckCondition, AckToken};
use crate::session::offer::{Deferred, Offer};
use crate::timers::Timer;

/// Interval of store maintenance, ms.
const MAINTENANCE_MS: u64 = 1_000;

impl SessionHost {
    /// The journal of a durable session, and the session's number there.
    pub(crate) fn journal(&mut self, slot: u32) -> Option<(OpenJournal<'_>, u32)> {
        let session = self.sessions.at(slot);
        session.is_durable().then(|| (self.persistence.journal(session.journal()), session.number()))
    }

    /// The condition under which everything appended so far, here and on other shards, is durable.
    pub(crate) fn fence(&mut self, io: &mut Io<'_, Mail>, token: AckToken) -> AckCondition {
        let condition = self.persistence.fence();
        // Retained messages are appended on the first shard, whether it has durable sessions or not.
        let retained = u64::from(self.shared.is_retained_durable());
        let mut others = (self.shared.persistent_shards() | retained) & !(1 << self.me);
        let receipts = others.count_ones();
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            io.send(other, Mail::Fence(ReceiptMail(token)));
        }
        AckCondition { receipts, ..condition }
    }

    // Appends.

    /// Appends the state of a durable session.
    pub(crate) fn append_session(&mut self, clock: Clock, slot: u32) {
        let session = self.sessions.at(slot);
        if !session.is_durable() {
            return;
        }
        let mut publish = Vec::new();
        let entry = Entry::Session(session.entry(clock, &mut publish));
        let mut journal = self.persistence.journal(session.journal());
        journal.push(&entry);
        if let Some(user) = session.user() {
            journal.push(&Entry::User { session: session.number(), user });
        }
        if let Some(access) = session.access() {
            journal.push(&Entry::Client { session: session.number(), origin: access.client_origin() });
        }
    }

    /// Appends a message that has been offered to every subscriber here, for the durable sessions among them.
    #[inline]
    pub(crate) fn append_message(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        origin: Option<Origin>,
    ) {
        if self.shared.persistent_shards() & (1 << self.me) != 0 {
            self.append_for_all(io, message, origin);
        }
    }

    fn append_for_all(&mut self, io: &mut Io<'_, Mail>, message: &Arc<Message>, origin: Option<Origin>) {
        self.append_for_receivers(message, origin);
        for deferred in self.deliveries.take_deferred() {
            self.offer_deferred(io, message, origin, &deferred);
        }
    }

    fn append_for_receivers(&mut self, message: &Arc<Message>, origin: Option<Origin>) {
        for mut journal in self.persistence.open_journals() {
            if journal.has_receivers() {
                journal.push_message(message, origin, None);
            }
        }
        for slot in self.deliveries.drain_committing() {
            self.persistence.wake_with_current(self.sessions.key(slot));
        }
    }

    /// Offers a message to a session whose replay has not reached the topic: the retained message comes first.
    fn offer_deferred(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        origin: Option<Origin>,
        deferred: &Deferred,
    ) {
        let Deferred { slot, qos, retain, ref ids, ref group } = *deferred;
        let topic = message.topic();
        let session = self.sessions.at(slot);
        if let Some((options, id, newest)) = session.ext_mut().and_then(|ext| ext.retained.send_early(topic))
            && let Some(retained) = self.shared.retained.get_until(topic, newest)
            && !Arc::ptr_eq(&retained, message)
            && !retained.is_expired(io.clock.now_ms)
        {
            let offer = Offer {
                message: &retained,
                qos: retained.qos.min(options.qos),
                retain: true,
                ids: if id == 0 { &[] } else { std::slice::from_ref(&id) },
                group: None,
                is_replayed: true,
                is_fan_out: false,
            };
            self.deliveries.offer(io, &mut self.persistence, session, &offer);
            self.append_message(io, &retained, None);
        }
        let offer =
            Offer { message, qos, retain, ids, group: group.as_ref(), is_replayed: false, is_fan_out: false };
        self.deliveries.offer(io, &mut self.persistence, self.sessions.at(slot), &offer);
        self.append_for_receivers(message, origin);
    }

    /// A topic's retained message has changed: the first shard appends it. Returns the number of receipts to wait for.
    pub(crate) fn persist_retained(
        &mut self,
        io: &mut Io<'_, Mail>,
        topic: &str,
        token: Option<AckToken>,
    ) -> u32 {
        if !self.shared.is_retained_durable() {
            return 0;
        }
        if self.me != 0 {
            io.send(0, Mail::Retain(RetainMail { topic: topic.into(), token }));
            return u32::from(token.is_some());
        }
        self.persistence.push_retained(io.clock, topic, &self.shared.retained);
        0
    }

    /// Publishes which of this shard's logs fail.
    pub(super) fn note_failures(&mut self) {
        self.shared.set_failing(self.me, self.persistence.journals().iter().any(Journal::is_failing));
        if let Some(is_failing) = self.persistence.is_retained_failing() {
            self.shared.set_retained_failing(is_failing);
        }
    }

    /// Gives a new session a journal, if there are any.
    pub(super) fn make_durable(&mut self, slot: u32) {
        if let Some(journal) = self.persistence.journals_mut().first_mut() {
            self.sessions.at(slot).make_durable(0, journal.number_session());
            self.shared.note_persistent(self.me);
        }
    }

    /// Appends a replayed message for its receiver, with the filter whose replay has come this far.
    pub(super) fn append_replayed(&mut self, message: &Arc<Message>, filter: &str) {
        for mut journal in self.persistence.open_journals() {
            if journal.has_receivers() {
                journal.push_message(message, None, Some(filter));
            }
        }
        for slot in self.deliveries.drain_committing() {
            self.persistence.wake_with_current(self.sessions.key(slot));
        }
    }

    /// Lets stores do what is due by itself, and tries again what has failed.
    pub(crate) fn maintain_stores(&mut self, io: &mut Io<'_, Mail>) {
        io.charge(self.persistence.maintain(io.clock.unix_ms));
        self.append_session_ends();
        self.confirm_after_recovery(io);
        self.persistence.retry_retained(io.clock, &self.shared.retained);
        io.set_timer(io.clock.now_ms + MAINTENANCE_MS, Timer::Maintenance.token());
    }
}
