//! One group of a queue: its settlements, and the wait until they are durable.

use std::sync::{Arc, MutexGuard};

use mainstem_queue_core::{Disposition, GroupName, QueueError, Receipt, Settlement};

use crate::common::Queues;
use crate::error::Error;
use crate::host::Host;
use crate::time::now_ms;

/// One group of a queue.
#[derive(Debug)]
pub(crate) struct GroupHandle {
    pub(crate) queues: Queues,
    /// Index of the queue.
    pub(crate) at: usize,
    pub(crate) group: GroupName,
}

impl GroupHandle {
    /// Settles deliveries, and waits until the settlements are durable.
    pub(crate) fn settle(&self, settlements: &[Settlement], now_ms: u64) -> Result<(), Error> {
        let common = &*self.queues.common;
        let mut outcome = Ok(());
        let mut inner = common.lock();
        let engine = &inner.queues[self.at].engine;
        if engine.queue().is_stuck() {
            return Err(QueueError::Storage.into());
        }
        let mut parts = settlements.chunks(engine.machine().at_once()).peekable();
        while let Some(part) = parts.next() {
            let engine = &mut inner.queues[self.at].engine;
            let group = engine.machine().group(&self.group).ok_or(QueueError::UnknownGroup)?;
            for settlement in part {
                outcome = outcome.and(engine.settle(group, settlement, now_ms));
            }
            if parts.peek().is_some() {
                // Gives the lock to other threads.
                drop(inner);
                inner = common.lock();
            }
        }
        self.wait_until_durable(inner, now_ms)?;
        if settlements.iter().any(|settlement| settlement.disposition != Disposition::Ack) {
            common.due.notify();
        }
        outcome.map_err(Error::from)
    }

    /// Releases a delivery without waiting: all deliveries are ready again when the queue is opened.
    pub(crate) fn release(&self, receipt: Receipt) {
        let common = &*self.queues.common;
        let now_ms = now_ms();
        let mut inner = common.lock();
        let engine = &mut inner.queues[self.at].engine;
        let Some(group) = engine.machine().group(&self.group) else { return };
        let settlement = Settlement { receipt, disposition: Disposition::Release };
        match engine.settle(group, &settlement, now_ms) {
            Ok(()) => inner.commit(self.at, now_ms),
            // The lease had expired.
            Err(error) => log::debug!("a delivery is not released: {error}"),
        }
        drop(inner);
        common.due.notify();
        common.arrivals.notify();
    }

    /// Waits until all events of the queue are durable, and wakes waiting consumers.
    pub(crate) fn wait_until_durable(
        &self,
        mut inner: MutexGuard<'_, Host>,
        now_ms: u64,
    ) -> Result<(), Error> {
        let common = &*self.queues.common;
        let number = inner.queues[self.at].engine.queue_mut().number();
        let is_durable = common.finish(inner, self.at, now_ms, |inner| {
            let queue = inner.queues[self.at].engine.queue();
            let is_stuck = queue.is_stuck();
            (is_stuck || queue.durable() >= number).then_some(!is_stuck)
        });
        common.arrivals.notify();
        if is_durable { Ok(()) } else { Err(QueueError::Storage.into()) }
    }

    /// Whether `other` is the same group of the same queue.
    pub(crate) fn is_same_group(&self, other: &Self) -> bool {
        let is_of_the_same = Arc::ptr_eq(&self.queues.common, &other.queues.common);
        is_of_the_same && self.at == other.at && self.group == other.group
    }
}
