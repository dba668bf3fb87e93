//! `AlterPartitionReassignments`: starts or cancels partition reassignments (KIP-455).

api! {
    AlterPartitionReassignments, key 45, versions 0..=1, flexible 0..;

    request AlterPartitionReassignmentsRequest {
        timeout_ms: i32 = 60_000;
        allow_replication_factor_change: bool = true, in 1..;
        topics: Vec<ReassignableTopic>;
    }

    struct ReassignableTopic {
        name: String;
        partitions: Vec<ReassignablePartition>;
    }

    struct ReassignablePartition {
        partition_index: i32;
        replicas: Option<Vec<i32>>;
    }

    response AlterPartitionReassignmentsResponse {
        throttle_time_ms: i32;
        allow_replication_factor_change: bool = true, in 1..;
        error_code: i16;
        error_message: Option<String>;
        responses: Vec<ReassignableTopicResponse>;
    }

    struct ReassignableTopicResponse {
        name: String;
        partitions: Vec<ReassignablePartitionResponse>;
    }

    struct ReassignablePartitionResponse {
        partition_index: i32;
        error_code: i16;
        error_message: Option<String>;
    }
}
