//! What is asked of a queue, done on the shard that has it.

use std::collections::BTreeMap;

use mainstem_queue::{
    GroupId, GroupName, Info, Queue, Refusal, ReplayFrom, Reply, Request, Settlement, Taking,
};
use mainstem_runtime::Io;

use super::chores::{Chore, Task};
use super::errand::{ReplyTo, Wanted};
use super::{Open, order};
use crate::catalogue::PartitionId;
use crate::mail::Mail;
use crate::partition::Reach;
use crate::shard::Shard;

/// Requests that may wait in one queue, of each kind.
const WAITING_MAX: usize = 100_000;
/// Most messages of one answer.
const MESSAGES_MAX: u32 = 1_000;

/// Somebody waits for messages.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) to: ReplyTo,
    pub(super) group: GroupName,
    pub(super) consumer: u64,
    pub(super) max: u32,
    pub(super) bytes_max: usize,
    pub(super) lease_ms: Option<u64>,
    /// Ms since 1970; `u64::MAX` for ever.
    pub(super) until_ms: u64,
}

/// A request that waits until the queue is known in full.
#[derive(Debug)]
pub(super) struct Held(Request, ReplyTo);

impl Held {
    pub(super) fn to(&self) -> ReplyTo {
        self.1
    }
}

impl Shard {
    /// Does what is wanted of a queue that is here.
    pub(super) fn serve_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        wanted: Wanted,
        to: ReplyTo,
    ) {
        match wanted {
            Wanted::Move(moved, durability) => self.take_in(io, id, &moved, durability, to),
            Wanted::Request(request) => {
                if let Err(refusal) = self.open_queue(io, id) {
                    return self.answer_queue(io, to, Reply::Refused(refusal));
                }
                self.serve_held(io, id, Held(request, to));
                self.queues.stirred.insert(id);
                io.again_soon();
            }
        }
    }

    pub(super) fn serve_held(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, Held(request, to): Held) {
        let Some(open) = self.queues.open.get_mut(&id) else {
            return self.answer_queue(io, to, Reply::Refused(Refusal::UnknownQueue));
        };
        // Whether there is room is known when all that is there is.
        let can_wait = !matches!(request, Request::Send(_)) || open.keeper.queue().config().has_limits();
        if !open.is_ready && can_wait {
            if open.held.len() < WAITING_MAX {
                return open.held.push(Held(request, to));
            }
            return self.answer_queue(io, to, Reply::Refused(Refusal::Busy));
        }
        if let Request::Send(messages) = request {
            return self.send_to_queue(io, id, &messages, to);
        }
        match self.try_serve(io, id, request, to) {
            Ok(Some(reply)) => self.answer_queue(io, to, reply),
            Ok(None) => {}
            Err(refusal) => self.answer_queue(io, to, Reply::Refused(refusal)),
        }
    }

    /// Does what is asked. Answers nothing if the answer has to wait.
    fn try_serve(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        request: Request,
        to: ReplyTo,
    ) -> Result<Option<Reply>, Refusal> {
        let now_ms = io.clock.unix_ms;
        let Some(open) = self.queues.open.get_mut(&id) else { return Err(Refusal::UnknownQueue) };
        let store = &mut *self.stores[open.store].store;
        match request {
            Request::Receive { group, consumer, max, bytes_max, lease_ms, wait_ms } => {
                if open.keeper.is_stuck() {
                    return Err(Refusal::Storage);
                }
                if open.waits.len() >= WAITING_MAX {
                    return Err(Refusal::Busy);
                }
                open.keeper.open_group(&group, now_ms)?;
                let until_ms = now_ms.saturating_add(wait_ms);
                let max = max.min(MESSAGES_MAX);
                open.waits.push(Wait { to, group, consumer, max, bytes_max, lease_ms, until_ms });
                Ok(None)
            }
            Request::Leave { group, consumer } => {
                if let Some(group) = open.keeper.queue().group(&group) {
                    open.keeper.queue_mut().leave(group, consumer, now_ms);
                }
                self.end_waits(io, id, &group, consumer);
                Ok(Some(Reply::Done))
            }
            Request::StopWaiting { group, consumer } => {
                open.waiting_is_asking(now_ms);
                self.end_waits(io, id, &group, consumer);
                Ok(Some(Reply::Done))
            }
            Request::Settle { group, settlements } => {
                if open.keeper.is_stuck() {
                    return Err(Refusal::Storage);
                }
                if settlements.len() > open.keeper.queue().at_once() {
                    return begin(open, to, Task::settle(group, settlements));
                }
                let group = open.keeper.queue().group(&group).ok_or(Refusal::UnknownGroup)?;
                let settle = |settlement: &Settlement| {
                    let random = (io.random() >> 32) as u32;
                    open.keeper.settle(group, settlement, now_ms, random)
                };
                let outcomes = settlements.iter().map(settle).collect();
                Ok(keep(open, to, Reply::Settled(outcomes)))
            }
            Request::Peek { group, from, max } => {
                let group = open.keeper.queue().group(&group).ok_or(Refusal::UnknownGroup)?;
                let max = max.min(MESSAGES_MAX) as usize;
                let messages = open.keeper.peek(store, group, from, max).map_err(|_| Refusal::Storage)?;
                Ok(Some(Reply::Peeked(messages)))
            }
            Request::Info => {
                let reach = self.partitions.get(&id).map(|partition| partition.reach(store));
                Ok(Some(Reply::Info(Box::new(info(open, reach.unwrap_or_default())))))
            }
            Request::Purge { group } => {
                if let Some(group) = &group {
                    open.keeper.queue().group(group).ok_or(Refusal::UnknownGroup)?;
                }
                let partition = self.partitions.get(&id).ok_or(Refusal::Storage)?;
                let to_offset = partition.reach(store).last_stable;
                begin(open, to, Task::Purge { group, next: 0, to: to_offset })
            }
            Request::Redrive { max } => {
                let partition = self.partitions.get(&id).ok_or(Refusal::Storage)?;
                let to_offset = partition.reach(store).last_stable;
                begin(open, to, Task::Redrive { next: 0, to: to_offset, max })
            }
            Request::Replay { group, from } => {
                open.keeper.queue().group(&group).ok_or(Refusal::UnknownGroup)?;
                let partition = self.partitions.get(&id).ok_or(Refusal::Storage)?;
                let next = match from {
                    ReplayFrom::Offset(offset) => offset,
                    ReplayFrom::Time(time_ms) => {
                        let found = store.find_time(partition.log, time_ms.cast_signed());
                        let found = found.map_err(|_| Refusal::Storage)?;
                        found.map_or(u64::MAX, |found| found.offset)
                    }
                };
                begin(open, to, Task::Replay { group, next })
            }
            Request::RemoveGroup { group } => {
                let known = open.keeper.queue().group(&group).ok_or(Refusal::UnknownGroup)?;
                open.keeper.queue_mut().remove_group(known)?;
                let gone: Vec<Wait> = open.waits.extract_if(.., |wait| wait.group == group).collect();
                let reply = keep(open, to, Reply::Done);
                for wait in gone {
                    self.answer_queue(io, wait.to, Reply::Refused(Refusal::UnknownGroup));
                }
                Ok(reply)
            }
            Request::Send(_) | Request::Create { .. } | Request::Configure { .. } | Request::Delete => {
                Err(Refusal::Invalid("it has come to the wrong place".into()))
            }
        }
    }

    /// Tells a consumer that waits that nothing comes.
    pub(super) fn end_waits(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: PartitionId,
        group: &GroupName,
        consumer: u64,
    ) {
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let is_mine = |wait: &mut Wait| wait.consumer == consumer && wait.group == *group;
        for wait in open.waits.extract_if(.., is_mine).collect::<Vec<_>>() {
            self.answer_queue(io, wait.to, Reply::Received(Vec::new()));
        }
    }

    /// Gives messages to those that wait for them, in their order, and tells those that have waited long enough.
    pub(super) fn serve_waits(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let now_ms = io.clock.unix_ms;
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let store = &mut *self.stores[open.store].store;
        let is_stuck = open.keeper.is_stuck();
        let mut answers = Vec::new();
        // Groups that have nothing more for anybody.
        let mut empty: Vec<GroupName> = Vec::new();
        let mut shares = Shares::new(&open.waits);
        open.waits.retain(|wait| {
            if wait.until_ms > now_ms && empty.contains(&wait.group) {
                return true;
            }
            let reply = match open.keeper.queue().group(&wait.group) {
                None => Reply::Refused(Refusal::UnknownGroup),
                Some(_) if is_stuck => Reply::Refused(Refusal::Storage),
                // What is there is not to be missed by whoever has no time to wait: they hear of it when it lasts.
                Some(group) if open.keeper.queue().begins(group) => return true,
                Some(group) => {
                    let Wait { consumer, bytes_max, lease_ms, .. } = *wait;
                    let most = shares.next(open.keeper.queue(), group, wait);
                    let taking = Taking { group, consumer, max: most, bytes_max, lease_ms };
                    let mut deliveries = Vec::new();
                    let taken =
                        open.keeper.lease(store, &taking, now_ms, |delivery| deliveries.push(delivery));
                    match taken {
                        Ok(_) if deliveries.is_empty() && wait.until_ms > now_ms => {
                            if !open.keeper.queue().config().single_active_consumer {
                                empty.push(GroupName::clone(&wait.group));
                            }
                            return true;
                        }
                        Ok(_) => Reply::Received(deliveries),
                        Err(error) => {
                            log::error!("queue {}: a message cannot be read: {error}", open.topic.name);
                            Reply::Refused(Refusal::Storage)
                        }
                    }
                }
            };
            answers.push((wait.to, reply));
            false
        });
        for (to, reply) in answers {
            self.answer_queue(io, to, reply);
        }
    }
}

/// How many messages each of those gets that wait at once: none takes all while others have nothing to do.
struct Shares {
    /// Consumers of each group that have had no turn.
    waiting: BTreeMap<GroupName, u64>,
}

impl Shares {
    fn new(waits: &[Wait]) -> Self {
        let mut waiting = BTreeMap::new();
        for wait in waits {
            *waiting.entry(GroupName::clone(&wait.group)).or_default() += 1;
        }
        Self { waiting }
    }

    /// Most messages for the next of them.
    fn next(&mut self, queue: &Queue, group: GroupId, wait: &Wait) -> usize {
        let max = wait.max as usize;
        let Some(waiting) = self.waiting.get_mut(&wait.group) else { return max };
        let others = std::mem::replace(waiting, waiting.saturating_sub(1)).max(1);
        if others == 1 || queue.config().single_active_consumer {
            return max;
        }
        max.min(queue.ready(group).div_ceil(others).max(1) as usize)
    }
}

/// Puts off what takes long, to be done some messages at a time.
fn begin(open: &mut Open, to: ReplyTo, task: Task) -> Result<Option<Reply>, Refusal> {
    if open.chores.len() >= WAITING_MAX {
        return Err(Refusal::Busy);
    }
    open.chores.push_back(Chore::new(to, task));
    Ok(None)
}

/// Lets an answer wait until what has happened is durable; gives it back if it is.
pub(super) fn keep(open: &mut Open, to: ReplyTo, reply: Reply) -> Option<Reply> {
    let number = open.keeper.number();
    if number <= open.keeper.durable() {
        return Some(reply);
    }
    open.kept.push_back((number, to, reply));
    None
}

/// How a queue is whose log reaches so far.
fn info(open: &Open, reach: Reach) -> Info {
    let mut info = Info {
        name: open.topic.name.to_string(),
        settings: order::settings_of(&open.topic),
        ..Info::default()
    };
    open.keeper.info(&mut info);
    // Those that are not known yet because there are so many.
    let unknown = reach.last_stable.saturating_sub(open.keeper.queue().registered_to());
    info.messages += unknown;
    for group in &mut info.groups {
        group.ready += unknown;
        let waiting = open.waits.iter().filter(|wait| *wait.group == *group.name);
        group.waiting = waiting.count() as u64;
    }
    info
}
