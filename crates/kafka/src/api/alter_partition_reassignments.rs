//! `AlterPartitionReassignments` (key 45): moves partitions between brokers (KIP-455).

request!(
    AlterPartitionReassignmentsRequest => AlterPartitionReassignmentsResponse,
    key 45, versions 0..=1, flexible 0..
);

message! {
    pub struct AlterPartitionReassignmentsRequest {
        timeout_ms: i32 = 60_000;
        allow_replication_factor_change: bool = true, in 1..;
        topics: Vec<ReassignableTopic>;
    }
}

message! {
    pub struct ReassignableTopic {
        name: String;
        partitions: Vec<ReassignablePartition>;
    }
}

message! {
    pub struct ReassignablePartition {
        partition_index: i32;
        replicas: Option<Vec<i32>>;
    }
}

message! {
    pub struct AlterPartitionReassignmentsResponse {
        throttle_time_ms: i32;
        allow_replication_factor_change: bool = true, in 1..;
        error_code: i16;
        error_message: Option<String>;
        responses: Vec<ReassignableTopicResponse>;
    }
}

message! {
    pub struct ReassignableTopicResponse {
        name: String;
        partitions: Vec<ReassignablePartitionResponse>;
    }
}

message! {
    pub struct ReassignablePartitionResponse {
        partition_index: i32;
        error_code: i16;
        error_message: Option<String>;
    }
}
