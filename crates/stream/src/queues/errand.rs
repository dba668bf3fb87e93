//! Requests on their way to the shard that has a queue, and answers on their way back.

use std::sync::Arc;

use mainstem_log::Durability;
use mainstem_queue::{Moved, Refusal, Reply, Request};
use mainstem_runtime::Io;

use super::desk;
use crate::catalogue::PartitionId;
use crate::mail::{Letter, Mail};
use crate::shard::Shard;

/// What is wanted of a queue.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// By a door.
    Request(Request),
    /// By another queue: messages of its own come here, to be at least as durable as that queue asks for.
    Move(Vec<Moved>, Durability),
}

/// Something that is wanted of a queue, on its way.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) queue: Arc<str>,
    pub(crate) wanted: Wanted,
    pub(crate) to: ReplyTo,
}

/// Who is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) shard: usize,
    pub(crate) whom: Whom,
}

/// Who that is on its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Another door, which knows it by this token.
    Door(u64),
    /// Another thread.
    Visitor(usize),
    /// A queue that has sent messages.
    Queue(PartitionId),
    /// What a binding has brought, by the number of its job.
    Sink(u64),
}

impl Shard {
    /// Asks the queue of this name, wherever it is. The answer comes by [`Shard::take_queue_replies`], with `token`.
    pub fn ask_queue(&mut self, io: &mut Io<'_, Mail>, queue: &str, request: Request, token: u64) {
        let to = ReplyTo { shard: self.me, whom: Whom::Door(token) };
        self.run_errand(io, Errand { queue: queue.into(), wanted: Wanted::Request(request), to });
    }

    /// Takes what other threads ask.
    pub(super) fn take_visits(&mut self, io: &mut Io<'_, Mail>) {
        for desk::Visit { wish, answer } in Arc::clone(&self.shared).counters[self.me].take() {
            let visitor = self.queues.visitors.insert(answer);
            let to = ReplyTo { shard: self.me, whom: Whom::Visitor(visitor) };
            match wish {
                desk::Wish::Queue(queue, request) => {
                    self.run_errand(io, Errand { queue, wanted: Wanted::Request(request), to });
                }
                desk::Wish::Declare(name, text) => self.declare(io, name, text, to),
            }
        }
    }

    /// Brings something that is wanted of a queue to where it can be done.
    pub(crate) fn run_errand(&mut self, io: &mut Io<'_, Mail>, errand: Errand) {
        if self.is_draining() {
            return self.answer_queue(io, errand.to, Reply::Refused(Refusal::Busy));
        }
        // Whoever was told that a queue is set to something else finds it so.
        self.look_at_queues();
        let is_order = matches!(
            errand.wanted,
            Wanted::Request(Request::Create { .. } | Request::Configure { .. } | Request::Delete)
        );
        let topic = self.catalogue.topic(&errand.queue).cloned();
        let (false, Some(topic)) = (is_order, topic) else {
            if self.is_controller() {
                return self.order_queue(io, errand);
            }
            return io.send(0, Mail(Letter::Errand(Box::new(errand))));
        };
        if topic.config.queue.is_none() && matches!(errand.wanted, Wanted::Request(_)) {
            return self.answer_queue(io, errand.to, Reply::Refused(Refusal::NotAQueue));
        }
        let id = topic.partition(0);
        match self.owner_of(id) {
            Ok(owner) if owner == self.me => {
                self.end_older_wait(io, id, &errand);
                self.serve_queue(io, id, errand.wanted, errand.to);
            }
            Ok(owner) => io.send(owner, Mail(Letter::Errand(Box::new(errand)))),
            Err(_) => self.answer_queue(io, errand.to, Reply::Refused(Refusal::UnknownQueue)),
        }
    }

    /// A consumer has one request under way: a newer one ends the older. It does not leave by that, and so stays the active
    /// consumer if it is. Those of this shard's other doors wait for the answer before they ask again.
    fn end_older_wait(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, errand: &Errand) {
        let (Whom::Visitor(_), Wanted::Request(Request::Receive { group, consumer, .. })) =
            (errand.to.whom, &errand.wanted)
        else {
            return;
        };
        self.end_waits(io, id, group, *consumer);
    }

    /// Lets other threads hear their answers: behind the commit, since what an answer tells of is not to be unknown after
    /// the end of the process.
    pub(crate) fn tell_visitors(&mut self) {
        for (answer, reply) in self.queues.told.drain(..) {
            answer(reply);
        }
    }

    /// Answers whoever asked.
    pub(crate) fn answer_queue(&mut self, io: &mut Io<'_, Mail>, to: ReplyTo, reply: Reply) {
        if to.shard != self.me {
            return io.send(to.shard, Mail(Letter::Errands { to, reply }));
        }
        match to.whom {
            Whom::Door(token) => self.queues.replies.push((token, reply)),
            Whom::Visitor(visitor) => {
                if let Some(answer) = self.queues.visitors.try_remove(visitor) {
                    self.queues.told.push((answer, reply));
                }
            }
            Whom::Queue(id) => self.departed(io, id, &reply),
            Whom::Sink(job) => self.sank_in_queue(job, &reply),
        }
    }
}
