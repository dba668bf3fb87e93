//! Leases: how a group hands messages to consumers, and how it settles their deliveries.
//!
//! Each delivery has a receipt of offset, delivery count and incarnation of the queue. A settlement counts only if
//! its receipt is the one of the last delivery, so a late acknowledgement can never settle a delivery that somebody
//! else has.

use super::{Active, Entry, Group, State};
use crate::event::{Delivered, Event};
use crate::machine::{LEASE_MS_MAX, Lease};
use crate::offset_ranges::OffsetRanges;
use crate::request::{Disposition, QueueError, Reason, Receipt, Settlement};
use crate::shared::Shared;

/// Expired messages that one call to [`Group::lease`] removes at most.
const EXPIRED_AT_ONCE: usize = 1_000;

impl Group {
    pub(crate) fn can_lease(&self, shared: &Shared, consumer: u64) -> bool {
        let may = match self.active {
            Some(active) if shared.config.single_active_consumer => active.consumer == consumer,
            _ => true,
        };
        may && self.has_ready()
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
            let Some(offset) = self.ready.iter().rev().find_map(OffsetRanges::first) else { return };
            self.withdraw(shared, offset);
            if shared.messages.has_expired(offset, now_ms) {
                self.begin_transfer(shared, offset, Reason::Expired, now_ms);
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
            let previous_incarnation = std::mem::replace(&mut entry.incarnation, shared.incarnation);
            entry.not_before_ms = 0;
            entry.state = State::Leased { consumer, until_ms };
            let (count, incarnation, first_delivered_ms) = (entry.count, entry.incarnation, entry.first_ms);
            self.counters.delivered += 1;
            self.leased += 1;
            self.due.insert((until_ms, offset));
            *self.held.entry(consumer).or_default() += 1;
            shared.messages.hold(offset);
            let delivered = Delivered { count, incarnation, first_ms: first_delivered_ms };
            shared.recorder.delivered(self.id, offset, delivered);
            let receipt = Receipt { offset, count, incarnation };
            out.push(Lease { receipt, previous_incarnation, first_delivered_ms, until_ms });
        }
    }

    /// See [`crate::Queue::settle`].
    pub(crate) fn settle(
        &mut self,
        shared: &mut Shared,
        settlement: &Settlement,
        now_ms: u64,
        random: u32,
    ) -> Result<(), QueueError> {
        let Receipt { offset, count, .. } = settlement.receipt;
        let entry = self.entries.get(&offset).copied().filter(|entry| entry.is_of(settlement.receipt));
        let entry = entry.ok_or(QueueError::Stale)?;
        match (entry.state, settlement.disposition) {
            (State::Leased { consumer, until_ms }, Disposition::Ack) => {
                self.end_lease(offset, consumer, until_ms);
                self.counters.acked += 1;
                self.finish_leased(shared, offset, now_ms);
            }
            (State::Idle, Disposition::Ack) => {
                self.withdraw(shared, offset);
                self.counters.acked += 1;
                self.finish(shared, offset, now_ms);
            }
            (State::Leased { .. } | State::Idle, Disposition::Reject) => {
                self.withdraw(shared, offset);
                self.counters.nacked += 1;
                self.begin_transfer(shared, offset, Reason::Rejected, now_ms);
            }
            (State::Leased { .. }, Disposition::Nack(delay_ms)) => {
                self.counters.nacked += 1;
                let delay_ms = match delay_ms {
                    Some(delay_ms) => delay_ms.min(LEASE_MS_MAX),
                    None => backoff_ms(shared, count, random),
                };
                self.return_message(shared, offset, delay_ms, now_ms);
            }
            (State::Leased { .. }, Disposition::Release) => self.return_message(shared, offset, 0, now_ms),
            (State::Leased { .. }, Disposition::Unsent) => {
                // The next delivery gets the same count, so it needs another incarnation to have another receipt.
                shared.resume_incarnation();
                let previous_incarnation = if count > 1 { entry.incarnation } else { 0 };
                self.undo_delivery(shared, offset, previous_incarnation, now_ms);
            }
            (State::Leased { consumer, until_ms }, Disposition::Extend(ms)) => {
                self.due.remove(&(until_ms, offset));
                let until_ms = now_ms.saturating_add(ms.clamp(1, LEASE_MS_MAX));
                self.due.insert((until_ms, offset));
                self.entries.insert(offset, Entry { state: State::Leased { consumer, until_ms }, ..entry });
            }
            _ => return Err(QueueError::Stale),
        }
        Ok(())
    }

    /// See [`crate::Queue::cancel_lease`].
    pub(crate) fn cancel_lease(&mut self, shared: &mut Shared, lease: &Lease, now_ms: u64) {
        let offset = lease.receipt.offset;
        let entry = self.entries.get(&offset).filter(|entry| matches!(entry.state, State::Leased { .. }));
        if entry.is_some_and(|entry| entry.is_of(lease.receipt)) {
            self.undo_delivery(shared, offset, lease.previous_incarnation, now_ms);
        }
    }

    /// Undoes the last delivery of a leased message. The delivery before it becomes the last one.
    fn undo_delivery(&mut self, shared: &mut Shared, offset: u64, previous_incarnation: u32, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(&offset) else { return };
        entry.count -= 1;
        entry.incarnation = previous_incarnation;
        let delivered = entry.delivered();
        self.counters.delivered -= 1;
        if delivered.count > 0 {
            self.counters.redelivered -= 1;
        }
        shared.recorder.delivered(self.id, offset, delivered);
        self.withdraw(shared, offset);
        if shared.messages.has_expired(offset, now_ms) {
            return self.begin_transfer(shared, offset, Reason::Expired, now_ms);
        }
        self.rejoin(shared, offset, now_ms);
    }

    /// A leased message becomes available again, after a delay if `delay_ms` is not 0.
    fn return_message(&mut self, shared: &mut Shared, offset: u64, delay_ms: u64, now_ms: u64) {
        self.withdraw(shared, offset);
        let Some(entry) = self.entries.get_mut(&offset) else { return };
        if shared.is_spent(entry.count) {
            return self.begin_transfer(shared, offset, Reason::MaxDeliveries, now_ms);
        }
        if shared.messages.has_expired(offset, now_ms) {
            return self.begin_transfer(shared, offset, Reason::Expired, now_ms);
        }
        if delay_ms > 0 {
            let until_ms = now_ms.saturating_add(delay_ms);
            entry.not_before_ms = until_ms;
            shared.recorder.record(&Event::Delayed { group: self.id, offset, until_ms });
        }
        self.rejoin(shared, offset, now_ms);
    }

    /// The consumer stops receiving.
    pub(crate) fn leave(&mut self, consumer: u64) {
        self.active = self.active.filter(|active| active.consumer != consumer);
    }

    /// Ends leases and delays that are due, while `budget` lasts.
    pub(crate) fn maintain(&mut self, shared: &mut Shared, budget: &mut usize, now_ms: u64) {
        while *budget > 0
            && let Some(&(at, offset)) = self.due.first().filter(|&&(at, _)| at <= now_ms)
        {
            *budget -= 1;
            match self.state(offset) {
                State::Leased { .. } => {
                    self.counters.nacked += 1;
                    self.return_message(shared, offset, 0, now_ms);
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

    /// The setting `single-active-consumer` has changed.
    pub(crate) fn clear_active(&mut self) {
        self.active = None;
    }
}

/// Backoff after the `count`th delivery was refused.
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
    fn backoff_is_bounded_for_all_settings() {
        let config = Config { backoff_jitter_percent: 255, backoff_ms: 1_000, ..Config::default() };
        assert_eq!(backoff_ms(&Shared::new(config), 1, u32::MAX), 1);
        let most = u64::MAX;
        let config =
            Config { backoff_jitter_percent: 0, backoff_ms: most, backoff_max_ms: most, ..Config::default() };
        assert_eq!(backoff_ms(&Shared::new(config), u32::MAX, 0), most);
    }
}
