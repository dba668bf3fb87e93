//! What a group of a queue knows of its messages: who has them, how often they came, and what was said of them.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_queue::{DEFAULT_GROUP, GroupName, Receipt, Refusal, Settlement, Verdict};

use super::ledger::{Moment, Pending};

/// A delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dose {
    /// Of the broker.
    pub(crate) life: u32,
    pub(crate) count: u32,
    /// Of the queue: with the count it is the receipt.
    pub(crate) queue_life: u32,
    pub(crate) granted_ms: u64,
    /// The consumer has it until then at least, unless it has given it back.
    pub(crate) until_ms: u64,
    pub(crate) consumer: u64,
    /// It was settled, or may have been.
    pub(crate) is_back: bool,
    pub(crate) heard: Moment,
}

impl Dose {
    fn is_of(&self, receipt: Receipt) -> bool {
        (self.count, self.queue_life) == (receipt.count, receipt.life)
    }
}

/// What a group knows of one message.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a message, independent of each other")]
pub(crate) struct Parcel {
    doses: Vec<Dose>,
    /// Deliveries that are durable.
    floor: u32,
    /// A refusal that is durable says so.
    not_before_ms: u64,
    /// It was acknowledged or rejected, with which delivery in which life.
    end: Option<(u32, u32)>,
    was_acked: bool,
    may_be_acked: bool,
    may_be_rejected: bool,
    /// It was acknowledged or rejected in time by somebody whom nobody answers, with which delivery in which life. That may
    /// have been lost at its end.
    soon_end: Option<(u32, u32)>,
    /// It was seen as a dead letter.
    is_dead: bool,
}

/// A group is purged.
#[derive(Clone, Copy, Debug)]
struct Purge {
    asked: Moment,
    /// If it is known to be done: when, and what time it was, ms since 1970.
    answered: Option<(Moment, u64)>,
    /// The group has begun anew since it was asked for.
    is_past: bool,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: GroupName,
    /// Since when it is surely there.
    sure_since: Option<Moment>,
    /// Since when it is there, though a crash may take it.
    there_since: Option<Moment>,
    parcels: BTreeMap<u64, Parcel>,
    /// Counts how often it may have begun anew.
    pub(crate) epoch: u64,
    /// Requests under way after which it begins anew.
    anew_under_way: u32,
    /// Requests for messages that were not answered: each may have taken any message once.
    pub(crate) unheard: u32,
    /// Consumers that have left in this life.
    pub(crate) left: Vec<u64>,
    /// Deliveries that may not be durable.
    fresh: Vec<(u64, u32, Moment)>,
    purges: Vec<Purge>,
    /// The power was lost: how often its messages were delivered before is not known.
    has_lost: bool,
    /// Receipts of deliveries that nothing else is known of any more: offset, count and life.
    former: BTreeSet<(u64, u32, u32)>,
}

impl Group {
    pub(crate) fn new(name: &GroupName) -> Self {
        Self {
            name: GroupName::clone(name),
            sure_since: (**name == *DEFAULT_GROUP).then_some(0),
            there_since: None,
            parcels: BTreeMap::new(),
            epoch: 0,
            anew_under_way: 0,
            unheard: 0,
            left: Vec::new(),
            fresh: Vec::new(),
            purges: Vec::new(),
            has_lost: false,
            former: BTreeSet::new(),
        }
    }

    pub(crate) fn parcel(&self, offset: u64) -> Option<&Parcel> {
        self.parcels.get(&offset)
    }

    /// Whether it was surely there at a moment.
    pub(crate) fn was_there(&self, moment: Moment) -> bool {
        self.sure_since.is_some_and(|since| since < moment)
    }

    pub(crate) fn is_default(&self) -> bool {
        *self.name == *DEFAULT_GROUP
    }

    /// It answers.
    pub(crate) fn is_there(&mut self, at: Moment) {
        self.there_since = self.there_since.or(Some(at));
    }

    /// It is removed, or messages are pending again that were settled: nothing is known of what was before.
    pub(crate) fn begin_anew(&mut self) {
        self.epoch += 1;
        self.forget_parcels();
        self.fresh.clear();
        // Those that are not answered go on, and say nothing of what comes.
        self.purges.retain(|purge| purge.answered.is_none());
        self.purges.iter_mut().for_each(|purge| purge.is_past = true);
        self.there_since = None;
        if !self.is_default() {
            self.sure_since = None;
        }
    }

    /// Whether what comes may have been on its way before it was emptied, or began anew.
    pub(crate) fn may_have_changed(&self) -> bool {
        self.has_begun_anew() || !self.purges.is_empty()
    }

    /// A message was acknowledged or rejected in time, as far as anybody can tell.
    pub(crate) fn ended(&mut self, offset: u64, end: (u32, u32)) {
        self.parcels.entry(offset).or_default().soon_end = Some(end);
    }

    fn forget_parcels(&mut self) {
        for (offset, parcel) in std::mem::take(&mut self.parcels) {
            let receipts = parcel.doses.iter().map(|dose| (offset, dose.count, dose.queue_life));
            self.former.extend(receipts);
        }
    }

    /// The power was lost, and any part of what was known of it may be gone.
    pub(crate) fn lose_power(&mut self) {
        self.forget_parcels();
        let former = std::mem::take(&mut self.former);
        *self = Self { has_lost: true, former, ..Self::new(&self.name) };
    }

    /// It is asked to begin anew, and may do so from now on at any time.
    pub(crate) fn may_begin_anew(&mut self) {
        self.anew_under_way += 1;
        self.begin_anew();
    }

    /// That is over.
    pub(crate) fn has_ended_anew(&mut self) {
        self.anew_under_way = self.anew_under_way.saturating_sub(1);
        self.begin_anew();
    }

    /// Something is about to be judged: what was known before may not hold any more.
    pub(crate) fn look(&mut self) {
        if self.anew_under_way > 0 {
            self.begin_anew();
        }
    }

    pub(crate) fn has_begun_anew(&self) -> bool {
        self.epoch > 0
    }

    pub(crate) fn begin_life(&mut self) {
        self.left.clear();
        self.fresh.clear();
        self.there_since = None;
    }

    // --- settling

    /// Somebody settles a delivery; whether that holds is not known yet.
    pub(crate) fn settling(&mut self, settlement: &Settlement, asked_ms: u64) {
        let Receipt { offset, count, life } = settlement.receipt;
        // It is of a delivery before the loss of power, and says nothing of what stands there now.
        if self.has_lost && self.former.contains(&(offset, count, life)) {
            return;
        }
        let parcel = self.parcels.entry(settlement.receipt.offset).or_default();
        match settlement.verdict {
            Verdict::Ack => parcel.may_be_acked = true,
            Verdict::Reject => parcel.may_be_rejected = true,
            Verdict::Nack(_) | Verdict::Release | Verdict::Unsent | Verdict::Extend(_) => {}
        }
        let mut doses = parcel.doses.iter_mut().rev();
        let Some(dose) = doses.find(|dose| dose.is_of(settlement.receipt)) else { return };
        match settlement.verdict {
            Verdict::Extend(ms) => dose.until_ms = dose.until_ms.min(asked_ms + ms),
            _ => dose.is_back = true,
        }
    }

    /// What came of it. `least` are the broker's life, the time, and how long a refused message waits at least.
    pub(crate) fn settled(
        &mut self,
        pending: &Pending,
        settlement: &Settlement,
        outcome: &Result<(), Refusal>,
        (life, now_ms, backoff_ms): (u32, u64, u64),
    ) -> Result<(), String> {
        let (offset, count) = (settlement.receipt.offset, settlement.receipt.count);
        let is_purging = !self.purges.is_empty();
        let Some(parcel) = self.parcels.get_mut(&offset).filter(|_| pending.epoch == self.epoch) else {
            return Ok(());
        };
        let name = &self.name;
        let Some(at) = parcel.doses.iter().rposition(|dose| dose.is_of(settlement.receipt)) else {
            return Ok(());
        };
        if outcome.is_err() {
            let dose = &parcel.doses[at];
            let is_held =
                at + 1 == parcel.doses.len() && dose.life == life && now_ms < dose.until_ms && !is_purging;
            let is_first = parcel.end.is_none() && !parcel.is_dead;
            if is_held && is_first && !dose.is_back {
                return Err(format!("{outcome:?}: {name} has no lease of {offset}, which is {dose:?}"));
            }
            return Ok(());
        }
        match settlement.verdict {
            Verdict::Ack | Verdict::Reject => {
                if let Some(end) = parcel.end {
                    return Err(format!("{name} settles {offset} twice, with {end:?} and {count}"));
                }
                if let Some(later) = parcel.doses[at + 1..].iter().find(|dose| dose.life == life) {
                    return Err(format!(
                        "{name} settles {offset} with {count}, and somebody has it: {later:?}"
                    ));
                }
                parcel.end = Some((life, count));
                parcel.was_acked = settlement.verdict == Verdict::Ack;
            }
            Verdict::Nack(delay_ms) => {
                let not_before_ms = pending.asked_ms + delay_ms.unwrap_or(backoff_ms);
                let later = &parcel.doses[at + 1..];
                if let Some(early) = later.iter().find(|dose| dose.granted_ms < not_before_ms) {
                    return Err(format!(
                        "{name}: {offset} comes before its time, which is {not_before_ms}: {early:?}"
                    ));
                }
                if later.is_empty() {
                    parcel.not_before_ms = not_before_ms;
                }
            }
            Verdict::Extend(ms) => parcel.doses[at].until_ms = pending.asked_ms + ms,
            Verdict::Release | Verdict::Unsent => {}
        }
        Ok(())
    }

    /// Whether something of it is durable now, and so all that was before it.
    #[expect(clippy::unused_self, reason = "a question to the group that was asked")]
    pub(crate) fn is_barrier(&self, pending: &Pending, outcomes: &[Result<(), Refusal>]) -> bool {
        let mainstem_queue::Request::Settle { settlements, .. } = &pending.request else { return false };
        let mut all = settlements.iter().zip(outcomes);
        all.any(|(settlement, outcome)| {
            outcome.is_ok() && matches!(settlement.verdict, Verdict::Ack | Verdict::Reject)
        })
    }

    /// What was heard before this moment is durable.
    pub(crate) fn is_durable(&mut self, asked: Moment) {
        let parcels = &mut self.parcels;
        self.fresh.retain(|&(offset, count, heard)| {
            if heard < asked
                && let Some(parcel) = parcels.get_mut(&offset)
            {
                parcel.floor = parcel.floor.max(count);
            }
            heard >= asked
        });
        if self.sure_since.is_none() && self.there_since.is_some_and(|since| since < asked) {
            self.sure_since = self.there_since;
        }
    }

    /// Everything is to be thrown away.
    pub(crate) fn purging(&mut self, asked: Moment) {
        self.purges.push(Purge { asked, answered: None, is_past: false });
    }

    pub(crate) fn purged(&mut self, asked: Moment, answered: Moment, now_ms: u64) {
        if let Some(purge) = self.purges.iter_mut().find(|purge| purge.asked == asked) {
            purge.answered = Some((answered, now_ms));
        }
    }

    /// A message of it is a dead letter.
    pub(crate) fn died(&mut self, offset: u64) -> Result<(), String> {
        let has_begun_anew = self.has_begun_anew();
        let parcel = self.parcels.entry(offset).or_default();
        if parcel.was_acked && !has_begun_anew {
            return Err(format!("{} has acknowledged {offset}, and it is a dead letter", self.name));
        }
        parcel.is_dead = !has_begun_anew;
        Ok(())
    }

    // --- delivering

    /// A message is delivered that was asked for in an epoch. `facts` are since when it is known to be there, whether one consumer at a time gets any,
    /// and how often messages are delivered at most.
    pub(crate) fn deliver(
        &mut self,
        offset: u64,
        dose: &Dose,
        epoch: u64,
        (since, is_single, most): (Moment, bool, u32),
    ) -> Result<(), String> {
        if is_single {
            self.check_single(dose)?;
        }
        let is_old = epoch != self.epoch;
        let (unheard, sure_since) = (self.unheard, self.sure_since);
        for purge in self.purges.iter().filter(|purge| !purge.is_past) {
            let was_there = sure_since.is_some_and(|since| since < purge.asked);
            if was_there
                && since < purge.asked
                && purge.answered.is_some_and(|(_, done_ms)| done_ms < dose.granted_ms)
            {
                return Err("it was purged".to_owned());
            }
        }
        let parcel = self.parcels.entry(offset).or_default();
        if is_old {
            // It may come from before or after the group began anew.
            parcel.doses.push(Dose { is_back: true, ..*dose });
            return Ok(());
        }
        if let Some((life, count)) = parcel.end
            && (dose.life > life || dose.count >= count)
        {
            let how = if parcel.was_acked { "acknowledged" } else { "rejected" };
            return Err(format!("it was {how}, and comes back"));
        }
        if parcel.soon_end.is_some_and(|(life, count)| dose.life == life && dose.count > count) {
            return Err("it was acknowledged or rejected by PUBACK, and comes back".to_owned());
        }
        if parcel.is_dead {
            return Err("it is a dead letter, and comes back".to_owned());
        }
        if dose.granted_ms < parcel.not_before_ms {
            return Err(format!("it comes before its time: it waits until {}", parcel.not_before_ms));
        }
        if most > 0 && dose.count > most {
            return Err(format!("it is delivered more often than {most} times"));
        }
        for other in &parcel.doses {
            if other.life == dose.life {
                let (first, second) = if other.count < dose.count { (other, dose) } else { (dose, other) };
                if first.count == second.count {
                    return Err(format!("its count stands still: {other:?}"));
                }
                if !first.is_back && second.granted_ms < first.until_ms {
                    return Err(format!("somebody else has it: {first:?}"));
                }
            }
        }
        let highest = parcel.doses.iter().map(|dose| dose.count).max().unwrap_or(0);
        let has_newer = parcel.doses.iter().any(|other| other.life == dose.life && other.count > dose.count);
        if dose.count <= parcel.floor && !has_newer {
            return Err(format!("its count goes back: it was {}", parcel.floor));
        }
        if self.epoch == 0 && !self.has_lost && dose.count > highest + 1 + unheard {
            return Err(format!("its count leaps: it was {highest}"));
        }
        let same = |other: &&Dose| (other.count, other.queue_life) == (dose.count, dose.queue_life);
        if let Some(other) = parcel.doses.iter().find(same) {
            return Err(format!("its receipt is that of another delivery: {other:?}"));
        }
        if self.former.contains(&(offset, dose.count, dose.queue_life)) {
            return Err("its receipt is that of another delivery, before what it has forgotten".to_owned());
        }
        parcel.doses.push(*dose);
        self.fresh.push((offset, dose.count, dose.heard));
        Ok(())
    }

    /// One consumer at a time gets messages.
    fn check_single(&self, dose: &Dose) -> Result<(), String> {
        if self.epoch > 0 {
            return Ok(());
        }
        for (offset, parcel) in &self.parcels {
            let Some(last) = parcel.doses.last() else { continue };
            let is_held = last.life == dose.life
                && last.consumer != dose.consumer
                && !last.is_back
                && dose.granted_ms < last.until_ms
                && parcel.end.is_none();
            if is_held && self.purges.is_empty() && !self.left.contains(&last.consumer) {
                return Err(format!("another one is active and has {offset}: {last:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn was_delivered_before(&self, offset: u64, dose: &Dose) -> bool {
        let Some(parcel) = self.parcels.get(&offset) else { return false };
        parcel.doses.iter().any(|other| other.life < dose.life || other.granted_ms < dose.granted_ms)
    }

    /// Nobody has had it, and nobody may have.
    pub(crate) fn is_untouched(&self, offset: u64) -> bool {
        !self.parcels.contains_key(&offset)
    }

    /// Somebody has had it, perhaps before the group began anew.
    pub(crate) fn was_had(&self, offset: u64) -> bool {
        let receipts = (offset, 0, 0)..=(offset, u32::MAX, u32::MAX);
        !self.is_untouched(offset) || self.former.range(receipts).next().is_some()
    }

    /// Whether it was settled before this was asked.
    pub(crate) fn was_settled(&self, pending: &Pending, offset: u64) -> bool {
        let Some(parcel) = self.parcels.get(&offset) else { return false };
        let was_before = parcel.doses.iter().all(|dose| dose.heard < pending.asked);
        pending.epoch == self.epoch && was_before && parcel.was_acked
    }

    // --- how it may have ended

    pub(crate) fn may_be_over(&self, offset: u64, sent_at: Moment, most: u32) -> bool {
        self.may_be_acknowledged(offset)
            || self.is_dead(offset)
            || self.may_die(offset, most)
            || self.was_purged_since(sent_at)
            || self.has_begun_anew()
    }

    pub(crate) fn may_be_acknowledged(&self, offset: u64) -> bool {
        self.parcels.get(&offset).is_some_and(|parcel| parcel.may_be_acked)
    }

    pub(crate) fn is_dead(&self, offset: u64) -> bool {
        self.parcels.get(&offset).is_some_and(|parcel| parcel.is_dead)
    }

    /// It was rejected, or delivered as often as it may be, or may have been.
    pub(crate) fn may_die(&self, offset: u64, most: u32) -> bool {
        let parcel = self.parcels.get(&offset);
        let counts = parcel.into_iter().flat_map(|parcel| &parcel.doses).map(|dose| dose.count);
        let highest = counts.max().unwrap_or(0) + self.unheard;
        parcel.is_some_and(|parcel| parcel.may_be_rejected) || (most > 0 && highest >= most)
    }

    pub(crate) fn was_purged_since(&self, moment: Moment) -> bool {
        let mut purges = self.purges.iter();
        let is_later = |purge: &Purge| purge.answered.is_none_or(|(answered, _)| answered > moment);
        purges.any(is_later) || self.has_begun_anew()
    }
}
