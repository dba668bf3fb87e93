//! The coordinators on shard 0: requests to the groups and the transactions, and their effects.
//!
//! The machines of `coordinator` answer a request now, or after records of theirs are durable, or when other members
//! have come. A caller therefore never waits for the result of a call: it leaves a value that says how to continue
//! ([`AfterGroupReply`], [`AfterTxnReply`]), and `poll_groups` and `poll_transactions` resume it with the answer.

use std::sync::Arc;

use mainstem_coordinator::Caller;
use mainstem_coordinator::group::Groups;
use mainstem_coordinator::transaction::Transactions;
use mainstem_runtime::Io;

use crate::pending::{AfterGroupReply, AfterTxnReply};
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::timer::Timer;
use crate::transactions::TransactionEffect;

/// Consumer groups.
impl Shard {
    /// Sends the groups a request, on shard 0; `then` continues with the answer, now or later.
    pub(crate) fn call_groups(
        &mut self,
        io: &mut Io<'_, Mail>,
        request: impl FnOnce(&mut Groups, u64, Caller),
        then: AfterGroupReply,
    ) {
        let Some(controller) = &mut self.controller else { return };
        controller.groups.call(io.clock, request, then);
        self.poll_groups(io);
    }

    /// Runs a synchronous operation on the groups, on shard 0.
    pub(crate) fn with_groups<R>(
        &mut self,
        io: &mut Io<'_, Mail>,
        operation: impl FnOnce(&mut Groups, u64) -> R,
    ) -> Option<R> {
        let result = self.controller.as_mut()?.groups.with_groups(io.clock, operation);
        self.poll_groups(io);
        Some(result)
    }

    /// Carries out the effects of the groups.
    pub(crate) fn poll_groups(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store())
            && let Some((then, answer)) = controller.groups.poll(first, io.clock.unix_ms)
        {
            self.resume_group_reply(io, then, answer);
        }
        if let Some(at_ms) = self.controller.as_mut().and_then(|known| known.groups.next_timer_ms()) {
            io.set_timer(at_ms, Timer::Coordinate.token());
        }
    }
}

/// Transactions.
impl Shard {
    /// Sends the transactions a request, on shard 0; `then` continues with the answer, now or later.
    pub(crate) fn call_transactions(
        &mut self,
        io: &mut Io<'_, Mail>,
        request: impl FnOnce(&mut Transactions, u64, Caller),
        then: AfterTxnReply,
    ) {
        let Some(controller) = &mut self.controller else { return };
        controller.transactions.call(io.clock, request, then);
        self.poll_transactions(io);
    }

    /// Reads the state of transactions, on shard 0.
    pub(crate) fn with_transactions<R>(
        &self,
        io: &Io<'_, Mail>,
        look: impl FnOnce(&Transactions, u64) -> R,
    ) -> Option<R> {
        self.controller.as_ref().map(|controller| controller.transactions.read(io.clock, look))
    }

    /// Carries out the effects of the transactions.
    pub(crate) fn poll_transactions(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store())
            && let Some(effect) = controller.transactions.poll(first, io.clock.unix_ms)
        {
            match effect {
                TransactionEffect::WriteMarkers(markers) => self.issue_markers(io, Arc::new(markers)),
                TransactionEffect::Reply(then, answer) => self.resume_txn_reply(io, then, answer),
            }
        }
        if let Some(at_ms) = self.controller.as_mut().and_then(|known| known.transactions.next_timer_ms()) {
            io.set_timer(at_ms, Timer::Coordinate.token());
        }
    }
}
