//! `DescribeLogDirs`, versions 1 to 5: how much of which partition lies on disk. Runs here; partitions are asked where
//! they live.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};
use mainstem_runtime::Io;

use crate::catalogue::{PartitionId, Topic};
use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::work::{PartAnswer, PartAsk};

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: DescribeLogDirsRequest) {
    let mut asked: Vec<(Arc<Topic>, Vec<i32>)> = Vec::new();
    match &request.topics {
        None => {
            let all = shard.catalogue.by_name.values();
            asked.extend(all.map(|topic| (Arc::clone(topic), (0..topic.partitions()).collect())));
        }
        Some(topics) => {
            for topic in topics {
                let Some(known) = shard.catalogue.topic(&topic.topic) else { continue };
                let mut indexes = topic.partitions.clone();
                indexes.retain(|index| known.home(*index).is_some());
                indexes.sort_unstable();
                indexes.dedup();
                asked.push((Arc::clone(known), indexes));
            }
        }
    }
    let asks = asked.iter().flat_map(|(topic, indexes)| {
        indexes.iter().map(|index| (PartitionId { topic: topic.id, index: *index }, PartAsk::Size))
    });
    let asks = asks.collect();
    shard.ask_partitions(io, asks, move |shard, io, answers| {
        let mut answers = answers.into_iter();
        let mut topics = Vec::with_capacity(asked.len());
        for (topic, indexes) in asked {
            // A partition that cannot be read, or has gone, takes no place that anybody knows of.
            let size = |(index, answer): (i32, PartAnswer)| match answer {
                PartAnswer::Size { bytes } => Some(DescribeLogDirsPartition {
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
            log_dir: shard.shared.config.log_dir.clone(),
            topics,
            ..DescribeLogDirsResult::default()
        };
        let response =
            DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() };
        shard.reply::<DescribeLogDirsRequest>(io, &call, &response);
    });
}
