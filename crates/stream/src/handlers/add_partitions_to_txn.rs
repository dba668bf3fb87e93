//! `AddPartitionsToTxn`, versions 0 to 5: partitions will be part of a transaction. From version 4 on for several
//! transactions at once, or only to learn whether they are in it (KIP-890). Runs on the controller.

use std::collections::VecDeque;

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult, AddPartitionsToTxnTopic, AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::transactions::error_code;

/// From here on clients know that they can be fenced (KIP-588).
const PRODUCER_FENCED: i16 = 2;
/// From here on there can be several.
const BATCHED: i16 = 4;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    request: AddPartitionsToTxnRequest,
) {
    let wanted = if call.version >= BATCHED {
        request.transactions.into()
    } else {
        VecDeque::from([AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            verify_only: false,
            topics: request.v3_and_below_topics,
        }])
    };
    go_on(shard, io, call, wanted, Vec::new());
}

/// Adds to one transaction after the other, then answers.
fn go_on(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    mut wanted: VecDeque<AddPartitionsToTxnTransaction>,
    mut results: Vec<AddPartitionsToTxnResult>,
) {
    let Some(next) = wanted.pop_front() else { return answer(shard, io, &call, results) };
    if let Some(refused) = unknown(shard, &next) {
        results.push(refused);
        return go_on(shard, io, call, wanted, results);
    }
    let producer = Producer { id: next.producer_id, epoch: next.producer_epoch };
    if next.verify_only {
        let verify = |participant: Participant| {
            let verified = shard.look_at_transactions(io, |machine, _| {
                machine.verify(&next.transactional_id, producer, &participant)
            });
            code(&call, verified.unwrap_or(Err(Error::CoordinatorNotAvailable)))
        };
        results.push(result(&next, verify));
        return go_on(shard, io, call, wanted, results);
    }
    let participants = next.topics.iter().flat_map(participants).collect();
    let add = Request::Add { producer, participants };
    let id = next.transactional_id.clone();
    shard.ask_transactions(
        io,
        |machine, now_ms, caller| machine.handle(now_ms, &id, add, caller),
        move |shard, io, answer| {
            let code = code(&call, answer.map(|_| ()));
            results.push(result(&next, |_| code));
            go_on(shard, io, call, wanted, results);
        },
    );
}

fn participants(topic: &AddPartitionsToTxnTopic) -> impl Iterator<Item = Participant> {
    let name: std::sync::Arc<str> = topic.name.as_str().into();
    topic.partitions.iter().map(move |index| Participant::Partition { topic: name.clone(), index: *index })
}

fn code(call: &Call, outcome: Result<(), Error>) -> i16 {
    outcome.err().map_or(0, |error| error_code(error, call.version >= PRODUCER_FENCED))
}

fn result(
    wanted: &AddPartitionsToTxnTransaction,
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
        transactional_id: wanted.transactional_id.clone(),
        topic_results: wanted.topics.iter().map(topic).collect(),
    }
}

/// What is answered if not all partitions exist: then none is added.
fn unknown(shard: &Shard, wanted: &AddPartitionsToTxnTransaction) -> Option<AddPartitionsToTxnResult> {
    let exists = |participant: &Participant| match participant {
        Participant::Partition { topic, index } => {
            shard.catalogue.topic(topic).is_some_and(|known| (0..known.partitions()).contains(index))
        }
        Participant::Group(_) => true,
    };
    if wanted.topics.iter().flat_map(participants).all(|participant| exists(&participant)) {
        return None;
    }
    Some(result(wanted, |participant| {
        if exists(&participant) {
            ErrorCode::OperationNotAttempted as i16
        } else {
            ErrorCode::UnknownTopicOrPartition as i16
        }
    }))
}

fn answer(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &Call, mut results: Vec<AddPartitionsToTxnResult>) {
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
