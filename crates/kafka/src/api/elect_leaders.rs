//! `ElectLeaders` (key 43): has leaders of partitions elected.

request!(ElectLeadersRequest => ElectLeadersResponse, key 43, versions 0..=2, flexible 2..);

message! {
    pub struct ElectLeadersRequest {
        election_type: i8, in 1..;
        topic_partitions: Option<Vec<TopicPartitions>>;
        timeout_ms: i32 = 60_000;
    }
}

message! {
    pub struct TopicPartitions {
        topic: String;
        partitions: Vec<i32>;
    }
}

message! {
    pub struct ElectLeadersResponse {
        throttle_time_ms: i32;
        error_code: i16, in 1..;
        replica_election_results: Vec<ReplicaElectionResult>;
    }
}

message! {
    pub struct ReplicaElectionResult {
        topic: String;
        partition_result: Vec<PartitionResult>;
    }
}

message! {
    pub struct PartitionResult {
        partition_id: i32;
        error_code: i16;
        error_message: Option<String>;
    }
}
