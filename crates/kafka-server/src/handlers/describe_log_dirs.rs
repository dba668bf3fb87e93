//! `DescribeLogDirs`, versions 1 to 5: returns the size of each partition in the only log directory.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::catalogue::{PartitionId, Topic};
use crate::partition_message::{PartitionQuery, PartitionQueryResult};
use crate::pending::AfterQueries;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeLogDirsRequest,
) {
    if let Err(code) = call.check_cluster(Action::Describe) {
        let response =
            DescribeLogDirsResponse { error_code: code as i16, ..DescribeLogDirsResponse::default() };
        return shard.reply::<DescribeLogDirsRequest>(io, &call, &response);
    }
    let mut requested: Vec<(Arc<Topic>, Vec<i32>)> = Vec::new();
    match &request.topics {
        None => {
            let all = shard.env.catalogue().by_name.values();
            requested.extend(all.map(|topic| (Arc::clone(topic), (0..topic.partitions()).collect())));
        }
        Some(topics) => {
            for topic in topics {
                let Some(known) = shard.env.catalogue().topic(&topic.topic) else { continue };
                let mut indexes = topic.partitions.clone();
                indexes.retain(|index| known.store_id(*index).is_some());
                indexes.sort_unstable();
                indexes.dedup();
                requested.push((Arc::clone(known), indexes));
            }
        }
    }
    let queries = requested.iter().flat_map(|(topic, indexes)| {
        indexes.iter().map(|index| (PartitionId { topic: topic.id, index: *index }, PartitionQuery::Size))
    });
    let queries = queries.collect();
    shard.query_partitions(io, queries, AfterQueries::DescribeLogDirs { call, topics: requested });
}

/// Answers with the results of the partitions.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    requested: Vec<(Arc<Topic>, Vec<i32>)>,
    answers: Vec<PartitionQueryResult>,
) {
    let mut answers = answers.into_iter();
    let mut topics = Vec::with_capacity(requested.len());
    for (topic, indexes) in requested {
        // A partition that cannot be read, or was deleted, is left out.
        let size = |(index, answer): (i32, PartitionQueryResult)| match answer {
            PartitionQueryResult::Size { bytes } => Some(DescribeLogDirsPartition {
                partition_index: index,
                partition_size: bytes.cast_signed(),
                ..DescribeLogDirsPartition::default()
            }),
            _ => None,
        };
        let partitions = indexes.into_iter().zip(answers.by_ref()).filter_map(size).collect();
        topics.push(DescribeLogDirsTopic { name: topic.name.to_string(), partitions });
    }
    let result = DescribeLogDirsResult {
        error_code: ErrorCode::None as i16,
        log_dir: shard.env.shared().config.log_dir.clone(),
        topics,
        ..DescribeLogDirsResult::default()
    };
    let response = DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() };
    shard.reply::<DescribeLogDirsRequest>(io, call, &response);
}
