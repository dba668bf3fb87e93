//! Whether messages that are ready are delivered.

use std::collections::BTreeSet;

use mainstem_queue_core::Request;

use super::{Oracle, Origin, Pending};
use crate::Violation;

impl Oracle {
    /// Checks that no message that is certainly ready is left out in favor of ones with lower priority, or of none.
    pub(super) fn check_withheld(
        &self,
        pending: &Pending,
        least: Option<u8>,
        given: &BTreeSet<u64>,
        (now_ms, is_troubled): (u64, bool),
    ) -> Result<(), Violation> {
        let Request::Receive { group: name, consumer, max, .. } = &pending.request else { return Ok(()) };
        if self.has_subscribers {
            return Ok(());
        }
        let state = &self.queues[pending.queue];
        let Some(group) = state.groups.get(name).filter(|_| !is_troubled && *max > 0) else { return Ok(()) };
        if self.may_know_less(pending.queue) {
            // The group may not have all messages in memory.
            return Ok(());
        }
        if least.is_none() && (state.plan.is_single || group.left.contains(consumer)) {
            return Ok(());
        }
        for (&offset, stored) in &state.stored {
            let message = &self.messages[stored.message];
            let is_free = !given.contains(&offset)
                && stored.since < pending.sent_at
                && stored.origin == Origin::Sender
                && !message.has_id
                && message.delay_ms == 0
                && (message.key.is_none() || !state.plan.may_have_order())
                && self.surely_has(pending.queue, group, stored)
                && group.is_untouched(offset)
                && !self.may_be_over(pending.queue, group, offset, stored);
            if is_free && least.is_none_or(|least| least < message.priority) {
                let name_of = &state.plan.name;
                let what = format!("its priority is {}, and {least:?} the least that came", message.priority);
                return Err(Violation(format!(
                    "{name_of}, {name}: message {offset} is ready and withheld at {now_ms}: {what}"
                )));
            }
        }
        Ok(())
    }
}
