//! The coordinators on shard 0: requests to the groups and the transactions, and their effects.

use std::sync::Arc;

use mainstem_coordinator::Caller;
use mainstem_coordinator::group::{Groups, Response};
use mainstem_coordinator::transaction::Transactions;
use mainstem_log::Completion;
use mainstem_runtime::Io;

use crate::groups::GroupCoordinator;
use crate::pending::{AfterGroupReply, AfterTxnReply};
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::timer::Timer;
use crate::transactions::{TransactionCoordinator, TransactionEffect};

/// Consumer groups.
impl Shard {
    /// Sends the groups a request, on shard 0; `then` continues with the answer, now or later.
    pub(crate) fn call_groups(
        &mut self,
        io: &mut Io<'_, Mail>,
        request: impl FnOnce(&mut Groups, u64, Caller),
        then: AfterGroupReply,
    ) {
        let Some(coordinator) = self.group_coordinator() else { return };
        coordinator.call(io.clock, request, then);
        self.poll_groups(io);
    }

    /// Runs a synchronous operation on the groups, on shard 0.
    pub(crate) fn with_groups<R>(
        &mut self,
        io: &mut Io<'_, Mail>,
        operation: impl FnOnce(&mut Groups, u64) -> R,
    ) -> Option<R> {
        let result = self.group_coordinator()?.with_groups(io.clock, operation);
        self.poll_groups(io);
        Some(result)
    }

    fn group_coordinator(&mut self) -> Option<&mut GroupCoordinator> {
        self.controller.as_mut().map(|controller| &mut controller.groups)
    }

    /// Applies expired deadlines of groups.
    pub(crate) fn groups_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        coordinator.on_timer(io.clock);
        self.poll_groups(io);
    }

    /// Carries out the effects of the groups.
    pub(crate) fn poll_groups(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store())
            && let Some((then, answer)) = controller.groups.poll(first, io.clock.unix_ms)
        {
            self.resume_group_reply(io, then, answer);
        }
        if let Some(at_ms) = self.group_coordinator().and_then(GroupCoordinator::next_timer_ms) {
            io.set_timer(at_ms, Timer::Coordinate.token());
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_groups_completion(&mut self, io: &mut Io<'_, Mail>, completion: &Completion) -> bool {
        let Some(coordinator) = self.group_coordinator() else { return false };
        let (is_mine, answers) = coordinator.on_completion(completion);
        self.send_group_answers(io, answers);
        is_mine
    }

    /// Answers callers whose append the store refused.
    pub(crate) fn answer_refused_by_groups_log(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.group_coordinator() else { return };
        let answers = coordinator.take_failed();
        self.send_group_answers(io, answers);
    }

    fn send_group_answers(&mut self, io: &mut Io<'_, Mail>, answers: Vec<(AfterGroupReply, Response)>) {
        for (then, answer) in answers {
            self.resume_group_reply(io, then, answer);
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
        let Some(coordinator) = self.transaction_coordinator() else { return };
        coordinator.call(io.clock, request, then);
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

    fn transaction_coordinator(&mut self) -> Option<&mut TransactionCoordinator> {
        self.controller.as_mut().map(|controller| &mut controller.transactions)
    }

    /// Resumes the transactions in progress, in the first turn.
    pub(crate) fn begin_transactions(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        coordinator.start(io.clock);
        self.poll_transactions(io);
    }

    /// Applies expired deadlines of transactions.
    pub(crate) fn transactions_due(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        coordinator.on_timer(io.clock);
        self.poll_transactions(io);
    }

    /// Changes the transactions and carries out their effects.
    pub(crate) fn update_transactions(
        &mut self,
        io: &mut Io<'_, Mail>,
        change: impl FnOnce(&mut Transactions, u64),
    ) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        coordinator.update(io.clock, change);
        self.poll_transactions(io);
    }

    /// Carries out the effects of the transactions.
    fn poll_transactions(&mut self, io: &mut Io<'_, Mail>) {
        while let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store())
            && let Some(effect) = controller.transactions.poll(first, io.clock.unix_ms)
        {
            match effect {
                TransactionEffect::WriteMarkers(markers) => self.issue_markers(io, &Arc::new(markers)),
                TransactionEffect::Reply(then, answer) => self.resume_txn_reply(io, then, answer),
            }
        }
        if let Some(at_ms) = self.transaction_coordinator().and_then(TransactionCoordinator::next_timer_ms) {
            io.set_timer(at_ms, Timer::Coordinate.token());
        }
    }

    /// Handles a completion in the first store. Returns false if it is of another log.
    pub(crate) fn on_transactions_completion(
        &mut self,
        io: &mut Io<'_, Mail>,
        completion: &Completion,
    ) -> bool {
        let Some(coordinator) = self.transaction_coordinator() else { return false };
        let (is_mine, has_effects) = coordinator.on_completion(completion, io.clock);
        if has_effects {
            self.poll_transactions(io);
        }
        is_mine
    }

    /// Handles appends that the store refused.
    pub(crate) fn take_refused_by_transaction_log(&mut self, io: &mut Io<'_, Mail>) {
        let Some(coordinator) = self.transaction_coordinator() else { return };
        if coordinator.take_failed(io.clock) {
            self.poll_transactions(io);
        }
    }
}
