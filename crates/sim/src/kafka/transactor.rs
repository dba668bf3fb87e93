//! Producers with transactions, in both of their versions: partitions are added by requests of their own, or by what
//! is produced (KIP-890). They commit and abort, vanish in between, and fence others of the same name.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_offsets_to_txn::AddOffsetsToTxnRequest;
use mainstem_kafka::api::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use mainstem_kafka::api::end_txn::EndTxnRequest;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_kafka::api::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_log::BatchKind;

use super::client::{self, Batch, Client, Desk, ProducerId, is_storage, named};
use super::ledger::{Fate, Ledger, Part, TxnId};
use super::producer::{produce, produced};
use super::wire::Response;
use crate::ledger::Violation;

/// The partition of which offsets are committed.
const OFFSET_PART: Part = Part { topic: 0, index: 0 };
/// Records that a batch has at most.
const RECORDS_MAX: u64 = 4;

/// What a producer is told whose transaction is over.
const FENCED: [ErrorCode; 6] = [
    ErrorCode::InvalidProducerEpoch,
    ErrorCode::ProducerFenced,
    ErrorCode::InvalidProducerIdMapping,
    ErrorCode::InvalidTxnState,
    ErrorCode::OutOfOrderSequenceNumber,
    ErrorCode::TransactionAbortable,
];

/// What a transactional producer is like.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// Its transactional id.
    pub(crate) name: String,
    /// It speaks transaction version 2.
    pub(crate) is_two: bool,
    /// Nobody else has its name, and its transactions may take as long as they like.
    pub(crate) is_alone: bool,
    pub(crate) timeout_ms: i32,
}

#[derive(Debug)]
pub(crate) struct Transactor {
    /// Its number among all producers.
    index: usize,
    manner: Manner,
    id: Option<ProducerId>,
    /// It may have left a transaction that only its next beginning ends.
    must_begin_anew: bool,
    sequences: BTreeMap<Part, i32>,
    open: Option<Open>,
    asked: Option<Step>,
    /// Transactions that had begun when it last asked to begin.
    before: TxnId,
}

/// A transaction under way.
#[derive(Debug)]
struct Open {
    txn: TxnId,
    added: BTreeSet<Part>,
    /// What is to be written next.
    next: Option<(Part, Batch)>,
    has_written: bool,
    offset: Offset,
    /// Whether it is to be committed or aborted, when that has been decided.
    commits: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offset {
    None,
    /// The group is to be added to the transaction.
    Adding(u64),
    Committing(u64),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Add,
    Produce,
    AddOffsets,
    CommitOffset,
    End,
    /// Looks at the committed offset, which was this at least.
    Look(u64),
}

impl Transactor {
    pub(crate) fn new(index: usize, manner: Manner) -> Self {
        Self {
            index,
            manner,
            id: None,
            must_begin_anew: false,
            sequences: BTreeMap::new(),
            open: None,
            asked: None,
            before: 0,
        }
    }

    fn group(&self) -> String {
        format!("group of {}", self.manner.name)
    }

    /// What is to be done next.
    fn next(&mut self, desk: &mut Desk<'_>) -> Option<Step> {
        if self.id.is_none() {
            return (!desk.is_ending || self.must_begin_anew).then_some(Step::Begin);
        }
        if self.open.is_none() {
            if desk.is_ending {
                return None;
            }
            if desk.dice.chance(20) {
                return Some(Step::Look(desk.ledger.offset_floor(&self.manner.name)));
            }
            self.begin(desk);
        }
        let open = self.open.as_ref()?;
        if open.next.is_none() && open.commits.is_none() && matches!(open.offset, Offset::None | Offset::Done)
        {
            self.decide(desk);
        }
        let open = self.open.as_ref()?;
        match (&open.next, open.offset) {
            (Some((part, _)), _) if !self.manner.is_two && !open.added.contains(part) => Some(Step::Add),
            (Some(_), _) => Some(Step::Produce),
            (None, Offset::Adding(_)) => Some(Step::AddOffsets),
            (None, Offset::Committing(_)) => Some(Step::CommitOffset),
            (None, Offset::None | Offset::Done) => open.commits.map(|_| Step::End),
        }
    }

    fn begin(&mut self, desk: &mut Desk<'_>) {
        self.open = Some(Open {
            txn: desk.ledger.begin_txn(&self.manner.name),
            added: BTreeSet::new(),
            next: None,
            has_written: false,
            offset: Offset::None,
            commits: None,
        });
    }

    /// Goes on with the transaction, one way or another.
    fn decide(&mut self, desk: &mut Desk<'_>) {
        let (Some(open), Some(id)) = (&mut self.open, self.id) else { return };
        if open.has_written && (desk.is_ending || desk.dice.chance(35)) {
            let commits = desk.dice.chance(65);
            open.commits = Some(commits);
            if commits {
                desk.ledger.commit_asked(open.txn);
            }
        } else if !desk.is_ending && open.has_written && open.offset == Offset::None && desk.dice.chance(25) {
            let offset = desk.ledger.new_offset(open.txn);
            let is_two = self.manner.is_two;
            open.offset = if is_two { Offset::Committing(offset) } else { Offset::Adding(offset) };
        } else {
            let part = desk.any_part();
            let sequence = self.sequences.get(&part).copied().unwrap_or(0);
            let stream = (self.index, 0);
            let count = 1 + desk.dice.below(RECORDS_MAX);
            let records: Vec<_> =
                (0..count).map(|_| desk.ledger.record(part, stream, Some(open.txn))).collect();
            let producer = Some((id, sequence));
            let batch = client::batch(&records, part, desk.unix_ms, producer, BatchKind::Transactional);
            open.next = Some((part, batch));
        }
    }

    fn ask(&mut self, desk: &mut Desk<'_>, step: Step) {
        let (producer_id, producer_epoch) = self.id.unwrap_or((-1, -1));
        let transactional_id = self.manner.name.clone();
        let is_two = self.manner.is_two;
        self.asked = Some(step);
        match (step, &self.open) {
            (Step::Begin, _) => {
                self.before = desk.ledger.txns();
                let request = InitProducerIdRequest {
                    transactional_id: Some(transactional_id),
                    transaction_timeout_ms: self.manner.timeout_ms,
                    ..InitProducerIdRequest::default()
                };
                desk.wire.ask(if is_two { 5 } else { 4 }, &request);
            }
            (Step::Look(_), _) => {
                let topic =
                    OffsetFetchRequestTopic { name: desk.name(OFFSET_PART), partition_indexes: vec![0] };
                let request = OffsetFetchRequest {
                    group_id: self.group(),
                    topics: Some(vec![topic]),
                    require_stable: true,
                    ..OffsetFetchRequest::default()
                };
                desk.wire.ask(7, &request);
            }
            (Step::Add, Some(Open { next: Some((part, _)), .. })) => {
                let topic = AddPartitionsToTxnTopic { name: desk.name(*part), partitions: vec![part.index] };
                let request = AddPartitionsToTxnRequest {
                    v3_and_below_transactional_id: transactional_id,
                    v3_and_below_producer_id: producer_id,
                    v3_and_below_producer_epoch: producer_epoch,
                    v3_and_below_topics: vec![topic],
                    ..AddPartitionsToTxnRequest::default()
                };
                desk.wire.ask(3, &request);
            }
            (Step::Produce, Some(Open { next: Some(next), .. })) => {
                let request = produce(desk, Some(transactional_id), -1, std::slice::from_ref(next));
                desk.wire.ask(if is_two { 12 } else { 11 }, &request);
            }
            (Step::AddOffsets, _) => {
                let group_id = self.group();
                let request =
                    AddOffsetsToTxnRequest { transactional_id, producer_id, producer_epoch, group_id };
                desk.wire.ask(if is_two { 4 } else { 3 }, &request);
            }
            (Step::CommitOffset, Some(Open { offset: Offset::Committing(offset), .. })) => {
                let partition = TxnOffsetCommitRequestPartition {
                    partition_index: 0,
                    committed_offset: offset.cast_signed(),
                    ..TxnOffsetCommitRequestPartition::default()
                };
                let name = desk.name(OFFSET_PART);
                let request = TxnOffsetCommitRequest {
                    transactional_id,
                    group_id: self.group(),
                    producer_id,
                    producer_epoch,
                    topics: vec![TxnOffsetCommitRequestTopic { name, partitions: vec![partition] }],
                    ..TxnOffsetCommitRequest::default()
                };
                desk.wire.ask(if is_two { 5 } else { 3 }, &request);
            }
            (Step::End, Some(Open { commits: Some(committed), .. })) => {
                let committed = *committed;
                let request = EndTxnRequest { transactional_id, producer_id, producer_epoch, committed };
                desk.wire.ask(if is_two { 5 } else { 3 }, &request);
            }
            _ => self.asked = None,
        }
    }

    /// Something went wrong: the same is tried again, or the producer has to begin anew.
    fn refused(&mut self, desk: &mut Desk<'_>, step: Step, code: i16) -> Result<(), Violation> {
        if code == ErrorCode::ConcurrentTransactions.code() || (desk.is_troubled && is_storage(code)) {
            return Ok(());
        }
        if step == Step::Produce
            && code == ErrorCode::OutOfOrderSequenceNumber.code()
            && self.may_be_unknown(desk)
        {
            return self.give_up(desk.ledger);
        }
        if self.manner.is_alone {
            let name = &self.manner.name;
            return Err(Violation(format!(
                "{name}, which is alone, is answered with {} at {step:?}",
                named(code)
            )));
        }
        if !FENCED.map(ErrorCode::code).contains(&code) {
            return desk.unexpected(&format!("{step:?}"), code);
        }
        self.give_up(desk.ledger)
    }

    /// Whether a partition may know nothing of what this transaction has written to it: with records that were
    /// deleted, a loss of power takes what was known of who had sent them.
    fn may_be_unknown(&self, desk: &Desk<'_>) -> bool {
        let next = self.open.as_ref().and_then(|open| open.next.as_ref());
        desk.has_lost_power && next.is_some_and(|(part, _)| desk.ledger.deletable(*part) > 0)
    }

    /// Forgets its transaction, which its next beginning ends.
    fn give_up(&mut self, ledger: &mut Ledger) -> Result<(), Violation> {
        self.id = None;
        self.must_begin_anew = true;
        self.sequences.clear();
        match self.open.take() {
            Some(open) if open.commits == Some(true) => ledger.ended(open.txn, Fate::Unknown),
            Some(open) => ledger.ended(open.txn, Fate::Aborted),
            None => Ok(()),
        }
    }

    fn has_begun(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<InitProducerIdRequest>()?;
        if answer.error_code != 0 {
            return self.refused(desk, Step::Begin, answer.error_code);
        }
        self.must_begin_anew = false;
        desk.ledger.fence(&self.manner.name, self.before);
        self.given_id(desk, (answer.producer_id, answer.producer_epoch))
    }

    fn given_id(&mut self, desk: &mut Desk<'_>, (id, epoch): ProducerId) -> Result<(), Violation> {
        self.id = Some((id, epoch));
        desk.ledger.given_id(id, &self.manner.name)?;
        // What others were given may be heard of in any order.
        if self.manner.is_alone { desk.ledger.given_epoch(id, epoch) } else { Ok(()) }
    }

    fn has_produced(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let answers = produced(desk, response)?;
        let Some((_, answer)) = answers.first() else {
            return Err(Violation("no answer to a batch".to_owned()));
        };
        if answer.error_code != 0 {
            return self.refused(desk, Step::Produce, answer.error_code);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Some((part, batch)) = open.next.take() {
            open.has_written = true;
            let count = i32::try_from(batch.records.len()).unwrap_or(0);
            self.sequences.insert(part, batch.sequence + count);
            desk.ledger.acked(&batch.records, answer.base_offset.cast_unsigned())?;
        }
        Ok(())
    }

    fn has_ended(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<EndTxnRequest>()?;
        if answer.error_code != 0 {
            return self.refused(desk, Step::End, answer.error_code);
        }
        if self.manner.is_two {
            self.sequences.clear();
            self.given_id(desk, (answer.producer_id, answer.producer_epoch))?;
        }
        let Some(open) = self.open.take() else { return Ok(()) };
        let fate = if open.commits == Some(true) { Fate::Committed } else { Fate::Aborted };
        desk.ledger.ended(open.txn, fate)
    }

    fn has_looked(&mut self, desk: &mut Desk<'_>, floor: u64, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<OffsetFetchRequest>()?;
        let mut all = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let Some(found) = all.next() else { return Err(Violation("no committed offset".to_owned())) };
        let code = if answer.error_code == 0 { found.error_code } else { answer.error_code };
        if code == ErrorCode::UnstableOffsetCommit.code() {
            return Ok(());
        }
        if code != 0 {
            return desk.unexpected("OffsetFetch", code);
        }
        desk.ledger.found_offset(&self.manner.name, floor, found.committed_offset)
    }
}

impl Client for Transactor {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.asked.is_none()
            && let Some(step) = self.next(desk)
        {
            self.ask(desk, step);
        }
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let Some(step) = self.asked.take() else {
            return Err(Violation("an answer that no producer waits for".to_owned()));
        };
        let code = match step {
            Step::Begin => return self.has_begun(desk, response),
            Step::Produce => return self.has_produced(desk, response),
            Step::End => return self.has_ended(desk, response),
            Step::Look(floor) => return self.has_looked(desk, floor, response),
            Step::Add => {
                let topics = response.read::<AddPartitionsToTxnRequest>()?.results_by_topic_v3_and_below;
                let first = topics.iter().flat_map(|topic| &topic.results_by_partition).next();
                first.map_or(-1, |partition| partition.partition_error_code)
            }
            Step::AddOffsets => response.read::<AddOffsetsToTxnRequest>()?.error_code,
            Step::CommitOffset => {
                let topics = response.read::<TxnOffsetCommitRequest>()?.topics;
                topics.iter().flat_map(|topic| &topic.partitions).next().map_or(-1, |first| first.error_code)
            }
        };
        if code != 0 {
            return self.refused(desk, step, code);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        match (step, open.offset) {
            (Step::Add, _) => open.added.extend(open.next.as_ref().map(|(part, _)| *part)),
            (Step::AddOffsets, Offset::Adding(offset)) => open.offset = Offset::Committing(offset),
            _ => open.offset = Offset::Done,
        }
        Ok(())
    }

    fn lost(&mut self, ledger: &mut Ledger) -> Result<(), Violation> {
        let begins = self.asked.take() == Some(Step::Begin);
        self.must_begin_anew |= begins;
        // Some are lost with their connection, or like to begin anew.
        let index = self.index as u64;
        if self.id.is_some() && (ledger.tick() + index).is_multiple_of(4) {
            return self.give_up(ledger);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_none() && self.open.is_none() && !self.must_begin_anew
    }

    /// From version 2 on each transaction has an epoch of its own. Before, an old request to end one might end the
    /// next; and an old beginning may fence whoever sent it.
    fn is_careful(&self) -> bool {
        !self.manner.is_two || self.id.is_none()
    }
}
