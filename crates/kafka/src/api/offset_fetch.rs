//! `OffsetFetch`: returns the committed offsets of consumer groups.

use crate::Uuid;

api! {
    OffsetFetch, key 9, versions 1..=10, flexible 6..;

    request OffsetFetchRequest {
        group_id: String, in ..=7;
        topics: Option<Vec<OffsetFetchRequestTopic>>, in ..=7, null 2..=7;
        groups: Vec<OffsetFetchRequestGroup>, in 8..;
        require_stable: bool, in 7..;
    }

    struct OffsetFetchRequestTopic {
        name: String;
        partition_indexes: Vec<i32>;
    }

    struct OffsetFetchRequestGroup {
        group_id: String;
        member_id: Option<String>, in 9..;
        member_epoch: i32 = -1, in 9..;
        topics: Option<Vec<OffsetFetchRequestTopics>>;
    }

    struct OffsetFetchRequestTopics {
        name: String, in ..=9;
        topic_id: Uuid, in 10..;
        partition_indexes: Vec<i32>;
    }

    response OffsetFetchResponse {
        throttle_time_ms: i32, in 3..;
        topics: Vec<OffsetFetchResponseTopic>, in ..=7;
        error_code: i16, in 2..=7;
        groups: Vec<OffsetFetchResponseGroup>, in 8..;
    }

    struct OffsetFetchResponseTopic {
        name: String;
        partitions: Vec<OffsetFetchResponsePartition>;
    }

    struct OffsetFetchResponsePartition {
        partition_index: i32;
        committed_offset: i64;
        committed_leader_epoch: i32 = -1, in 5..;
        metadata: Option<String>;
        error_code: i16;
    }

    struct OffsetFetchResponseGroup {
        group_id: String;
        topics: Vec<OffsetFetchResponseTopics>;
        error_code: i16;
    }

    struct OffsetFetchResponseTopics {
        name: String, in ..=9;
        topic_id: Uuid, in 10..;
        partitions: Vec<OffsetFetchResponsePartitions>;
    }

    struct OffsetFetchResponsePartitions {
        partition_index: i32;
        committed_offset: i64;
        committed_leader_epoch: i32 = -1;
        metadata: Option<String>;
        error_code: i16;
    }
}
