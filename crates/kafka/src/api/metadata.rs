//! `Metadata`: lists brokers, topics, partitions and their leaders.

use crate::Uuid;

api! {
    Metadata, key 3, versions 0..=13, flexible 9..;

    request MetadataRequest {
        topics: Option<Vec<MetadataRequestTopic>>, null 1..;
        allow_auto_topic_creation: bool = true, in 4..;
        include_cluster_authorized_operations: bool, in 8..=10;
        include_topic_authorized_operations: bool, in 8..;
    }

    struct MetadataRequestTopic {
        topic_id: Uuid, in 10..;
        name: Option<String>, null 10..;
    }

    response MetadataResponse {
        throttle_time_ms: i32, in 3..;
        brokers: Vec<MetadataResponseBroker>;
        cluster_id: Option<String>, in 2..;
        controller_id: i32 = -1, in 1..;
        topics: Vec<MetadataResponseTopic>;
        cluster_authorized_operations: i32 = i32::MIN, in 8..=10;
        error_code: i16, in 13..;
    }

    struct MetadataResponseBroker {
        node_id: i32;
        host: String;
        port: i32;
        rack: Option<String>, in 1..;
    }

    struct MetadataResponseTopic {
        error_code: i16;
        name: Option<String>, null 12..;
        topic_id: Uuid, in 10..;
        is_internal: bool, in 1..;
        partitions: Vec<MetadataResponsePartition>;
        topic_authorized_operations: i32 = i32::MIN, in 8..;
    }

    struct MetadataResponsePartition {
        error_code: i16;
        partition_index: i32;
        leader_id: i32;
        leader_epoch: i32 = -1, in 7..;
        replica_nodes: Vec<i32>;
        isr_nodes: Vec<i32>;
        offline_replicas: Vec<i32>, in 5..;
    }
}
