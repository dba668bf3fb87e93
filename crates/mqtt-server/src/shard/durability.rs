//! The commit of each turn, and the acks that wait for it.
//!
//! An ack promises that its message survives a crash, wherever the receivers' sessions are stored. It therefore waits
//! for the commit of this shard, if something was appended here, and for a receipt of each other shard that appends a
//! part. Receipts find their ack by a number, the [`AckToken`], and acks of a session leave in order: none overtakes an
//! earlier one.
//!
//! No thread waits for the disk. Commits are numbered, the stores report which are over, and
//! [`Shard::poll_completions`] wakes the sessions that wait for each. A commit that fails turns the acks that need it
//! into refusals, or ends their connections.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_mqtt::{ReasonCode, Version};
use mainstem_runtime::Io;

use super::Shard;
use crate::broker_state::{Mail, ReceiptMail, RetainMail};
use crate::commits::{CompletedCommit, DurabilityWaiter};
use crate::groups::Group;
use crate::message::SessionKey;
use crate::pending_acks::{AckCondition, AckKind, AckToken, Failure, PendingAck, RemoteCommitResult};
use crate::timers::Timer;

/// Packet types of acknowledgements.
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;

impl Shard {
    // Receipts: what shards report to each other when something is durable.

    pub(super) fn on_retain(&mut self, io: &mut Io<'_, Mail>, mail: &RetainMail) {
        let before = self.host.persistence.position();
        self.host.persistence.push_retained(io.clock, &mail.topic, &self.shared.retained);
        let condition = self.host.persistence.condition_since(before);
        self.send_receipt_when_durable(io, condition, mail.token, None);
    }

    pub(super) fn on_fence(&mut self, io: &mut Io<'_, Mail>, token: AckToken) {
        let condition = self.host.persistence.fence();
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
        if condition.is_met(self.host.persistence.durable_commit()) {
            self.send_receipt(io, waiter, true);
        } else {
            self.host.persistence.commits_mut().notify_when_durable(condition.commit, waiter);
        }
    }

    fn send_receipt(&mut self, io: &mut Io<'_, Mail>, waiter: DurabilityWaiter, is_durable: bool) {
        let DurabilityWaiter { token, group } = waiter;
        let failing_journals = if is_durable { BTreeSet::new() } else { self.host.persistence.failing() };
        let result = RemoteCommitResult { is_durable, refused: None, group, failing_journals };
        let shard = token.session.shard;
        if shard == self.me {
            self.on_receipt(io, token, &result);
        } else {
            io.send(usize::from(shard), Mail::Receipt(ReceiptMail(token), result));
        }
    }

    pub(super) fn on_receipt(&mut self, io: &mut Io<'_, Mail>, token: AckToken, result: &RemoteCommitResult) {
        if self.host.on_ending_receipt(token.number, result.is_durable) {
            return;
        }
        if self.bridge.on_receipt(token.number, result.is_durable) {
            return;
        }
        let Some(session) = self.host.sessions.get(token.session) else { return };
        if let Some(ext) = session.ext_mut() {
            ext.acks.on_receipt(token.number, result.failure());
        }
        self.host.on_remote_commit(token, result);
        self.send_pending_acks(io, token.session.slot);
    }

    /// Sends the pending acks of a session whose conditions are met.
    pub(super) fn send_pending_acks(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.host.sessions.key(slot);
        loop {
            let durable = self.host.persistence.durable_commit();
            let session = self.host.sessions.at(slot);
            let next = session.ext_mut().and_then(|ext| ext.acks.pop(durable));
            let Some(ack) = next else { return };
            match ack.failure {
                None => self.host.send_ack(io, slot, &ack.kind, ack.completes),
                Some(failure) => self.send_ack_failure(io, slot, ack, failure),
            }
            if self.host.sessions.get(key).is_none() {
                return;
            }
        }
    }

    /// What an ack would promise is not durable, or was rejected.
    fn send_ack_failure(&mut self, io: &mut Io<'_, Mail>, slot: u32, ack: PendingAck, failure: Failure) {
        let session = self.host.sessions.at(slot);
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
                self.host.send_ack_packet(io, slot, *first, *packet_id, reason);
            }
            AckKind::Ack { first, .. }
                if session.version() == Version::V5
                    && first >> 4 == PUBREC
                    && matches!(failure, Failure::Refused(_)) =>
            {
                self.host.reject_exchange(slot, ack, reason);
            }
            AckKind::WillSent if matches!(failure, Failure::Refused(_)) => {
                self.host.send_ack(io, slot, &ack.kind, false);
            }
            // They stay with this session as well, and may be delivered twice.
            AckKind::Settled { sequence } => self.host.mark_reassigned_unconfirmed(slot, *sequence),
            AckKind::WillSent => self.host.mark_unconfirmed(slot),
            _ if !session.is_connected() => {}
            _ => {
                let client_id = Arc::clone(session.client_id());
                if let AckKind::Ack { packet_id, .. } = ack.kind
                    && !session.is_durable()
                {
                    // No journal has it, so that it counts as new when it comes again.
                    session.release(packet_id);
                }
                self.host.interrupt_publish(slot, &ack.kind);
                log::warn!("client {client_id:?} is disconnected: {why}");
                self.disconnect(io, slot, reason, Some(why));
            }
        }
    }

    // The turn's commit.

    /// Applies what the stores have completed, and continues what waited for it.
    pub(super) fn poll_completions(&mut self, io: &mut Io<'_, Mail>) {
        if !self.host.persistence.is_enabled() {
            return;
        }
        self.host.persistence.poll(io.clock);
        // Before anybody is answered: a publish that comes again must not be taken for complete.
        self.host.take_back_lost();
        self.host.persistence.settle_completions();
        while let Some(completed) = self.host.next_completed() {
            let CompletedCommit { commit, has_failed } = completed;
            while let Some(waiter) = self.host.persistence.commits_mut().next_waiter(commit) {
                self.send_receipt(io, waiter, !has_failed);
            }
            while let Some(key) = self.host.persistence.commits_mut().next_waiting(commit) {
                self.on_commit(io, key, commit, has_failed);
            }
        }
        if self.host.settle_endings() {
            io.request_turn();
        }
        self.host.deliveries.set_queued_elsewhere(self.shared.queued_elsewhere(self.me));
    }

    /// A commit that a session waits for is over.
    fn on_commit(&mut self, io: &mut Io<'_, Mail>, key: SessionKey, commit: u64, has_failed: bool) {
        self.release_connack(io, key, commit, has_failed);
        // Without its CONNACK, a session that ends with its connection is gone.
        let Some(session) = self.host.sessions.get(key) else { return };
        if has_failed && let Some(ext) = session.ext_mut() {
            ext.acks.fail(commit);
        }
        let is_connected = session.is_connected();
        self.send_pending_acks(io, key.slot);
        if is_connected && self.host.sessions.get(key).is_some() {
            self.host.pump(io, key.slot);
        }
    }

    /// Hands everything appended in this turn to the disk.
    pub(super) fn commit_turn(&mut self, io: &mut Io<'_, Mail>) {
        if !self.host.persistence.is_enabled() {
            return;
        }
        self.host.continue_snapshots(io);
        if self.host.persistence.commit_turn(io.clock.now_ms, self.host.deliveries.counters_mut()) {
            // Some stores complete at once, and what was lost at once need not be waited for.
            self.poll_completions(io);
        }
        if let Some(due_ms) = self.host.persistence.next_marks_timer() {
            io.set_timer(due_ms, Timer::Marks.token());
        }
    }
}
