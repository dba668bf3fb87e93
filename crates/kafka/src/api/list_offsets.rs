//! `ListOffsets`: finds offsets of partitions by timestamp, or the first, the last and other special offsets.

api! {
    ListOffsets, key 2, versions 1..=11, flexible 6..;

    request ListOffsetsRequest {
        replica_id: i32;
        isolation_level: i8, in 2..;
        topics: Vec<ListOffsetsTopic>;
        timeout_ms: i32, in 10..;
    }

    struct ListOffsetsTopic {
        name: String;
        partitions: Vec<ListOffsetsPartition>;
    }

    struct ListOffsetsPartition {
        partition_index: i32;
        current_leader_epoch: i32 = -1, in 4..;
        timestamp: i64;
    }

    response ListOffsetsResponse {
        throttle_time_ms: i32, in 2..;
        topics: Vec<ListOffsetsTopicResponse>;
    }

    struct ListOffsetsTopicResponse {
        name: String;
        partitions: Vec<ListOffsetsPartitionResponse>;
    }

    struct ListOffsetsPartitionResponse {
        partition_index: i32;
        error_code: i16;
        timestamp: i64 = -1;
        offset: i64 = -1;
        leader_epoch: i32 = -1, in 4..;
    }
}
