//! `ListOffsets` (key 2): finds the offsets that belong to timestamps, or the first, the last, and other
//! marks of partitions.

request!(ListOffsetsRequest => ListOffsetsResponse, key 2, versions 1..=11, flexible 6..);

message! {
    pub struct ListOffsetsRequest {
        replica_id: i32;
        isolation_level: i8, in 2..;
        topics: Vec<ListOffsetsTopic>;
        timeout_ms: i32, in 10..;
    }
}

message! {
    pub struct ListOffsetsTopic {
        name: String;
        partitions: Vec<ListOffsetsPartition>;
    }
}

message! {
    pub struct ListOffsetsPartition {
        partition_index: i32;
        current_leader_epoch: i32 = -1, in 4..;
        timestamp: i64;
    }
}

message! {
    pub struct ListOffsetsResponse {
        throttle_time_ms: i32, in 2..;
        topics: Vec<ListOffsetsTopicResponse>;
    }
}

message! {
    pub struct ListOffsetsTopicResponse {
        name: String;
        partitions: Vec<ListOffsetsPartitionResponse>;
    }
}

message! {
    pub struct ListOffsetsPartitionResponse {
        partition_index: i32;
        error_code: i16;
        timestamp: i64 = -1;
        offset: i64 = -1;
        leader_epoch: i32 = -1, in 4..;
    }
}
