//! Those who receive: they settle what they have in every way there is, in time and too late, once and twice, or vanish
//! with it.

use mainstem_queue::{Receipt, Reply, Request, Settlement, Verdict};

use super::client::{Client, Desk};
use super::ledger::Pending;
use super::plan::{Habits, Role};
use crate::plan::pick;

/// No other door has consumers with numbers from here on.
pub(super) const CONSUMERS_FROM: u64 = 1 << 63;
/// Receipts of the past that are remembered to be settled once more.
const STALE_MAX: usize = 20;

#[derive(Debug)]
pub(crate) struct Worker {
    habits: Habits,
    queue: Option<usize>,
    /// Who it is: another one each time it comes back.
    consumer: u64,
    number: u64,
    held: Vec<Receipt>,
    stale: Vec<Receipt>,
    is_receiving: bool,
    is_settling: bool,
}

impl Worker {
    pub(crate) fn new(number: u64, habits: Habits) -> Self {
        Self {
            habits,
            queue: None,
            consumer: CONSUMERS_FROM + number,
            number,
            held: Vec::new(),
            stale: Vec::new(),
            is_receiving: false,
            is_settling: false,
        }
    }

    /// Comes back as somebody else, who knows nothing.
    fn vanish(&mut self, desk: &mut Desk<'_>) {
        if let Some(queue) = self.queue.take().filter(|_| self.is_receiving || desk.dice.chance(50)) {
            desk.ask(queue, Request::Leave { group: self.habits.group.into(), consumer: self.consumer });
        }
        self.consumer += 1_000;
        self.held.clear();
        self.stale.clear();
        (self.is_receiving, self.is_settling) = (false, false);
    }

    fn receive(&mut self, desk: &mut Desk<'_>, queue: usize) {
        self.is_receiving = true;
        let request = Request::Receive {
            group: self.habits.group.into(),
            consumer: self.consumer,
            max: self.habits.max,
            bytes_max: pick(desk.dice, &[1, 4_000, 1 << 20]),
            lease_ms: Some(self.habits.lease_ms),
            wait_ms: self.habits.wait_ms,
        };
        desk.ask(queue, request);
    }

    fn verdict(&self, desk: &mut Desk<'_>, queue: usize) -> Verdict {
        let may_reject = matches!(desk.plan.queues[queue].role, Role::Main { .. });
        if desk.dice.chance(self.habits.acks) {
            return Verdict::Ack;
        }
        match desk.dice.below(8) {
            0 | 1 => Verdict::Nack(None),
            2 => Verdict::Nack(Some(pick(desk.dice, &[0, 100, 2_000, 10_000]))),
            3 | 4 if may_reject => Verdict::Reject,
            5 | 6 => Verdict::Extend(pick(desk.dice, &[1, 100, 5_000])),
            _ => Verdict::Release,
        }
    }

    fn settle(&mut self, desk: &mut Desk<'_>, queue: usize) {
        let mut settlements = Vec::new();
        for _ in 0..=desk.dice.below(self.held.len() as u64 + 1) {
            let is_stale = self.held.is_empty() || desk.dice.chance(5);
            let from = if is_stale { &self.stale } else { &self.held };
            if from.is_empty() {
                continue;
            }
            let receipt = from[desk.dice.below(from.len() as u64) as usize];
            let verdict = self.verdict(desk, queue);
            settlements.push(Settlement { receipt, verdict });
            if desk.dice.chance(5) {
                settlements.push(Settlement { receipt, verdict: self.verdict(desk, queue) });
            }
            if !matches!(verdict, Verdict::Extend(_)) {
                self.held.retain(|held| *held != receipt);
                self.stale.push(receipt);
                if self.stale.len() > STALE_MAX {
                    self.stale.remove(0);
                }
            }
        }
        if !settlements.is_empty() {
            self.is_settling = true;
            desk.ask(queue, Request::Settle { group: self.habits.group.into(), settlements });
        }
    }
}

impl Client for Worker {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if desk.is_ending {
            if self.is_receiving {
                self.vanish(desk);
            }
            return;
        }
        if desk.dice.chance(self.habits.vanishes) {
            return self.vanish(desk);
        }
        let queue = self.queue.unwrap_or_else(|| {
            let role = desk.dice.below(10);
            desk.any_queue(|it| match it {
                Role::Main { .. } => role < 8,
                Role::Dead => role == 8,
                Role::Temporary => role == 9,
            })
        });
        self.queue = Some(queue);
        if !self.is_settling && desk.dice.chance(50) && !(self.held.is_empty() && self.stale.is_empty()) {
            self.settle(desk, queue);
        } else if !self.is_receiving && self.held.len() < 50 {
            self.receive(desk, queue);
        }
    }

    fn answered(&mut self, _: &mut Desk<'_>, pending: &Pending, reply: &Reply) {
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

    fn lost(&mut self, pending: &Pending) {
        match pending.request {
            Request::Receive { .. } => {
                self.is_receiving = false;
                // Some have noticed nothing but that, and settle what they had.
                if self.number.is_multiple_of(2) {
                    self.stale.append(&mut self.held);
                }
            }
            Request::Settle { .. } => self.is_settling = false,
            _ => {}
        }
    }
}
