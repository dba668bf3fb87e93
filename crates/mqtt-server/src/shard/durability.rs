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

use mainstem_runtime::Io;

use super::Shard;
use crate::broker_state::{Mail, ReceiptMail};
use crate::commits::{CompletedCommit, DurabilityWaiter};
use crate::groups::Group;
use crate::message::SessionKey;
use crate::pending_acks::{AckCondition, AckToken, RemoteCommitResult};
use crate::session_host::BrokenPromise;

impl Shard {
    // Receipts: what shards report to each other when something is durable.

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
        if let Some(waiter) = self.host.notify_when_durable(condition, waiter) {
            self.send_receipt(io, waiter, true);
        }
    }

    fn send_receipt(&mut self, io: &mut Io<'_, Mail>, waiter: DurabilityWaiter, is_durable: bool) {
        let DurabilityWaiter { token, group } = waiter;
        let failing_journals = if is_durable { BTreeSet::new() } else { self.host.persistence().failing() };
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
        if self.publisher.bridge_mut().on_receipt(token.number, result.is_durable) {
            return;
        }
        let Some(session) = self.host.find_session(token.session) else { return };
        if let Some(ext) = session.ext_mut() {
            ext.acks.on_receipt(token.number, result.failure());
        }
        self.host.on_remote_commit(token, result);
        self.send_pending_acks(io, token.session.slot);
    }

    /// Sends the pending acks of a session whose conditions are met.
    pub(super) fn send_pending_acks(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.host.session(slot).key();
        while let Some(BrokenPromise { reason, why }) = self.host.send_pending_acks(io, slot) {
            self.disconnect(io, slot, reason, Some(why));
            if self.host.find_session(key).is_none() {
                return;
            }
        }
    }

    // The turn's commit.

    /// Applies what the stores have completed, and continues what waited for it.
    pub(super) fn poll_completions(&mut self, io: &mut Io<'_, Mail>) {
        if !self.host.poll_stores(io.clock) {
            return;
        }
        while let Some(completed) = self.host.next_completed() {
            let CompletedCommit { commit, has_failed } = completed;
            while let Some(waiter) = self.host.next_waiter(commit) {
                self.send_receipt(io, waiter, !has_failed);
            }
            while let Some(key) = self.host.next_waiting(commit) {
                self.on_commit(io, key, commit, has_failed);
            }
        }
        if self.host.end_completions() {
            io.request_turn();
        }
    }

    /// A commit that a session waits for is over.
    fn on_commit(&mut self, io: &mut Io<'_, Mail>, key: SessionKey, commit: u64, has_failed: bool) {
        self.release_connack(io, key, commit, has_failed);
        // Without its CONNACK, a session that ends with its connection is gone.
        let Some(session) = self.host.find_session(key) else { return };
        if has_failed && let Some(ext) = session.ext_mut() {
            ext.acks.fail(commit);
        }
        let is_connected = session.is_connected();
        self.send_pending_acks(io, key.slot);
        if is_connected && self.host.find_session(key).is_some() {
            self.host.pump(io, key.slot);
        }
    }

    /// Hands everything appended in this turn to the disk.
    pub(super) fn commit_turn(&mut self, io: &mut Io<'_, Mail>) {
        if self.host.commit_turn(io) {
            // Some stores complete at once, and what was lost at once need not be waited for.
            self.poll_completions(io);
        }
        self.host.arm_marks(io);
    }
}
