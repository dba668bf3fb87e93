//! `OffsetDelete`: deletes committed offsets of a consumer group (KIP-496).

api! {
    OffsetDelete, key 47, versions 0..=0;

    request OffsetDeleteRequest {
        group_id: String;
        topics: Vec<OffsetDeleteRequestTopic>;
    }

    struct OffsetDeleteRequestTopic {
        name: String;
        partitions: Vec<OffsetDeleteRequestPartition>;
    }

    struct OffsetDeleteRequestPartition {
        partition_index: i32;
    }

    response OffsetDeleteResponse {
        error_code: i16;
        throttle_time_ms: i32;
        topics: Vec<OffsetDeleteResponseTopic>;
    }

    struct OffsetDeleteResponseTopic {
        name: String;
        partitions: Vec<OffsetDeleteResponsePartition>;
    }

    struct OffsetDeleteResponsePartition {
        partition_index: i32;
        error_code: i16;
    }
}
