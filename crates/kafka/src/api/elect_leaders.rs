//! `ElectLeaders`: triggers leader elections for partitions.

api! {
    ElectLeaders, key 43, versions 0..=2, flexible 2..;

    request ElectLeadersRequest {
        election_type: i8, in 1..;
        topic_partitions: Option<Vec<TopicPartitions>>;
        timeout_ms: i32 = 60_000;
    }

    struct TopicPartitions {
        topic: String;
        partitions: Vec<i32>;
    }

    response ElectLeadersResponse {
        throttle_time_ms: i32;
        error_code: i16, in 1..;
        replica_election_results: Vec<ReplicaElectionResult>;
    }

    struct ReplicaElectionResult {
        topic: String;
        partition_result: Vec<PartitionResult>;
    }

    struct PartitionResult {
        partition_id: i32;
        error_code: i16;
        error_message: Option<String>;
    }
}
