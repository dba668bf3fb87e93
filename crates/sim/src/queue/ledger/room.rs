//! How much there may be: in a queue with limits, and in one answer.

use mainstem_queue::{Delivery, Info, Refusal, Request};

use super::{Ledger, Outcome, Pending};
use crate::ledger::Violation;
use crate::queue::plan::{QueuePlan, Role};

/// What a message has beside its value, bytes, at most.
const BESIDE_BYTES: u64 = 200;

impl Ledger {
    /// A queue that is full says so, and no other.
    pub(super) fn check_refusals(
        &self,
        queue: usize,
        outcomes: &[Result<u64, Refusal>],
    ) -> Result<(), Violation> {
        if outcomes.contains(&Err(Refusal::Full)) { self.check_full(queue) } else { Ok(()) }
    }

    /// A queue that says that it is full may be.
    pub(super) fn check_full(&self, queue: usize) -> Result<(), Violation> {
        let Some(plan) = self.with_limits(queue) else { return Ok(()) };
        // As if nothing had ever been settled.
        let (mut messages, mut bytes) = (0, 0);
        for message in self.messages.iter().filter(|message| message.queue == queue) {
            let is_there = |outcome| outcome != Outcome::Refused;
            let count = message.attempts.iter().filter(|attempt| is_there(attempt.outcome)).count() as u64;
            messages += count;
            bytes += count * (message.padding as u64 + BESIDE_BYTES);
        }
        let fits = |most: u64, all: u64| most == 0 || all <= most;
        let is_room = fits(plan.length_max, messages) && fits(plan.bytes_max, bytes);
        if plan.drops_oldest || (is_room && !self.may_have_come_back()) {
            let name = &plan.name;
            return Err(Violation(format!(
                "{name}: it is full, though there is room: {messages} messages, {bytes} bytes: {plan:?}"
            )));
        }
        Ok(())
    }

    /// There is no more in a queue than may be.
    pub(super) fn check_room(&self, queue: usize, info: &Info) -> Result<(), Violation> {
        let Some(plan) = self.with_limits(queue).filter(|plan| !plan.drops_oldest) else { return Ok(()) };
        let book = &self.books[queue];
        // A loss of power may take verdicts: what was settled is there again, however much has come since.
        let has_lost = book.lost_at > 0;
        if has_lost || self.may_have_come_back() || book.groups.values().any(super::Group::has_begun_anew) {
            return Ok(());
        }
        // What leaves does not count.
        let leaving: u64 = info.groups.iter().map(|group| group.leaving).sum();
        let (messages, bytes) =
            (info.messages.saturating_sub(leaving), if leaving == 0 { info.bytes } else { 0 });
        let is_over = |most: u64, all: u64| most > 0 && all > most;
        // After a restart nobody knows how large those are that wait in the log.
        let bytes = if self.may_know_less(queue) { 0 } else { bytes };
        if is_over(plan.length_max, messages) || is_over(plan.bytes_max, bytes) {
            let name = &plan.name;
            return Err(Violation(format!(
                "{name}: there is more than may be: {messages} messages, {bytes} bytes: {plan:?}"
            )));
        }
        Ok(())
    }

    /// Whether there are dead letters that came back, which come in whatever there is.
    fn may_have_come_back(&self) -> bool {
        self.books.iter().any(|book| book.is_redriven)
    }

    /// A queue of which the limits are always the same.
    fn with_limits(&self, queue: usize) -> Option<&QueuePlan> {
        let plan = &self.books[queue].plan;
        (matches!(plan.role, Role::Main { .. }) && !plan.changes_length).then_some(plan)
    }
}

/// Nobody gets more than was asked for.
pub(super) fn check_share(pending: &Pending, deliveries: &[Delivery]) -> Result<(), String> {
    let Request::Receive { max, bytes_max, .. } = pending.request else { return Ok(()) };
    let sizes = deliveries.iter().map(|delivery| {
        let record = delivery.payload.record();
        record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)
    });
    // One is added as long as that is not reached.
    let before_last: usize = sizes.take(deliveries.len().saturating_sub(1)).sum();
    if deliveries.len() > max as usize || (deliveries.len() > 1 && before_last >= bytes_max) {
        let count = deliveries.len();
        return Err(format!(
            "more comes than was asked for: {count}, {before_last} bytes: {:?}",
            pending.request
        ));
    }
    Ok(())
}
