//! Consumers that wait for messages. They are served in the order of their requests; where several of one group wait,
//! each gets a share of the ready messages, so that none takes all while others are idle.

use std::collections::BTreeMap;

use super::requests::MESSAGES_MAX;
use super::{Context, Engine, MessageLog, WAITING_MAX};
use crate::durable_queue::LeaseRequest;
use crate::machine::{GroupId, Queue};
use crate::request::{GroupName, QueueError, Reply, Request};

/// A consumer that waits for messages.
#[derive(Debug)]
pub(super) struct Wait<R> {
    pub(super) to: R,
    pub(super) group: GroupName,
    consumer: u64,
    max: u32,
    bytes_max: usize,
    lease_ms: Option<u64>,
    /// Ms since 1970; `u64::MAX` is forever.
    pub(super) until_ms: u64,
}

impl<R: Copy> Engine<R> {
    pub(super) fn begin_wait(&mut self, request: Request, to: R, now_ms: u64) -> Result<(), QueueError> {
        let Request::Receive { group, consumer, max, bytes_max, lease_ms, wait_ms } = request else {
            return Err(QueueError::Busy);
        };
        if self.queue.is_stuck() {
            return Err(QueueError::Storage);
        }
        if self.waits.len() >= WAITING_MAX {
            return Err(QueueError::Busy);
        }
        self.queue.open_group(&group, now_ms)?;
        let (max, until_ms) = (max.min(MESSAGES_MAX), now_ms.saturating_add(wait_ms));
        self.waits.push(Wait { to, group, consumer, max, bytes_max, lease_ms, until_ms });
        Ok(())
    }

    /// Replies to the waits of a consumer without messages.
    pub fn end_waits(&mut self, group: &GroupName, consumer: u64) {
        let is_its = |wait: &mut Wait<R>| wait.consumer == consumer && wait.group == *group;
        for wait in self.waits.extract_if(.., is_its).collect::<Vec<_>>() {
            self.reply(wait.to, Reply::Received(Vec::new()));
        }
    }

    /// A consumer that waits is not silent: it stays the active consumer.
    pub(super) fn keep_waiters_active(&mut self, now_ms: u64) {
        if !self.machine().config().single_active_consumer {
            return;
        }
        for wait in &self.waits {
            if let Some(group) = self.queue.machine().group(&wait.group) {
                let queue = self.queue.machine_mut();
                queue.lease(group, wait.consumer, 0, wait.lease_ms, now_ms, &mut Vec::new());
            }
        }
    }

    /// Leases messages to waiting consumers, and replies to those whose wait is over.
    pub(super) fn serve_waits<L: MessageLog>(&mut self, cx: &mut Context<'_, L>) {
        if self.waits.is_empty() {
            return;
        }
        let mut waits = std::mem::take(&mut self.waits);
        // Groups without further messages for anybody.
        let mut empty: Vec<GroupName> = Vec::new();
        let mut shares = Shares::new(&waits);
        waits.retain(|wait| {
            if wait.until_ms > cx.now_ms && empty.contains(&wait.group) {
                return true;
            }
            let Some(reply) = self.serve_wait(wait, &mut shares, cx) else { return true };
            if matches!(&reply, Reply::Received(deliveries) if deliveries.is_empty())
                && wait.until_ms > cx.now_ms
            {
                if !self.machine().config().single_active_consumer {
                    empty.push(GroupName::clone(&wait.group));
                }
                return true;
            }
            self.reply(wait.to, reply);
            false
        });
        self.waits = waits;
    }

    /// The reply to a wait at this time; `None` if its group is not durable yet, whatever the time.
    fn serve_wait<L: MessageLog>(
        &mut self,
        wait: &Wait<R>,
        shares: &mut Shares,
        cx: &mut Context<'_, L>,
    ) -> Option<Reply> {
        let Some(group) = self.machine().group(&wait.group) else {
            return Some(Reply::Refused(QueueError::UnknownGroup));
        };
        if self.queue.is_stuck() {
            return Some(Reply::Refused(QueueError::Storage));
        }
        // A consumer without time to wait must not miss messages that are there.
        if self.machine().is_pending_creation(group) {
            return None;
        }
        let Wait { consumer, bytes_max, lease_ms, .. } = *wait;
        let max = shares.next(self.machine(), group, wait);
        let lease = LeaseRequest { group, consumer, max, bytes_max, lease_ms };
        let mut deliveries = Vec::new();
        let leased = self.queue.lease(cx.store, &lease, cx.now_ms, |delivery| deliveries.push(delivery));
        Some(match leased {
            Ok(_) => Reply::Received(deliveries),
            Err(error) => {
                log::error!("queue {}: a message cannot be read: {error}", self.name);
                Reply::Refused(QueueError::Storage)
            }
        })
    }
}

/// How many messages each waiting consumer gets.
struct Shares {
    /// Consumers of each group that have not been served.
    waiting: BTreeMap<GroupName, u64>,
}

impl Shares {
    fn new<R>(waits: &[Wait<R>]) -> Self {
        let mut waiting = BTreeMap::new();
        for wait in waits {
            *waiting.entry(GroupName::clone(&wait.group)).or_default() += 1;
        }
        Self { waiting }
    }

    /// Limit for the next consumer.
    fn next<R>(&mut self, queue: &Queue, group: GroupId, wait: &Wait<R>) -> usize {
        let max = wait.max as usize;
        let Some(waiting) = self.waiting.get_mut(&wait.group) else { return max };
        let others = std::mem::replace(waiting, waiting.saturating_sub(1)).max(1);
        if others == 1 || queue.config().single_active_consumer {
            return max;
        }
        max.min(queue.ready(group).div_ceil(others).max(1) as usize)
    }
}
