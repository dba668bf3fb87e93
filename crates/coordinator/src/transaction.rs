//! The transaction coordinator: producer ids, transactional ids and their transactions (KIP-98, 360, 890).
//!
//! ```text
//!   handle ─► decide ─► Keep the next state ─► kept: becomes current ─► Reply; WriteMarkers if prepared to end
//!               │                                                            └─► marker_written, all ─► complete, Keep
//!               └─► the previous transaction is not complete: the request waits, for a bounded time
//! ```
//! A state becomes current only once its record is durable. Completion is the exception: if its record is lost, the
//! markers are written again, which changes nothing. The records of one transactional id are appended in order, so a
//! later state is never in the log without the earlier one.
//!
//! After a crash, [`Transactions::restore`] replays every record in order, and [`Transactions::start`] issues all
//! unfinished markers again.
//!
//! # Bounds
//! [`Settings`] bounds the memory of transactional ids and their participants. At the bound, the ids that have been
//! unused for longest are removed as if they had expired: their producers get `INVALID_PRODUCER_ID_MAPPING`, so none
//! continues unnoticed. Constants bound the requests that wait for a transaction to complete or for new producer ids;
//! beyond them clients are told to retry.

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

pub use request::{
    Effect, Markers, PARTICIPANTS_MAX, Participant, Producer, Request, Settings, TransactionVersion, WriteId,
};
pub use state::State;
pub use views::Description;

use crate::bytes::Malformed;
use crate::{Caller, Error, Record};
use ids::ProducerIds;
use records::ParsedRecord;
use state::{Decision, Transaction};
use timers::slot_bytes;

/// Maximum requests that wait for the transaction of one transactional id.
const WAITING_REQUESTS_MAX: usize = 16;
/// Maximum callers merged into one waiting request.
const CALLERS_MAX: usize = 1024;
/// Maximum requests that wait for producer ids.
const ID_WAITERS_MAX: usize = 4096;
/// Memory of a transactional id besides its text: its slot, and its entries in three ordered or hashed sets.
const SLOT_BYTES: usize = size_of::<Slot>() + 256;
/// Memory of a participant. Its name has at most 249 bytes, mostly shared with other participants.
const PARTICIPANT_BYTES: usize = 256;

/// All transactional ids. Times are milliseconds since 1970.
#[derive(Debug)]
pub struct Transactions {
    settings: Settings,
    slots: HashMap<Arc<str>, Slot>,
    ids: ProducerIds,
    /// The block of producer ids that is being persisted, and where it ends.
    pending_id_block: Option<(WriteId, i64)>,
    /// Requests that wait for the block.
    id_waiters: VecDeque<IdWaiter>,
    /// The transactional id of each write in flight.
    pending_writes: HashMap<WriteId, Arc<str>>,
    next_write: u64,
    /// When to check which transactional id.
    deadlines: BTreeSet<(u64, Arc<str>)>,
    /// Unused transactional ids, with the time of their last change.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// Memory of all transactional ids, bytes.
    bytes: usize,
    /// Number of transactional ids removed because of the memory bound.
    evictions: u64,
    effects: VecDeque<Effect>,
}

/// A transactional id.
#[derive(Debug)]
struct Slot {
    transaction: Transaction,
    /// The next state, while its record is not durable.
    pending: Option<PendingState>,
    /// Participants whose markers have not been written.
    pending_markers: BTreeSet<Participant>,
    /// Participants whose marker failed, and when to retry.
    failed: BTreeSet<Participant>,
    retry_ms: Option<u64>,
    /// No timeout abort before then, because the last write failed.
    retry_not_before_ms: u64,
    waiting: VecDeque<WaitingRequest>,
    /// Its entry in `deadlines`.
    due_ms: Option<u64>,
    /// Its entry in `idle`.
    idle_ms: Option<u64>,
    /// Its share of [`Transactions::bytes`].
    bytes: usize,
}

#[derive(Debug)]
struct PendingState {
    keep: WriteId,
    next: Transaction,
    reply: Producer,
    callers: Vec<Caller>,
}

/// A request that waits for the previous transaction until `deadline_ms`.
#[derive(Debug)]
struct WaitingRequest {
    request: Request,
    callers: Vec<Caller>,
    deadline_ms: u64,
}

#[derive(Debug)]
enum IdWaiter {
    /// A producer without transactional id.
    Idempotent(Caller),
    Transactional(Arc<str>, WaitingRequest),
}

impl Transactions {
    /// Creates a coordinator without state.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            slots: HashMap::new(),
            ids: ProducerIds::default(),
            pending_id_block: None,
            id_waiters: VecDeque::new(),
            pending_writes: HashMap::new(),
            next_write: 0,
            deadlines: BTreeSet::new(),
            idle: BTreeSet::new(),
            bytes: 0,
            evictions: 0,
            effects: VecDeque::new(),
        }
    }

    /// Returns the next effect, in order.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Replays a persisted record. Records must come in log order.
    ///
    /// # Errors
    /// [`Malformed`] if the record does not belong to the coordinator, or a newer version wrote it.
    pub fn restore(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Malformed> {
        match records::parse(key, value)? {
            ParsedRecord::Transaction(id, Some(transaction)) => {
                self.slots.insert(id, Slot::new(*transaction));
            }
            ParsedRecord::Transaction(id, None) => drop(self.slots.remove(&id)),
            ParsedRecord::ProducerIds(end) => self.ids.restore(end),
            ParsedRecord::Ignored => {}
        }
        Ok(())
    }

    /// Starts serving, once everything is restored: issues unfinished markers again.
    pub fn start(&mut self, now_ms: u64) {
        self.reserve_id_block();
        let mut all: Vec<Arc<str>> = self.slots.keys().cloned().collect();
        all.sort_unstable();
        for id in all {
            self.write_markers(&id, now_ms);
            self.schedule(&id);
        }
        self.make_room(0, "");
    }

    /// `InitProducerId` without a transactional id: assigns a new producer id (KIP-98).
    pub fn handle_idempotent(&mut self, caller: Caller) {
        match self.ids.take() {
            Some(id) => self.reply(&[caller], Ok(Producer { id, epoch: 0 })),
            None => self.queue_for_id(IdWaiter::Idempotent(caller)),
        }
    }

    /// Handles a request for a transactional id. `caller` gets exactly one reply, within `wait_ms` unless a write takes
    /// longer.
    pub fn handle(&mut self, now_ms: u64, transactional_id: &str, request: Request, caller: Caller) {
        if let Err(error) = self.check_request(transactional_id, &request) {
            return self.reply(&[caller], Err(error));
        }
        let id = match self.slots.get_key_value(transactional_id) {
            Some((id, _)) => Arc::clone(id),
            None => transactional_id.into(),
        };
        let deadline_ms = now_ms + self.settings.wait_ms;
        self.decide(now_ms, &id, WaitingRequest { request, callers: vec![caller], deadline_ms });
        self.schedule(&id);
    }

    /// Checks that do not depend on the transaction's state, except that a new transactional id needs room.
    fn check_request(&mut self, transactional_id: &str, request: &Request) -> Result<(), Error> {
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
            Request::InitProducerId { .. } if self.make_room(slot_bytes(transactional_id, 0), "") => Ok(()),
            Request::InitProducerId { .. } => Err(Error::PolicyViolation),
            _ if !is_known => Err(Error::InvalidProducerIdMapping),
            Request::Add { .. } | Request::End { .. } => Ok(()),
        }
    }

    fn decide(&mut self, now_ms: u64, id: &Arc<str>, waiting: WaitingRequest) {
        let Some(slot) = self.slots.get_mut(id) else { return self.create(now_ms, id, waiting) };
        if slot.pending.is_some() {
            return self.queue_request(id, waiting);
        }
        let spare = self.ids.take();
        let decision = slot.transaction.decide(&waiting.request, spare, now_ms);
        if let Some(spare) = spare
            && !uses_id(&decision, spare)
        {
            self.ids.put_back(spare);
        }
        let more = match &decision {
            Ok(Decision::Transition { next, .. }) => {
                next.participants.len().saturating_sub(slot.transaction.participants.len())
            }
            _ => 0,
        };
        if more > 0 && !self.make_room(more * PARTICIPANT_BYTES, id) {
            return self.reply(&waiting.callers, Err(Error::PolicyViolation));
        }
        match decision {
            Ok(Decision::Answer(producer)) => self.reply(&waiting.callers, Ok(producer)),
            Ok(Decision::Transition { next, .. }) if next.participants.len() > self.settings.participants => {
                self.reply(&waiting.callers, Err(Error::PolicyViolation));
            }
            Ok(Decision::Transition { next, reply }) => {
                self.persist_transaction(id, *next, reply, waiting.callers);
            }
            Ok(Decision::Fence(next)) => {
                self.queue_request(id, waiting);
                let reply = next.producer;
                self.persist_transaction(id, *next, reply, Vec::new());
            }
            Ok(Decision::NeedsId) => self.queue_for_id(IdWaiter::Transactional(Arc::clone(id), waiting)),
            Err(Error::ConcurrentTransactions) => self.queue_request(id, waiting),
            Err(error) => self.reply(&waiting.callers, Err(error)),
        }
    }

    /// Creates a transactional id. Only `InitProducerId` may.
    fn create(&mut self, now_ms: u64, id: &Arc<str>, waiting: WaitingRequest) {
        if !matches!(waiting.request, Request::InitProducerId { .. }) {
            return self.reply(&waiting.callers, Err(Error::InvalidProducerIdMapping));
        }
        let Some(producer_id) = self.ids.take() else {
            return self.queue_for_id(IdWaiter::Transactional(Arc::clone(id), waiting));
        };
        self.slots.insert(Arc::clone(id), Slot::new(Transaction::new(producer_id)));
        self.decide(now_ms, id, waiting);
    }

    /// Queues a request behind the previous transaction. Consecutive requests that add participants to the same
    /// transaction are merged, because one record covers them all.
    fn queue_request(&mut self, id: &Arc<str>, waiting: WaitingRequest) {
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
        } else if slot.waiting.len() < WAITING_REQUESTS_MAX {
            slot.waiting.push_back(waiting);
        } else {
            self.reply(&waiting.callers, Err(Error::ConcurrentTransactions));
        }
    }

    fn persist_transaction(
        &mut self,
        id: &Arc<str>,
        next: Transaction,
        reply: Producer,
        callers: Vec<Caller>,
    ) {
        let keep = self.persist(vec![records::transaction(id, Some(&next))]);
        self.pending_writes.insert(keep, Arc::clone(id));
        if let Some(slot) = self.slots.get_mut(id) {
            debug_assert!(slot.pending.is_none());
            slot.pending = Some(PendingState { keep, next, reply, callers });
        }
    }

    fn persist(&mut self, records: Vec<Record>) -> WriteId {
        let keep = WriteId(self.next_write);
        self.next_write += 1;
        self.effects.push_back(Effect::Persist { keep, records });
        keep
    }

    /// The write is durable.
    pub fn write_succeeded(&mut self, keep: WriteId, now_ms: u64) {
        if let Some((_, end)) = self.pending_id_block.take_if(|(pending, _)| *pending == keep) {
            self.ids.block_persisted(end);
            return self.serve_id_waiters(now_ms, Ok(()));
        }
        let Some(id) = self.pending_writes.remove(&keep) else { return };
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(pending) = slot.pending.take_if(|pending| pending.keep == keep) else { return };
        slot.transaction = pending.next;
        self.reply(&pending.callers, Ok(pending.reply));
        self.write_markers(&id, now_ms);
        self.serve_waiting(&id, now_ms);
        self.schedule(&id);
    }

    /// The write failed: the state remains what it was. The request behind it and all that wait get
    /// `COORDINATOR_NOT_AVAILABLE`.
    pub fn write_failed(&mut self, keep: WriteId, now_ms: u64) {
        if self.pending_id_block.take_if(|(pending, _)| *pending == keep).is_some() {
            return self.serve_id_waiters(now_ms, Err(Error::CoordinatorNotAvailable));
        }
        let Some(id) = self.pending_writes.remove(&keep) else { return };
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(pending) = slot.pending.take_if(|pending| pending.keep == keep) else { return };
        slot.retry_not_before_ms = now_ms + self.settings.retry_ms;
        // Requests that wait behind it would fail the same way.
        let waiting = std::mem::take(&mut slot.waiting);
        if slot.transaction.producer.epoch == state::NO_EPOCH {
            self.remove_slot(&id);
        }
        for callers in std::iter::once(pending.callers).chain(waiting.into_iter().map(|one| one.callers)) {
            self.reply(&callers, Err(Error::CoordinatorNotAvailable));
        }
        self.schedule(&id);
    }

    /// Decides the waiting requests again.
    fn serve_waiting(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        for waiting in std::mem::take(&mut slot.waiting) {
            self.decide(now_ms, id, waiting);
        }
    }

    fn queue_for_id(&mut self, waiting: IdWaiter) {
        if self.id_waiters.len() >= ID_WAITERS_MAX {
            let callers = match waiting {
                IdWaiter::Idempotent(caller) => vec![caller],
                IdWaiter::Transactional(_, waiting) => waiting.callers,
            };
            return self.reply(&callers, Err(Error::CoordinatorNotAvailable));
        }
        self.id_waiters.push_back(waiting);
        self.reserve_id_block();
    }

    fn reserve_id_block(&mut self) {
        if self.pending_id_block.is_none() {
            let end = self.ids.reserve_block();
            let keep = self.persist(vec![records::producer_ids(end)]);
            self.pending_id_block = Some((keep, end));
        }
    }

    fn serve_id_waiters(&mut self, now_ms: u64, outcome: Result<(), Error>) {
        for waiting in std::mem::take(&mut self.id_waiters) {
            match (waiting, outcome) {
                (IdWaiter::Idempotent(caller), Ok(())) => self.handle_idempotent(caller),
                (IdWaiter::Idempotent(caller), Err(error)) => self.reply(&[caller], Err(error)),
                (IdWaiter::Transactional(id, waiting), Ok(())) => {
                    self.decide(now_ms, &id, waiting);
                    self.schedule(&id);
                }
                (IdWaiter::Transactional(_, waiting), Err(error)) => self.reply(&waiting.callers, Err(error)),
            }
        }
    }

    fn reply(&mut self, callers: &[Caller], answer: Result<Producer, Error>) {
        self.effects.extend(callers.iter().map(|caller| Effect::Reply { caller: *caller, answer }));
    }
}

/// Whether a decision uses the new producer id.
fn uses_id(decision: &Result<Decision, Error>, spare: i64) -> bool {
    match decision {
        Ok(Decision::Transition { next, .. }) => next.producer.id == spare || next.next_id == spare,
        _ => false,
    }
}

impl Slot {
    fn new(transaction: Transaction) -> Self {
        Self {
            transaction,
            pending: None,
            pending_markers: BTreeSet::new(),
            failed: BTreeSet::new(),
            retry_ms: None,
            retry_not_before_ms: 0,
            waiting: VecDeque::new(),
            due_ms: None,
            idle_ms: None,
            bytes: 0,
        }
    }
}
