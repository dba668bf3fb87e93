//! `OffsetDelete` (key 47): deletes committed offsets of a consumer group (KIP-496).

request!(OffsetDeleteRequest => OffsetDeleteResponse, key 47, versions 0..=0);

message! {
    pub struct OffsetDeleteRequest {
        group_id: String;
        topics: Vec<OffsetDeleteRequestTopic>;
    }
}

message! {
    pub struct OffsetDeleteRequestTopic {
        name: String;
        partitions: Vec<OffsetDeleteRequestPartition>;
    }
}

message! {
    pub struct OffsetDeleteRequestPartition {
        partition_index: i32;
    }
}

message! {
    pub struct OffsetDeleteResponse {
        error_code: i16;
        throttle_time_ms: i32;
        topics: Vec<OffsetDeleteResponseTopic>;
    }
}

message! {
    pub struct OffsetDeleteResponseTopic {
        name: String;
        partitions: Vec<OffsetDeleteResponsePartition>;
    }
}

message! {
    pub struct OffsetDeleteResponsePartition {
        partition_index: i32;
        error_code: i16;
    }
}
