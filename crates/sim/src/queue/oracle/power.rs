//! Loss of power.
//!
//! A queue that does not sync may lose any part of what it has confirmed, so everything known about it is forgotten.
//! What it is sent after that must survive until the next loss.

use mainstem_disk::fault::Rng;

use super::{MessageId, Oracle, Origin, Outcome};
use crate::queue::group::Group;
use crate::queue::plan::Role;

impl Oracle {
    /// Power was lost. Nothing is in flight.
    pub(crate) fn lost_power(&mut self) {
        let at = self.tick();
        for queue in 0..self.queues.len() {
            if !self.queues[queue].plan.is_lax {
                continue;
            }
            self.note_settled(queue);
            let state = &mut self.queues[queue];
            state.power_lost_at = at;
            state.stored.clear();
            state.by_key.clear();
            state.by_message.clear();
            state.dead.clear();
            state.groups.values_mut().for_each(Group::lose_power);
            // Its offsets are assigned again, so they no longer identify its dead letters.
            let is_of_it = |origin: &Origin| matches!(origin, Origin::Dead(from, ..) if *from == queue);
            for other in &mut self.queues {
                other.dead.retain(|origin, _| !is_of_it(origin));
            }
        }
    }

    /// Marks the messages of a queue that may be settled.
    fn note_settled(&mut self, queue: usize) {
        let state = &self.queues[queue];
        let plan = &state.plan;
        let may_end = state.is_purged || plan.may_drop() || plan.may_expire();
        let may_die = |group: &Group| plan.max_deliveries > 0 && group.unanswered > 0;
        let may_end = may_end || state.groups.values().any(may_die);
        for (id, message) in
            self.messages.iter_mut().enumerate().filter(|(_, message)| message.queue == queue)
        {
            let known = state.by_message.get(&id).into_iter().flatten().copied();
            let taken = message.attempts.iter().filter_map(|attempt| match attempt.outcome {
                Outcome::Taken { offset, .. } => offset,
                _ => None,
            });
            let mut offsets = known.chain(taken);
            let was_delivered = |offset| state.groups.values().any(|group| group.was_delivered(offset));
            message.may_be_settled |= may_end || message.ttl_ms > 0 || offsets.any(was_delivered);
        }
    }

    /// Whether a message may have reached a queue before it lost something.
    pub(super) fn may_predate_loss(&self, queue: usize, id: MessageId) -> bool {
        self.first_sent_at(id) < self.queues[queue].power_lost_at
    }

    /// A message with a deduplication id that was taken before power was lost, to be sent again.
    pub(crate) fn perhaps_lost(&self, rng: &mut Rng) -> Option<MessageId> {
        if self.messages.is_empty() || self.queues.iter().all(|state| state.power_lost_at == 0) {
            return None;
        }
        let id = rng.below(self.messages.len() as u64) as MessageId;
        let message = &self.messages[id];
        let is_main = matches!(self.queues[message.queue].plan.role, Role::Main { .. });
        (is_main && message.has_id && self.may_predate_loss(message.queue, id)).then_some(id)
    }
}
