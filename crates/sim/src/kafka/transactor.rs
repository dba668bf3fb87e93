//! Transactional producers, in both versions: partitions are added by requests of their own, or by Produce (KIP-890).
//! They commit and abort, vanish in between, and fence others with the same transactional id.

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

use super::client::{self, Batch, Client, Context, ProducerId, is_storage, named};
use super::connection::Response;
use super::oracle::{Oracle, PartitionId, TxnId, TxnOutcome};
use super::producer::{produce, produced};
use crate::Violation;

/// Partition whose offsets are committed.
const OFFSET_PART: PartitionId = PartitionId { topic: 0, index: 0 };
const RECORDS_MAX: u64 = 4;

/// Errors of a producer whose transaction is over.
const FENCED: [ErrorCode; 6] = [
    ErrorCode::InvalidProducerEpoch,
    ErrorCode::ProducerFenced,
    ErrorCode::InvalidProducerIdMapping,
    ErrorCode::InvalidTxnState,
    ErrorCode::OutOfOrderSequenceNumber,
    ErrorCode::TransactionAbortable,
];

/// Behavior of a transactional producer.
#[derive(Clone, Debug)]
pub(crate) struct TransactorProfile {
    /// Transactional id.
    pub(crate) name: String,
    /// It uses transaction version 2.
    pub(crate) is_v2: bool,
    /// Nobody else has its transactional id, and its transactions do not time out.
    pub(crate) is_exclusive: bool,
    pub(crate) timeout_ms: i32,
}

#[derive(Debug)]
pub(crate) struct Transactor {
    /// Number among all producers.
    index: usize,
    profile: TransactorProfile,
    id: Option<ProducerId>,
    /// It may have left a transaction that only its next `InitProducerId` ends.
    must_initialize: bool,
    sequences: BTreeMap<PartitionId, i32>,
    open: Option<Open>,
    asked: Option<Step>,
    /// Number of transactions when it last sent `InitProducerId`.
    before: TxnId,
}

/// A transaction in progress.
#[derive(Debug)]
struct Open {
    txn: TxnId,
    added: BTreeSet<PartitionId>,
    /// The batch to write next.
    next: Option<(PartitionId, Batch)>,
    has_written: bool,
    offset: Offset,
    /// Whether it is to be committed or aborted, once decided.
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
    /// Fetches the committed offset, which was at least this.
    FetchOffset(u64),
}

impl Transactor {
    pub(crate) fn new(index: usize, profile: TransactorProfile) -> Self {
        Self {
            index,
            profile,
            id: None,
            must_initialize: false,
            sequences: BTreeMap::new(),
            open: None,
            asked: None,
            before: 0,
        }
    }

    fn group(&self) -> String {
        format!("group of {}", self.profile.name)
    }

    /// Returns the next request to send.
    fn next(&mut self, context: &mut Context<'_>) -> Option<Step> {
        if self.id.is_none() {
            return (!context.is_ending || self.must_initialize).then_some(Step::Begin);
        }
        if self.open.is_none() {
            if context.is_ending {
                return None;
            }
            if context.rng.chance(20) {
                return Some(Step::FetchOffset(context.oracle.offset_floor(&self.profile.name)));
            }
            self.begin(context);
        }
        let open = self.open.as_ref()?;
        if open.next.is_none() && open.commits.is_none() && matches!(open.offset, Offset::None | Offset::Done)
        {
            self.decide(context);
        }
        let open = self.open.as_ref()?;
        match (&open.next, open.offset) {
            (Some((part, _)), _) if !self.profile.is_v2 && !open.added.contains(part) => Some(Step::Add),
            (Some(_), _) => Some(Step::Produce),
            (None, Offset::Adding(_)) => Some(Step::AddOffsets),
            (None, Offset::Committing(_)) => Some(Step::CommitOffset),
            (None, Offset::None | Offset::Done) => open.commits.map(|_| Step::End),
        }
    }

    fn begin(&mut self, context: &mut Context<'_>) {
        self.open = Some(Open {
            txn: context.oracle.begin_txn(&self.profile.name),
            added: BTreeSet::new(),
            next: None,
            has_written: false,
            offset: Offset::None,
            commits: None,
        });
    }

    /// Decides how the transaction goes on.
    fn decide(&mut self, context: &mut Context<'_>) {
        let (Some(open), Some(id)) = (&mut self.open, self.id) else { return };
        if open.has_written && (context.is_ending || context.rng.chance(35)) {
            let commits = context.rng.chance(65);
            open.commits = Some(commits);
            if commits {
                context.oracle.txn_commit_sent(open.txn);
            }
        } else if !context.is_ending
            && open.has_written
            && open.offset == Offset::None
            && context.rng.chance(25)
        {
            let offset = context.oracle.new_offset(open.txn);
            let is_v2 = self.profile.is_v2;
            open.offset = if is_v2 { Offset::Committing(offset) } else { Offset::Adding(offset) };
        } else {
            let part = context.any_partition();
            let sequence = self.sequences.get(&part).copied().unwrap_or(0);
            let stream = (self.index, 0);
            let count = 1 + context.rng.below(RECORDS_MAX);
            let records: Vec<_> =
                (0..count).map(|_| context.oracle.record(part, stream, Some(open.txn))).collect();
            let producer = Some((id, sequence));
            let batch = client::batch(&records, part, context.unix_ms, producer, BatchKind::Transactional);
            open.next = Some((part, batch));
        }
    }

    fn ask(&mut self, context: &mut Context<'_>, step: Step) {
        let (producer_id, producer_epoch) = self.id.unwrap_or((-1, -1));
        let transactional_id = self.profile.name.clone();
        let is_v2 = self.profile.is_v2;
        self.asked = Some(step);
        match (step, &self.open) {
            (Step::Begin, _) => {
                self.before = context.oracle.txns();
                let request = InitProducerIdRequest {
                    transactional_id: Some(transactional_id),
                    transaction_timeout_ms: self.profile.timeout_ms,
                    ..InitProducerIdRequest::default()
                };
                context.connection.send(if is_v2 { 5 } else { 4 }, &request);
            }
            (Step::FetchOffset(_), _) => {
                self.fetch_offset(context);
            }
            (Step::Add, Some(Open { next: Some((part, _)), .. })) => {
                let topic =
                    AddPartitionsToTxnTopic { name: context.name(*part), partitions: vec![part.index] };
                let request = AddPartitionsToTxnRequest {
                    v3_and_below_transactional_id: transactional_id,
                    v3_and_below_producer_id: producer_id,
                    v3_and_below_producer_epoch: producer_epoch,
                    v3_and_below_topics: vec![topic],
                    ..AddPartitionsToTxnRequest::default()
                };
                context.connection.send(3, &request);
            }
            (Step::Produce, Some(Open { next: Some(next), .. })) => {
                let request = produce(context, Some(transactional_id), -1, std::slice::from_ref(next));
                context.connection.send(if is_v2 { 12 } else { 11 }, &request);
            }
            (Step::AddOffsets, _) => {
                let group_id = self.group();
                let request =
                    AddOffsetsToTxnRequest { transactional_id, producer_id, producer_epoch, group_id };
                context.connection.send(if is_v2 { 4 } else { 3 }, &request);
            }
            (Step::CommitOffset, Some(Open { offset: Offset::Committing(offset), .. })) => {
                let partition = TxnOffsetCommitRequestPartition {
                    partition_index: 0,
                    committed_offset: offset.cast_signed(),
                    ..TxnOffsetCommitRequestPartition::default()
                };
                let name = context.name(OFFSET_PART);
                let request = TxnOffsetCommitRequest {
                    transactional_id,
                    group_id: self.group(),
                    producer_id,
                    producer_epoch,
                    topics: vec![TxnOffsetCommitRequestTopic { name, partitions: vec![partition] }],
                    ..TxnOffsetCommitRequest::default()
                };
                context.connection.send(if is_v2 { 5 } else { 3 }, &request);
            }
            (Step::End, Some(Open { commits: Some(committed), .. })) => {
                let committed = *committed;
                let request = EndTxnRequest { transactional_id, producer_id, producer_epoch, committed };
                context.connection.send(if is_v2 { 5 } else { 3 }, &request);
            }
            _ => self.asked = None,
        }
    }

    /// Fetches the committed offset of the group, once no transaction is open on it.
    fn fetch_offset(&self, context: &mut Context<'_>) {
        let topic = OffsetFetchRequestTopic { name: context.name(OFFSET_PART), partition_indexes: vec![0] };
        let request = OffsetFetchRequest {
            group_id: self.group(),
            topics: Some(vec![topic]),
            require_stable: true,
            ..OffsetFetchRequest::default()
        };
        context.connection.send(7, &request);
    }

    /// Handles an error: the request is repeated, or the producer initializes again.
    fn refused(&mut self, context: &mut Context<'_>, step: Step, code: i16) -> Result<(), Violation> {
        if code == ErrorCode::ConcurrentTransactions.code() || (context.is_troubled && is_storage(code)) {
            return Ok(());
        }
        if step == Step::Produce
            && code == ErrorCode::OutOfOrderSequenceNumber.code()
            && self.may_be_unknown(context)
        {
            return self.give_up(context.oracle);
        }
        if self.profile.is_exclusive {
            let name = &self.profile.name;
            return Err(Violation(format!(
                "{name}, which is alone, is answered with {} at {step:?}",
                named(code)
            )));
        }
        if !FENCED.map(ErrorCode::code).contains(&code) {
            return context.unexpected(&format!("{step:?}"), code);
        }
        self.give_up(context.oracle)
    }

    /// Whether a partition may have lost its state of this transaction: a loss of power after records were deleted
    /// loses the state of their producers.
    fn may_be_unknown(&self, context: &Context<'_>) -> bool {
        let next = self.open.as_ref().and_then(|open| open.next.as_ref());
        context.has_lost_power && next.is_some_and(|(part, _)| context.oracle.deletable(*part) > 0)
    }

    /// Abandons the transaction, which the next `InitProducerId` ends.
    fn give_up(&mut self, oracle: &mut Oracle) -> Result<(), Violation> {
        self.id = None;
        self.must_initialize = true;
        self.sequences.clear();
        match self.open.take() {
            Some(open) if open.commits == Some(true) => oracle.ended(open.txn, TxnOutcome::Unknown),
            Some(open) => oracle.ended(open.txn, TxnOutcome::Aborted),
            None => Ok(()),
        }
    }

    fn has_begun(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<InitProducerIdRequest>()?;
        if answer.error_code != 0 {
            return self.refused(context, Step::Begin, answer.error_code);
        }
        self.must_initialize = false;
        context.oracle.fence(&self.profile.name, self.before);
        self.assigned_id(context, (answer.producer_id, answer.producer_epoch))
    }

    fn assigned_id(&mut self, context: &mut Context<'_>, (id, epoch): ProducerId) -> Result<(), Violation> {
        self.id = Some((id, epoch));
        context.oracle.assigned_id(id, &self.profile.name)?;
        // With several owners of an id, responses arrive in any order.
        if self.profile.is_exclusive { context.oracle.assigned_epoch(id, epoch) } else { Ok(()) }
    }

    fn has_produced(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let answers = produced(context, response)?;
        let Some((_, answer)) = answers.first() else {
            return Err(Violation("no answer to a batch".to_owned()));
        };
        if answer.error_code != 0 {
            return self.refused(context, Step::Produce, answer.error_code);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Some((part, batch)) = open.next.take() {
            open.has_written = true;
            let count = i32::try_from(batch.records.len()).unwrap_or(0);
            self.sequences.insert(part, batch.sequence + count);
            context.oracle.acked(&batch.records, answer.base_offset.cast_unsigned())?;
        }
        Ok(())
    }

    fn has_ended(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<EndTxnRequest>()?;
        if answer.error_code != 0 {
            return self.refused(context, Step::End, answer.error_code);
        }
        if self.profile.is_v2 {
            self.sequences.clear();
            self.assigned_id(context, (answer.producer_id, answer.producer_epoch))?;
        }
        let Some(open) = self.open.take() else { return Ok(()) };
        let outcome = if open.commits == Some(true) { TxnOutcome::Committed } else { TxnOutcome::Aborted };
        context.oracle.ended(open.txn, outcome)
    }

    fn has_looked(
        &mut self,
        context: &mut Context<'_>,
        floor: u64,
        response: &Response,
    ) -> Result<(), Violation> {
        let answer = response.read::<OffsetFetchRequest>()?;
        // A response that reports an error for the whole group lists no partitions.
        let found = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        let code = found.map_or(answer.error_code, |found| found.error_code.max(answer.error_code));
        if code == ErrorCode::UnstableOffsetCommit.code() {
            return Ok(());
        }
        if code != 0 {
            return context.unexpected("OffsetFetch", code);
        }
        let Some(found) = found else { return Err(Violation("no committed offset".to_owned())) };
        context.oracle.fetched_offset(&self.profile.name, floor, found.committed_offset)
    }
}

impl Client for Transactor {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.asked.is_none()
            && let Some(step) = self.next(context)
        {
            self.ask(context, step);
        }
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let Some(step) = self.asked.take() else {
            return Err(Violation("an answer that no producer waits for".to_owned()));
        };
        let code = match step {
            Step::Begin => return self.has_begun(context, response),
            Step::Produce => return self.has_produced(context, response),
            Step::End => return self.has_ended(context, response),
            Step::FetchOffset(floor) => return self.has_looked(context, floor, response),
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
            return self.refused(context, step, code);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        match (step, open.offset) {
            (Step::Add, _) => open.added.extend(open.next.as_ref().map(|(part, _)| *part)),
            (Step::AddOffsets, Offset::Adding(offset)) => open.offset = Offset::Committing(offset),
            _ => open.offset = Offset::Done,
        }
        Ok(())
    }

    fn connection_lost(&mut self, oracle: &mut Oracle) -> Result<(), Violation> {
        let begins = self.asked.take() == Some(Step::Begin);
        self.must_initialize |= begins;
        // Some have lost the response, and some initialize again.
        let index = self.index as u64;
        if self.id.is_some() && (oracle.tick() + index).is_multiple_of(4) {
            return self.give_up(oracle);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_none() && self.open.is_none() && !self.must_initialize
    }

    /// From version 2 on, each transaction has its own epoch. Before that, a late `EndTxn` could end the next
    /// transaction, and a late `InitProducerId` could fence its own sender.
    fn waits_for_broker(&self) -> bool {
        !self.profile.is_v2 || self.id.is_none()
    }
}
