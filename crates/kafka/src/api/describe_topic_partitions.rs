//! `DescribeTopicPartitions` (key 75): names topics and their partitions in pages (KIP-966).

use crate::Uuid;

request!(DescribeTopicPartitionsRequest => DescribeTopicPartitionsResponse, key 75, versions 0..=0, flexible 0..);

message! {
    pub struct DescribeTopicPartitionsRequest {
        topics: Vec<TopicRequest>;
        response_partition_limit: i32 = 2000;
        cursor: Option<Cursor>;
    }
}

message! {
    pub struct TopicRequest {
        name: String;
    }
}

message! {
    pub struct Cursor {
        topic_name: String;
        partition_index: i32;
    }
}

message! {
    pub struct DescribeTopicPartitionsResponse {
        throttle_time_ms: i32;
        topics: Vec<DescribeTopicPartitionsResponseTopic>;
        next_cursor: Option<Cursor>;
    }
}

message! {
    pub struct DescribeTopicPartitionsResponseTopic {
        error_code: i16;
        name: Option<String>;
        topic_id: Uuid;
        is_internal: bool;
        partitions: Vec<DescribeTopicPartitionsResponsePartition>;
        topic_authorized_operations: i32 = i32::MIN;
    }
}

message! {
    pub struct DescribeTopicPartitionsResponsePartition {
        error_code: i16;
        partition_index: i32;
        leader_id: i32;
        leader_epoch: i32 = -1;
        replica_nodes: Vec<i32>;
        isr_nodes: Vec<i32>;
        eligible_leader_replicas: Option<Vec<i32>>;
        last_known_elr: Option<Vec<i32>>;
        offline_replicas: Vec<i32>;
    }
}
