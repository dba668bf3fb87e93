//! `ListPartitionReassignments` (key 46): lists the partitions on the move between brokers (KIP-455).

request!(ListPartitionReassignmentsRequest => ListPartitionReassignmentsResponse, key 46, versions 0..=0, flexible 0..);

message! {
    pub struct ListPartitionReassignmentsRequest {
        timeout_ms: i32 = 60_000;
        topics: Option<Vec<ListPartitionReassignmentsTopics>>;
    }
}

message! {
    pub struct ListPartitionReassignmentsTopics {
        name: String;
        partition_indexes: Vec<i32>;
    }
}

message! {
    pub struct ListPartitionReassignmentsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        topics: Vec<OngoingTopicReassignment>;
    }
}

message! {
    pub struct OngoingTopicReassignment {
        name: String;
        partitions: Vec<OngoingPartitionReassignment>;
    }
}

message! {
    pub struct OngoingPartitionReassignment {
        partition_index: i32;
        replicas: Vec<i32>;
        adding_replicas: Vec<i32>;
        removing_replicas: Vec<i32>;
    }
}
