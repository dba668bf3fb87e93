//! `DescribeTransactions`, version 0: returns the state of transactional ids.

use std::collections::BTreeMap;

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Description, Participant};
use mainstem_kafka::api::describe_transactions::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, TopicData, TransactionState,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeTransactionsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let describe = |id: String| {
        if let Err(code) = call.check_transactional_id(Action::Describe, &id) {
            let error_code = code as i16;
            return TransactionState { error_code, transactional_id: id, ..TransactionState::default() };
        }
        let described = shard.with_transactions(io, |machine, _| machine.describe(&id));
        state(&call, id, described.unwrap_or(Err(Error::CoordinatorNotAvailable)))
    };
    let transaction_states = request.transactional_ids.into_iter().map(describe).collect();
    let response =
        DescribeTransactionsResponse { transaction_states, ..DescribeTransactionsResponse::default() };
    shard.reply::<DescribeTransactionsRequest>(io, &call, &response);
}

fn state(
    call: &RequestContext,
    transactional_id: String,
    described: Result<Description, Error>,
) -> TransactionState {
    match described {
        Ok(known) => TransactionState {
            error_code: 0,
            transactional_id,
            transaction_state: known.state.name().into(),
            transaction_timeout_ms: known.timeout_ms,
            transaction_start_time_ms: known.started_ms,
            producer_id: known.producer.id,
            producer_epoch: known.producer.epoch,
            topics: topics(call, &known.participants),
        },
        Err(error) => {
            TransactionState { error_code: error.code(), transactional_id, ..TransactionState::default() }
        }
    }
}

/// Partitions by topic, of topics that the sender may see. Groups have no partitions here.
fn topics(call: &RequestContext, participants: &[Participant]) -> Vec<TopicData> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for participant in participants {
        if let Participant::Partition { topic, index } = participant {
            topics.entry(topic).or_default().push(*index);
        }
    }
    topics.retain(|topic, _| call.allows(Action::Describe, ResourceKind::Topic, topic));
    topics.into_iter().map(|(topic, partitions)| TopicData { topic: topic.into(), partitions }).collect()
}
