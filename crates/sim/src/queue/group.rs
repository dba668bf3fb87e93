//! What a group of a queue knows of its messages: who holds them, how often they were delivered, and how they were
//! settled.
//!
//! A crash may take whatever was not durable, and requests without a reply may have taken effect. The state therefore
//! keeps lower bounds (`floor`, `end`) beside what may have happened, and forgets everything when the group may have
//! been reset.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_queue_core::{DEFAULT_GROUP, Disposition, GroupName, QueueError, Receipt, Settlement};

use super::oracle::{Moment, Pending};

/// A delivery of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// Incarnation of the broker.
    pub(crate) incarnation: u32,
    pub(crate) count: u32,
    /// Incarnation of the queue, part of the receipt.
    pub(crate) queue_incarnation: u32,
    pub(crate) granted_ms: u64,
    /// The consumer holds the message at least until then, unless it has settled it.
    pub(crate) until_ms: u64,
    pub(crate) consumer: u64,
    /// It was settled, or may have been.
    pub(crate) is_back: bool,
    pub(crate) received_at: Moment,
}

impl Lease {
    fn is_of(&self, receipt: Receipt) -> bool {
        (self.count, self.queue_incarnation) == (receipt.count, receipt.incarnation)
    }
}

/// What a group knows of one message.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a message, independent of each other")]
pub(crate) struct MessageState {
    leases: Vec<Lease>,
    /// Number of deliveries known to be durable.
    floor: u32,
    /// Set by a negative acknowledgement that is durable.
    not_before_ms: u64,
    /// Count and incarnation of the delivery that was acknowledged or rejected.
    end: Option<(u32, u32)>,
    was_acked: bool,
    may_be_acked: bool,
    may_be_rejected: bool,
    /// Count and incarnation of a delivery that a subscriber acknowledged or rejected in time. Nobody confirms that,
    /// and a crash may undo it.
    unconfirmed_end: Option<(u32, u32)>,
    /// It was found as a dead letter.
    is_dead: bool,
}

/// A purge of a group.
#[derive(Clone, Copy, Debug)]
struct Purge {
    sent_at: Moment,
    /// When it was confirmed, as a moment and in ms since 1970.
    answered: Option<(Moment, u64)>,
    /// The group was reset after the request.
    is_past: bool,
}

/// A group of a queue.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: GroupName,
    /// Since when it is certain to exist.
    sure_since: Option<Moment>,
    /// Since when it exists, though a crash may undo it.
    there_since: Option<Moment>,
    messages: BTreeMap<u64, MessageState>,
    /// How often it may have been reset.
    pub(crate) epoch: u64,
    /// Requests in flight that reset it.
    resets_in_flight: u32,
    /// Requests for messages without a reply: each may have taken any message once.
    pub(crate) unanswered: u32,
    /// Consumers that have left since the broker started.
    pub(crate) left: Vec<u64>,
    /// Deliveries that may not be durable: offset, count, and when they were received.
    fresh: Vec<(u64, u32, Moment)>,
    purges: Vec<Purge>,
    /// Power was lost: earlier delivery counts are unknown.
    has_lost: bool,
    /// Receipts of deliveries from before that: offset, count and incarnation.
    former: BTreeSet<(u64, u32, u32)>,
}

impl Group {
    pub(crate) fn new(name: &GroupName) -> Self {
        Self {
            name: GroupName::clone(name),
            sure_since: (**name == *DEFAULT_GROUP).then_some(0),
            there_since: None,
            messages: BTreeMap::new(),
            epoch: 0,
            resets_in_flight: 0,
            unanswered: 0,
            left: Vec::new(),
            fresh: Vec::new(),
            purges: Vec::new(),
            has_lost: false,
            former: BTreeSet::new(),
        }
    }

    pub(crate) fn message(&self, offset: u64) -> Option<&MessageState> {
        self.messages.get(&offset)
    }

    /// Whether it was certain to exist at a moment.
    pub(crate) fn was_there(&self, moment: Moment) -> bool {
        self.sure_since.is_some_and(|since| since < moment)
    }

    pub(crate) fn is_default(&self) -> bool {
        *self.name == *DEFAULT_GROUP
    }

    /// It has replied.
    pub(crate) fn is_there(&mut self, at: Moment) {
        self.there_since = self.there_since.or(Some(at));
    }

    /// It was removed, or settled messages are pending again: nothing is known of what was before.
    pub(crate) fn reset(&mut self) {
        self.epoch += 1;
        self.forget_messages();
        self.fresh.clear();
        // Requests without a reply may still take effect.
        self.purges.retain(|purge| purge.answered.is_none());
        self.purges.iter_mut().for_each(|purge| purge.is_past = true);
        self.there_since = None;
        if !self.is_default() {
            self.sure_since = None;
        }
    }

    /// Whether a delivery may be from before a purge or a reset.
    pub(crate) fn may_have_changed(&self) -> bool {
        self.may_have_reset() || !self.purges.is_empty()
    }

    /// A message was acknowledged or rejected in time.
    pub(crate) fn ended(&mut self, offset: u64, end: (u32, u32)) {
        self.messages.entry(offset).or_default().unconfirmed_end = Some(end);
    }

    fn forget_messages(&mut self) {
        for (offset, state) in std::mem::take(&mut self.messages) {
            let receipts = state.leases.iter().map(|lease| (offset, lease.count, lease.queue_incarnation));
            self.former.extend(receipts);
        }
    }

    /// Power was lost, and any part of its state may be gone.
    pub(crate) fn lose_power(&mut self) {
        self.forget_messages();
        let former = std::mem::take(&mut self.former);
        *self = Self { has_lost: true, former, ..Self::new(&self.name) };
    }

    /// A request that resets the group is sent, and may take effect at any time.
    pub(crate) fn reset_sent(&mut self) {
        self.resets_in_flight += 1;
        self.reset();
    }

    /// Such a request is complete.
    pub(crate) fn reset_completed(&mut self) {
        self.resets_in_flight = self.resets_in_flight.saturating_sub(1);
        self.reset();
    }

    /// Called before a check: a reset that may have happened invalidates what is known.
    pub(crate) fn apply_resets(&mut self) {
        if self.resets_in_flight > 0 {
            self.reset();
        }
    }

    pub(crate) fn may_have_reset(&self) -> bool {
        self.epoch > 0
    }

    pub(crate) fn begin_incarnation(&mut self) {
        self.left.clear();
        self.fresh.clear();
        self.there_since = None;
    }

    // --- settling

    /// A client settles a delivery, with an unknown result.
    pub(crate) fn settling(&mut self, settlement: &Settlement, sent_ms: u64) {
        let Receipt { offset, count, incarnation } = settlement.receipt;
        // The delivery is from before the loss of power: another message may have its offset.
        if self.has_lost && self.former.contains(&(offset, count, incarnation)) {
            return;
        }
        let state = self.messages.entry(settlement.receipt.offset).or_default();
        match settlement.disposition {
            Disposition::Ack => state.may_be_acked = true,
            Disposition::Reject => state.may_be_rejected = true,
            Disposition::Nack(_) | Disposition::Release | Disposition::Unsent | Disposition::Extend(_) => {}
        }
        let mut leases = state.leases.iter_mut().rev();
        let Some(lease) = leases.find(|lease| lease.is_of(settlement.receipt)) else { return };
        match settlement.disposition {
            Disposition::Extend(ms) => lease.until_ms = lease.until_ms.min(sent_ms + ms),
            _ => lease.is_back = true,
        }
    }

    /// The result of settling a delivery. `least` is the incarnation of the broker, the time, and the shortest backoff
    /// of a failed message.
    pub(crate) fn settled(
        &mut self,
        pending: &Pending,
        settlement: &Settlement,
        outcome: &Result<(), QueueError>,
        (incarnation, now_ms, backoff_ms): (u32, u64, u64),
    ) -> Result<(), String> {
        let (offset, count) = (settlement.receipt.offset, settlement.receipt.count);
        let is_purging = !self.purges.is_empty();
        let Some(state) = self.messages.get_mut(&offset).filter(|_| pending.epoch == self.epoch) else {
            return Ok(());
        };
        let name = &self.name;
        let Some(at) = state.leases.iter().rposition(|lease| lease.is_of(settlement.receipt)) else {
            return Ok(());
        };
        if outcome.is_err() {
            let lease = &state.leases[at];
            let is_held = at + 1 == state.leases.len()
                && lease.incarnation == incarnation
                && now_ms < lease.until_ms
                && !is_purging;
            let is_first = state.end.is_none() && !state.is_dead;
            if is_held && is_first && !lease.is_back {
                return Err(format!("{outcome:?}: {name} has no lease of {offset}, which is {lease:?}"));
            }
            return Ok(());
        }
        match settlement.disposition {
            Disposition::Ack | Disposition::Reject => {
                if let Some(end) = state.end {
                    return Err(format!("{name} settles {offset} twice, with {end:?} and {count}"));
                }
                if let Some(later) =
                    state.leases[at + 1..].iter().find(|lease| lease.incarnation == incarnation)
                {
                    return Err(format!(
                        "{name} settles {offset} with {count}, and somebody has it: {later:?}"
                    ));
                }
                state.end = Some((incarnation, count));
                state.was_acked = settlement.disposition == Disposition::Ack;
            }
            Disposition::Nack(delay_ms) => {
                let not_before_ms = pending.sent_ms + delay_ms.unwrap_or(backoff_ms);
                let later = &state.leases[at + 1..];
                if let Some(early) = later.iter().find(|lease| lease.granted_ms < not_before_ms) {
                    return Err(format!(
                        "{name}: {offset} comes before its time, which is {not_before_ms}: {early:?}"
                    ));
                }
                if later.is_empty() {
                    state.not_before_ms = not_before_ms;
                }
            }
            Disposition::Extend(ms) => state.leases[at].until_ms = pending.sent_ms + ms,
            Disposition::Release | Disposition::Unsent => {}
        }
        Ok(())
    }

    /// Something of the group is durable now, and so is everything before it.
    #[expect(clippy::unused_self, reason = "a question to the group that was asked")]
    pub(crate) fn is_barrier(&self, pending: &Pending, outcomes: &[Result<(), QueueError>]) -> bool {
        let mainstem_queue_core::Request::Settle { settlements, .. } = &pending.request else { return false };
        let mut all = settlements.iter().zip(outcomes);
        all.any(|(settlement, outcome)| {
            outcome.is_ok() && matches!(settlement.disposition, Disposition::Ack | Disposition::Reject)
        })
    }

    /// What was received before this moment is durable.
    pub(crate) fn is_durable(&mut self, sent_at: Moment) {
        let messages = &mut self.messages;
        self.fresh.retain(|&(offset, count, received_at)| {
            if received_at < sent_at
                && let Some(state) = messages.get_mut(&offset)
            {
                state.floor = state.floor.max(count);
            }
            received_at >= sent_at
        });
        if self.sure_since.is_none() && self.there_since.is_some_and(|since| since < sent_at) {
            self.sure_since = self.there_since;
        }
    }

    /// A purge is sent.
    pub(crate) fn purging(&mut self, sent_at: Moment) {
        self.purges.push(Purge { sent_at, answered: None, is_past: false });
    }

    pub(crate) fn purged(&mut self, sent_at: Moment, answered: Moment, now_ms: u64) {
        if let Some(purge) = self.purges.iter_mut().find(|purge| purge.sent_at == sent_at) {
            purge.answered = Some((answered, now_ms));
        }
    }

    /// A message of the group was found as a dead letter.
    pub(crate) fn died(&mut self, offset: u64) -> Result<(), String> {
        let may_have_reset = self.may_have_reset();
        let state = self.messages.entry(offset).or_default();
        if state.was_acked && !may_have_reset {
            return Err(format!("{} has acknowledged {offset}, and it is a dead letter", self.name));
        }
        state.is_dead = !may_have_reset;
        Ok(())
    }

    // --- delivering

    /// A message is delivered, of a request from this epoch. `facts` are since when the message is known to be stored,
    /// whether only one consumer at a time may receive, and the maximum number of deliveries.
    pub(crate) fn deliver(
        &mut self,
        offset: u64,
        lease: &Lease,
        epoch: u64,
        (since, is_single, most): (Moment, bool, u32),
    ) -> Result<(), String> {
        if is_single {
            self.check_single(lease)?;
        }
        let is_old = epoch != self.epoch;
        let unanswered = self.unanswered;
        self.check_not_purged(lease, since)?;
        let state = self.messages.entry(offset).or_default();
        if is_old {
            // It may be from before or after the reset.
            state.leases.push(Lease { is_back: true, ..*lease });
            return Ok(());
        }
        if let Some((incarnation, count)) = state.end
            && (lease.incarnation > incarnation || lease.count >= count)
        {
            let how = if state.was_acked { "acknowledged" } else { "rejected" };
            return Err(format!("it was {how}, and comes back"));
        }
        if state
            .unconfirmed_end
            .is_some_and(|(incarnation, count)| lease.incarnation == incarnation && lease.count > count)
        {
            return Err("it was acknowledged or rejected by PUBACK, and comes back".to_owned());
        }
        if state.is_dead {
            return Err("it is a dead letter, and comes back".to_owned());
        }
        if lease.granted_ms < state.not_before_ms {
            return Err(format!("it comes before its time: it waits until {}", state.not_before_ms));
        }
        if most > 0 && lease.count > most {
            return Err(format!("it is delivered more often than {most} times"));
        }
        check_exclusive(lease, &state.leases)?;
        let highest = state.leases.iter().map(|lease| lease.count).max().unwrap_or(0);
        let has_newer = state
            .leases
            .iter()
            .any(|other| other.incarnation == lease.incarnation && other.count > lease.count);
        if lease.count <= state.floor && !has_newer {
            return Err(format!("its count goes back: it was {}", state.floor));
        }
        if self.epoch == 0 && !self.has_lost && lease.count > highest + 1 + unanswered {
            return Err(format!("its count leaps: it was {highest}"));
        }
        let same =
            |other: &&Lease| (other.count, other.queue_incarnation) == (lease.count, lease.queue_incarnation);
        if let Some(other) = state.leases.iter().find(same) {
            return Err(format!("its receipt is that of another delivery: {other:?}"));
        }
        if self.former.contains(&(offset, lease.count, lease.queue_incarnation)) {
            return Err("its receipt is that of another delivery, before what it has forgotten".to_owned());
        }
        state.leases.push(*lease);
        self.fresh.push((offset, lease.count, lease.received_at));
        Ok(())
    }

    /// Checks that a message that is stored since `since` was not purged before it was leased.
    fn check_not_purged(&self, lease: &Lease, since: Moment) -> Result<(), String> {
        for purge in self.purges.iter().filter(|purge| !purge.is_past) {
            let group_existed = self.sure_since.is_some_and(|since| since < purge.sent_at);
            if group_existed
                && since < purge.sent_at
                && purge.answered.is_some_and(|(_, done_ms)| done_ms < lease.granted_ms)
            {
                return Err("it was purged".to_owned());
            }
        }
        Ok(())
    }

    /// Checks that one consumer at a time receives messages.
    fn check_single(&self, lease: &Lease) -> Result<(), String> {
        if self.epoch > 0 {
            return Ok(());
        }
        for (offset, state) in &self.messages {
            let Some(last) = state.leases.last() else { continue };
            let is_held = last.incarnation == lease.incarnation
                && last.consumer != lease.consumer
                && !last.is_back
                && lease.granted_ms < last.until_ms
                && state.end.is_none();
            if is_held && self.purges.is_empty() && !self.left.contains(&last.consumer) {
                return Err(format!("another one is active and has {offset}: {last:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn was_delivered_before(&self, offset: u64, lease: &Lease) -> bool {
        let Some(state) = self.messages.get(&offset) else { return false };
        state
            .leases
            .iter()
            .any(|other| other.incarnation < lease.incarnation || other.granted_ms < lease.granted_ms)
    }

    /// Whether the message was never delivered, as far as anybody can know.
    pub(crate) fn is_untouched(&self, offset: u64) -> bool {
        !self.messages.contains_key(&offset)
    }

    /// Whether the message was delivered, perhaps before a reset.
    pub(crate) fn was_delivered(&self, offset: u64) -> bool {
        let receipts = (offset, 0, 0)..=(offset, u32::MAX, u32::MAX);
        !self.is_untouched(offset) || self.former.range(receipts).next().is_some()
    }

    /// Whether the message was settled before a request was sent.
    pub(crate) fn was_settled(&self, pending: &Pending, offset: u64) -> bool {
        let Some(state) = self.messages.get(&offset) else { return false };
        let was_before = state.leases.iter().all(|lease| lease.received_at < pending.sent_at);
        pending.epoch == self.epoch && was_before && state.was_acked
    }

    // --- how it may have ended

    pub(crate) fn may_be_over(&self, offset: u64, sent_at: Moment, most: u32) -> bool {
        self.may_be_acknowledged(offset)
            || self.is_dead(offset)
            || self.may_die(offset, most)
            || self.was_purged_since(sent_at)
            || self.may_have_reset()
    }

    pub(crate) fn may_be_acknowledged(&self, offset: u64) -> bool {
        self.messages.get(&offset).is_some_and(|state| state.may_be_acked)
    }

    pub(crate) fn is_dead(&self, offset: u64) -> bool {
        self.messages.get(&offset).is_some_and(|state| state.is_dead)
    }

    /// Whether the message was rejected or delivered as often as allowed, or may have been.
    pub(crate) fn may_die(&self, offset: u64, most: u32) -> bool {
        let state = self.messages.get(&offset);
        let counts = state.into_iter().flat_map(|state| &state.leases).map(|lease| lease.count);
        let highest = counts.max().unwrap_or(0) + self.unanswered;
        state.is_some_and(|state| state.may_be_rejected) || (most > 0 && highest >= most)
    }

    pub(crate) fn was_purged_since(&self, moment: Moment) -> bool {
        let mut purges = self.purges.iter();
        let is_later = |purge: &Purge| purge.answered.is_none_or(|(answered, _)| answered > moment);
        purges.any(is_later) || self.may_have_reset()
    }
}

/// Checks that leases of one incarnation of the broker count up, and that none begins while an earlier one lasts.
fn check_exclusive(lease: &Lease, others: &[Lease]) -> Result<(), String> {
    for other in others.iter().filter(|other| other.incarnation == lease.incarnation) {
        let (first, second) = if other.count < lease.count { (other, lease) } else { (lease, other) };
        if first.count == second.count {
            return Err(format!("its count stands still: {other:?}"));
        }
        if !first.is_back && second.granted_ms < first.until_ms {
            return Err(format!("somebody else has it: {first:?}"));
        }
    }
    Ok(())
}
