//! `OffsetForLeaderEpoch` (key 23): says where leader epochs end in a log (KIP-320).

request!(OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse, key 23, versions 2..=4, flexible 4..);

message! {
    pub struct OffsetForLeaderEpochRequest {
        replica_id: i32 = -2, in 3..;
        topics: Vec<OffsetForLeaderTopic>;
    }
}

message! {
    pub struct OffsetForLeaderTopic {
        topic: String;
        partitions: Vec<OffsetForLeaderPartition>;
    }
}

message! {
    pub struct OffsetForLeaderPartition {
        partition: i32;
        current_leader_epoch: i32 = -1;
        leader_epoch: i32;
    }
}

message! {
    pub struct OffsetForLeaderEpochResponse {
        throttle_time_ms: i32;
        topics: Vec<OffsetForLeaderTopicResult>;
    }
}

message! {
    pub struct OffsetForLeaderTopicResult {
        topic: String;
        partitions: Vec<EpochEndOffset>;
    }
}

message! {
    pub struct EpochEndOffset {
        error_code: i16;
        partition: i32;
        leader_epoch: i32 = -1;
        end_offset: i64 = -1;
    }
}
