//! What everybody who asks queues is to the run.

use std::collections::VecDeque;

use mainstem_disk::fault::Dice;
use mainstem_queue::{Refusal, Reply, Request};

use super::ledger::{Ledger, MessageId, Pending};
use super::plan::{self, Plan, Role};

/// What somebody wants to ask: a queue, what of it, and the messages that are sent.
pub(crate) type Ask = (usize, Request, Vec<MessageId>);

/// What a client works with.
pub(crate) struct Desk<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) dice: &'a mut Dice,
    pub(crate) unix_ms: u64,
    /// What has been asked and not answered.
    pub(crate) waiting: usize,
    /// The run comes to its end: only what has been begun goes on.
    pub(crate) is_ending: bool,
    pub(crate) asks: VecDeque<Ask>,
}

/// Somebody who asks queues.
pub(crate) trait Client {
    /// Asks something, or nothing.
    fn act(&mut self, desk: &mut Desk<'_>);

    /// Hears the answer.
    fn answered(&mut self, desk: &mut Desk<'_>, pending: &Pending, reply: &Reply);

    /// No answer will come: the broker is gone.
    fn lost(&mut self, pending: &Pending);

    /// Whether nothing is left to be done.
    fn is_done(&self) -> bool {
        true
    }

    /// What it is at, in words for people.
    fn show(&self) -> String {
        String::new()
    }
}

impl Desk<'_> {
    pub(crate) fn ask(&mut self, queue: usize, request: Request) {
        self.asks.push_back((queue, request, Vec::new()));
    }

    /// Some queue that this holds for.
    pub(crate) fn any_queue(&mut self, is_it: impl Fn(Role) -> bool) -> usize {
        let roles = self.plan.queues.iter().map(|queue| queue.role).enumerate();
        let found: Vec<usize> = roles.filter(|(_, role)| is_it(*role)).map(|(at, _)| at).collect();
        found[self.dice.below(found.len() as u64) as usize]
    }
}

/// So often a queue is being made by somebody else, at most.
const REFUSALS_MAX: u32 = 100;

/// Makes the queues that the others use, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Maker {
    next: usize,
    /// How often it heard that there is another queue with the name of one that it makes.
    refusals: u32,
}

impl Client for Maker {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if desk.waiting > 0 {
            return;
        }
        match desk.plan.queues.get(self.next).map(|queue| (queue, queue.role)) {
            Some((queue, Role::Main { dead })) => {
                let settings = queue.settings(Some(&desk.plan.queues[dead].name));
                desk.ask(self.next, Request::Create { settings });
            }
            Some((queue, Role::Dead))
                if !desk.plan.config.queues_auto_create || queue.name == plan::GRAVE =>
            {
                let own = [("max-deliveries", queue.max_deliveries.to_string()), queue.durability()];
                let settings = own.map(|(name, value)| (name.to_owned(), value)).to_vec();
                desk.ask(self.next, Request::Create { settings });
            }
            Some(_) => self.next += 1,
            None => desk.ledger.has_queues = true,
        }
    }

    fn answered(&mut self, _: &mut Desk<'_>, pending: &Pending, reply: &Reply) {
        // One that was made by a broker that did not live to say so has the same settings.
        if matches!(reply, Reply::Done) && pending.queue == self.next {
            self.next += 1;
        } else if matches!(reply, Reply::Refused(Refusal::Exists)) {
            // One that a binding feeds may be in the making.
            self.refusals += 1;
            assert!(self.refusals < REFUSALS_MAX, "a queue is set to something that nobody has asked for");
        }
    }

    fn lost(&mut self, _: &Pending) {}
}
