//! `OffsetCommit`: stores the offsets of a consumer group.

use crate::Uuid;

api! {
    OffsetCommit, key 8, versions 2..=10, flexible 8..;

    request OffsetCommitRequest {
        group_id: String;
        generation_id_or_member_epoch: i32 = -1;
        member_id: String;
        group_instance_id: Option<String>, in 7..;
        retention_time_ms: i64 = -1, in ..=4;
        topics: Vec<OffsetCommitRequestTopic>;
    }

    struct OffsetCommitRequestTopic {
        name: String, in ..=9;
        topic_id: Uuid, in 10..;
        partitions: Vec<OffsetCommitRequestPartition>;
    }

    struct OffsetCommitRequestPartition {
        partition_index: i32;
        committed_offset: i64;
        committed_leader_epoch: i32 = -1, in 6..;
        committed_metadata: Option<String>;
    }

    response OffsetCommitResponse {
        throttle_time_ms: i32, in 3..;
        topics: Vec<OffsetCommitResponseTopic>;
    }

    struct OffsetCommitResponseTopic {
        name: String, in ..=9;
        topic_id: Uuid, in 10..;
        partitions: Vec<OffsetCommitResponsePartition>;
    }

    struct OffsetCommitResponsePartition {
        partition_index: i32;
        error_code: i16;
    }
}
