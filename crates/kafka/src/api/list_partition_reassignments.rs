//! `ListPartitionReassignments`: lists partition reassignments in progress (KIP-455).

api! {
    ListPartitionReassignments, key 46, versions 0..=0, flexible 0..;

    request ListPartitionReassignmentsRequest {
        timeout_ms: i32 = 60_000;
        topics: Option<Vec<ListPartitionReassignmentsTopics>>;
    }

    struct ListPartitionReassignmentsTopics {
        name: String;
        partition_indexes: Vec<i32>;
    }

    response ListPartitionReassignmentsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        topics: Vec<OngoingTopicReassignment>;
    }

    struct OngoingTopicReassignment {
        name: String;
        partitions: Vec<OngoingPartitionReassignment>;
    }

    struct OngoingPartitionReassignment {
        partition_index: i32;
        replicas: Vec<i32>;
        adding_replicas: Vec<i32>;
        removing_replicas: Vec<i32>;
    }
}
