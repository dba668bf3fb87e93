//! What the clients of queues have in common: the trait that the scenario calls, what they work with, and the creator
//! of the queues.

use std::collections::VecDeque;

use mainstem_disk::fault::Rng;
use mainstem_queue_core::{QueueError, Reply, Request};

use super::oracle::{MessageId, Oracle, Pending};
use super::plan::{self, Plan, Role};

/// A request: its queue, and the messages that it sends.
pub(crate) type NewRequest = (usize, Request, Vec<MessageId>);

/// What a client works with.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) oracle: &'a mut Oracle,
    pub(crate) rng: &'a mut Rng,
    pub(crate) unix_ms: u64,
    /// Number of its requests without a reply.
    pub(crate) waiting: usize,
    /// The run ends: only what has begun goes on.
    pub(crate) is_ending: bool,
    pub(crate) requests: VecDeque<NewRequest>,
}

/// A client of queues.
pub(crate) trait Client {
    /// Prepares requests, or none.
    fn act(&mut self, context: &mut Context<'_>);

    /// Takes a reply.
    fn handle_reply(&mut self, context: &mut Context<'_>, pending: &Pending, reply: &Reply);

    /// The broker has ended, and no reply will come.
    fn connection_lost(&mut self, pending: &Pending);

    /// Whether it has completed what it began.
    fn is_done(&self) -> bool {
        true
    }

    /// Describes it when a run does not settle.
    fn show(&self) -> String {
        String::new()
    }
}

impl Context<'_> {
    pub(crate) fn ask(&mut self, queue: usize, request: Request) {
        self.requests.push_back((queue, request, Vec::new()));
    }

    /// A random queue with such a role.
    pub(crate) fn any_queue(&mut self, is_it: impl Fn(Role) -> bool) -> usize {
        let roles = self.plan.queues.iter().map(|queue| queue.role).enumerate();
        let found: Vec<usize> = roles.filter(|(_, role)| is_it(*role)).map(|(at, _)| at).collect();
        found[self.rng.below(found.len() as u64) as usize]
    }
}

/// Attempts to create a queue while something else creates it.
const REFUSALS_MAX: u32 = 100;

/// Creates the main queues, one after the other.
#[derive(Debug, Default)]
pub(crate) struct QueueCreator {
    next: usize,
    /// Number of replies that another queue has the name.
    refusals: u32,
}

impl Client for QueueCreator {
    fn act(&mut self, context: &mut Context<'_>) {
        if context.waiting > 0 {
            return;
        }
        match context.plan.queues.get(self.next).map(|queue| (queue, queue.role)) {
            Some((queue, Role::Main { dead })) => {
                let settings = queue.settings(Some(&context.plan.queues[dead].name));
                context.ask(self.next, Request::Create { settings });
            }
            Some((queue, Role::Dead))
                if !context.plan.are_auto_created || queue.name == plan::SHARED_DEAD =>
            {
                let own = [("max-deliveries", queue.max_deliveries.to_string()), queue.durability()];
                let settings = own.map(|(name, value)| (name.to_owned(), value)).to_vec();
                context.ask(self.next, Request::Create { settings });
            }
            Some(_) => self.next += 1,
            None => context.oracle.queues_created(),
        }
    }

    fn handle_reply(&mut self, _: &mut Context<'_>, pending: &Pending, reply: &Reply) {
        // A queue that was created before a crash has the same settings.
        if matches!(reply, Reply::Done) && pending.queue == self.next {
            self.next += 1;
        } else if matches!(reply, Reply::Refused(QueueError::Exists)) {
            // A binding may be creating its queue.
            self.refusals += 1;
            assert!(self.refusals < REFUSALS_MAX, "a queue is set to something that nobody has asked for");
        }
    }

    fn connection_lost(&mut self, _: &Pending) {}
}
