//! The transaction coordinator: producer ids, transactional identifiers and their transactions (KIP-98, 360, 890).
//!
//! ```text
//!   handle ─► decide ─► Keep the next state ─► kept ─► it is so: Reply; markers, if it has been prepared to end
//!               │                                                  └─► marker_written, all ─► complete, Keep
//!               └─► the transaction before is not complete: the request waits, but not for long
//! ```
//! No state changes before it has been kept, but for completion: if that record is lost, the markers are written
//! once more, which changes nothing. What is kept for one identifier goes into the log in order, so a later state
//! can stand there only behind the earlier one.
//!
//! After a crash, [`Transactions::restore`] takes every record in order, and [`Transactions::begin`] issues again
//! whatever markers were under way.
//!
//! # Bounds
//! Transactional identifiers and participants: [`Settings`]. Requests that wait for a transaction to complete, and
//! for new producer ids: a constant each; beyond them clients are told to ask again.

mod ids;
mod markers;
mod records;
mod request;
mod state;
#[cfg(test)]
mod tests;
mod timers;
mod views;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

pub use request::{Effect, Keep, Markers, Participant, Producer, Request, Settings, Speaks};
pub use state::State;
pub use views::Description;

use crate::bytes::Malformed;
use crate::{Caller, Error, Record};
use ids::ProducerIds;
use records::Read;
use state::{Decision, Transaction};

/// Requests of one transactional identifier that may wait for its transaction.
const WAITING_MAX: usize = 16;
/// Callers that may wait together, since they asked for the same.
const CALLERS_MAX: usize = 1024;
/// Requests that may wait for producer ids.
const FOR_IDS_MAX: usize = 4096;

/// All transactional identifiers.
#[derive(Debug)]
pub struct Transactions {
    settings: Settings,
    slots: HashMap<Arc<str>, Slot>,
    ids: ProducerIds,
    /// The block of producer ids that is being kept, and where it ends.
    filling: Option<(Keep, i64)>,
    /// Who waits for it.
    for_ids: VecDeque<ForId>,
    /// Whose state is being kept.
    keeps: HashMap<Keep, Arc<str>>,
    next_keep: u64,
    /// When to look at which identifier again.
    due: BTreeSet<(u64, Arc<str>)>,
    effects: VecDeque<Effect>,
}

/// A transactional identifier.
#[derive(Debug)]
struct Slot {
    transaction: Transaction,
    /// The state that is being kept.
    pending: Option<Pending>,
    /// Participants whose markers are not written yet.
    unmarked: BTreeSet<Participant>,
    /// Those of them whose marker has failed, and when to write it again.
    failed: BTreeSet<Participant>,
    retry_ms: Option<u64>,
    /// Until then nothing is tried by itself, since the last try could not be kept.
    not_before_ms: u64,
    waiting: VecDeque<Waiting>,
    /// Its entry in `due`.
    due_ms: Option<u64>,
}

#[derive(Debug)]
struct Pending {
    keep: Keep,
    next: Transaction,
    reply: Producer,
    callers: Vec<Caller>,
}

/// A request that waits for the transaction before it, until `until_ms`.
#[derive(Debug)]
struct Waiting {
    request: Request,
    callers: Vec<Caller>,
    until_ms: u64,
}

#[derive(Debug)]
enum ForId {
    /// A producer without transactional identifier.
    Plain(Caller),
    Transactional(Arc<str>, Waiting),
}

impl Transactions {
    /// A coordinator that knows nothing.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            slots: HashMap::new(),
            ids: ProducerIds::default(),
            filling: None,
            for_ids: VecDeque::new(),
            keeps: HashMap::new(),
            next_keep: 0,
            due: BTreeSet::new(),
            effects: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes in a record that was kept in an earlier life.
    ///
    /// # Errors
    /// [`Malformed`]: it is none of ours, or of a newer version.
    pub fn restore(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Malformed> {
        match records::read(key, value)? {
            Read::Transaction(id, Some(transaction)) => {
                self.slots.insert(id, Slot::new(*transaction));
            }
            Read::Transaction(id, None) => drop(self.slots.remove(&id)),
            Read::ProducerIds(end) => self.ids.restore(end),
            Read::Nothing => {}
        }
        Ok(())
    }

    /// Begins to serve, once everything has been restored: markers that were under way are issued again.
    pub fn begin(&mut self, now_ms: u64) {
        self.fill_ids();
        let mut all: Vec<Arc<str>> = self.slots.keys().cloned().collect();
        all.sort_unstable();
        for id in all {
            self.write_markers(&id, now_ms);
            self.schedule(&id);
        }
    }

    /// `InitProducerId` of a producer without transactional identifier: it gets an id of its own (KIP-98).
    pub fn handle_idempotent(&mut self, caller: Caller) {
        match self.ids.take() {
            Some(id) => self.reply(&[caller], Ok(Producer { id, epoch: 0 })),
            None => self.wait_for_id(ForId::Plain(caller)),
        }
    }

    /// A request about a transactional identifier. `caller` is answered in time.
    pub fn handle(&mut self, now_ms: u64, transactional_id: &str, request: Request, caller: Caller) {
        if let Err(error) = self.refuse(transactional_id, &request) {
            return self.reply(&[caller], Err(error));
        }
        let id = match self.slots.get_key_value(transactional_id) {
            Some((id, _)) => Arc::clone(id),
            None => transactional_id.into(),
        };
        let until_ms = now_ms + self.settings.wait_ms;
        self.decide(now_ms, &id, Waiting { request, callers: vec![caller], until_ms });
        self.schedule(&id);
    }

    /// What can be said without looking at the transaction.
    fn refuse(&self, transactional_id: &str, request: &Request) -> Result<(), Error> {
        if transactional_id.is_empty() {
            return Err(Error::InvalidRequest);
        }
        let is_known = self.slots.contains_key(transactional_id);
        match request {
            Request::InitProducerId { timeout_ms, .. }
                if *timeout_ms <= 0 || *timeout_ms > self.settings.timeout_ms_max =>
            {
                Err(Error::InvalidTransactionTimeout)
            }
            Request::InitProducerId { .. } if is_known => Ok(()),
            Request::InitProducerId { .. } if self.slots.len() < self.settings.transactional_ids => Ok(()),
            Request::InitProducerId { .. } => Err(Error::PolicyViolation),
            _ if !is_known => Err(Error::InvalidProducerIdMapping),
            Request::Add { .. } | Request::End { .. } => Ok(()),
        }
    }

    fn decide(&mut self, now_ms: u64, id: &Arc<str>, waiting: Waiting) {
        let Some(slot) = self.slots.get_mut(id) else { return self.make(now_ms, id, waiting) };
        if slot.pending.is_some() {
            return self.wait(id, waiting);
        }
        let spare = self.ids.take();
        let decision = slot.transaction.decide(&waiting.request, spare, now_ms);
        if let Some(spare) = spare
            && !uses(&decision, spare)
        {
            self.ids.put_back(spare);
        }
        match decision {
            Ok(Decision::Answer(producer)) => self.reply(&waiting.callers, Ok(producer)),
            Ok(Decision::Become { next, .. }) if next.participants.len() > self.settings.participants => {
                self.reply(&waiting.callers, Err(Error::PolicyViolation));
            }
            Ok(Decision::Become { next, reply }) => self.keep(id, *next, reply, waiting.callers),
            Ok(Decision::Fence(next)) => {
                self.wait(id, waiting);
                let reply = next.producer;
                self.keep(id, *next, reply, Vec::new());
            }
            Ok(Decision::NeedsId) => self.wait_for_id(ForId::Transactional(Arc::clone(id), waiting)),
            Err(Error::ConcurrentTransactions) => self.wait(id, waiting),
            Err(error) => self.reply(&waiting.callers, Err(error)),
        }
    }

    /// A transactional identifier that nobody knows yet. Only `InitProducerId` makes one.
    fn make(&mut self, now_ms: u64, id: &Arc<str>, waiting: Waiting) {
        if !matches!(waiting.request, Request::InitProducerId { .. }) {
            return self.reply(&waiting.callers, Err(Error::InvalidProducerIdMapping));
        }
        let Some(producer_id) = self.ids.take() else {
            return self.wait_for_id(ForId::Transactional(Arc::clone(id), waiting));
        };
        self.slots.insert(Arc::clone(id), Slot::new(Transaction::new(producer_id)));
        self.decide(now_ms, id, waiting);
    }

    /// Lets a request wait for the transaction before it. Those that ask for more participants of the same
    /// transaction wait together, since one record will do for all.
    fn wait(&mut self, id: &Arc<str>, waiting: Waiting) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if let (Request::Add { producer, participants }, Some(last)) =
            (&waiting.request, slot.waiting.back_mut())
            && let Request::Add { producer: other, participants: all } = &mut last.request
            && producer == other
            && last.callers.len() < CALLERS_MAX
            && all.len() + participants.len() <= self.settings.participants
        {
            all.extend(participants.iter().cloned());
            last.callers.extend(waiting.callers);
        } else if slot.waiting.len() < WAITING_MAX {
            slot.waiting.push_back(waiting);
        } else {
            self.reply(&waiting.callers, Err(Error::ConcurrentTransactions));
        }
    }

    fn keep(&mut self, id: &Arc<str>, next: Transaction, reply: Producer, callers: Vec<Caller>) {
        let keep = self.put(vec![records::transaction(id, Some(&next))]);
        self.keeps.insert(keep, Arc::clone(id));
        if let Some(slot) = self.slots.get_mut(id) {
            debug_assert!(slot.pending.is_none());
            slot.pending = Some(Pending { keep, next, reply, callers });
        }
    }

    fn put(&mut self, records: Vec<Record>) -> Keep {
        let keep = Keep(self.next_keep);
        self.next_keep += 1;
        self.effects.push_back(Effect::Keep { keep, records });
        keep
    }

    /// Records are durable.
    pub fn kept(&mut self, keep: Keep, now_ms: u64) {
        if let Some((_, end)) = self.filling.take_if(|(filling, _)| *filling == keep) {
            self.ids.block_kept(end);
            return self.serve_for_ids(now_ms, Ok(()));
        }
        let Some(id) = self.keeps.remove(&keep) else { return };
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(pending) = slot.pending.take_if(|pending| pending.keep == keep) else { return };
        slot.transaction = pending.next;
        self.reply(&pending.callers, Ok(pending.reply));
        self.write_markers(&id, now_ms);
        self.serve_waiting(&id, now_ms);
        self.schedule(&id);
    }

    /// Records could not be kept: nothing has happened.
    pub fn not_kept(&mut self, keep: Keep, now_ms: u64) {
        if self.filling.take_if(|(filling, _)| *filling == keep).is_some() {
            return self.serve_for_ids(now_ms, Err(Error::CoordinatorNotAvailable));
        }
        let Some(id) = self.keeps.remove(&keep) else { return };
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(pending) = slot.pending.take_if(|pending| pending.keep == keep) else { return };
        slot.not_before_ms = now_ms + self.settings.retry_ms;
        // Whoever waited would only see the same.
        let waiting = std::mem::take(&mut slot.waiting);
        if slot.transaction.producer.epoch == state::NO_EPOCH {
            self.unschedule(&id);
            self.slots.remove(&id);
        }
        for callers in std::iter::once(pending.callers).chain(waiting.into_iter().map(|one| one.callers)) {
            self.reply(&callers, Err(Error::CoordinatorNotAvailable));
        }
        self.schedule(&id);
    }

    /// Decides again about the requests that have waited.
    fn serve_waiting(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        for waiting in std::mem::take(&mut slot.waiting) {
            self.decide(now_ms, id, waiting);
        }
    }

    fn wait_for_id(&mut self, waiting: ForId) {
        if self.for_ids.len() >= FOR_IDS_MAX {
            let callers = match waiting {
                ForId::Plain(caller) => vec![caller],
                ForId::Transactional(_, waiting) => waiting.callers,
            };
            return self.reply(&callers, Err(Error::CoordinatorNotAvailable));
        }
        self.for_ids.push_back(waiting);
        self.fill_ids();
    }

    fn fill_ids(&mut self) {
        if self.filling.is_none() {
            let end = self.ids.block_end();
            let keep = self.put(vec![records::producer_ids(end)]);
            self.filling = Some((keep, end));
        }
    }

    fn serve_for_ids(&mut self, now_ms: u64, outcome: Result<(), Error>) {
        for waiting in std::mem::take(&mut self.for_ids) {
            match (waiting, outcome) {
                (ForId::Plain(caller), Ok(())) => self.handle_idempotent(caller),
                (ForId::Plain(caller), Err(error)) => self.reply(&[caller], Err(error)),
                (ForId::Transactional(id, waiting), Ok(())) => {
                    self.decide(now_ms, &id, waiting);
                    self.schedule(&id);
                }
                (ForId::Transactional(_, waiting), Err(error)) => self.reply(&waiting.callers, Err(error)),
            }
        }
    }

    fn reply(&mut self, callers: &[Caller], answer: Result<Producer, Error>) {
        self.effects.extend(callers.iter().map(|caller| Effect::Reply { caller: *caller, answer }));
    }
}

/// Whether a decision has made use of a new producer id.
fn uses(decision: &Result<Decision, Error>, spare: i64) -> bool {
    match decision {
        Ok(Decision::Become { next, .. }) => next.producer.id == spare || next.next_id == spare,
        _ => false,
    }
}

impl Slot {
    fn new(transaction: Transaction) -> Self {
        Self {
            transaction,
            pending: None,
            unmarked: BTreeSet::new(),
            failed: BTreeSet::new(),
            retry_ms: None,
            not_before_ms: 0,
            waiting: VecDeque::new(),
            due_ms: None,
        }
    }
}
