//! Limits: of the messages in a queue, and of the deliveries in one reply.

use mainstem_queue_core::{Delivery, Info, QueueError, Request};

use super::{Oracle, Outcome, Pending};
use crate::Violation;
use crate::queue::plan::{QueuePlan, Role};

/// Upper bound of what a message has beside its value, bytes.
const BESIDE_BYTES: u64 = 200;

impl Oracle {
    /// Checks that only a full queue refuses messages as full.
    pub(super) fn check_refusals(
        &self,
        queue: usize,
        outcomes: &[Result<u64, QueueError>],
    ) -> Result<(), Violation> {
        if outcomes.contains(&Err(QueueError::Full)) { self.check_full(queue) } else { Ok(()) }
    }

    /// Checks that a queue that reports that it is full can be.
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

    /// Checks that a queue holds no more than its limits allow.
    pub(super) fn check_room(&self, queue: usize, info: &Info) -> Result<(), Violation> {
        let Some(plan) = self.with_limits(queue).filter(|plan| !plan.drops_oldest) else { return Ok(()) };
        let state = &self.queues[queue];
        // A loss of power may undo settlements: those messages are pending again, in addition to later ones.
        let has_lost = state.power_lost_at > 0;
        if has_lost || self.may_have_come_back() || state.groups.values().any(super::Group::may_have_reset) {
            return Ok(());
        }
        // Messages that are moving to another queue do not count.
        let leaving: u64 = info.groups.iter().map(|group| group.leaving).sum();
        let (messages, bytes) =
            (info.messages.saturating_sub(leaving), if leaving == 0 { info.bytes } else { 0 });
        let is_over = |most: u64, all: u64| most > 0 && all > most;
        // After a restart, the size of messages that are only on disk is unknown.
        let bytes = if self.may_know_less(queue) { 0 } else { bytes };
        if is_over(plan.length_max, messages) || is_over(plan.bytes_max, bytes) {
            let name = &plan.name;
            return Err(Violation(format!(
                "{name}: there is more than may be: {messages} messages, {bytes} bytes: {plan:?}"
            )));
        }
        Ok(())
    }

    /// Whether dead letters may have been redriven: limits do not apply to them.
    fn may_have_come_back(&self) -> bool {
        self.queues.iter().any(|state| state.is_redriven)
    }

    /// The plan of a queue whose limits never change.
    fn with_limits(&self, queue: usize) -> Option<&QueuePlan> {
        let plan = &self.queues[queue].plan;
        (matches!(plan.role, Role::Main { .. }) && !plan.changes_length).then_some(plan)
    }
}

/// Checks that a reply has no more than was requested.
pub(super) fn check_reply_size(pending: &Pending, deliveries: &[Delivery]) -> Result<(), String> {
    let Request::Receive { max, bytes_max, .. } = pending.request else { return Ok(()) };
    let sizes = deliveries.iter().map(|delivery| {
        let record = delivery.payload.record();
        record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)
    });
    // A delivery is added while the limit is not reached.
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
