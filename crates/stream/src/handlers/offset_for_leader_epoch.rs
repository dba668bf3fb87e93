//! `OffsetForLeaderEpoch`, versions 2 to 4: where leader epochs end. There is one epoch, 0, and it ends where the
//! partition does; a topic that is made anew begins with it as well. Runs here; partitions are asked where they live.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
};
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::work::{PartAnswer, PartAsk};

/// The leader epoch of all partitions.
pub(crate) const LEADER_EPOCH: i32 = 0;
/// Stands for no leader epoch.
pub(crate) const NO_EPOCH: i32 = -1;

/// Whether a client, which has heard of the leader epoch `current`, may go on with this one (KIP-320).
///
/// # Errors
/// Its epoch is older, or newer.
pub(crate) fn check_epoch(current: i32) -> Result<(), ErrorCode> {
    match current {
        NO_EPOCH | LEADER_EPOCH => Ok(()),
        ..NO_EPOCH => Err(ErrorCode::FencedLeaderEpoch),
        _ => Err(ErrorCode::UnknownLeaderEpoch),
    }
}

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    request: OffsetForLeaderEpochRequest,
) {
    let mut asks = Vec::new();
    for topic in &request.topics {
        let id = shard.catalogue.topic(&topic.topic).map_or_else(Default::default, |topic| topic.id);
        let ask = |part: &OffsetForLeaderPartition| {
            (PartitionId { topic: id, index: part.partition }, PartAsk::Reach)
        };
        asks.extend(topic.partitions.iter().map(ask));
    }
    shard.ask_partitions(io, asks, move |shard, io, answers| {
        let mut answers = answers.into_iter();
        let topics = request.topics.iter().map(|topic| OffsetForLeaderTopicResult {
            topic: topic.topic.clone(),
            partitions: topic.partitions.iter().zip(answers.by_ref()).map(part_response).collect(),
        });
        let topics = topics.collect();
        let response = OffsetForLeaderEpochResponse { topics, ..Default::default() };
        shard.reply::<OffsetForLeaderEpochRequest>(io, &call, &response);
    });
}

fn part_response((part, answer): (&OffsetForLeaderPartition, PartAnswer)) -> EpochEndOffset {
    let mut response = EpochEndOffset { partition: part.partition, ..Default::default() };
    match (answer, check_epoch(part.current_leader_epoch)) {
        (PartAnswer::Failed(code), _) | (_, Err(code)) => response.error_code = code as i16,
        (PartAnswer::Reach(reach), Ok(())) if part.leader_epoch == LEADER_EPOCH => {
            response.leader_epoch = LEADER_EPOCH;
            response.end_offset = reach.high_watermark.cast_signed();
        }
        // Of epochs that never were nothing is known.
        _ => {}
    }
    response
}
