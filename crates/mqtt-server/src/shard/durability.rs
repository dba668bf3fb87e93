//! Appends to the journals, the commit of each turn, and the acks that wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_mqtt::{Packet, ReasonCode, SubAck, UserProperties, Version};
use mainstem_runtime::{Clock, Io};

use super::Shard;
use crate::broker_state::{Mail, ReceiptMail, RetainMail};
use crate::commits::{CompletedCommit, DurabilityWaiter};
use crate::groups::Group;
use crate::journal::entry::{Entry, Origin};
use crate::journal::{Journal, OpenJournal};
use crate::message::{Message, SessionKey};
use crate::pending_acks::{AckCondition, AckKind, AckToken, Failure, PendingAck, RemoteCommitResult};
use crate::session::offer::{Deferred, Offer};
use crate::timers::Timer;

/// Interval of store maintenance, ms.
const MAINTENANCE_MS: u64 = 1_000;
/// Packet types of acknowledgements.
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;

impl Shard {
    /// The journal of a durable session, and the session's number there.
    pub(super) fn journal(&mut self, slot: u32) -> Option<(OpenJournal<'_>, u32)> {
        let session = self.sessions.at(slot);
        session.is_durable().then(|| (self.persistence.journal(session.journal()), session.number()))
    }

    /// The condition under which everything appended so far, here and on other shards, is durable.
    pub(super) fn fence(&mut self, io: &mut Io<'_, Mail>, token: AckToken) -> AckCondition {
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
    pub(super) fn append_session(&mut self, clock: Clock, slot: u32) {
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
    }

    /// Appends a message that has been offered to every subscriber here, for the durable sessions among them.
    #[inline]
    pub(super) fn append_message(
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
    pub(super) fn persist_retained(
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

    // Receipts: what shards report to each other when something is durable.

    pub(super) fn on_retain(&mut self, io: &mut Io<'_, Mail>, mail: &RetainMail) {
        let before = self.persistence.position();
        self.persistence.push_retained(io.clock, &mail.topic, &self.shared.retained);
        let condition = self.persistence.condition_since(before);
        self.send_receipt_when_durable(io, condition, mail.token, None);
    }

    pub(super) fn on_fence(&mut self, io: &mut Io<'_, Mail>, token: AckToken) {
        let condition = self.persistence.fence();
        self.send_receipt_when_durable(io, condition, Some(token), None);
    }

    /// Reports this shard's part to whoever waits for it, now or when `condition` is met.
    pub(super) fn send_receipt_when_durable(
        &mut self,
        io: &mut Io<'_, Mail>,
        condition: AckCondition,
        token: Option<AckToken>,
        group: Option<&Arc<Group>>,
    ) {
        let Some(token) = token else { return };
        let waiter = DurabilityWaiter { token, group: group.cloned() };
        if condition.is_met(self.persistence.durable_commit()) {
            self.send_receipt(io, waiter, true);
        } else {
            self.persistence.commits_mut().notify_when_durable(condition.commit, waiter);
        }
    }

    fn send_receipt(&mut self, io: &mut Io<'_, Mail>, waiter: DurabilityWaiter, is_durable: bool) {
        let DurabilityWaiter { token, group } = waiter;
        let failing_journals = if is_durable { BTreeSet::new() } else { self.persistence.failing() };
        let result = RemoteCommitResult { is_durable, refused: None, group, failing_journals };
        let shard = token.session.shard;
        if shard == self.me {
            self.on_receipt(io, token, &result);
        } else {
            io.send(usize::from(shard), Mail::Receipt(ReceiptMail(token), result));
        }
    }

    pub(super) fn on_receipt(&mut self, io: &mut Io<'_, Mail>, token: AckToken, result: &RemoteCommitResult) {
        if self.endings.on_receipt(token.number, result.is_durable) {
            self.append_session_ends();
            return;
        }
        if self.bridge.on_receipt(token.number, result.is_durable) {
            return;
        }
        let Some(session) = self.sessions.get(token.session) else { return };
        if let Some(ext) = session.ext_mut() {
            ext.acks.on_receipt(token.number, result.failure());
        }
        self.on_remote_commit(token, result);
        self.send_pending_acks(io, token.session.slot);
    }

    // Acks to clients.

    /// A number for an ack of a session, for which other shards send receipts.
    pub(super) fn next_ack_token(&mut self, slot: u32) -> AckToken {
        AckToken { session: self.sessions.key(slot), number: self.persistence.next_ack() }
    }

    /// Sends an acknowledgement that waits for nothing but earlier ones, as nearly all do of sessions that are not
    /// durable.
    #[inline]
    pub(super) fn ack_now(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        first: u8,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        if self.sessions.at(slot).has_pending_acks() {
            let kind = AckKind::Ack { first, packet_id, reason };
            self.ack(io, slot, AckCondition::default(), None, kind);
        } else {
            self.send_ack_packet(io, slot, first, packet_id, reason);
        }
    }

    /// Sends an ack as soon as `condition` is met, behind earlier acks of the session.
    pub(super) fn ack(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        condition: AckCondition,
        token: Option<AckToken>,
        kind: AckKind,
    ) {
        self.ack_publish(io, slot, (condition, token), kind, false);
    }

    /// The same; with `completes` the ack also ends a QoS 2 publish that is in flight.
    pub(super) fn ack_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        (condition, token): (AckCondition, Option<AckToken>),
        kind: AckKind,
        completes: bool,
    ) {
        let durable = self.persistence.durable_commit();
        let is_first = !self.sessions.at(slot).has_pending_acks();
        if is_first && condition.is_met(durable) {
            self.send_ack(io, slot, &kind, completes);
            return;
        }
        // Each that waits has a number of its own, by which receipts find it.
        let number = token.unwrap_or_else(|| self.next_ack_token(slot)).number;
        let session = self.sessions.at(slot);
        session.ext().acks.push(PendingAck { number, condition, failure: None, completes, kind });
        if condition.commit > durable {
            self.persistence.commits_mut().wake_with(condition.commit, session.key());
        }
    }

    /// Sends the pending acks of a session whose conditions are met.
    pub(super) fn send_pending_acks(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.sessions.key(slot);
        loop {
            let durable = self.persistence.durable_commit();
            let session = self.sessions.at(slot);
            let next = session.ext_mut().and_then(|ext| ext.acks.pop(durable));
            let Some(ack) = next else { return };
            match ack.failure {
                None => self.send_ack(io, slot, &ack.kind, ack.completes),
                Some(failure) => self.send_ack_failure(io, slot, ack, failure),
            }
            if self.sessions.get(key).is_none() {
                return;
            }
        }
    }

    fn send_ack(&mut self, io: &mut Io<'_, Mail>, slot: u32, kind: &AckKind, completes: bool) {
        match *kind {
            AckKind::Ack { first, packet_id, reason } => {
                if completes {
                    self.complete_publish(slot, packet_id);
                }
                self.send_ack_packet(io, slot, first, packet_id, reason);
            }
            AckKind::WillSent => self.confirm_will(io, slot),
            AckKind::Settled { sequence } => self.confirm_reassigned(slot, sequence),
            AckKind::List { is_subscribe, packet_id, ref reasons } => {
                self.send_list(io, slot, is_subscribe, packet_id, reasons);
            }
        }
    }

    /// What an ack would promise is not durable, or was rejected.
    fn send_ack_failure(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: PendingAck, failure: Failure) {
        let session = self.sessions.at(slot);
        let (reason, why) = match failure {
            Failure::NotDurable => (ReasonCode::QuotaExceeded, "what it asked for cannot be kept on disk"),
            Failure::Refused(reason) => (reason, "a queue or a topic refuses what it published"),
        };
        match &ack.kind {
            // A PUBREC with an error would end an exchange that the disk may have; a durable session is disconnected
            // instead, and continues with it.
            AckKind::Ack { first, packet_id, .. }
                if session.version() == Version::V5
                    && (first >> 4 == PUBACK || (first >> 4 == PUBREC && !session.is_durable())) =>
            {
                session.release(*packet_id);
                self.send_ack_packet(io, slot, *first, *packet_id, reason);
            }
            AckKind::Ack { first, .. }
                if session.version() == Version::V5
                    && first >> 4 == PUBREC
                    && matches!(failure, Failure::Refused(_)) =>
            {
                self.reject_exchange(slot, ack, reason);
            }
            AckKind::WillSent if matches!(failure, Failure::Refused(_)) => {
                self.send_ack(io, slot, &ack.kind, false);
            }
            // They stay with this session as well, and may be delivered twice.
            AckKind::Settled { sequence } => self.mark_reassigned_unconfirmed(slot, *sequence),
            AckKind::WillSent => self.mark_unconfirmed(slot),
            _ if !session.is_connected() => {}
            _ => {
                let client_id = Arc::clone(session.client_id());
                if let AckKind::Ack { packet_id, .. } = ack.kind
                    && !session.is_durable()
                {
                    // No journal has it, so that it counts as new when it comes again.
                    session.release(packet_id);
                }
                self.interrupt_publish(slot, &ack.kind);
                log::warn!("client {client_id:?} is disconnected: {why}");
                self.disconnect(io, slot, reason, Some(why));
            }
        }
    }

    /// Sends SUBACK or UNSUBACK. Only MQTT 5 has reason codes in the latter.
    fn send_list(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        is_subscribe: bool,
        packet_id: u16,
        reasons: &[u8],
    ) {
        let has_reasons = is_subscribe || self.sessions.at(slot).version() == Version::V5;
        let list = SubAck {
            packet_id,
            reason_string: None,
            user_properties: UserProperties::default(),
            reasons: if has_reasons { reasons } else { &[] },
        };
        self.send(io, slot, &if is_subscribe { Packet::SubAck(list) } else { Packet::UnsubAck(list) });
    }

    // The turn's commit.

    /// Applies what the stores have completed, and continues what waited for it.
    pub(super) fn poll_completions(&mut self, io: &mut Io<'_, Mail>) {
        if !self.persistence.is_enabled() {
            return;
        }
        self.persistence.poll(io.clock);
        // Before anybody is answered: a publish that comes again must not be taken for complete.
        self.take_back_lost();
        self.persistence.settle_completions();
        while let Some(completed) = self.persistence.next_completed() {
            let CompletedCommit { commit, has_failed } = completed;
            self.endings.on_commit(completed);
            while let Some(waiter) = self.persistence.commits_mut().next_waiter(commit) {
                self.send_receipt(io, waiter, !has_failed);
            }
            while let Some(key) = self.persistence.commits_mut().next_waiting(commit) {
                self.on_commit(io, key, commit, has_failed);
            }
        }
        self.endings.close_durable(self.persistence.durable_commit());
        self.note_failures();
        if !self.endings.is_empty() && self.append_session_ends() {
            io.request_turn();
        }
        self.deliveries.set_queued_elsewhere(self.shared.queued_elsewhere(self.me));
    }

    /// Publishes which of this shard's logs fail.
    pub(super) fn note_failures(&mut self) {
        self.shared.set_failing(self.me, self.persistence.journals().iter().any(Journal::is_failing));
        if let Some(is_failing) = self.persistence.is_retained_failing() {
            self.shared.set_retained_failing(is_failing);
        }
    }

    /// A commit that a session waits for is over.
    fn on_commit(&mut self, io: &mut Io<'_, Mail>, key: SessionKey, commit: u64, has_failed: bool) {
        self.release_connack(io, key, commit, has_failed);
        // Without its CONNACK, a session that ends with its connection is gone.
        let Some(session) = self.sessions.get(key) else { return };
        if has_failed && let Some(ext) = session.ext_mut() {
            ext.acks.fail(commit);
        }
        let is_connected = session.is_connected();
        self.send_pending_acks(io, key.slot);
        if is_connected && self.sessions.get(key).is_some() {
            self.pump(io, key.slot);
        }
    }

    /// Hands everything appended in this turn to the disk.
    pub(super) fn commit_turn(&mut self, io: &mut Io<'_, Mail>) {
        if !self.persistence.is_enabled() {
            return;
        }
        self.continue_snapshots(io);
        if self.persistence.commit_turn(io.clock.now_ms, self.deliveries.counters_mut()) {
            // Some stores complete at once, and what was lost at once need not be waited for.
            self.poll_completions(io);
        }
        if let Some(due_ms) = self.persistence.next_marks_timer() {
            io.set_timer(due_ms, Timer::Marks.token());
        }
    }

    /// Lets stores do what is due by itself, and tries again what has failed.
    pub(super) fn maintain_stores(&mut self, io: &mut Io<'_, Mail>) {
        io.charge(self.persistence.maintain(io.clock.unix_ms));
        self.append_session_ends();
        self.confirm_after_recovery(io);
        self.persistence.retry_retained(io.clock, &self.shared.retained);
        io.set_timer(io.clock.now_ms + MAINTENANCE_MS, Timer::Maintenance.token());
    }
}
