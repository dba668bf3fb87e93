//! `DescribeTopicPartitions`: lists topics and their partitions, with paging (KIP-966).

use crate::Uuid;

api! {
    DescribeTopicPartitions, key 75, versions 0..=0, flexible 0..;

    request DescribeTopicPartitionsRequest {
        topics: Vec<TopicRequest>;
        response_partition_limit: i32 = 2000;
        cursor: Option<Cursor>;
    }

    struct TopicRequest {
        name: String;
    }

    struct Cursor {
        topic_name: String;
        partition_index: i32;
    }

    response DescribeTopicPartitionsResponse {
        throttle_time_ms: i32;
        topics: Vec<DescribeTopicPartitionsResponseTopic>;
        next_cursor: Option<Cursor>;
    }

    struct DescribeTopicPartitionsResponseTopic {
        error_code: i16;
        name: Option<String>;
        topic_id: Uuid;
        is_internal: bool;
        partitions: Vec<DescribeTopicPartitionsResponsePartition>;
        topic_authorized_operations: i32 = i32::MIN;
    }

    struct DescribeTopicPartitionsResponsePartition {
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
