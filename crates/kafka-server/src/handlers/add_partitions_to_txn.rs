//! `AddPartitionsToTxn`, versions 0 to 5: adds partitions to a transaction. Since version 4 a request has several
//! transactions, and can ask whether partitions have been added without adding them (KIP-890).

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult, AddPartitionsToTxnTopic, AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::append_error::AppendError;
use crate::environment::Environment;
use crate::pending::{AfterChanges, AfterTxnReply};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::transactions::error_code;

/// First version whose clients understand `PRODUCER_FENCED` (KIP-588).
const PRODUCER_FENCED: i16 = 2;
/// First version with several transactions in one request.
const BATCHED: i16 = 4;
/// Most transactions, topics and partitions of such a request, which only brokers send.
const BATCHED_ITEMS_MAX: usize = 50_000;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AddPartitionsToTxnRequest,
) {
    if call.version >= BATCHED
        && let Err(code) = call.check_cluster(Action::ClusterAction)
    {
        let response =
            AddPartitionsToTxnResponse { error_code: code as i16, ..AddPartitionsToTxnResponse::default() };
        return shard.reply::<AddPartitionsToTxnRequest>(io, &call, &response);
    }
    let Some(request) = shard.divide(io, &call, request) else { return };
    if has_more_partitions(&request.transactions) {
        let error_code = ErrorCode::PolicyViolation as i16;
        let response = AddPartitionsToTxnResponse { error_code, ..AddPartitionsToTxnResponse::default() };
        io.discard(Box::new(request));
        return shard.reply::<AddPartitionsToTxnRequest>(io, &call, &response);
    }
    let transactions = if call.version >= BATCHED {
        request.transactions
    } else {
        vec![AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            verify_only: false,
            topics: request.v3_and_below_topics,
        }]
    };
    let immediate: Vec<_> =
        transactions.iter().map(|transaction| immediate_result(shard, io, &call, transaction)).collect();
    let to_add =
        transactions.iter().zip(&immediate).enumerate().filter(|(_, (_, immediate))| immediate.is_none());
    let to_add: Vec<_> = to_add
        .map(|(part, (transaction, _))| {
            (part, transaction.transactional_id.clone(), add_request(transaction))
        })
        .collect();
    let (version, outcomes) = (call.version, vec![Ok(()); transactions.len()]);
    let then = AfterChanges::AddPartitionsToTxn { call, transactions, immediate };
    let job = shard.begin_changes(io, outcomes, to_add.len(), then);
    for (part, id, request) in to_add {
        shard.call_transactions(
            io,
            |machine, now_ms, caller| machine.handle(now_ms, &id, request, caller),
            AfterTxnReply::AddPartitionsToTxn { job, part, version },
        );
    }
}

/// Whether the transactions of a request have too many topics and partitions together to be handled at once.
fn has_more_partitions(transactions: &[AddPartitionsToTxnTransaction]) -> bool {
    let topics = transactions.iter().flat_map(|transaction| &transaction.topics);
    let items = topics.map(|topic| 1 + topic.partitions.len());
    // Stops early, because there may be a million.
    let mut sum = transactions.len();
    items.into_iter().any(|count| {
        sum += count;
        sum > BATCHED_ITEMS_MAX
    })
}

/// Refuses a part of a request for more partitions than a transaction may have. None of them is added.
pub(crate) fn refuse_part(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: AddPartitionsToTxnRequest,
) {
    let part = AddPartitionsToTxnTransaction {
        topics: request.v3_and_below_topics,
        ..AddPartitionsToTxnTransaction::default()
    };
    answer(shard, io, call, vec![result(&part, |_| ErrorCode::PolicyViolation as i16)]);
}

/// The partitions of one transaction are added, or not.
pub(crate) fn on_added(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    (job, part, version): (u64, usize, i16),
    answer: Result<Producer, Error>,
) {
    let code = ErrorCode::from_code(code(version, answer.map(drop)));
    let code = code.unwrap_or(ErrorCode::UnknownServerError);
    let outcome = if code == ErrorCode::None { Ok(()) } else { Err(code.into()) };
    shard.change_done(io, job, part, outcome);
}

/// Answers when all transactions have their result.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    (transactions, immediate): (&[AddPartitionsToTxnTransaction], Vec<Option<AddPartitionsToTxnResult>>),
    outcomes: Vec<Result<(), AppendError>>,
) {
    let results =
        transactions.iter().zip(immediate).zip(outcomes).map(|((transaction, immediate), outcome)| {
            let code = outcome.err().map_or(0, |refused| refused.code as i16);
            immediate.unwrap_or_else(|| result(transaction, |_| code))
        });
    answer(shard, io, call, results.collect());
}

/// The result that needs no change: an error, or the answer of a verification. `None` if partitions must be added.
fn immediate_result(
    shard: &mut Shard,
    io: &Io<'_, Mail>,
    call: &RequestContext,
    transaction: &AddPartitionsToTxnTransaction,
) -> Option<AddPartitionsToTxnResult> {
    let refused = unauthorized_result(&shard.env, call, transaction)
        .or_else(|| missing_partition_result(shard, transaction));
    if refused.is_some() || !transaction.verify_only {
        return refused;
    }
    let producer = Producer { id: transaction.producer_id, epoch: transaction.producer_epoch };
    let verify = |participant: Participant| {
        let verified = shard.with_transactions(io, |machine, _| {
            machine.verify(&transaction.transactional_id, producer, &participant)
        });
        code(call.version, verified.unwrap_or(Err(Error::CoordinatorNotAvailable)))
    };
    Some(result(transaction, verify))
}

fn add_request(transaction: &AddPartitionsToTxnTransaction) -> Request {
    let producer = Producer { id: transaction.producer_id, epoch: transaction.producer_epoch };
    Request::Add { producer, participants: transaction.topics.iter().flat_map(participants).collect() }
}

fn participants(topic: &AddPartitionsToTxnTopic) -> impl Iterator<Item = Participant> {
    let name: std::sync::Arc<str> = topic.name.as_str().into();
    topic.partitions.iter().map(move |index| Participant::Partition { topic: name.clone(), index: *index })
}

fn code(version: i16, outcome: Result<(), Error>) -> i16 {
    outcome.err().map_or(0, |error| error_code(error, version >= PRODUCER_FENCED))
}

fn result(
    transaction: &AddPartitionsToTxnTransaction,
    mut code: impl FnMut(Participant) -> i16,
) -> AddPartitionsToTxnResult {
    let topic = |topic: &AddPartitionsToTxnTopic| AddPartitionsToTxnTopicResult {
        name: topic.name.clone(),
        results_by_partition: participants(topic)
            .zip(&topic.partitions)
            .map(|(participant, index)| AddPartitionsToTxnPartitionResult {
                partition_index: *index,
                partition_error_code: code(participant),
            })
            .collect(),
    };
    AddPartitionsToTxnResult {
        transactional_id: transaction.transactional_id.clone(),
        topic_results: transaction.topics.iter().map(topic).collect(),
    }
}

/// The result if the sender may not write to one of the topics. As in Kafka, nothing is added then.
fn unauthorized_result(
    env: &Environment,
    call: &RequestContext,
    transaction: &AddPartitionsToTxnTransaction,
) -> Option<AddPartitionsToTxnResult> {
    let has_audit_topic = transaction.topics.iter().any(|topic| env.is_audit_topic(&topic.name));
    if !has_audit_topic && (call.version >= BATCHED || call.is_unrestricted()) {
        return None;
    }
    if let Err(code) = call.check_transactional_id(Action::Produce, &transaction.transactional_id) {
        return Some(result(transaction, |_| code as i16));
    }
    let denied = |topic: &str| call.check_produce(env, topic).err();
    if !has_audit_topic && transaction.topics.iter().all(|topic| call.may_topic(Action::Produce, &topic.name))
    {
        return None;
    }
    Some(result(transaction, |participant| match participant {
        Participant::Partition { topic, .. } => {
            denied(&topic).unwrap_or(ErrorCode::OperationNotAttempted) as i16
        }
        Participant::Group(_) => ErrorCode::OperationNotAttempted as i16,
    }))
}

/// The result if a partition does not exist. No partition is added then.
fn missing_partition_result(
    shard: &Shard,
    transaction: &AddPartitionsToTxnTransaction,
) -> Option<AddPartitionsToTxnResult> {
    let count = |topic: &str| shard.env.catalogue().topic(topic).map_or(0, |known| known.partitions());
    let is_known = |topic: &AddPartitionsToTxnTopic| {
        let known = 0..count(&topic.name);
        topic.partitions.iter().all(|index| known.contains(index))
    };
    if transaction.topics.iter().all(is_known) {
        return None;
    }
    let exists = |participant: &Participant| match participant {
        Participant::Partition { topic, index } => (0..count(topic)).contains(index),
        Participant::Group(_) => true,
    };
    Some(result(transaction, |participant| {
        if exists(&participant) {
            ErrorCode::OperationNotAttempted as i16
        } else {
            ErrorCode::UnknownTopicOrPartition as i16
        }
    }))
}

fn answer(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    mut results: Vec<AddPartitionsToTxnResult>,
) {
    let response = if call.version >= BATCHED {
        AddPartitionsToTxnResponse {
            results_by_transaction: results,
            ..AddPartitionsToTxnResponse::default()
        }
    } else {
        let results_by_topic_v3_and_below = results.pop().map_or_else(Vec::new, |only| only.topic_results);
        AddPartitionsToTxnResponse { results_by_topic_v3_and_below, ..AddPartitionsToTxnResponse::default() }
    };
    shard.reply::<AddPartitionsToTxnRequest>(io, call, &response);
}
