//! The end of a run: whether what was taken has come to its end.

use std::collections::BTreeSet;

use mainstem_queue::DEFAULT_GROUP;

use super::{Book, Ledger, MessageId, Origin, Outcome, Place};
use crate::ledger::Violation;
use crate::queue::plan::Role;

impl Ledger {
    /// Everything has been drained: what was taken has come to its end in each group.
    pub(crate) fn check_losses(&self) -> Result<(), Violation> {
        for (queue, book) in self.books.iter().enumerate() {
            match book.plan.role {
                Role::Main { dead } => self.check_taken(queue, dead)?,
                Role::Dead => self.check_buried(queue)?,
                Role::Temporary => {}
            }
        }
        Ok(())
    }

    fn check_taken(&self, queue: usize, dead: usize) -> Result<(), Violation> {
        let (book, grave) = (&self.books[queue], &self.books[dead]);
        for (id, message) in self.messages.iter().enumerate().filter(|(_, message)| message.queue == queue) {
            let Some(attempt) = message
                .attempts
                .iter()
                .find(|attempt| matches!(attempt.outcome, Outcome::Taken { at, .. } if at > book.lost_at))
            else {
                continue;
            };
            let known = book.by_message.get(&id).into_iter().flatten().copied();
            let Outcome::Taken { offset: taken, .. } = attempt.outcome else { continue };
            let offsets: BTreeSet<u64> = known.chain(taken).collect();
            let is_back = self.came_back(id, dead);
            // It may have come to its end before it was sent once more.
            let was_over = self.may_predate_loss(queue, id)
                && (message.may_be_settled || grave.by_message.contains_key(&id));
            for group in book.groups.values() {
                if !group.was_there(self.sent_at(id)) || group.was_purged_since(self.sent_at(id)) {
                    continue;
                }
                let is_kept = book.plan.keeps_dead;
                let is_unseen = !is_kept || grave.is_purged || is_back || grave.lost_at > 0;
                let may_drop = book.plan.may_drop();
                let may_expire = book.plan.may_expire() || message.ttl_ms > 0;
                let most = book.plan.max_deliveries;
                let is_settled = |offset: &u64| group.is_dead(*offset) || group.may_be_acknowledged(*offset);
                // One that was published and that nobody has seen stands nobody knows where.
                let may_die = may_drop
                    || may_expire
                    || offsets.iter().any(|offset| group.may_die(*offset, most))
                    || (offsets.is_empty() && group.may_die(u64::MAX, most));
                let is_over = offsets.iter().any(is_settled) || (is_unseen && may_die);
                if !is_over && !was_over {
                    return Err(Violation(format!(
                        "{}: message {id} is lost: it was taken, and in {} it is neither settled nor a dead letter: {message:?}, {:?}",
                        book.plan.name,
                        group.name,
                        offsets.iter().map(|at| group.parcel(*at)).collect::<Vec<_>>()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether a dead letter is back where it came from, or has died there again.
    fn came_back(&self, id: MessageId, dead: usize) -> bool {
        let home = &self.books[self.messages[id].queue];
        let of = |book: &Book| book.by_message.get(&id).cloned().unwrap_or_default();
        let is_redriven = |place: &Place| place.origin == Origin::Redriven;
        let back = of(home).iter().filter_map(|at| home.places.get(at)).any(is_redriven);
        let sent = |offset: u64| home.places.get(&offset).is_some_and(|place| place.origin == Origin::Sender);
        let died_from = |place: &Place| match &place.origin {
            Origin::Dead(_, _, offset) => Some(*offset),
            _ => None,
        };
        let grave = &self.books[dead];
        let from: BTreeSet<u64> =
            of(grave).iter().filter_map(|at| died_from(grave.places.get(at)?)).collect();
        // What subscribers have had does not say how it came there.
        let may_be = self.has_subscribers && of(home).iter().any(|at| !home.places.contains_key(at));
        back || may_be
            || from.len() > 1
            || (from.len() == 1 && !from.iter().any(|at| sent(*at)) && grave.is_redriven)
    }

    /// Dead letters that were seen are settled as well, or back where they came from.
    fn check_buried(&self, queue: usize) -> Result<(), Violation> {
        let book = &self.books[queue];
        let Some(group) = book.groups.get(DEFAULT_GROUP) else { return Ok(()) };
        for (offset, place) in &book.places {
            let home = &self.books[self.messages[place.message].queue];
            let may_be_gone = home.is_purged || !home.plan.keeps_dead || home.lost_at > 0;
            let was_back = self.came_back(place.message, queue) || may_be_gone;
            let is_back = book.is_redriven && was_back;
            let may_be_old = self.may_predate_loss(queue, place.message);
            let is_over = book.is_purged || is_back || may_be_old || group.may_be_acknowledged(*offset);
            if !is_over {
                return Err(Violation(format!(
                    "{}: dead letter {offset} is lost: {place:?}, {:?}",
                    book.plan.name,
                    group.parcel(*offset)
                )));
            }
        }
        Ok(())
    }
}
