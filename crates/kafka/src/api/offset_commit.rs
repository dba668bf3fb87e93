//! `OffsetCommit` (key 8): keeps the offsets that a consumer group has come to.

use crate::Uuid;

request!(OffsetCommitRequest => OffsetCommitResponse, key 8, versions 2..=10, flexible 8..);

message! {
    pub struct OffsetCommitRequest {
        group_id: String;
        generation_id_or_member_epoch: i32 = -1;
        member_id: String;
        group_instance_id: Option<String>, in 7..;
        retention_time_ms: i64 = -1, in ..=4;
        topics: Vec<OffsetCommitRequestTopic>;
    }
}

message! {
    pub struct OffsetCommitRequestTopic {
        name: String, in ..=9;
        topic_id: Uuid, in 10..;
        partitions: Vec<OffsetCommitRequestPartition>;
    }
}

message! {
    pub struct OffsetCommitRequestPartition {
        partition_index: i32;
        committed_offset: i64;
        committed_leader_epoch: i32 = -1, in 6..;
        committed_metadata: Option<String>;
    }
}

message! {
    pub struct OffsetCommitResponse {
        throttle_time_ms: i32, in 3..;
        topics: Vec<OffsetCommitResponseTopic>;
    }
}

message! {
    pub struct OffsetCommitResponseTopic {
        name: String, in ..=9;
        topic_id: Uuid, in 10..;
        partitions: Vec<OffsetCommitResponsePartition>;
    }
}

message! {
    pub struct OffsetCommitResponsePartition {
        partition_index: i32;
        error_code: i16;
    }
}
