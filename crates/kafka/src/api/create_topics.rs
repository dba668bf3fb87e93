//! `CreateTopics` (key 19): creates topics.

use crate::Uuid;

request!(CreateTopicsRequest => CreateTopicsResponse, key 19, versions 2..=7, flexible 5..);

message! {
    pub struct CreateTopicsRequest {
        topics: Vec<CreatableTopic>;
        timeout_ms: i32 = 60_000;
        validate_only: bool;
    }
}

message! {
    pub struct CreatableTopic {
        name: String;
        num_partitions: i32;
        replication_factor: i16;
        assignments: Vec<CreatableReplicaAssignment>;
        configs: Vec<CreatableTopicConfig>;
    }
}

message! {
    pub struct CreatableReplicaAssignment {
        partition_index: i32;
        broker_ids: Vec<i32>;
    }
}

message! {
    pub struct CreatableTopicConfig {
        name: String;
        value: Option<String>;
    }
}

message! {
    pub struct CreateTopicsResponse {
        throttle_time_ms: i32;
        topics: Vec<CreatableTopicResult>;
    }
}

message! {
    pub struct CreatableTopicResult {
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
}

message! {
    pub struct CreatableTopicConfigs {
        name: String;
        value: Option<String>;
        read_only: bool;
        config_source: i8 = -1;
        is_sensitive: bool;
    }
}
