//! `OffsetForLeaderEpoch`: returns the end offsets of leader epochs (KIP-320).

api! {
    OffsetForLeaderEpoch, key 23, versions 2..=4, flexible 4..;

    request OffsetForLeaderEpochRequest {
        replica_id: i32 = -2, in 3..;
        topics: Vec<OffsetForLeaderTopic>;
    }

    struct OffsetForLeaderTopic {
        topic: String;
        partitions: Vec<OffsetForLeaderPartition>;
    }

    struct OffsetForLeaderPartition {
        partition: i32;
        current_leader_epoch: i32 = -1;
        leader_epoch: i32;
    }

    response OffsetForLeaderEpochResponse {
        throttle_time_ms: i32;
        topics: Vec<OffsetForLeaderTopicResult>;
    }

    struct OffsetForLeaderTopicResult {
        topic: String;
        partitions: Vec<EpochEndOffset>;
    }

    struct EpochEndOffset {
        error_code: i16;
        partition: i32;
        leader_epoch: i32 = -1;
        end_offset: i64 = -1;
    }
}
