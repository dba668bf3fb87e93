//! `AddPartitionsToTxn`, versions 0 to 5: partitions will be part of a transaction. From version 4 on for several
//! transactions at once, or only to learn whether they are in it (KIP-890). Runs on the controller.

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
    let known: Vec<_> = wanted.iter().map(|wanted| at_once(shard, io, &call, wanted)).collect();
    let asked = wanted.iter().zip(&known).enumerate().filter(|(_, (_, known))| known.is_none());
    let asked: Vec<_> =
        asked.map(|(part, (wanted, _))| (part, wanted.transactional_id.clone(), add(wanted))).collect();
    let (version, outcomes) = (call.version, vec![Ok(()); wanted.len()]);
    let job = shard.begin_changes(io, outcomes, asked.len(), move |shard, io, outcomes| {
        let told = wanted.iter().zip(known).zip(outcomes).map(|((wanted, known), outcome)| {
            let code = outcome.err().map_or(0, |refused| refused.code as i16);
            known.unwrap_or_else(|| result(wanted, |_| code))
        });
        let results = told.collect();
        answer(shard, io, &call, results);
    });
    for (part, id, add) in asked {
        shard.ask_transactions(
            io,
            |machine, now_ms, caller| machine.handle(now_ms, &id, add, caller),
            move |shard, io, answer| {
                let code = ErrorCode::from_code(code(version, answer.map(drop)));
                let code = code.unwrap_or(ErrorCode::UnknownServerError);
                let outcome = if code == ErrorCode::None { Ok(()) } else { Err(code.into()) };
                shard.change_done(io, job, part, outcome);
            },
        );
    }
}

/// What is answered without asking the coordinator to change anything.
fn at_once(
    shard: &mut Shard,
    io: &Io<'_, Mail>,
    call: &Call,
    wanted: &AddPartitionsToTxnTransaction,
) -> Option<AddPartitionsToTxnResult> {
    let refused = unknown(shard, wanted);
    if refused.is_some() || !wanted.verify_only {
        return refused;
    }
    let producer = Producer { id: wanted.producer_id, epoch: wanted.producer_epoch };
    let verify = |participant: Participant| {
        let verified = shard.look_at_transactions(io, |machine, _| {
            machine.verify(&wanted.transactional_id, producer, &participant)
        });
        code(call.version, verified.unwrap_or(Err(Error::CoordinatorNotAvailable)))
    };
    Some(result(wanted, verify))
}

fn add(wanted: &AddPartitionsToTxnTransaction) -> Request {
    let producer = Producer { id: wanted.producer_id, epoch: wanted.producer_epoch };
    Request::Add { producer, participants: wanted.topics.iter().flat_map(participants).collect() }
}

fn participants(topic: &AddPartitionsToTxnTopic) -> impl Iterator<Item = Participant> {
    let name: std::sync::Arc<str> = topic.name.as_str().into();
    topic.partitions.iter().map(move |index| Participant::Partition { topic: name.clone(), index: *index })
}

fn code(version: i16, outcome: Result<(), Error>) -> i16 {
    outcome.err().map_or(0, |error| error_code(error, version >= PRODUCER_FENCED))
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
