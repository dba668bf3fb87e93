//! Workers: they receive messages and settle them in every way, in time and too late, once and twice, or vanish with
//! them.

use mainstem_queue_core::{Disposition, Receipt, Reply, Request, Settlement};

use super::client::{Client, Context};
use super::oracle::Pending;
use super::plan::{Role, WorkerProfile};
use crate::engine::pick;

/// Consumer numbers of other protocols are below.
pub(super) const CONSUMERS_FROM: u64 = 1 << 63;
/// Former receipts that are settled again.
const STALE_MAX: usize = 20;

#[derive(Debug)]
pub(crate) struct Worker {
    profile: WorkerProfile,
    queue: Option<usize>,
    /// Consumer number, another one each time it returns.
    consumer: u64,
    number: u64,
    held: Vec<Receipt>,
    stale: Vec<Receipt>,
    is_receiving: bool,
    is_settling: bool,
}

impl Worker {
    pub(crate) fn new(number: u64, profile: WorkerProfile) -> Self {
        Self {
            profile,
            queue: None,
            consumer: CONSUMERS_FROM + number,
            number,
            held: Vec::new(),
            stale: Vec::new(),
            is_receiving: false,
            is_settling: false,
        }
    }

    /// Returns as another consumer without any state.
    fn vanish(&mut self, context: &mut Context<'_>) {
        if let Some(queue) = self.queue.take().filter(|_| self.is_receiving || context.rng.chance(50)) {
            context.ask(queue, Request::Leave { group: self.profile.group.into(), consumer: self.consumer });
        }
        self.consumer += 1_000;
        self.held.clear();
        self.stale.clear();
        (self.is_receiving, self.is_settling) = (false, false);
    }

    fn receive(&mut self, context: &mut Context<'_>, queue: usize) {
        self.is_receiving = true;
        let request = Request::Receive {
            group: self.profile.group.into(),
            consumer: self.consumer,
            max: self.profile.max,
            bytes_max: pick(context.rng, &[1, 4_000, 1 << 20]),
            lease_ms: Some(self.profile.lease_ms),
            wait_ms: self.profile.wait_ms,
        };
        context.ask(queue, request);
    }

    fn disposition(&self, context: &mut Context<'_>, queue: usize) -> Disposition {
        let may_reject = matches!(context.plan.queues[queue].role, Role::Main { .. });
        if context.rng.chance(self.profile.acks) {
            return Disposition::Ack;
        }
        match context.rng.below(8) {
            0 | 1 => Disposition::Nack(None),
            2 => Disposition::Nack(Some(pick(context.rng, &[0, 100, 2_000, 10_000]))),
            3 | 4 if may_reject => Disposition::Reject,
            5 | 6 => Disposition::Extend(pick(context.rng, &[1, 100, 5_000])),
            _ => Disposition::Release,
        }
    }

    fn settle(&mut self, context: &mut Context<'_>, queue: usize) {
        let mut settlements = Vec::new();
        for _ in 0..=context.rng.below(self.held.len() as u64 + 1) {
            let is_stale = self.held.is_empty() || context.rng.chance(5);
            let from = if is_stale { &self.stale } else { &self.held };
            if from.is_empty() {
                continue;
            }
            let receipt = from[context.rng.below(from.len() as u64) as usize];
            let disposition = self.disposition(context, queue);
            settlements.push(Settlement { receipt, disposition });
            if context.rng.chance(5) {
                settlements.push(Settlement { receipt, disposition: self.disposition(context, queue) });
            }
            if !matches!(disposition, Disposition::Extend(_)) {
                self.held.retain(|held| *held != receipt);
                self.stale.push(receipt);
                if self.stale.len() > STALE_MAX {
                    self.stale.remove(0);
                }
            }
        }
        if !settlements.is_empty() {
            self.is_settling = true;
            context.ask(queue, Request::Settle { group: self.profile.group.into(), settlements });
        }
    }
}

impl Client for Worker {
    fn act(&mut self, context: &mut Context<'_>) {
        if context.is_ending {
            if self.is_receiving {
                self.vanish(context);
            }
            return;
        }
        if context.rng.chance(self.profile.vanishes) {
            return self.vanish(context);
        }
        let queue = self.queue.unwrap_or_else(|| {
            let role = context.rng.below(10);
            context.any_queue(|it| match it {
                Role::Main { .. } => role < 8,
                Role::Dead => role == 8,
                Role::Temporary => role == 9,
            })
        });
        self.queue = Some(queue);
        if !self.is_settling && context.rng.chance(50) && !(self.held.is_empty() && self.stale.is_empty()) {
            self.settle(context, queue);
        } else if !self.is_receiving && self.held.len() < 50 {
            self.receive(context, queue);
        }
    }

    fn handle_reply(&mut self, _: &mut Context<'_>, pending: &Pending, reply: &Reply) {
        match (&pending.request, reply) {
            (Request::Receive { consumer, .. }, _) if *consumer != self.consumer => {}
            (Request::Receive { .. }, Reply::Received(deliveries)) => {
                self.is_receiving = false;
                self.held.extend(deliveries.iter().map(|delivery| delivery.receipt));
            }
            (Request::Receive { .. }, _) => self.is_receiving = false,
            (Request::Settle { .. }, _) => self.is_settling = false,
            _ => {}
        }
    }

    fn connection_lost(&mut self, pending: &Pending) {
        match pending.request {
            Request::Receive { .. } => {
                self.is_receiving = false;
                // Some keep their receipts after a crash, and settle them.
                if self.number.is_multiple_of(2) {
                    self.stale.append(&mut self.held);
                }
            }
            Request::Settle { .. } => self.is_settling = false,
            _ => {}
        }
    }
}
