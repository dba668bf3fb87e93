//! `OffsetCommit`, versions 2 to 10: stores committed offsets of a group. Answered when they are durable.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    OffsetCommit, OffsetToCommit, PartitionResult, Response, TopicRequest, TopicResult,
};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// First version that reports an unknown group as `GROUP_ID_NOT_FOUND`.
const GROUP_ID_NOT_FOUND: i16 = 9;
/// First version that names topics by identifier (KIP-848).
const TOPIC_IDS: i16 = 10;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: OffsetCommitRequest,
) {
    let Some(mut request) = shard.divide(io, &call, request) else { return };
    if call.version >= TOPIC_IDS {
        for topic in &mut request.topics {
            topic.name = shard
                .env
                .catalogue()
                .topic_by_id(TopicId(topic.topic_id.0))
                .map_or_else(String::new, |known| known.name.to_string());
        }
    }
    if let Err(code) = call.check_group(Action::Group, &request.group_id) {
        return refuse(shard, io, &call, request, code);
    }
    let topics = request.topics.iter().map(|topic| {
        // Nothing is committed for topics that the sender may not read.
        let is_allowed = call.may_topic(Action::Consume, &topic.name);
        let known = shard.env.catalogue().topic(&topic.name).filter(|_| is_allowed);
        let count = known.map_or(0, |known| known.partitions());
        TopicRequest {
            name: &topic.name,
            id: topic.topic_id.0,
            partitions: topic.partitions.iter().map(|wanted| to_commit(wanted, count)).collect(),
        }
    });
    let commit = OffsetCommit {
        group_id: &request.group_id,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        generation: request.generation_id_or_member_epoch,
        retention_ms: u64::try_from(request.retention_time_ms).ok(),
        no_group: if call.version < GROUP_ID_NOT_FOUND {
            Error::IllegalGeneration
        } else {
            Error::GroupIdNotFound
        },
        topics: topics.collect(),
    };
    shard.call_groups(
        io,
        |groups, now_ms, caller| groups.handle_offset_commit(now_ms, &commit, caller),
        AfterGroupReply::OffsetCommit(call),
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::Commit(topics) = answer {
        let topics = topics.into_iter().map(|topic| topic_response(call, topic)).collect();
        let response = OffsetCommitResponse { topics, ..OffsetCommitResponse::default() };
        shard.reply::<OffsetCommitRequest>(io, call, &response);
    }
}

fn refuse(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: OffsetCommitRequest,
    code: ErrorCode,
) {
    let partition = |wanted: OffsetCommitRequestPartition| OffsetCommitResponsePartition {
        partition_index: wanted.partition_index,
        error_code: code as i16,
    };
    let topics = request.topics.into_iter().map(|topic| OffsetCommitResponseTopic {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic.partitions.into_iter().map(partition).collect(),
    });
    let response = OffsetCommitResponse { topics: topics.collect(), ..OffsetCommitResponse::default() };
    shard.reply::<OffsetCommitRequest>(io, call, &response);
}

fn to_commit(wanted: &OffsetCommitRequestPartition, count: i32) -> OffsetToCommit<'_> {
    OffsetToCommit {
        partition: wanted.partition_index,
        refused: (!(0..count).contains(&wanted.partition_index)).then_some(Error::UnknownTopicOrPartition),
        offset: wanted.committed_offset,
        leader_epoch: wanted.committed_leader_epoch,
        metadata: wanted.committed_metadata.as_deref().unwrap_or_default(),
    }
}

fn topic_response(call: &RequestContext, topic: TopicResult<PartitionResult>) -> OffsetCommitResponseTopic {
    // A topic with an unknown identifier has no name.
    let by_unknown_id = topic.name.is_empty() && topic.id != [0; 16];
    let denied = if by_unknown_id { None } else { call.check_topic(Action::Consume, &topic.name).err() };
    let partition = |done: PartitionResult| OffsetCommitResponsePartition {
        partition_index: done.partition,
        error_code: match (done.outcome, denied) {
            (Ok(()), _) => ErrorCode::None as i16,
            (Err(Error::UnknownTopicOrPartition), Some(code)) => code as i16,
            (Err(Error::UnknownTopicOrPartition), None) if by_unknown_id => ErrorCode::UnknownTopicId as i16,
            (Err(error), _) => error.code(),
        },
    };
    OffsetCommitResponseTopic {
        name: topic.name,
        topic_id: Uuid(topic.id),
        partitions: topic.partitions.into_iter().map(partition).collect(),
    }
}
