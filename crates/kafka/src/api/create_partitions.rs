//! `CreatePartitions` (key 37): adds partitions to topics.

request!(CreatePartitionsRequest => CreatePartitionsResponse, key 37, versions 0..=3, flexible 2..);

message! {
    pub struct CreatePartitionsRequest {
        topics: Vec<CreatePartitionsTopic>;
        timeout_ms: i32;
        validate_only: bool;
    }
}

message! {
    pub struct CreatePartitionsTopic {
        name: String;
        count: i32;
        assignments: Option<Vec<CreatePartitionsAssignment>>;
    }
}

message! {
    pub struct CreatePartitionsAssignment {
        broker_ids: Vec<i32>;
    }
}

message! {
    pub struct CreatePartitionsResponse {
        throttle_time_ms: i32;
        results: Vec<CreatePartitionsTopicResult>;
    }
}

message! {
    pub struct CreatePartitionsTopicResult {
        name: String;
        error_code: i16;
        error_message: Option<String>;
    }
}
