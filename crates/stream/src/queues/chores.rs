//! What takes long where a queue has many messages: done some messages at a time, so that nothing else waits for it.

use mainstem_kafka::Aborted;
use mainstem_queue::{Answered, GroupName, Queue, Refusal, Reply, Settlement};
use mainstem_runtime::Io;

use super::Open;
use super::errand::ReplyTo;
use super::serve::keep;
use crate::catalogue::PartitionId;
use crate::mail::Mail;
use crate::shard::Shard;

/// Something that is being done for somebody.
#[derive(Debug)]
pub(super) struct Chore {
    to: ReplyTo,
    task: Task,
    /// Messages that it was done to.
    count: u64,
}

#[derive(Debug)]
pub(super) enum Task {
    /// A group gets messages again, from `next` on; as many at once as it may know.
    Replay { group: GroupName, next: u64 },
    /// Messages are thrown away from `next` on that stood below `to` when this was asked.
    Purge { group: Option<GroupName>, next: u64, to: u64 },
    /// Dead letters from `next` on are sent back that stood below `to` when this was asked, `max` of them.
    Redrive { next: u64, to: u64, max: u64 },
    /// Deliveries are settled.
    Settle { group: GroupName, rest: std::vec::IntoIter<Settlement>, outcomes: Vec<Answered<()>> },
}

/// What has come of one step.
enum Step {
    /// There is more to do.
    More,
    Done(Reply),
}

impl Task {
    pub(super) fn settle(group: GroupName, settlements: Vec<Settlement>) -> Self {
        Self::Settle { group, outcomes: Vec::with_capacity(settlements.len()), rest: settlements.into_iter() }
    }
}

impl Chore {
    pub(super) fn new(to: ReplyTo, task: Task) -> Self {
        Self { to, task, count: 0 }
    }

    pub(super) fn to(&self) -> ReplyTo {
        self.to
    }

    /// Whether it cannot go on before consumers have settled something: messages come to a queue, or back to a group, only
    /// as long as it knows no more than it may.
    fn waits(&self, queue: &Queue) -> bool {
        match &self.task {
            Task::Replay { group, .. } => queue.group(group).is_some_and(|group| !queue.has_room_for(group)),
            Task::Purge { next, .. } => *next >= queue.registered_to() && queue.is_crowded(),
            // Those that leave make room for others.
            Task::Redrive { next, to, .. } => *next >= queue.redrives_to() && queue.redrives_more(*to),
            Task::Settle { .. } => false,
        }
    }
}

impl Open {
    /// The next thing that is being done here and can go on.
    fn next_chore(&self) -> Option<usize> {
        self.chores.iter().position(|chore| !chore.waits(self.keeper.queue()))
    }

    /// Whether something that is being done here can go on.
    pub(super) fn has_chores(&self) -> bool {
        self.next_chore().is_some()
    }
}

impl Shard {
    /// Does the next step of what takes long in a queue. What is under way there takes turns.
    pub(super) fn go_on_with_chores(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let Some(mut chore) = open.next_chore().and_then(|at| open.chores.remove(at)) else { return };
        let to = chore.to;
        let step = match self.step(io, id, &mut chore) {
            Ok(step) => step,
            Err(refusal) => Step::Done(Reply::Refused(refusal)),
        };
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let reply = match step {
            Step::More => {
                open.chores.push_back(chore);
                None
            }
            Step::Done(reply) => keep(open, to, reply),
        };
        if let Some(reply) = reply {
            self.answer_queue(io, to, reply);
        }
    }

    fn step(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, chore: &mut Chore) -> Result<Step, Refusal> {
        let now_ms = io.clock.unix_ms;
        let open = self.queues.open.get_mut(&id).ok_or(Refusal::UnknownQueue)?;
        if open.keeper.is_stuck() {
            return Err(Refusal::Storage);
        }
        match &mut chore.task {
            Task::Replay { group, next } => {
                let known = open.keeper.queue().group(group).ok_or(Refusal::UnknownGroup)?;
                let partition = self.partitions.get(&id).ok_or(Refusal::Storage)?;
                let store = &mut *self.stores[open.store].store;
                let reach = partition.reach(store);
                let from = (*next).clamp(reach.start, reach.last_stable);
                let mut aborted = Aborted::new(partition.aborted(from..reach.last_stable));
                let passes_over = |header: &mainstem_log::BatchHeader| aborted.passes_over(header);
                let replayed = open.keeper.replay_from(store, known, from, now_ms, passes_over);
                let (count, rest) = replayed.map_err(|_| Refusal::Storage)?;
                chore.count += count;
                Ok(go_on(next, rest, chore.count))
            }
            Task::Purge { group, next, to } => {
                let known = match group {
                    Some(group) => Some(open.keeper.queue().group(group).ok_or(Refusal::UnknownGroup)?),
                    None => None,
                };
                let (count, rest) = open.keeper.queue_mut().purge_some(known, *next..*to);
                chore.count += count;
                // What is not known yet is thrown away when it is.
                let rest = rest.or_else(|| {
                    let known_to = open.keeper.queue().registered_to();
                    (known_to < *to).then_some(known_to.max(*next))
                });
                if rest.is_some() && open.is_unreadable {
                    return Err(Refusal::Storage);
                }
                Ok(go_on(next, rest, chore.count))
            }
            Task::Redrive { next, to, max } => {
                let queue = open.keeper.queue_mut();
                // What is not known yet is sent back when it is.
                let known_to = queue.redrives_to();
                let (count, rest) = queue.redrive_some(*next, *max - chore.count, now_ms);
                chore.count += count;
                let has_more = chore.count < *max && queue.redrives_more(*to);
                let rest = rest.or_else(|| has_more.then_some(known_to.max(*next)));
                if rest.is_some() && open.is_unreadable {
                    return Err(Refusal::Storage);
                }
                Ok(go_on(next, rest, chore.count))
            }
            Task::Settle { group, rest, outcomes } => {
                let known = open.keeper.queue().group(group).ok_or(Refusal::UnknownGroup)?;
                settle_some(open, io, known, rest, outcomes);
                let is_over = rest.len() == 0;
                Ok(if is_over { Step::Done(Reply::Settled(std::mem::take(outcomes))) } else { Step::More })
            }
        }
    }
}

fn settle_some(
    open: &mut Open,
    io: &mut Io<'_, Mail>,
    group: mainstem_queue::GroupId,
    rest: &mut std::vec::IntoIter<Settlement>,
    outcomes: &mut Vec<Answered<()>>,
) {
    let (at_once, now_ms) = (open.keeper.queue().at_once(), io.clock.unix_ms);
    for settlement in rest.by_ref().take(at_once) {
        let random = (io.random() >> 32) as u32;
        outcomes.push(open.keeper.settle(group, &settlement, now_ms, random));
    }
}

/// Goes on at `rest`, or answers how many messages there were.
fn go_on(next: &mut u64, rest: Option<u64>, count: u64) -> Step {
    match rest {
        Some(rest) => {
            *next = rest;
            Step::More
        }
        None => Step::Done(Reply::Count(count)),
    }
}
