//! `OffsetDelete`, version 0: deletes committed offsets of a group (KIP-496).

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    OffsetDelete, OffsetToDelete, PartitionResult, Response, TopicRequest, TopicResult,
};
use mainstem_kafka::api::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: OffsetDeleteRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    if let Err(code) = call.check_group(Action::Delete, &request.group_id) {
        let response = OffsetDeleteResponse { error_code: code as i16, ..OffsetDeleteResponse::default() };
        return shard.reply::<OffsetDeleteRequest>(io, &call, &response);
    }
    let topics = request.topics.iter().map(|topic| {
        let is_allowed = call.may_topic(Action::Consume, &topic.name);
        let known = shard.env.catalogue().topic(&topic.name).filter(|_| is_allowed);
        let count = known.map_or(0, |known| known.partitions());
        let indexes = topic.partitions.iter().map(|wanted| wanted.partition_index);
        TopicRequest {
            name: &topic.name,
            id: [0; 16],
            partitions: indexes
                .map(|partition| OffsetToDelete { partition, exists: (0..count).contains(&partition) })
                .collect(),
        }
    });
    let delete = OffsetDelete { group_id: &request.group_id, topics: topics.collect() };
    shard.call_groups(
        io,
        |groups, _, caller| groups.handle_offset_delete(&delete, caller),
        AfterGroupReply::OffsetDelete(call),
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::OffsetDelete(outcome) = answer {
        shard.reply::<OffsetDeleteRequest>(io, call, &response(call, outcome));
    }
}

fn response(
    call: &RequestContext,
    outcome: Result<Vec<TopicResult<PartitionResult>>, Error>,
) -> OffsetDeleteResponse {
    match outcome {
        Ok(topics) => {
            let topics = topics.into_iter().map(|topic| {
                let denied = call.check_topic(Action::Consume, &topic.name).err();
                let partition = |done: PartitionResult| OffsetDeleteResponsePartition {
                    partition_index: done.partition,
                    error_code: match denied {
                        Some(code) => code as i16,
                        None => done.outcome.err().map_or(0, Error::code),
                    },
                };
                let partitions = topic.partitions.into_iter().map(partition).collect();
                OffsetDeleteResponseTopic { name: topic.name, partitions }
            });
            OffsetDeleteResponse { topics: topics.collect(), ..OffsetDeleteResponse::default() }
        }
        Err(error) => OffsetDeleteResponse { error_code: error.code(), ..OffsetDeleteResponse::default() },
    }
}
