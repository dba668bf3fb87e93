//! `CreateTopics`: creates topics.

use crate::Uuid;

api! {
    CreateTopics, key 19, versions 2..=7, flexible 5..;

    request CreateTopicsRequest {
        topics: Vec<CreatableTopic>;
        timeout_ms: i32 = 60_000;
        validate_only: bool;
    }

    struct CreatableTopic {
        name: String;
        num_partitions: i32;
        replication_factor: i16;
        assignments: Vec<CreatableReplicaAssignment>;
        configs: Vec<CreatableTopicConfig>;
    }

    struct CreatableReplicaAssignment {
        partition_index: i32;
        broker_ids: Vec<i32>;
    }

    struct CreatableTopicConfig {
        name: String;
        value: Option<String>;
    }

    response CreateTopicsResponse {
        throttle_time_ms: i32;
        topics: Vec<CreatableTopicResult>;
    }

    struct CreatableTopicResult {
        name: String;
        topic_id: Uuid, in 7..;
        error_code: i16;
        error_message: Option<String>;
        num_partitions: i32 = -1, in 5..;
        replication_factor: i16 = -1, in 5..;
        configs: Option<Vec<CreatableTopicConfigs>>, in 5..;
    }
    tagged {
        0 => topic_config_error_code: i16, in 5..;
    }

    struct CreatableTopicConfigs {
        name: String;
        value: Option<String>;
        read_only: bool;
        config_source: i8 = -1;
        is_sensitive: bool;
    }
}
