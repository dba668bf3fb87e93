//! `DescribeQuorum` (key 55): shows the replicas of the metadata (KIP-595, KIP-836).

use crate::Uuid;

request!(DescribeQuorumRequest => DescribeQuorumResponse, key 55, versions 0..=2, flexible 0..);

message! {
    pub struct DescribeQuorumRequest {
        topics: Vec<RequestTopicData>;
    }
}

message! {
    pub struct RequestTopicData {
        topic_name: String;
        partitions: Vec<RequestPartitionData>;
    }
}

message! {
    pub struct RequestPartitionData {
        partition_index: i32;
    }
}

message! {
    pub struct DescribeQuorumResponse {
        error_code: i16;
        error_message: Option<String>, in 2..;
        topics: Vec<ResponseTopicData>;
        nodes: Vec<Node>, in 2..;
    }
}

message! {
    pub struct ResponseTopicData {
        topic_name: String;
        partitions: Vec<ResponsePartitionData>;
    }
}

message! {
    pub struct ResponsePartitionData {
        partition_index: i32;
        error_code: i16;
        error_message: Option<String>, in 2..;
        leader_id: i32;
        leader_epoch: i32;
        high_watermark: i64;
        current_voters: Vec<ReplicaState>;
        observers: Vec<ReplicaState>;
    }
}

message! {
    pub struct ReplicaState {
        replica_id: i32;
        replica_directory_id: Uuid, in 2..;
        log_end_offset: i64;
        last_fetch_timestamp: i64 = -1, in 1..;
        last_caught_up_timestamp: i64 = -1, in 1..;
    }
}

message! {
    pub struct Node {
        node_id: i32;
        listeners: Vec<Listener>;
    }
}

message! {
    pub struct Listener {
        name: String;
        host: String;
        port: u16;
    }
}
