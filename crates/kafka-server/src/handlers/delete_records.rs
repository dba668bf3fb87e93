//! `DeleteRecords`, versions 0 to 2: moves the log start offset of partitions forward (KIP-107).

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse,
    DeleteRecordsTopicResult,
};
use mainstem_log::Cleanup;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::partition_message::{PartitionQuery, PartitionQueryResult};
use crate::pending::AfterQueries;
use crate::queue_rights::check_deletion;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// The low watermark of a partition whose records were not deleted.
const NOTHING: i64 = -1;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DeleteRecordsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let (mut queries, mut refusals) = (Vec::new(), Vec::new());
    for topic in &request.topics {
        let known = shard.env.catalogue().topic(&topic.name);
        // Kafka requires `delete` in the cleanup policy.
        let is_compact_only =
            known.is_some_and(|known| known.config.partition.options.cleanup == Cleanup::Compact);
        let denied = check_deletion(shard.env.catalogue(), &call, &topic.name).err();
        let id = known
            .filter(|_| denied.is_none() && !is_compact_only)
            .map_or_else(Default::default, |topic| topic.id);
        refusals.push(denied.or(is_compact_only.then_some(ErrorCode::PolicyViolation)));
        queries.extend(topic.partitions.iter().map(|part| {
            let id = PartitionId { topic: id, index: part.partition_index };
            (id, PartitionQuery::DeleteBefore(part.offset))
        }));
    }
    shard.query_partitions(io, queries, AfterQueries::DeleteRecords { call, request, refusals });
}

/// Answers with the results of the partitions.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: DeleteRecordsRequest,
    refusals: Vec<Option<ErrorCode>>,
    answers: Vec<PartitionQueryResult>,
) {
    let mut answers = answers.into_iter();
    let mut topics = Vec::with_capacity(request.topics.len());
    for (topic, refusal) in request.topics.into_iter().zip(refusals) {
        let mut result = |part: &DeleteRecordsPartition| {
            let answer =
                answers.next().unwrap_or(PartitionQueryResult::Failed(ErrorCode::UnknownServerError));
            let answer = refusal.map_or(answer, PartitionQueryResult::Failed);
            if let PartitionQueryResult::DeletedBefore(offset) = answer {
                let start = [(format!("start-offset-{}", part.partition_index), offset.to_string())];
                call.note_change("delete-records", &topic.name, None, Some(start.into()));
            }
            part_result(part.partition_index, &answer)
        };
        let partitions = topic.partitions.iter().map(&mut result).collect();
        topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    let response = DeleteRecordsResponse { topics, ..DeleteRecordsResponse::default() };
    shard.reply::<DeleteRecordsRequest>(io, call, &response);
}

fn part_result(partition_index: i32, answer: &PartitionQueryResult) -> DeleteRecordsPartitionResult {
    let (low_watermark, code) = match *answer {
        PartitionQueryResult::DeletedBefore(offset) => (offset, ErrorCode::None),
        PartitionQueryResult::Failed(code) => (NOTHING, code),
        _ => (NOTHING, ErrorCode::UnknownServerError),
    };
    DeleteRecordsPartitionResult { partition_index, low_watermark, error_code: code as i16 }
}
