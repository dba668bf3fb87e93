//! A loss of power, which may take from a queue that does not sync what it confirms any part of what it has confirmed: what
//! was known of such a queue is forgotten. What it is sent from then on it has to keep, until the next one.

use mainstem_disk::fault::Dice;

use super::{Ledger, MessageId, Origin, Outcome};
use crate::queue::group::Group;
use crate::queue::plan::Role;

impl Ledger {
    /// The power was lost. Nothing is under way.
    pub(crate) fn lost_power(&mut self) {
        let at = self.tick();
        for queue in 0..self.books.len() {
            if !self.books[queue].plan.is_lax {
                continue;
            }
            self.note_settled(queue);
            let book = &mut self.books[queue];
            book.lost_at = at;
            book.places.clear();
            book.by_key.clear();
            book.by_message.clear();
            book.dead.clear();
            book.groups.values_mut().for_each(Group::lose_power);
            // Its offsets are given to others: those of its dead letters say nothing any more.
            let is_of_it = |origin: &Origin| matches!(origin, Origin::Dead(from, ..) if *from == queue);
            for other in &mut self.books {
                other.dead.retain(|origin, _| !is_of_it(origin));
            }
        }
    }

    /// Takes note of the messages of a queue that may be settled.
    fn note_settled(&mut self, queue: usize) {
        let book = &self.books[queue];
        let plan = &book.plan;
        let may_end = book.is_purged || plan.may_drop() || plan.may_expire();
        let may_die = |group: &Group| plan.max_deliveries > 0 && group.unheard > 0;
        let may_end = may_end || book.groups.values().any(may_die);
        for (id, message) in
            self.messages.iter_mut().enumerate().filter(|(_, message)| message.queue == queue)
        {
            let known = book.by_message.get(&id).into_iter().flatten().copied();
            let taken = message.attempts.iter().filter_map(|attempt| match attempt.outcome {
                Outcome::Taken { offset, .. } => offset,
                _ => None,
            });
            let mut offsets = known.chain(taken);
            let was_had = |offset| book.groups.values().any(|group| group.was_had(offset));
            message.may_be_settled |= may_end || message.ttl_ms > 0 || offsets.any(was_had);
        }
    }

    /// Whether a message may have come to a queue before that lost something.
    pub(super) fn may_predate_loss(&self, queue: usize, id: MessageId) -> bool {
        self.sent_at(id) < self.books[queue].lost_at
    }

    /// A message with an identifier that was taken before the power was lost, to be sent once more.
    pub(crate) fn perhaps_lost(&self, dice: &mut Dice) -> Option<MessageId> {
        if self.messages.is_empty() || self.books.iter().all(|book| book.lost_at == 0) {
            return None;
        }
        let id = dice.below(self.messages.len() as u64) as MessageId;
        let message = &self.messages[id];
        let is_main = matches!(self.books[message.queue].plan.role, Role::Main { .. });
        (is_main && message.has_id && self.may_predate_loss(message.queue, id)).then_some(id)
    }
}
