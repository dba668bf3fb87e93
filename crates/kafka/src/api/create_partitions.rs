//! `CreatePartitions`: adds partitions to topics.

api! {
    CreatePartitions, key 37, versions 0..=3, flexible 2..;

    request CreatePartitionsRequest {
        topics: Vec<CreatePartitionsTopic>;
        timeout_ms: i32;
        validate_only: bool;
    }

    struct CreatePartitionsTopic {
        name: String;
        count: i32;
        assignments: Option<Vec<CreatePartitionsAssignment>>;
    }

    struct CreatePartitionsAssignment {
        broker_ids: Vec<i32>;
    }

    response CreatePartitionsResponse {
        throttle_time_ms: i32;
        results: Vec<CreatePartitionsTopicResult>;
    }

    struct CreatePartitionsTopicResult {
        name: String;
        error_code: i16;
        error_message: Option<String>;
    }
}
