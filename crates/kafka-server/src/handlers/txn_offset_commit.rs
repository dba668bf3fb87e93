//! `TxnOffsetCommit`, versions 0 to 5: commits offsets of a group as part of a transaction. Since version 5 this also
//! adds the group to the transaction (KIP-890).

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    OffsetToCommit, PartitionResult, Response, TopicRequest, TopicResult, TxnOffsetCommit,
};
use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::api::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::{AfterGroupReply, AfterTxnReply};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// First version whose clients understand `TRANSACTION_ABORTABLE` (KIP-890).
const TRANSACTION_ABORTABLE: i16 = 4;
/// First version that adds the group to the transaction (KIP-890).
const ADDS_GROUP: i16 = 5;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: TxnOffsetCommitRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let checked = call.check_transactional_id(Action::Produce, &request.transactional_id);
    if let Err(code) = checked.and_then(|()| call.check_group(Action::Group, &request.group_id)) {
        return refuse_all(shard, io, &call, &request, code as i16);
    }
    let producer = Producer { id: request.producer_id, epoch: request.producer_epoch };
    let group = Participant::Group(request.group_id.as_str().into());
    if call.version < ADDS_GROUP {
        let verified = shard
            .with_transactions(io, |machine, _| machine.verify(&request.transactional_id, producer, &group))
            .unwrap_or(Err(Error::CoordinatorNotAvailable));
        return match verified {
            Ok(()) => commit(shard, io, call, &request),
            Err(error) => refuse(shard, io, &call, &request, error),
        };
    }
    let add = Request::Add { producer, participants: vec![group] };
    let id = request.transactional_id.clone();
    shard.call_transactions(
        io,
        |machine, now_ms, caller| machine.handle(now_ms, &id, add, caller),
        AfterTxnReply::TxnOffsetCommit { call, request: Box::new(request) },
    );
}

/// Commits the offsets if the group has been added to the transaction.
pub(crate) fn on_group_added(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: &TxnOffsetCommitRequest,
    answer: Result<Producer, Error>,
) {
    match answer {
        Ok(_) => commit(shard, io, call, request),
        Err(error) => refuse(shard, io, &call, request, error),
    }
}

fn commit(shard: &mut Shard, io: &mut Io<'_, Mail>, call: RequestContext, request: &TxnOffsetCommitRequest) {
    let topics = request.topics.iter().map(|topic| {
        // Nothing is committed for topics that the sender may not read.
        let is_allowed = call.may_topic(Action::Consume, &topic.name);
        let known = shard.env.catalogue().topic(&topic.name).filter(|_| is_allowed);
        let count = known.map_or(0, |known| known.partitions());
        TopicRequest {
            name: &topic.name,
            id: [0; 16],
            partitions: topic.partitions.iter().map(|wanted| to_commit(wanted, count)).collect(),
        }
    });
    let commit = TxnOffsetCommit {
        group_id: &request.group_id,
        producer_id: request.producer_id,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        generation: request.generation_id,
        topics: topics.collect(),
    };
    shard.call_groups(
        io,
        |groups, now_ms, caller| groups.handle_txn_offset_commit(now_ms, &commit, caller),
        AfterGroupReply::TxnOffsetCommit(call),
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::Commit(topics) = answer {
        let topics = topics.into_iter().map(|topic| topic_response(call, topic)).collect();
        let response = TxnOffsetCommitResponse { topics, ..TxnOffsetCommitResponse::default() };
        shard.reply::<TxnOffsetCommitRequest>(io, call, &response);
    }
}

fn to_commit(wanted: &TxnOffsetCommitRequestPartition, count: i32) -> OffsetToCommit<'_> {
    OffsetToCommit {
        partition: wanted.partition_index,
        refused: (!(0..count).contains(&wanted.partition_index)).then_some(Error::UnknownTopicOrPartition),
        offset: wanted.committed_offset,
        leader_epoch: wanted.committed_leader_epoch,
        metadata: wanted.committed_metadata.as_deref().unwrap_or_default(),
    }
}

fn topic_response(
    call: &RequestContext,
    topic: TopicResult<PartitionResult>,
) -> TxnOffsetCommitResponseTopic {
    let denied = call.check_topic(Action::Consume, &topic.name).err();
    let partition = |done: PartitionResult| TxnOffsetCommitResponsePartition {
        partition_index: done.partition,
        error_code: match (done.outcome, denied) {
            (Ok(()), _) => 0,
            (Err(Error::UnknownTopicOrPartition), Some(code)) => code as i16,
            (Err(error), _) => error.code(),
        },
    };
    TxnOffsetCommitResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
    }
}

fn refuse(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &TxnOffsetCommitRequest,
    error: Error,
) {
    let error = match error {
        Error::ProducerFenced => Error::InvalidProducerEpoch,
        Error::TransactionAbortable if call.version < TRANSACTION_ABORTABLE => Error::InvalidTxnState,
        Error::ConcurrentTransactions if call.version < ADDS_GROUP => Error::CoordinatorNotAvailable,
        other => other,
    };
    refuse_all(shard, io, call, request, error.code());
}

fn refuse_all(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: &TxnOffsetCommitRequest,
    error_code: i16,
) {
    let topic = |topic: &TxnOffsetCommitRequestTopic| TxnOffsetCommitResponseTopic {
        name: topic.name.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|wanted| TxnOffsetCommitResponsePartition {
                partition_index: wanted.partition_index,
                error_code,
            })
            .collect(),
    };
    let topics = request.topics.iter().map(topic).collect();
    let response = TxnOffsetCommitResponse { topics, ..TxnOffsetCommitResponse::default() };
    shard.reply::<TxnOffsetCommitRequest>(io, call, &response);
}
