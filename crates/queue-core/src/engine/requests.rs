//! Requests: each either replies at once, waits for durability, waits for messages, or becomes an operation in steps.

use super::background_ops::{BackgroundOp, Task};
use super::{Context, Engine, MessageLog, WAITING_MAX};
use crate::config::Start;
use crate::request::{GroupName, Info, QueueError, ReplayFrom, Reply, Request, Settlement};

/// Limit of the messages of one reply.
pub(super) const MESSAGES_MAX: u32 = 1_000;

impl<R: Copy> Engine<R> {
    /// Handles a request. The reply is an effect of this call or of a later one.
    pub fn handle<L: MessageLog>(&mut self, request: Request, from: R, cx: &mut Context<'_, L>) {
        // Without limits a message needs no knowledge of the others.
        let needs_all = !matches!(request, Request::Send(_)) || self.machine().config().has_limits();
        if !self.is_ready && needs_all || self.must_register_first(&request, cx) {
            if self.held.len() < WAITING_MAX {
                return self.held.push((request, from));
            }
            return self.reply(from, Reply::Refused(QueueError::Busy));
        }
        if let Err(error) = self.try_handle(request, from, cx) {
            self.reply(from, Reply::Refused(error));
        }
    }

    /// Whether a request creates a group that gets later messages only, while messages are visible that are not
    /// registered. Their senders may have been told that they are stored, so the group must not get them.
    fn must_register_first<L: MessageLog>(&self, request: &Request, cx: &Context<'_, L>) -> bool {
        let Request::Receive { group, .. } = request else { return false };
        let queue = self.machine();
        queue.config().start == Start::Latest
            && !self.is_unreadable
            && queue.group(group).is_none()
            && queue.registered_to() < cx.log.visible_to(cx.store)
    }

    fn try_handle<L: MessageLog>(
        &mut self,
        request: Request,
        from: R,
        cx: &mut Context<'_, L>,
    ) -> Result<(), QueueError> {
        match request {
            Request::Send(messages) => self.send(&messages, from, cx.store, cx.now_ms),
            Request::Receive { .. } => self.begin_wait(request, from, cx.now_ms)?,
            Request::Leave { group, consumer } => {
                if let Some(group) = self.machine().group(&group) {
                    self.queue.machine_mut().leave(group, consumer, cx.now_ms);
                }
                self.end_waits(&group, consumer);
                self.reply(from, Reply::Done);
            }
            Request::StopWaiting { group, consumer } => {
                self.keep_waiters_active(cx.now_ms);
                self.end_waits(&group, consumer);
                self.reply(from, Reply::Done);
            }
            Request::Settle { group, settlements } => self.settle_all(group, settlements, from, cx.now_ms)?,
            Request::Peek { group, from: offset, max } => {
                let group = self.machine().group(&group).ok_or(QueueError::UnknownGroup)?;
                let max = max.min(MESSAGES_MAX) as usize;
                let messages = self.queue.peek(cx.store, group, offset, max);
                self.reply(from, Reply::Peeked(messages.map_err(|_| QueueError::Storage)?));
            }
            Request::Info => {
                let mut info = Info { name: self.name.to_string(), ..Info::default() };
                self.info(&mut info, cx.log.visible_to(cx.store));
                self.reply(from, Reply::Info(Box::new(info)));
            }
            Request::Purge { .. } | Request::Redrive { .. } | Request::Replay { .. } => {
                let task = self.task(request, cx)?;
                self.begin(from, task)?;
            }
            Request::RemoveGroup { group } => self.remove_group(&group, from)?,
            Request::Create { .. } | Request::Configure { .. } | Request::Delete => {
                return Err(QueueError::Invalid("this request is not for an open queue".into()));
            }
        }
        Ok(())
    }

    /// Settles deliveries. Many of them are settled in steps.
    fn settle_all(
        &mut self,
        group: GroupName,
        settlements: Vec<Settlement>,
        from: R,
        now_ms: u64,
    ) -> Result<(), QueueError> {
        if self.queue.is_stuck() {
            return Err(QueueError::Storage);
        }
        if settlements.len() > self.machine().at_once() {
            return self.begin(from, Task::settle(group, settlements));
        }
        let group = self.machine().group(&group).ok_or(QueueError::UnknownGroup)?;
        let outcomes = settlements.iter().map(|settlement| self.settle(group, settlement, now_ms)).collect();
        self.reply_when_durable(from, Reply::Settled(outcomes));
        Ok(())
    }

    fn task<L: MessageLog>(&self, request: Request, cx: &mut Context<'_, L>) -> Result<Task, QueueError> {
        let check = |group: &GroupName| match self.machine().group(group) {
            Some(_) => Ok(()),
            None => Err(QueueError::UnknownGroup),
        };
        let to = cx.log.visible_to(cx.store);
        match request {
            Request::Purge { group } => {
                group.as_ref().map_or(Ok(()), check)?;
                Ok(Task::Purge { group, next: 0, to })
            }
            Request::Replay { group, from } => {
                check(&group)?;
                let next = match from {
                    ReplayFrom::Offset(offset) => offset,
                    ReplayFrom::Time(time_ms) => {
                        let time_ms = i64::try_from(time_ms).unwrap_or(i64::MAX);
                        let found = cx.store.find_time(self.queue.messages_log(), time_ms);
                        found.map_err(|_| QueueError::Storage)?.map_or(u64::MAX, |found| found.offset)
                    }
                };
                Ok(Task::Replay { group, next })
            }
            Request::Redrive { max } => Ok(Task::Redrive { next: 0, to, max, skipped: 0 }),
            _ => Err(QueueError::Busy),
        }
    }

    fn begin(&mut self, from: R, task: Task) -> Result<(), QueueError> {
        if self.background_ops.len() >= WAITING_MAX {
            return Err(QueueError::Busy);
        }
        self.background_ops.push_back(BackgroundOp::new(from, task));
        Ok(())
    }

    fn remove_group(&mut self, group: &GroupName, from: R) -> Result<(), QueueError> {
        let known = self.machine().group(group).ok_or(QueueError::UnknownGroup)?;
        self.queue.machine_mut().remove_group(known)?;
        self.reply_when_durable(from, Reply::Done);
        for wait in self.waits.extract_if(.., |wait| wait.group == *group).collect::<Vec<_>>() {
            self.reply(wait.to, Reply::Refused(QueueError::UnknownGroup));
        }
        Ok(())
    }
}
