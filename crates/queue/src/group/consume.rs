//! Leases: how consumers get messages, and what becomes of them.

use super::{Active, Entry, Group, State};
use crate::ask::{Reason, Receipt, Refusal, Settlement, Verdict};
use crate::event::{Delivered, Event};
use crate::machine::{LEASE_MS_MAX, Lease};
use crate::runs::Runs;
use crate::shared::Shared;

/// Messages that are found to have expired while others are leased.
const EXPIRED_AT_ONCE: usize = 1_000;

impl Group {
    /// Whether there is something for a consumer.
    pub(crate) fn can_lease(&self, shared: &Shared, consumer: u64) -> bool {
        let may = match self.active {
            Some(active) if shared.config.single_active_consumer => active.consumer == consumer,
            _ => true,
        };
        may && self.ready.iter().any(|runs| !runs.is_empty())
    }

    fn activate(&mut self, shared: &Shared, consumer: u64, now_ms: u64) -> bool {
        if !shared.config.single_active_consumer {
            return true;
        }
        if self
            .active
            .is_some_and(|active| active.consumer != consumer && !self.is_silent(shared, active, now_ms))
        {
            return false;
        }
        self.active = Some(Active { consumer, asked_ms: now_ms });
        true
    }

    fn is_silent(&self, shared: &Shared, active: Active, now_ms: u64) -> bool {
        let until_ms = active.asked_ms.saturating_add(shared.config.lease_ms);
        until_ms <= now_ms && !self.holds(active.consumer)
    }

    /// See [`crate::Queue::lease`].
    pub(crate) fn lease(
        &mut self,
        shared: &mut Shared,
        consumer: u64,
        max: usize,
        lease_ms: u64,
        now_ms: u64,
        out: &mut Vec<Lease>,
    ) {
        if !self.activate(shared, consumer, now_ms) {
            return;
        }
        let until_ms = now_ms.saturating_add(lease_ms);
        let (enough, mut expired) = (out.len().saturating_add(max), 0);
        while out.len() < enough && expired < EXPIRED_AT_ONCE {
            let Some(offset) = self.ready.iter().rev().find_map(Runs::first) else { return };
            self.withdraw(shared, offset);
            if shared.pool.has_expired(offset, now_ms) {
                self.depart(shared, offset, Reason::Expired, now_ms);
                expired += 1;
                continue;
            }
            let entry = self.entries.entry(offset).or_insert(Entry::NEW);
            if entry.count == 0 {
                entry.first_ms = now_ms;
            } else {
                self.counters.redelivered += 1;
            }
            entry.count = entry.count.saturating_add(1);
            let life_before = std::mem::replace(&mut entry.life, shared.life);
            entry.not_before_ms = 0;
            entry.state = State::Leased { consumer, until_ms };
            let (count, life, first_delivered_ms) = (entry.count, entry.life, entry.first_ms);
            self.counters.delivered += 1;
            self.leased += 1;
            self.due.insert((until_ms, offset));
            *self.held.entry(consumer).or_default() += 1;
            shared.pool.hold(offset);
            let delivered = Delivered { count, life, first_ms: first_delivered_ms };
            shared.recorder.delivered(self.id, offset, delivered);
            let receipt = Receipt { offset, count, life };
            out.push(Lease { receipt, life_before, first_delivered_ms, until_ms });
        }
    }

    /// See [`crate::Queue::settle`].
    pub(crate) fn settle(
        &mut self,
        shared: &mut Shared,
        settlement: &Settlement,
        now_ms: u64,
        random: u32,
    ) -> Result<(), Refusal> {
        let Receipt { offset, count, .. } = settlement.receipt;
        let entry = self.entries.get(&offset).copied().filter(|entry| entry.is_of(settlement.receipt));
        let entry = entry.ok_or(Refusal::Stale)?;
        match (entry.state, settlement.verdict) {
            (State::Leased { consumer, until_ms }, Verdict::Ack) => {
                self.end_lease(offset, consumer, until_ms);
                self.counters.acked += 1;
                self.finish_leased(shared, offset, now_ms);
            }
            (State::Idle, Verdict::Ack) => {
                self.withdraw(shared, offset);
                self.counters.acked += 1;
                self.finish(shared, offset, now_ms);
            }
            (State::Leased { .. } | State::Idle, Verdict::Reject) => {
                self.withdraw(shared, offset);
                self.counters.nacked += 1;
                self.depart(shared, offset, Reason::Rejected, now_ms);
            }
            (State::Leased { .. }, Verdict::Nack(delay_ms)) => {
                self.counters.nacked += 1;
                let delay_ms = match delay_ms {
                    Some(delay_ms) => delay_ms.min(LEASE_MS_MAX),
                    None => backoff_ms(shared, count, random),
                };
                self.come_back(shared, offset, delay_ms, now_ms);
            }
            (State::Leased { .. }, Verdict::Release) => self.come_back(shared, offset, 0, now_ms),
            (State::Leased { .. }, Verdict::Unsent) => {
                // The next delivery has this one's number, and must not have its receipt.
                shared.go_on_living();
                let life_before = if count > 1 { entry.life } else { 0 };
                self.uncount(shared, offset, life_before, now_ms);
            }
            (State::Leased { consumer, until_ms }, Verdict::Extend(ms)) => {
                self.due.remove(&(until_ms, offset));
                let until_ms = now_ms.saturating_add(ms.clamp(1, LEASE_MS_MAX));
                self.due.insert((until_ms, offset));
                self.entries.insert(offset, Entry { state: State::Leased { consumer, until_ms }, ..entry });
            }
            _ => return Err(Refusal::Stale),
        }
        Ok(())
    }

    /// See [`crate::Queue::take_back`].
    pub(crate) fn take_back(&mut self, shared: &mut Shared, lease: &Lease, now_ms: u64) {
        let offset = lease.receipt.offset;
        let entry = self.entries.get(&offset).filter(|entry| matches!(entry.state, State::Leased { .. }));
        if entry.is_some_and(|entry| entry.is_of(lease.receipt)) {
            self.uncount(shared, offset, lease.life_before, now_ms);
        }
    }

    /// The delivery of a leased message was none: the one before was the last, in that life.
    fn uncount(&mut self, shared: &mut Shared, offset: u64, life_before: u32, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(&offset) else { return };
        entry.count -= 1;
        entry.life = life_before;
        let delivered = entry.delivered();
        self.counters.delivered -= 1;
        if delivered.count > 0 {
            self.counters.redelivered -= 1;
        }
        shared.recorder.delivered(self.id, offset, delivered);
        self.withdraw(shared, offset);
        if shared.pool.has_expired(offset, now_ms) {
            return self.depart(shared, offset, Reason::Expired, now_ms);
        }
        self.rejoin(shared, offset, now_ms);
    }

    /// Nobody has a leased message any more.
    fn come_back(&mut self, shared: &mut Shared, offset: u64, delay_ms: u64, now_ms: u64) {
        self.withdraw(shared, offset);
        let Some(entry) = self.entries.get_mut(&offset) else { return };
        if shared.is_spent(entry.count) {
            return self.depart(shared, offset, Reason::MaxDeliveries, now_ms);
        }
        if shared.pool.has_expired(offset, now_ms) {
            return self.depart(shared, offset, Reason::Expired, now_ms);
        }
        if delay_ms > 0 {
            let until_ms = now_ms.saturating_add(delay_ms);
            entry.not_before_ms = until_ms;
            shared.recorder.record(&Event::Delayed { group: self.id, offset, until_ms });
        }
        self.rejoin(shared, offset, now_ms);
    }

    /// A consumer takes no more.
    pub(crate) fn leave(&mut self, consumer: u64) {
        self.active = self.active.filter(|active| active.consumer != consumer);
    }

    /// Ends leases and delays, as long as `most` is not 0.
    pub(crate) fn tend(&mut self, shared: &mut Shared, most: &mut usize, now_ms: u64) {
        while *most > 0
            && let Some(&(at, offset)) = self.due.first().filter(|&&(at, _)| at <= now_ms)
        {
            *most -= 1;
            match self.state(offset) {
                State::Leased { .. } => {
                    self.counters.nacked += 1;
                    self.come_back(shared, offset, 0, now_ms);
                }
                State::Delayed { .. } => {
                    self.withdraw(shared, offset);
                    self.rejoin(shared, offset, now_ms);
                }
                State::Idle | State::Leaving { .. } => {
                    self.due.remove(&(at, offset));
                }
            }
        }
        self.active = self.active.filter(|&active| !self.is_silent(shared, active, now_ms));
    }

    /// Whether one consumer is the active one has changed.
    pub(crate) fn let_nobody_be_active(&mut self) {
        self.active = None;
    }
}

/// How long a message waits after its `count`th delivery was refused.
fn backoff_ms(shared: &Shared, count: u32, random: u32) -> u64 {
    let config = &shared.config;
    let doubled = u32::min(count.saturating_sub(1), 63);
    let delay_ms = u128::from(config.backoff_ms) << doubled;
    let delay_ms = delay_ms.min(config.backoff_max_ms.into());
    let most = delay_ms * u128::from(config.backoff_jitter_percent.min(100)) / 100;
    let jitter = (most * u128::from(random)) >> 32;
    u64::try_from(delay_ms.saturating_sub(jitter)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn no_setting_makes_a_wait_negative_or_endless() {
        let config = Config { backoff_jitter_percent: 255, backoff_ms: 1_000, ..Config::default() };
        assert_eq!(backoff_ms(&Shared::new(config), 1, u32::MAX), 1);
        let most = u64::MAX;
        let config =
            Config { backoff_jitter_percent: 0, backoff_ms: most, backoff_max_ms: most, ..Config::default() };
        assert_eq!(backoff_ms(&Shared::new(config), u32::MAX, 0), most);
    }
}
