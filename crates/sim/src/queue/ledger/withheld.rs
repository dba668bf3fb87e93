//! Whether what is ready comes.

use std::collections::BTreeSet;

use mainstem_queue::Request;

use super::{Ledger, Origin, Pending};
use crate::ledger::Violation;

impl Ledger {
    /// What is surely ready is not withheld, while others with a lower priority are given, or nothing at all.
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
        let book = &self.books[pending.queue];
        let Some(group) = book.groups.get(name).filter(|_| !is_troubled && *max > 0) else { return Ok(()) };
        if self.may_know_less(pending.queue) {
            // The group need not know all that it has to settle.
            return Ok(());
        }
        if least.is_none() && (book.plan.is_single || group.left.contains(consumer)) {
            return Ok(());
        }
        for (&offset, place) in &book.places {
            let message = &self.messages[place.message];
            let is_free = !given.contains(&offset)
                && place.since < pending.asked
                && place.origin == Origin::Sender
                && !message.has_id
                && message.delay_ms == 0
                && (message.key.is_none() || !book.plan.may_have_order())
                && self.surely_has(pending.queue, group, place)
                && group.is_untouched(offset)
                && !self.may_be_over(pending.queue, group, offset, place);
            if is_free && least.is_none_or(|least| least < message.priority) {
                let name_of = &book.plan.name;
                let what = format!("its priority is {}, and {least:?} the least that came", message.priority);
                return Err(Violation(format!(
                    "{name_of}, {name}: message {offset} is ready and withheld at {now_ms}: {what}"
                )));
            }
        }
        Ok(())
    }
}
