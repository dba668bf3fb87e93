//! The end of a run: whether every message that was taken was settled, or is a dead letter, in each group.

use std::collections::BTreeSet;

use mainstem_queue_core::DEFAULT_GROUP;

use super::{MessageId, Oracle, Origin, Outcome, QueueState, StoredMessage};
use crate::Violation;
use crate::queue::plan::Role;

impl Oracle {
    /// Checks every message that was taken, after all queues have been drained.
    pub(crate) fn check_losses(&self) -> Result<(), Violation> {
        for (queue, state) in self.queues.iter().enumerate() {
            match state.plan.role {
                Role::Main { dead } => self.check_taken(queue, dead)?,
                Role::Dead => self.check_dead_letters(queue)?,
                Role::Temporary => {}
            }
        }
        Ok(())
    }

    fn check_taken(&self, queue: usize, dead: usize) -> Result<(), Violation> {
        let (state, grave) = (&self.queues[queue], &self.queues[dead]);
        for (id, message) in self.messages.iter().enumerate().filter(|(_, message)| message.queue == queue) {
            let Some(attempt) = message.attempts.iter().find(
                |attempt| matches!(attempt.outcome, Outcome::Taken { at, .. } if at > state.power_lost_at),
            ) else {
                continue;
            };
            let known = state.by_message.get(&id).into_iter().flatten().copied();
            let Outcome::Taken { offset: taken, .. } = attempt.outcome else { continue };
            let offsets: BTreeSet<u64> = known.chain(taken).collect();
            let is_back = self.came_back(id, dead);
            // It may have been settled before it was sent again.
            let was_over = self.may_predate_loss(queue, id)
                && (message.may_be_settled || grave.by_message.contains_key(&id));
            for group in state.groups.values() {
                if !group.was_there(self.first_sent_at(id)) || group.was_purged_since(self.first_sent_at(id))
                {
                    continue;
                }
                let is_kept = state.plan.keeps_dead_letters;
                let is_unseen = !is_kept || grave.is_purged || is_back || grave.power_lost_at > 0;
                let may_drop = state.plan.may_drop();
                let may_expire = state.plan.may_expire() || message.ttl_ms > 0;
                let most = state.plan.max_deliveries;
                let is_settled = |offset: &u64| group.is_dead(*offset) || group.may_be_acknowledged(*offset);
                // The offset of a message that was published and never delivered is unknown.
                let may_die = may_drop
                    || may_expire
                    || offsets.iter().any(|offset| group.may_die(*offset, most))
                    || (offsets.is_empty() && group.may_die(u64::MAX, most));
                let is_over = offsets.iter().any(is_settled) || (is_unseen && may_die);
                if !is_over && !was_over {
                    return Err(Violation(format!(
                        "{}: message {id} is lost: it was taken, and in {} it is neither settled nor a dead letter: {message:?}, {:?}",
                        state.plan.name,
                        group.name,
                        offsets.iter().map(|at| group.message(*at)).collect::<Vec<_>>()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether a dead letter was redriven, or died again after that.
    fn came_back(&self, id: MessageId, dead: usize) -> bool {
        let home = &self.queues[self.messages[id].queue];
        let of = |state: &QueueState| state.by_message.get(&id).cloned().unwrap_or_default();
        let is_redriven = |stored: &StoredMessage| stored.origin == Origin::Redriven;
        let back = of(home).iter().filter_map(|at| home.stored.get(at)).any(is_redriven);
        let sent =
            |offset: u64| home.stored.get(&offset).is_some_and(|stored| stored.origin == Origin::Sender);
        let died_from = |stored: &StoredMessage| match &stored.origin {
            Origin::Dead(_, _, offset) => Some(*offset),
            _ => None,
        };
        let grave = &self.queues[dead];
        let from: BTreeSet<u64> =
            of(grave).iter().filter_map(|at| died_from(grave.stored.get(at)?)).collect();
        // A delivery to a subscriber does not show where the message came from.
        let may_be = self.has_subscribers && of(home).iter().any(|at| !home.stored.contains_key(at));
        back || may_be
            || from.len() > 1
            || (from.len() == 1 && !from.iter().any(|at| sent(*at)) && grave.is_redriven)
    }

    /// Checks that every dead letter that was found is settled, or was redriven.
    fn check_dead_letters(&self, queue: usize) -> Result<(), Violation> {
        let state = &self.queues[queue];
        let Some(group) = state.groups.get(DEFAULT_GROUP) else { return Ok(()) };
        for (offset, stored) in &state.stored {
            let home = &self.queues[self.messages[stored.message].queue];
            let may_be_gone = home.is_purged || !home.plan.keeps_dead_letters || home.power_lost_at > 0;
            let was_back = self.came_back(stored.message, queue) || may_be_gone;
            let is_back = state.is_redriven && was_back;
            let may_be_old = self.may_predate_loss(queue, stored.message);
            let is_over = state.is_purged || is_back || may_be_old || group.may_be_acknowledged(*offset);
            if !is_over {
                return Err(Violation(format!(
                    "{}: dead letter {offset} is lost: {stored:?}, {:?}",
                    state.plan.name,
                    group.message(*offset)
                )));
            }
        }
        Ok(())
    }
}
