//! Operations on many messages. Each runs in steps of a bounded number of messages, one step per poll, in turn with the
//! others, so that no consumer waits for a whole operation.

use super::{Context, Engine, MessageLog, WhenCrowded};
use crate::machine::Queue;
use crate::request::{GroupName, ItemResult, QueueError, Redriven, Reply, Settlement};

/// An operation in progress.
#[derive(Debug)]
pub(super) struct BackgroundOp<R> {
    to: R,
    task: Task,
    /// Messages so far.
    count: u64,
}

#[derive(Debug)]
pub(super) enum Task {
    /// Makes settled messages of a group pending again, from `next` on.
    Replay { group: GroupName, next: u64 },
    /// Removes the messages from `next` to `to`, of one group or of all.
    Purge { group: Option<GroupName>, next: u64, to: u64 },
    /// Sends `max` dead letters from `next` to `to` back.
    Redrive { next: u64, to: u64, max: u64, skipped: u64 },
    /// Settles deliveries.
    Settle { group: GroupName, rest: std::vec::IntoIter<Settlement>, outcomes: Vec<ItemResult<()>> },
}

impl Task {
    pub(super) fn settle(group: GroupName, settlements: Vec<Settlement>) -> Self {
        Self::Settle { group, outcomes: Vec::with_capacity(settlements.len()), rest: settlements.into_iter() }
    }
}

impl<R: Copy> BackgroundOp<R> {
    pub(super) fn new(to: R, task: Task) -> Self {
        Self { to, task, count: 0 }
    }

    pub(super) fn to(&self) -> R {
        self.to
    }

    /// Whether the operation needs messages that the queue registers or replays only after others are settled.
    fn waits(&self, queue: &Queue, when_crowded: WhenCrowded) -> bool {
        let can_wait = when_crowded == WhenCrowded::Wait;
        match &self.task {
            Task::Replay { group, .. } => {
                can_wait && queue.group(group).is_some_and(|group| !queue.has_room_for(group))
            }
            Task::Purge { next, .. } => can_wait && *next >= queue.registered_to() && queue.is_crowded(),
            // Transfers in progress make room for others.
            Task::Redrive { next, to, .. } => *next >= queue.redrives_to() && queue.redrives_more(*to),
            Task::Settle { .. } => false,
        }
    }
}

impl<R: Copy> Engine<R> {
    /// The first operation that can go on.
    pub(super) fn next_background_op(&self) -> Option<usize> {
        self.background_ops.iter().position(|op| !op.waits(self.machine(), self.when_crowded))
    }

    /// Runs one step of the next operation.
    pub(super) fn run_background_op<L: MessageLog>(&mut self, cx: &mut Context<'_, L>) {
        let Some(mut op) = self.next_background_op().and_then(|at| self.background_ops.remove(at)) else {
            return;
        };
        match self.step(&mut op, cx) {
            Ok(None) => self.background_ops.push_back(op),
            Ok(Some(reply)) => self.reply_when_durable(op.to, reply),
            Err(error) => self.reply_when_durable(op.to, Reply::Refused(error)),
        }
    }

    /// Returns the reply after the last step.
    fn step<L: MessageLog>(
        &mut self,
        BackgroundOp { task, count, .. }: &mut BackgroundOp<R>,
        cx: &mut Context<'_, L>,
    ) -> Result<Option<Reply>, QueueError> {
        if self.queue.is_stuck() {
            return Err(QueueError::Storage);
        }
        let (added, next, rest) = match task {
            Task::Replay { group, next } => {
                let known = self.machine().group(group).ok_or(QueueError::UnknownGroup)?;
                let to = cx.log.visible_to(cx.store);
                let from = (*next).clamp(cx.store.status(self.queue.messages_log()).start.min(to), to);
                let skip = cx.log.skip(from..to);
                let replayed = self.queue.replay_from(cx.store, known, from, cx.now_ms, skip);
                let (added, rest) = replayed.map_err(|_| QueueError::Storage)?;
                (added, next, rest)
            }
            Task::Purge { group, next, to } => {
                let group = group.as_ref();
                let known = group.map(|group| self.machine().group(group).ok_or(QueueError::UnknownGroup));
                let (added, rest) = self.queue.machine_mut().purge_some(known.transpose()?, *next..*to);
                // Messages that are not registered are removed after their registration.
                let registered_to = self.machine().registered_to();
                let comes = self.when_crowded == WhenCrowded::Wait || *next < registered_to;
                let rest =
                    rest.or_else(|| (registered_to < *to && comes).then_some(registered_to.max(*next)));
                (added, next, self.unless_unreadable(rest)?)
            }
            Task::Redrive { next, to, max, skipped } => {
                let queue = self.queue.machine_mut();
                // Dead letters that are not registered are sent back after their registration.
                let known_to = queue.redrives_to();
                let (step, rest) = queue.redrive_some(*next, *max - *count, cx.now_ms);
                *skipped += step.skipped;
                let has_more = *count + step.moved < *max && queue.redrives_more(*to);
                let rest = rest.or_else(|| has_more.then_some(known_to.max(*next)));
                let Some(rest) = self.unless_unreadable(rest)? else {
                    let redriven = Redriven { moved: *count + step.moved, skipped: *skipped };
                    return Ok(Some(Reply::Redriven(redriven)));
                };
                (step.moved, next, Some(rest))
            }
            Task::Settle { group, rest, outcomes } => {
                let known = self.machine().group(group).ok_or(QueueError::UnknownGroup)?;
                let at_once = self.machine().at_once();
                let step = rest.by_ref().take(at_once);
                outcomes.extend(step.map(|settlement| self.settle(known, &settlement, cx.now_ms)));
                let is_over = rest.len() == 0;
                return Ok(is_over.then(|| Reply::Settled(std::mem::take(outcomes))));
            }
        };
        *count += added;
        let Some(rest) = rest else { return Ok(Some(Reply::Count(*count))) };
        *next = rest;
        Ok(None)
    }

    /// An operation that needs further messages fails if they cannot be read.
    fn unless_unreadable(&self, rest: Option<u64>) -> Result<Option<u64>, QueueError> {
        if rest.is_some() && self.is_unreadable { Err(QueueError::Storage) } else { Ok(rest) }
    }
}
