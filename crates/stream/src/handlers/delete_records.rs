//! `DeleteRecords`, versions 0 to 2: lets partitions begin at an offset (KIP-107). Runs here; partitions are asked
//! where they live.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse,
    DeleteRecordsTopicResult,
};
use mainstem_log::Cleanup;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::work::{PartAnswer, PartAsk};

/// The low watermark of a partition whose records were not deleted.
const NOTHING: i64 = -1;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: DeleteRecordsRequest) {
    let (mut asks, mut keeps_keys) = (Vec::new(), Vec::new());
    for topic in &request.topics {
        let known = shard.catalogue.topic(&topic.name);
        // What only compaction may remove cannot be deleted from the front.
        let is_kept = known.is_some_and(|known| known.config.options.cleanup == Cleanup::Compact);
        keeps_keys.push(is_kept);
        let id = known.filter(|_| !is_kept).map_or_else(Default::default, |topic| topic.id);
        asks.extend(topic.partitions.iter().map(|part| {
            let id = PartitionId { topic: id, index: part.partition_index };
            (id, PartAsk::DeleteBefore(part.offset))
        }));
    }
    shard.ask_partitions(io, asks, move |shard, io, answers| {
        let mut answers = answers.into_iter();
        let mut topics = Vec::with_capacity(request.topics.len());
        for (topic, is_kept) in request.topics.into_iter().zip(keeps_keys) {
            let mut result = |part: &DeleteRecordsPartition| {
                let answer = answers.next().unwrap_or(PartAnswer::Failed(ErrorCode::UnknownServerError));
                let answer = if is_kept { PartAnswer::Failed(ErrorCode::PolicyViolation) } else { answer };
                part_result(part.partition_index, &answer)
            };
            let partitions = topic.partitions.iter().map(&mut result).collect();
            topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
        }
        let response = DeleteRecordsResponse { topics, ..DeleteRecordsResponse::default() };
        shard.reply::<DeleteRecordsRequest>(io, &call, &response);
    });
}

fn part_result(partition_index: i32, answer: &PartAnswer) -> DeleteRecordsPartitionResult {
    let (low_watermark, code) = match *answer {
        PartAnswer::DeletedBefore(offset) => (offset, ErrorCode::None),
        PartAnswer::Failed(code) => (NOTHING, code),
        _ => (NOTHING, ErrorCode::UnknownServerError),
    };
    DeleteRecordsPartitionResult { partition_index, low_watermark, error_code: code as i16 }
}
